"""The confusion matrix as a picture: what was right against what was said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

#: Verdicts that are no cause, last on both axes.
_LAST = ("healthy", "no_demand", "unknown")


def draw_confusion(confusion: Mapping[tuple[str, str], int], path: Path) -> None:
    """Write the matrix as SVG; rows are what was right, columns what was said.

    Args:
        confusion: (right, said) to count.
        path: File to write.
    """
    words = {word for pair in confusion for word in pair}
    order = [*sorted(words - {*_LAST}), *(word for word in _LAST if word in words)]
    place = {word: index for index, word in enumerate(order)}
    counts = [[confusion.get((right, said), 0) for said in order] for right in order]
    totals = [max(sum(row), 1) for row in counts]
    shares = [[n / total for n in row] for row, total in zip(counts, totals, strict=True)]
    size = 2.5 + 0.27 * len(order)
    # A fixed salt and no date: the same figures make the same file.
    with mpl.rc_context({"svg.hashsalt": "confusion", "svg.fonttype": "none", "font.size": 7}):
        figure = Figure(figsize=(size, size), layout="constrained")
        axes = figure.subplots()
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(order)), order, rotation=90)
        axes.set_yticks(range(len(order)), order)
        axes.set_xlabel("said (stated as found; else unknown)")
        axes.set_ylabel("right")
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        for (right, said), n in confusion.items():
            row, column = place[right], place[said]
            color = "white" if shares[row][column] > 0.5 else "black"
            axes.text(column, row, str(n), ha="center", va="center", color=color)
        figure.savefig(path, format="svg", metadata={"Date": None})
