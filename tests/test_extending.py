"""The code of docs/extending.md runs as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from probes.probe import ProbeError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
S = 1_000_000_000


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Everything that the blocks of the page define."""
    found: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), found)
    return found


def test_the_probe(names: dict[str, Any], tmp_path: Path):
    (tmp_path / "stat").write_text("cpu 1 2 3\nintr 9973 1 2\n")
    probe = names["InterruptProbe"](tmp_path)
    probe.start()
    batches = [*probe.drain(7 * S), *probe.drain(7 * S + 1), *probe.drain(9 * S)]
    rows = [row for batch in batches for row in batch.rows.to_pylist()]
    assert rows == [
        {"time_ns": 7 * S, "n_interrupts": 9973},
        {"time_ns": 9 * S, "n_interrupts": 9973},
    ]
    assert probe.report().n_rows == 2
    (tmp_path / "stat").write_text("cpu 1 2 3\n")
    with pytest.raises(ProbeError, match="no line of interrupts"):
        probe.start()


@pytest.mark.parametrize(
    ("per_s", "pause_ns", "status"),
    [
        (500, 20_000_000, "found"),
        # The confounder: the same idle device, without a fault.
        (0, 20_000_000, "not_found"),
        # Faults that cost nothing.
        (500, 0, "not_found"),
    ],
)
def test_the_cause(names: dict[str, Any], tmp_path: Path, per_s: int, pause_ns: int, status: str):
    assert names["verdict"](tmp_path / "s", per_s, pause_ns) == status
