from __future__ import annotations

from pathlib import Path

from analysis.mps_audit import why_outside
from tests.analysis.builder import SessionBuilder


def row(time_ns: int, pid: int, role: str, **more: object) -> dict[str, object]:
    return {"time_ns": time_ns, "device": 0, "pid": pid, "role": role, "is_target": True, **more}


def test_the_last_audit_tells_the_reason(tmp_path: Path):
    rows = [
        row(1, 7, "outside", reason="no_daemon", detail="None.", mend="start it"),
        row(2, 7, "outside", reason="not_visible", detail="Hidden.", mend="mount it"),
        row(3, 8, "client"),
        row(4, 7, "client"),
    ]
    session = SessionBuilder(tmp_path / "s").add("mps_client", rows).write()
    told = why_outside(session, 7, 0)
    assert told is not None and told.has_daemon
    assert (told.reason, told.detail, told.mend) == ("not_visible", "Hidden.", "mount it")
    assert (told.n, told.n_inside) == (2, 1)
    assert told.evidence().value == "not_visible" and told.evidence().n == 2
    assert why_outside(session, 8) is None
    assert why_outside(session, 7, device=1) is None


def test_without_audits_there_is_no_answer(tmp_path: Path):
    session = SessionBuilder(tmp_path / "s").write()
    assert why_outside(session, 7) is None
