"""Rows about what the session writer itself lost, and when it lost or got back its disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.schema import EVENT, LOSS
from probes.probe import Batch, make_batch

#: Name of the writer among the sources.
SOURCE_NAME = "session"


@dataclass
class Loss:
    """Rows of one table dropped for one reason and not yet told."""

    start_ns: int
    n_rows: int
    detail: str


def loss_batch(losses: Mapping[tuple[str, str], Loss], now_ns: int) -> Batch:
    """Return one row of ``loss`` per table and reason."""
    return make_batch(
        LOSS,
        {
            "time_ns": [now_ns] * len(losses),
            "start_ns": [loss.start_ns for loss in losses.values()],
            "source": [SOURCE_NAME] * len(losses),
            "reason": [reason for _, reason in losses],
            "n_lost": [loss.n_rows for loss in losses.values()],
            "detail": [
                f"Rows of {name} are missing. {loss.detail}" for (name, _), loss in losses.items()
            ],
        },
    )


def notice_batch(notices: Sequence[tuple[int, str, str]]) -> Batch:
    """Return one row of ``event`` per notice: (time in ns, kind, sentence)."""
    return make_batch(
        EVENT,
        {
            "time_ns": [time_ns for time_ns, _, _ in notices],
            "kind": [kind for _, kind, _ in notices],
            "name": [SOURCE_NAME] * len(notices),
            "detail": [detail for _, _, detail in notices],
        },
    )
