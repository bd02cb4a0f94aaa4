"""Off-CPU intervals of launching threads: why they left the CPU, who took it, who woke them.

The threads are those that made a traced call: the kernel side knows them from the call probes, so
this probe runs only beside :class:`probes.cuda.calls.CudaCalls`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.schema import LOSS, OFFCPU, OFFCPU_RECORD, Table
from probes.cuda.calls import CudaCalls
from probes.cuda.functions import SYMBOLS
from probes.cuda.loading import SCHEDULER_PROGRAMS
from probes.cuda.tracing import Tracing
from probes.host import proc
from probes.probe import Batch, ProbeError, SourceReport, make_batch
from probes.scheduler.interpreter import InterpreterLocks

#: An interval is joined to calls this long after it ended: its call has then ended or is open.
JOIN_DELAY_NS = 100_000_000
#: What is known of a task id is believed for so long.
_TASK_NS = 5_000_000_000
_MAX_TASKS = 65536

#: State bits on leaving: the low byte is the task's state, 0 with or without the bit of
#: preemption is running.
_SLEEPING, _UNINTERRUPTIBLE, _STATE_MASK = 0x1, 0x2, 0xFF
_STATES = pa.array(["running", "sleeping", "uninterruptible", "other"])
_NAMES = pa.array(SYMBOLS)
#: What ``lock`` says by whether a futex is the interpreter's.
_LOCKS = {True: "interpreter", False: "other", None: "other"}

_Records = npt.NDArray[np.void]
_I64 = npt.NDArray[np.int64]


class OffCpu:
    """Records when threads that make CUDA calls are off the CPU.

    Args:
        calls: The probe of calls of the same recording; it must be started first.
    """

    name = "offcpu"
    tables: Sequence[Table] = (LOSS, OFFCPU)
    period_ns = 200_000_000

    def __init__(self, calls: CudaCalls) -> None:
        self._calls = calls
        self._tracing: Tracing | None = None
        self._recent = calls.keep_recent()
        self._waiting = np.empty(0, OFFCPU_RECORD.numpy_dtype())
        self._tasks: dict[int, tuple[int, int | None]] = {}
        self._locks = InterpreterLocks()
        self._n_rows = 0
        self._n_lost = 0

    def start(self) -> None:
        """Attach to the scheduler's tracepoints.

        Raises:
            ProbeError: CUDA calls are not recorded, or the tracepoints cannot be used.
        """
        tracing = self._calls.tracing
        if tracing is None:
            raise ProbeError(
                "launching threads are found by their CUDA calls, which cannot be recorded; "
                "run 'tracer doctor'"
            )
        try:
            tracing.watch(SCHEDULER_PROGRAMS)
        except OSError as error:
            raise ProbeError(
                f"the scheduler's tracepoints cannot be used ({error}); run 'tracer doctor'"
            ) from error
        self._tracing = tracing

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return the intervals that ended at least :data:`JOIN_DELAY_NS` ago."""
        if self._tracing is None or self._calls.tracing is None:
            return self._rows(now_ns, is_last=True)
        return self._collect(self._tracing, now_ns, is_last=False)

    def stop(self) -> Iterable[Batch]:
        """Return what is left."""
        now_ns = time.monotonic_ns()
        tracing, self._tracing = self._tracing, None
        if tracing is None:
            return []
        with tracing.lock:
            if tracing.is_closed:
                return self._rows(now_ns, is_last=True)
            return self._collect(tracing, now_ns, is_last=True)

    def report(self) -> SourceReport:
        """Return the rows and losses so far."""
        return SourceReport(self.name, self._n_rows, self._n_lost)

    def _collect(self, tracing: Tracing, now_ns: int, is_last: bool) -> list[Batch]:
        records = tracing.offcpu.drain()
        self._waiting = np.concatenate((self._waiting, records)) if len(records) else self._waiting
        batches = self._rows(now_ns, is_last)
        n_lost = tracing.counters()["offcpu_lost"]
        if n_lost > self._n_lost:
            batches.append(
                make_batch(
                    LOSS,
                    {
                        "time_ns": [now_ns],
                        "source": [self.name],
                        "reason": ["ring_full"],
                        "n_lost": [n_lost - self._n_lost],
                        "detail": ["Off-CPU intervals are missing: the ring buffer was full."],
                    },
                )
            )
            self._n_lost = n_lost
        return batches

    def _rows(self, now_ns: int, is_last: bool) -> list[Batch]:
        """Rows of the intervals that are due."""
        is_due = np.full(len(self._waiting), is_last)
        is_due |= self._waiting["end_ns"].astype(np.int64) <= now_ns - JOIN_DELAY_NS
        records, self._waiting = self._waiting[is_due], self._waiting[~is_due]
        if not len(records):
            return []
        batch = make_batch(OFFCPU, self._columns(records, now_ns))
        self._n_rows += len(records)
        return [batch]

    def _columns(self, records: _Records, now_ns: int) -> dict[str, Any]:
        start_ns = records["start_ns"].astype(np.int64)
        end_ns = records["end_ns"].astype(np.int64)
        wake_ns = records["wake_ns"].astype(np.int64)
        state = records["state"] & _STATE_MASK
        is_running = state == 0
        was_woken = wake_ns > 0
        runnable = np.where(is_running, end_ns - start_ns, end_ns - wake_ns)
        names = np.select(
            [is_running, (state & _SLEEPING) != 0, (state & _UNINTERRUPTIBLE) != 0], [0, 1, 2], 3
        )
        call_id, function = self._recent.innermost(
            records["pid_tgid"], start_ns, self._calls.open_calls()
        )
        waker = records["waker_pid_tgid"]
        occupant = records["occupant_pid_tgid"]
        taker = records["taker_tid"].astype(np.int64)
        taker_pid = np.array(
            [self._pid_of(tid, now_ns) for tid in taker.tolist()], dtype=np.float64
        )
        has_waker = was_woken & (waker > 0)
        no_call = call_id < 0
        return {
            "start_ns": start_ns,
            "duration_ns": end_ns - start_ns,
            "pid": (records["pid_tgid"] >> np.uint64(32)).astype(np.int32),
            "tid": _low(records["pid_tgid"]),
            "runnable_ns": pa.array(runnable, mask=~is_running & ~was_woken),
            "state": _STATES.take(pa.array(names)),
            "cpu_from": records["cpu_from"].astype(np.int32),
            "cpu_to": records["cpu_to"].astype(np.int32),
            "taker_pid": pa.array(
                np.nan_to_num(taker_pid).astype(np.int32), mask=np.isnan(taker_pid)
            ),
            "taker_tid": taker.astype(np.int32),
            "taker_name": _text(records["taker_name"]),
            "occupant_pid": (occupant >> np.uint64(32)).astype(np.int32),
            "occupant_tid": _low(occupant),
            "occupant_name": _text(records["occupant_name"]),
            "waker_pid": pa.array((waker >> np.uint64(32)).astype(np.int32), mask=~has_waker),
            "waker_tid": pa.array(_low(waker), mask=~has_waker),
            "waker_name": _text(records["waker_name"], was_woken),
            "lock": self._lock_names(records, now_ns),
            "call_id": pa.array(call_id, mask=no_call),
            "function": _NAMES.take(pa.array(np.where(no_call, 0, function), mask=no_call)),
        }

    def _lock_names(self, records: _Records, now_ns: int) -> pa.Array:
        """Whose lock each thread slept on; null where none is known."""
        where = np.stack(((records["pid_tgid"] >> np.uint64(32)), records["futex"]), axis=1)
        pairs, inverse = np.unique(where, axis=0, return_inverse=True)
        names = [
            _LOCKS[self._locks.is_interpreter(pid, address, now_ns)] if address else None
            for pid, address in pairs.tolist()
        ]
        return pa.array(names, pa.string()).take(pa.array(inverse.reshape(-1)))

    def _pid_of(self, tid: int, now_ns: int) -> float:
        """Process of a task, NaN when it is gone; 0 is the idle task."""
        if tid == 0:
            return 0.0
        known = self._tasks.get(tid)
        if known is None or known[0] < now_ns:
            if len(self._tasks) >= _MAX_TASKS:
                self._tasks.clear()
            status = proc.read_status(tid)
            pid = int(status["Tgid"]) if status and "Tgid" in status else None
            known = self._tasks[tid] = (now_ns + _TASK_NS, pid)
        return float("nan") if known[1] is None else float(known[1])


def _low(pid_tgid: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """Thread id in the low half."""
    return pid_tgid.astype(np.uint32).astype(np.int32)


def _text(names: npt.NDArray[np.bytes_], is_known: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Task names as text; null where not known."""
    texts, where = np.unique(names, return_inverse=True)
    decoded = pa.array([text.decode(errors="replace") for text in texts.tolist()], pa.string())
    mask = None if is_known is None else ~is_known
    return decoded.take(pa.array(where, mask=mask))
