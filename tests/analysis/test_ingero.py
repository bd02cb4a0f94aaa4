"""The recorded incident that the tool which recorded it got wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from analysis import attribute, open_session
from analysis.attribution import Attribution
from analysis.finding import Status


def imported(shared_data: Path, name: str, tmp_path: Path) -> Attribution:
    session = tmp_path / "s"
    command = [sys.executable, "-m", "tracer", "import", str(shared_data / "ingero" / name)]
    subprocess.run([*command, "-o", str(session)], check=True, capture_output=True, timeout=120)
    return attribute(open_session(session))


def test_vllm_was_compiling_not_preempted(shared_data: Path, tmp_path: Path) -> None:
    attribution = imported(shared_data, "vllm-37343-logprobs-amplification.db", tmp_path)
    assert attribution.verdict.cause == "launch.first_use"
    finding = attribution.findings[0]
    evidence = {item.name: item for item in finding.evidence}
    assert (evidence["launch_p50"].value, evidence["launch_p50"].n) == (pytest.approx(16700), 357)
    assert evidence["launch_p99"].value == pytest.approx(13.09e6, rel=0.001)
    assert evidence["gap_without_cuda_calls"].value == pytest.approx(8.67e9, rel=0.001)
    assert evidence["gap_on_cpu"].value == pytest.approx(4.2e9, rel=0.01)
    assert evidence["gap_child_processes"].value == 1
    assert "not proven" in finding.summary
    ruled_out = {item.cause: item for item in finding.excluded}["launch.cpu_delay"]
    assert ruled_out.evidence is not None
    assert ruled_out.evidence.value == pytest.approx(0.0156, abs=0.0001)
    assert ruled_out.evidence.n == 311
    found = [item.cause for item in attribution.findings if item.status is Status.FOUND]
    assert found == ["launch.first_use"]


def test_pytorch_was_starting_cold(shared_data: Path, tmp_path: Path) -> None:
    attribution = imported(shared_data, "pytorch-173382-empty-cache.db", tmp_path)
    assert attribution.verdict.cause == "launch.first_use"
    said = {item.cause for item in attribution.findings}
    assert not said & {"launch.cpu_delay", "contention.cross_process"}
