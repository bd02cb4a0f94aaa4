"""Who took the CPU: a pool of small workers against one larger task."""

from __future__ import annotations

from pathlib import Path

from analysis import attribute
from tests.analysis.builder import Service

S = 1_000_000_000
MS = 1_000_000


def test_a_moment_proves_nothing(tmp_path: Path) -> None:
    service = Service()
    while service.now < service.start + S // 4:
        service.preempt(6 * MS)
        service.decode_step()
    attribution = attribute(service.session(tmp_path / "s"))
    assert attribution.verdict.cause == "unknown"
    assert "launch.cpu_delay" in attribution.verdict.candidates
    assert any("s were recorded" in item.undecided_because for item in attribution.findings)


def culprit(path: Path, shares: dict[int, tuple[str, int]], own_pid: int | None = None) -> str:
    """What the finding blames when these tasks take the CPU in turn: pid -> (name, ns)."""
    service = Service()
    while service.now < service.start + 8 * S:
        for pid, (name, ns) in shares.items():
            service.preempt(ns, pid=service.pid if pid == own_pid else pid, name=name)
            service.decode_step()
    finding = attribute(service.session(path)).findings[0]
    assert finding.cause == "launch.cpu_delay"
    return next(item.value for item in finding.evidence if item.name == "cpu_taken_by")


def test_a_pool_of_workers_outweighs_one_larger_task(tmp_path: Path) -> None:
    shares = dict.fromkeys((501, 502, 503, 504, 505), ("worker", 4 * MS))
    shares[77] = ("backup", 6 * MS)
    assert culprit(tmp_path / "s", shares) == "worker (pid 501 and 4 more of that name)"


def test_two_tasks_that_come_close_are_both_named(tmp_path: Path) -> None:
    shares = {501: ("compress", 8 * MS), 77: ("backup", 6 * MS), 78: ("cron", 1 * MS)}
    assert culprit(tmp_path / "s", shares) == "compress (pid 501) and backup (pid 77)"


def test_threads_of_the_same_process_are_called_so(tmp_path: Path) -> None:
    assert culprit(tmp_path / "s", {0: ("tokenizer", 8 * MS)}, own_pid=0) == (
        "tokenizer (other threads of the same process)"
    )
