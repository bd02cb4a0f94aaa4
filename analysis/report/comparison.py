"""A comparison of two recordings as plain text, under 100 columns."""

from __future__ import annotations

import textwrap

from analysis.compare import LEAST_POINTS, LEAST_SHARE, Change, Comparison, Side
from analysis.compared_figures import Measure
from analysis.finding import Status
from analysis.report.terminal import WIDTH
from analysis.report.words import REASON_TEXT, STATE_TEXT, duration_unit

#: Longer names of figures get a line of their own.
_NAME_WIDTH = 30
_GROUPS = {
    "load": "LOAD",
    "service": "SERVICE",
    "launches": "LAUNCHES",
    "scheduling": "LAUNCHING THREAD",
    "device": "DEVICE",
    "process": "PROCESS",
    "budget": "BUDGET OF DEVICE TIME",
}


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as text."""
    changed = comparison.changed
    n_all = len(comparison.changes)
    level = f"{100 * comparison.deciding_level:.4g} %"
    lines = [_head(comparison), ""]
    lines += [_side("before", comparison.before), _side("after", comparison.after), ""]
    if comparison.before.attribution.is_simulated or comparison.after.attribution.is_simulated:
        lines += ["The device was simulated: its times are not a GPU's.", ""]
    if changed:
        lines += [f"CHANGED ({len(changed)} of {n_all} figures; intervals of {level})", ""]
        lines += _table(changed)
    rest = [item for item in comparison.changes if not item.is_beyond_noise]
    if rest:
        head = f"NO CHANGE BEYOND NOISE ({len(rest)} of {n_all} figures; intervals of {level})"
        lines += [head, ""]
        lines += _table(rest)
    if comparison.not_compared:
        lines += ["NOT COMPARED", *_list(comparison.not_compared), ""]
    if comparison.notes:
        lines += ["LOSSES AND GAPS", *_list(comparison.notes), ""]
    lines += textwrap.wrap(
        f"! marks what is worse. In brackets the {level} interval of the difference, from how each "
        "recording varies within itself: where it holds 0, the difference may be noise. At that "
        "level all figures together are wrong in 5 % of cases. Last the samples before/after. "
        f"~ marks what leaves 0 out but is less than {100 * LEAST_SHARE:g} %, or "
        f"{LEAST_POINTS:g} point of a percentage: too small to be told as a change. "
        "Two recordings of one and the same setup can differ by more than each varies: "
        "compare two of those first if a change is small.",
        WIDTH,
    )
    return "\n".join(lines)


def _head(comparison: Comparison) -> str:
    finding = comparison.regression
    if finding.status is Status.FOUND:
        text = f"REGRESSION ({100 * finding.confidence:.0f} % sure): {finding.summary}"
    elif finding.status is Status.UNDECIDED:
        text = f"UNDECIDED: {finding.summary} ({finding.undecided_because}). {finding.settled_by}"
    elif comparison.changed:
        text = "NO REGRESSION is proven, but figures changed: see below."
        if finding.status is Status.NOT_APPLICABLE:
            text += f" Whether the service is slower cannot be told: {finding.undecided_because}."
    else:
        text = f"NO CHANGE BEYOND NOISE in {len(comparison.changes)} figures."
    return textwrap.fill(text, WIDTH)


def _side(word: str, side: Side) -> str:
    verdict = side.attribution.verdict
    seconds = (side.end_ns - side.start_ns) / 1e9
    return (
        f"  {word:<6}  {side.name}: {seconds:.1f} s in {side.n_blocks} blocks, "
        f"verdict {verdict.cause} ({100 * verdict.confidence:.0f} % sure)"
    )


def _table(changes: list[Change]) -> list[str]:
    """Figures in aligned columns, group by group; those that are worse are marked."""
    cells = {
        id(item): (
            _values(item),
            _difference(item),
            f"{item.n_before:,}/{item.n_after:,}",
        )
        for item in changes
    }
    widths = [max(len(row[column]) for row in cells.values()) for column in range(3)]
    lines = []
    for group, heading in _GROUPS.items():
        rows = [item for item in changes if item.measure.group == group]
        if not rows:
            continue
        lines.append(f"  {heading}")
        for item in rows:
            mark = "!" if item.is_worse else "~" if item.is_too_small else " "
            name = _name(item.measure)
            if len(name) > _NAME_WIDTH:
                lines.append(f"  {mark} {name}")
                mark, name = " ", ""
            padded = [
                text.ljust(width) for text, width in zip(cells[id(item)], widths, strict=True)
            ]
            lines.append(f"  {mark} {name:<{_NAME_WIDTH}} {'  '.join(padded)}".rstrip())
        lines.append("")
    return lines


def _name(measure: Measure) -> str:
    if measure.group != "budget":
        text = measure.name
    else:
        state, reason = measure.state
        is_same = STATE_TEXT[state] == REASON_TEXT[reason] or reason in ("work", state)
        text = STATE_TEXT[state] if is_same else f"{STATE_TEXT[state]}: {REASON_TEXT[reason]}"
    return text if not measure.device else f"{text} [device {measure.device}]"


def _values(item: Change) -> str:
    """Both values in one unit, that of the larger."""
    unit = item.measure.unit
    values = [item.before, item.after]
    if unit in ("ns", "s"):
        lengths = [value if unit == "ns" else 1e9 * value for value in values]
        divisor, unit = duration_unit(max(lengths, key=abs))
        numbers = [f"{length / divisor:.4g}" for length in lengths]
    elif unit == "bytes":
        unit = "MiB"
        numbers = [f"{value / (1 << 20):,.1f}" for value in values]
    else:
        numbers = [f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" for value in values]
    return f"{' -> '.join(numbers)} {unit}".rstrip()


def _difference(item: Change) -> str:
    """The difference and the interval that decides whether it is one."""
    low, high = item.deciding_low, item.deciding_high
    if item.measure.is_relative:
        return f"{_share(item.difference)} % [{_share(low)}, {_share(high)}]"
    if item.measure.unit == "%":
        return f"{item.difference:+.2f} points [{low:+.2f}, {high:+.2f}]"
    text = f"{item.difference:+.3g} {item.measure.unit}".rstrip()
    return f"{text} [{low:+.3g}, {high:+.3g}]"


def _share(value: float) -> str:
    """A share in %; a noisy figure's interval may reach far."""
    percent = 100 * value
    return f"{percent:+.1f}" if abs(percent) < 1000 else f"{percent:+.2g}"


def _list(texts: list[str]) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(text, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    ]
