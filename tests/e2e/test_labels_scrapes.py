"""A recorded engine, split at the times of its phases: each phase gets its cause and no other."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import attribute, open_session
from analysis.attribution import Attribution
from analysis.finding import Finding, Status

FOLDER = "metrics/vllm-0.32.0-cpu-recorded"
#: The cause of each phase, and what its findings hold besides.
EXPECTED = {
    "idle": ("no_demand", set()),
    "steady_decode_4": ("healthy", set()),
    "prefill_hog": ("prefill.hogging", set()),
    "overload_preempt": ("kv.preemption", {"queue.overload"}),
    "idle_end": ("no_demand", set()),
}


@pytest.fixture(scope="module")
def of_phase(
    shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Attribution]:
    """Imports the scrapes of one phase and attributes them."""
    folder = shared_data / FOLDER
    phases = json.loads((folder / "phases.json").read_text(encoding="utf-8"))
    assert [name for _begin, name in phases] == list(EXPECTED)
    with gzip.open(folder / "scrapes.jsonl.gz", "rt", encoding="utf-8") as file:
        scrapes = [(json.loads(line)["t"], line) for line in file]
    ends = [begin for begin, _name in phases[1:]] + [float("inf")]

    def run(name: str) -> Attribution:
        begin, end = next(
            (begin, end) for (begin, phase), end in zip(phases, ends, strict=True) if phase == name
        )
        lines = [line for time, line in scrapes if begin <= time < end]
        # The last phase begins while the last requests finish: what it names holds thereafter.
        lines = lines[1:] if name == "idle_end" else lines
        path = tmp_path_factory.mktemp("phase")
        (path / "scrapes").write_text("".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "tracer", "import", str(path / "scrapes")]
        subprocess.run(
            [*command, "-o", str(path / "s")], check=True, capture_output=True, timeout=120
        )
        return attribute(open_session(path / "s"))

    return run


def numbers_of(finding: Finding) -> dict[str, float]:
    return {item.name: float(item.value) for item in finding.evidence}


@pytest.mark.parametrize("name", EXPECTED)
def test_phase_gets_its_cause(name: str, of_phase: Callable[[str], Attribution]) -> None:
    cause, others = EXPECTED[name]
    attribution = of_phase(name)
    found = {item.cause for item in attribution.findings if item.status is Status.FOUND}
    assert attribution.verdict.cause == cause, attribution.verdict
    assert attribution.verdict.status is Status.FOUND
    assert others <= found
    assert found <= {cause, *others}
    assert "hang.kernel" not in found
    assert not [note for note in attribution.notes if "failed on this session" in note]


def test_preemption_is_the_root_with_its_numbers(of_phase: Callable[[str], Attribution]) -> None:
    root, symptom = of_phase("overload_preempt").findings[:2]
    assert (root.cause, root.symptoms) == ("kv.preemption", ["queue.overload"])
    assert symptom.cause == "queue.overload"
    numbers = numbers_of(root)
    # Every eviction between the first scrape of the phase and the last.
    assert numbers["preemptions"] == 63
    assert numbers["kv_usage_at_preemption_p50"] >= 95
    assert root.lost_ns > 0
    numbers = numbers_of(symptom)
    assert numbers["waiting"] > numbers["running"] > 5
    assert numbers["queue_mean"] > 5
