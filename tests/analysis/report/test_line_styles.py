"""Lines of one chart can be told apart: by their colour, and without it by their strokes."""

from __future__ import annotations

import itertools
import json
import re
from importlib.resources import files

import pytest

ASSETS = files("analysis.report.html") / "assets"
#: Distance of two colours in CIELAB that nobody takes for one another in thin lines.
LEAST_DISTANCE = 40


def lab(colour: str) -> tuple[float, float, float]:
    """A colour ``#rrggbb`` as lightness, green to red and blue to yellow (CIE 1976, D65)."""
    levels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z)
    )
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_eight_lines_have_eight_colours(theme: int) -> None:
    css = (ASSETS / "report.css").read_text()
    colours = []
    for index in range(8):
        found = re.findall(rf"--line-{index}: (#[0-9a-f]{{6}});", css)
        assert len(found) == 2
        colours.append(found[theme])
    for one, other in itertools.combinations(colours, 2):
        squares = [(a - b) ** 2 for a, b in zip(lab(one), lab(other), strict=True)]
        assert sum(squares) ** 0.5 > LEAST_DISTANCE, (one, other)


def test_eight_lines_have_eight_patterns_and_a_limit_its_own() -> None:
    script = (ASSETS / "report.js").read_text()
    found = re.search(r"const DASHES = (\[.*\]);", script)
    limit = re.search(r'const LIMIT_DASH = "(.*)";', script)
    assert found and limit
    patterns = json.loads(found[1])
    assert len(patterns) == 8 and len({*patterns, limit[1]}) == 9
