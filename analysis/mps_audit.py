"""What a recorded audit of MPS says about one process: why it is outside, and the mend."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.finding import Evidence
from analysis.timeline import Session

TABLE = "mps_client"
_COLUMNS = (
    "time_ns",
    "device",
    "pid",
    "role",
    "reason",
    "other_reasons",
    "daemon_pid",
    "detail",
    "mend",
)


@dataclass(frozen=True)
class OutsideMps:
    """Why a process is outside MPS, by the last of ``n`` audits.

    Attributes:
        reason: The weightiest reason, as in table ``mps_client``.
        detail: One sentence for the reader.
        mend: What brings it in; empty where that is not known.
        n: Audits that saw it outside.
        n_inside: Audits that saw it inside.
    """

    reason: str
    detail: str
    mend: str
    n: int
    n_inside: int

    @property
    def has_daemon(self) -> bool:
        """Whether there was an MPS that it could have been in."""
        return self.reason != "no_daemon"

    def evidence(self) -> Evidence:
        """Return the reason as a line of evidence."""
        return Evidence("reason_outside_mps", self.reason, "", self.n, TABLE)


def why_outside(session: Session, pid: int, device: int | None = None) -> OutsideMps | None:
    """Return why a process was outside MPS; None where no audit saw it there.

    Args:
        session: The session.
        pid: The process.
        device: Only audits of this GPU; None for any.
    """
    if not session.has(TABLE):
        return None
    rows = [
        row
        for row in session.table(TABLE, columns=_COLUMNS).to_pylist()
        if row["pid"] == pid and (device is None or row["device"] == device)
    ]
    outside = [row for row in rows if row["role"] == "outside" and row["reason"]]
    if not outside:
        return None
    last = outside[-1]
    return OutsideMps(
        reason=last["reason"],
        detail=last["detail"] or "",
        mend=last["mend"] or "",
        n=len(outside),
        n_inside=sum(row["role"] == "client" for row in rows),
    )
