"""Intervals that launching threads spent off the CPU, and who had it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis import intervals
from analysis.columns import Vocabulary, collect_columns, filled
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_COLUMNS = (
    "start_ns",
    "duration_ns",
    "pid",
    "tid",
    "runnable_ns",
    "state",
    "taker_pid",
    "taker_tid",
    "taker_name",
    "occupant_pid",
    "occupant_tid",
    "occupant_name",
    "waker_pid",
    "waker_tid",
    "lock",
)


@dataclass(frozen=True)
class Absences:
    """Intervals that launching threads spent off the CPU, sorted by start.

    Attributes:
        start: When the thread left the CPU, ns.
        end: When it came back, ns.
        ready: When it was ready to run again, ns; equal to ``start`` for a preempted thread, to
            ``end`` where the source does not tell.
        has_state: Whether the source told the state in which the thread left.
        is_blocked: It left uninterruptible.
        pid: Its process.
        tid: The thread.
        waker_pid: Process of the task that woke it, -1 where not known.
        waker_tid: Task that woke it, -1 where not known.
        is_interpreter: It slept on the lock of its Python interpreter.
        is_other_lock: It slept on another lock.
        culprit: Index into ``culprits``: the task that had the CPU while it was ready.
        culprits: ``(pid, tid, name)``; tid 0 is an idle CPU, pid None is not known.
    """

    start: Ints
    end: Ints
    ready: Ints
    has_state: Bools
    is_blocked: Bools
    pid: Ints
    tid: Ints
    waker_pid: Ints
    waker_tid: Ints
    is_interpreter: Bools
    is_other_lock: Bools
    culprit: Ints
    culprits: list[tuple[int | None, int | None, str]]

    def __len__(self) -> int:
        return len(self.start)

    def pick(self, mask: Bools) -> Absences:
        """Return the intervals where ``mask`` holds."""
        return Absences(
            self.start[mask],
            self.end[mask],
            self.ready[mask],
            self.has_state[mask],
            self.is_blocked[mask],
            self.pid[mask],
            self.tid[mask],
            self.waker_pid[mask],
            self.waker_tid[mask],
            self.is_interpreter[mask],
            self.is_other_lock[mask],
            self.culprit[mask],
            self.culprits,
        )

    @property
    def ready_spans(self) -> Ints:
        """Ready but waiting, one row per interval (possibly empty)."""
        return intervals.make(self.ready, self.end)

    @property
    def spans(self) -> Ints:
        """Off the CPU, one row per interval."""
        return intervals.make(self.start, self.end)


def load_absences(session: Session) -> Absences | None:
    """Return the off-CPU intervals of a session, None where they were not recorded."""
    if not session.has("offcpu"):
        return None
    states, locks, names = Vocabulary(), Vocabulary(), Vocabulary()
    unnamed = names.code("")

    def convert(part: pa.Table) -> tuple[npt.NDArray[Any], ...]:
        start = part["start_ns"].to_numpy()
        end = start + part["duration_ns"].to_numpy()
        state, lock = states.codes(part["state"]), locks.codes(part["lock"])
        is_running = _equals(state, states, "running")
        runnable = part["runnable_ns"]
        ready = end - np.clip(filled(runnable, 0), 0, end - start)
        is_preempted = is_running & ~runnable.is_valid().to_numpy()
        name = [names.codes(part[f"{who}_name"]) for who in ("taker", "occupant")]
        taker_pid, taker_tid, pid, tid = (
            _ints(part[f"{who}_{what}"]) for who in ("taker", "occupant") for what in ("pid", "tid")
        )
        # Who held the CPU until the thread came back; for a preempted thread whose CPU is told to
        # be idle by then, who took it.
        use_taker = (tid < 0) | ((tid == 0) & is_running)
        who = np.where(use_taker, *name)
        return (
            start,
            end,
            np.where(is_preempted, start, ready),
            state >= 0,
            _equals(state, states, "uninterruptible"),
            _ints(part["pid"]),
            _ints(part["tid"]),
            _ints(part["waker_pid"]),
            _ints(part["waker_tid"]),
            _equals(lock, locks, "interpreter"),
            _equals(lock, locks, "other"),
            np.where(use_taker, taker_pid, pid),
            np.where(use_taker, taker_tid, tid),
            np.where(who < 0, who.dtype.type(unnamed), who),
        )

    columns = collect_columns(session, "offcpu", _COLUMNS, convert)
    if not columns:
        columns = [np.empty(0, dtype=np.int64)] * 14
    culprit, culprits = _culprits(columns[11], columns[12], columns[13], names.values)
    return Absences(
        columns[0],
        columns[1],
        columns[2],
        columns[3],
        columns[4],
        columns[5],
        columns[6],
        columns[7],
        columns[8],
        columns[9],
        columns[10],
        culprit,
        culprits,
    )


def _culprits(
    pid: Ints, tid: Ints, code: npt.NDArray[Any], names: list[str]
) -> tuple[Ints, list[tuple[int | None, int | None, str]]]:
    """The distinct tasks, in order of their ids and then of their names' first appearance, and the
    task of each row.
    """
    pids, pid_at = _ranked(pid)
    tids, tid_at = _ranked(tid)
    encoded = pa.array(code).dictionary_encode()
    own = [names[at] for at in encoded.dictionary.to_pylist()]
    name_at = encoded.indices.to_numpy()
    keys, culprit = _ranked((pid_at * len(tids) + tid_at) * len(own) + name_at)
    culprits = []
    for key in keys.tolist():
        task, at = divmod(key, len(own))
        one_pid, one_tid = int(pids[task // len(tids)]), int(tids[task % len(tids)])
        culprits.append(
            (None if one_pid < 0 else one_pid, None if one_tid < 0 else one_tid, str(own[at]))
        )
    return culprit, culprits


def _ranked(values: Ints) -> tuple[Ints, Ints]:
    """Distinct values in order, and the place of each value among them."""
    encoded = pa.array(values).dictionary_encode()
    distinct = encoded.dictionary.to_numpy()
    order = np.argsort(distinct)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return distinct[order], place[encoded.indices.to_numpy()]


def _equals(codes: npt.NDArray[Any], vocabulary: Vocabulary, value: str) -> Bools:
    table = np.array([*(item == value for item in vocabulary.values), False], dtype=bool)
    result: Bools = table[codes]
    return result


def _ints(column: pa.ChunkedArray) -> Ints:
    """Ids, -1 where not known."""
    return filled(column, -1).astype(np.int64)
