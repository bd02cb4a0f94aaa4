"""CUDA runtime, driver and NCCL calls of a process tree, by uprobes on the mapped libraries."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.schema import CUDA_CALL, EVENT, KERNEL_FUNCTION, LOSS, OPEN_CALL, Table
from probes.attach import returns_survive_seccomp
from probes.cuda import calibration
from probes.cuda.budget import ProbeCost
from probes.cuda.coverage import coverage
from probes.cuda.decode import decode
from probes.cuda.functions import SYMBOL_INDEX, SYMBOLS, by_symbol
from probes.cuda.kernels import KernelNames
from probes.cuda.loaders import Wakes
from probes.cuda.loading import PROCESS_PROGRAMS, ModuleLoading
from probes.cuda.losses import LossBook
from probes.cuda.meaning import MeaningTracker
from probes.cuda.pairing import Calls, OpenCalls, Pairing
from probes.cuda.recent import RecentCalls
from probes.cuda.rows import call_columns, open_batch
from probes.cuda.shedding import Shedder
from probes.cuda.tracing import Tracing
from probes.cuda.watching import Change, LibraryWatcher
from probes.host import proc
from probes.probe import Batch, ProbeError, SourceReport, make_batch
from probes.targets import TargetChange, TargetTree

SECOND_NS = 1_000_000_000
#: Rows that one batch holds at most.
MAX_ROWS = 1 << 18
#: Records of each ring that are worked on at once: what they become stays in the CPU's caches, and
#: a burst takes no more memory than the usual.
PIECE_RECORDS = 1 << 14
#: Rest between two drains while a quarter of a ring fills meanwhile, and while less does.
BUSY_NS, CALM_NS = 100_000_000, 200_000_000

_FORK, _EXEC, _EXIT = 1, 2, 3
_LOOKUPS = [
    SYMBOL_INDEX[name]
    for name in ("cuModuleGetFunction", "cuLibraryGetKernel", "cudaLibraryGetKernel")
]
_HANDLES = [SYMBOL_INDEX[name] for name in ("__cudaGetKernel", "cudaGetKernel")]
_REGISTRATION = SYMBOL_INDEX["__cudaRegisterFunction"]
_TELLS_NAMES = np.zeros(len(SYMBOLS), np.bool_)
_TELLS_NAMES[[_REGISTRATION, *_HANDLES, *_LOOKUPS]] = True

_Records = npt.NDArray[np.void]


class CudaCalls:
    """Records every traced call of the processes of a tree.

    Args:
        tree: Processes to record; children that the kernel tells of are added to it.
        is_entry_only: Probe no returns: calls have no duration, open calls are not told.
        is_multi: Use ``uprobe_multi`` links; None to use them where the kernel has them.
        entry_bytes: Size of the ring of entries; None for the default.
        return_bytes: Size of the ring of returns; None for the default.
        loading: The BPF module, whose compilation was begun before; the three above are its.
        budget_share: CPU time that probing may add, as a share of the CPU time of the launching
            threads; calls are left out to keep it. None to record everything.
    """

    name = "cuda"
    tables: Sequence[Table] = (CUDA_CALL, EVENT, KERNEL_FUNCTION, LOSS, OPEN_CALL)
    period_ns = BUSY_NS

    def __init__(
        self,
        tree: TargetTree,
        *,
        is_entry_only: bool = False,
        is_multi: bool | None = None,
        entry_bytes: int | None = None,
        return_bytes: int | None = None,
        loading: ModuleLoading | None = None,
        budget_share: float | None = None,
    ) -> None:
        self._tree = tree
        self._is_entry_only = is_entry_only
        self._is_multi = is_multi
        self._sizes = {
            name: size
            for name, size in (("entry_bytes", entry_bytes), ("return_bytes", return_bytes))
            if size is not None
        }
        self._loading = loading
        self._tracing: Tracing | None = None
        self._watcher: LibraryWatcher | None = None
        self._budget_share = budget_share
        self._shedder: Shedder | None = None
        self._pairing = Pairing()
        self._meaning = MeaningTracker()
        self._kernels = KernelNames()
        self._hits = np.zeros(len(SYMBOLS), np.int64)
        self._losses = LossBook()
        self._ending: list[tuple[bool, int]] = []
        self._known_pids: set[int] = set()
        self._started_ns: dict[int, int] = {}
        self._second_ns = 0
        self._n_rows = 0
        self._note = ""
        self._detacher: threading.Thread | None = None
        self._detach_late: Callable[[], None] | None = None
        self._listeners: list[RecentCalls] = []
        self._coverage_told: set[tuple[int, str]] = set()
        self._start_ns = 0

    @property
    def tracing(self) -> Tracing | None:
        """The BPF side while recording."""
        return self._tracing

    def start(self) -> None:
        """Load the programs, follow the processes and attach to their libraries.

        Raises:
            ProbeError: uprobes cannot be used on this machine.
        """
        if not self._is_entry_only and self._has_filtered_target() and not _is_return_safe():
            self._is_entry_only = True
            self._note = (
                "Returns are not probed: this kernel kills a seccomp-filtered process at one; "
                "boot another kernel for durations."
            )
        loading, self._loading = self._loading, None
        tracing = Tracing(loading or ModuleLoading(self._is_multi, **self._sizes))
        self._tracing = tracing
        try:
            costs: Mapping[str, ProbeCost] = {}
            if self._budget_share is not None:
                costs = _probe_costs(tracing)
            for pid in self._tree.pids():
                tracing.add_target(pid)
            tracing.watch(PROCESS_PROGRAMS)
            self._tree.refresh(time.monotonic_ns())
            self._follow_tree()
            self._watcher = LibraryWatcher(
                tracing.attacher,
                self._tree.pids,
                self._started_ns.get,
                self._is_entry_only,
                Wakes(tracing.wakes, tracing.wakes_descriptor),
            )
            self._watcher.start()
            if self._budget_share is not None:
                self._shedder = Shedder(self._budget_share, costs, tracing, self._watcher)
                self._shedder.start()
        except (OSError, ProbeError, RuntimeError) as error:  # the last: no room for a thread
            if self._watcher is not None:
                self._watcher.stop()
                self._watcher.detach()
                self._watcher = None
            tracing.close()
            self._tracing = None
            raise ProbeError(f"CUDA calls cannot be recorded: {error}") from error
        self._start_ns = self._second_ns = time.monotonic_ns()

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return the calls that ended since the last drain, and what else happened."""
        tracing = self._tracing
        if tracing is None:
            return []
        batches = self._drain_rings(tracing, now_ns)
        if now_ns - self._second_ns >= SECOND_NS:
            self._second_ns = now_ns
            batches.extend(self._each_second(tracing, now_ns))
        self._n_rows += sum(batch.rows.num_rows for batch in batches)
        return batches

    def stop(self) -> Iterable[Batch]:
        """Return what is left; the probes are detached in the background."""
        tracing = self._tracing
        if tracing is None or self._watcher is None:
            return []
        now_ns = time.monotonic_ns()
        batches = self._drain_rings(tracing, now_ns)
        batches += self._drain_rings(tracing, now_ns)
        batches += self._each_second(tracing, now_ns)
        self._n_rows += sum(batch.rows.num_rows for batch in batches)
        self._tracing = None
        watcher = self._watcher

        shedder = self._shedder

        def detach() -> None:
            if shedder is not None:
                shedder.stop()
            watcher.stop()
            watcher.detach()
            tracing.close()

        detacher = threading.Thread(target=detach, name="cuda-detach")
        try:
            detacher.start()
            self._detacher = detacher
        except RuntimeError:  # no room for a thread: once the files are closed
            self._detach_late = detach
        return batches

    def wait_detached(self, timeout_s: float) -> bool:
        """Wait until the probes are gone from the targets; return whether they are."""
        detach, self._detach_late = self._detach_late, None
        if detach is not None:
            detach()
        if self._detacher is None:
            return True
        self._detacher.join(timeout_s)
        return not self._detacher.is_alive()

    def report(self) -> SourceReport:
        """Return what was recorded so far: functions with hits, losses, processes with coverage."""
        watcher = self._watcher
        probed = watcher.probed() if watcher else []
        n_holders = Counter(symbol for symbol, _ in probed)
        functions = [
            {
                "function": symbol,
                "layer": by_symbol[symbol].layer,
                "library": library.path,
                "device_inode": library.device_inode,
                # Records name the function, not the file it was called in.
                "n_hits": int(self._hits[SYMBOL_INDEX[symbol]])
                if n_holders[symbol] == 1 or not self._hits[SYMBOL_INDEX[symbol]]
                else None,
                "has_return": not self._is_entry_only,
            }
            for symbol, library in sorted(probed, key=lambda item: (item[1].path, item[0]))
        ]
        details: dict[str, Any] = {
            "functions": functions,
            "is_entry_only": self._is_entry_only,
            "n_records": int(self._hits.sum()),
            "n_return_missed": self._pairing.n_return_missed,
        }
        if watcher is not None:
            details["launch_coverage"] = {
                str(pid): {
                    "imported": list(one.imported),
                    "probed": dict(one.probed),
                    "missing": list(one.missing),
                    "problems": list(one.problems),
                }
                for pid, one in self._coverage().items()
            }
        note = self._note
        if self._shedder is not None:
            details.update(self._shedder.details())
            note = f"{note} {self._shedder.note_text()}".strip()
        if watcher is not None and not probed:
            note = f"{note} No CUDA library is mapped by the target (yet).".strip()
        return SourceReport(self.name, self._n_rows, self._losses.n_lost, None, note, details)

    def open_calls(self) -> OpenCalls:
        """Return the calls that are open now."""
        return self._pairing.open_calls()

    def is_launcher(self, pid: int, tid: int) -> bool | None:
        """Return whether a thread made traced calls so far; None while none are recorded."""
        if self._tracing is None:
            return None
        return self._pairing.knows(pid << 32 | tid)

    def keep_recent(self) -> RecentCalls:
        """Return a store that receives all calls from now on, for joining other records."""
        recent = RecentCalls()
        self._listeners.append(recent)
        return recent

    def _has_filtered_target(self) -> bool:
        statuses = (proc.read_status(pid) for pid in self._tree.pids())
        return any(status.get("Seccomp", "0") != "0" for status in statuses if status)

    def _coverage(self) -> dict[int, Any]:
        assert self._watcher is not None
        hits: dict[tuple[str, str], int | None] = {
            (library.device_inode, symbol): int(self._hits[SYMBOL_INDEX[symbol]])
            for symbol, library in self._watcher.probed()
        }
        return {
            pid: coverage(libraries, hits)
            for pid, libraries in self._watcher.libraries().items()
            if libraries
        }

    def _drain_rings(self, tracing: Tracing, now_ns: int) -> list[Batch]:
        """Everything in the rings. Processes first: the records of what ended are then there."""
        processes = tracing.processes.drain()
        ending, self._ending = self._ending, []
        batches = self._note_processes(processes)
        cut = self._shedder.take_cut() if self._shedder is not None else None
        # The controller of a budget looks at whole drains; within a budget they are small.
        n_pieces = 1 if self._shedder is not None else self._pieces(tracing)
        for piece in range(n_pieces):
            n_most = PIECE_RECORDS if piece + 1 < n_pieces else None
            returns = tracing.returns.drain(n_most)
            is_complete = tracing.returns.is_complete
            entries = tracing.entries.drain(n_most)
            is_complete &= tracing.entries.is_complete
            if len(entries):
                self._hits += np.bincount(entries["function"], minlength=len(SYMBOLS))
            if cut is not None:
                self._pairing.doubt(cut[1], cut[0])
            calls = self._pairing.feed(entries, returns, is_complete=is_complete)
            if cut is not None:
                self._pairing.doubt(cut[1], cut[0])
            if self._shedder is not None:
                self._shedder.note(entries, calls, self._pairing.threads())
            batches.extend(self._call_batches(calls))
            batches.extend(self._note_kernels(calls, now_ns))
        batches.extend(self._call_batches(self._end_threads(ending)))
        return batches

    def _pieces(self, tracing: Tracing) -> int:
        """How many pieces the rings are drained in; sets when the next drain is due."""
        rings = (tracing.entries, tracing.returns)
        is_busy = any(4 * ring.n_waiting > ring.n_room for ring in rings)
        self.period_ns = BUSY_NS if is_busy else CALM_NS
        return max(1, *(-(-ring.n_waiting // PIECE_RECORDS) for ring in rings))

    def _end_threads(self, ending: Sequence[tuple[bool, int]]) -> Calls:
        """Close threads that had ended before the last drain: (is a process, its pid or key)."""
        keys: list[int] = []
        for is_process, key in ending:
            if is_process:
                keys.extend(self._pairing.threads_of(key))
                self._meaning.forget(key)
                self._kernels.forget(key)
            else:
                keys.append(key)
        return self._pairing.end_threads(keys)

    def _note_processes(self, records: _Records) -> list[Batch]:
        changes: list[TargetChange] = []
        for record in records:
            time_ns, key = int(record["time_ns"]), int(record["pid_tgid"])
            pid, kind, child = key >> 32, int(record["kind"]), int(record["child_pid"])
            change = None
            if kind == _FORK:
                change = self._tree.note_fork(pid, child, time_ns)
                self._known_pids.add(child)
                self._started_ns[child] = time_ns
                self._meaning.note_start(child)
            elif kind == _EXEC:
                change = self._tree.note_exec(pid, time_ns)
                if change is None and pid in self._known_pids:
                    # It has ended meanwhile, so that nothing more can be read of it.
                    program = record["name"].decode(errors="replace")
                    detail = f"process {pid} began to run {program}."
                    change = TargetChange("exec", pid, time_ns, None, program, detail)
                self._started_ns[pid] = time_ns
                self._meaning.note_start(pid)
                self._kernels.forget(pid)
            elif kind == _EXIT:
                self._ending.append((bool(child), pid if child else key))
                if child:
                    change = self._tree.note_exit(pid, time_ns)
                    self._known_pids.discard(pid)
                    self._started_ns.pop(pid, None)
            if change is not None:
                changes.append(change)
        if changes and self._watcher is not None:
            self._watcher.wake()
        if not changes:
            return []
        return [
            make_batch(
                EVENT,
                {
                    "time_ns": [change.time_ns for change in changes],
                    "kind": [change.kind for change in changes],
                    "pid": [change.pid for change in changes],
                    "parent_pid": [change.parent_pid for change in changes],
                    "name": [change.name or "" for change in changes],
                    "detail": [change.detail for change in changes],
                },
            )
        ]

    def _follow_tree(self) -> None:
        """Tell the kernel side of processes that were found by looking."""
        assert self._tracing is not None
        pids = self._tree.pids()
        for pid in pids - self._known_pids:
            self._tracing.add_target(pid)
        for pid in self._known_pids - pids:
            self._tracing.remove_target(pid)
        self._known_pids = pids

    def _note_kernels(self, calls: Calls, now_ns: int) -> list[Batch]:
        """Take over what names kernels, and name the kernels that are new."""
        if not len(calls):
            return []
        function = calls.function
        words = calls.entries["words"]
        batches = []
        tells = np.flatnonzero(_TELLS_NAMES.take(function))
        for wanted, note, first, second in (
            ([_REGISTRATION], self._kernels.note_registration, 1, 3),
            (_HANDLES, self._kernels.note_handles, 0, 1),
            (_LOOKUPS, self._kernels.note_lookup, 0, 2),
        ):
            if not tells.size:
                break
            chosen = tells[np.isin(function[tells], wanted)]
            if wanted is _LOOKUPS:
                chosen = chosen[calls.has_return[chosen] & (calls.result[chosen] == 0)]
            pids = calls.pid_tgid[chosen] >> np.uint64(32)
            for pid in np.unique(pids):
                mine = chosen[pids == pid]
                note(int(pid), words[mine, first], words[mine, second])
        for process, kernels in self._meaning.take_new().items():
            handles = np.array(sorted(kernels), np.uint64)
            batches.append(self._kernels.resolve(process, handles, now_ns))
        return [batch for batch in batches if batch.rows.num_rows]

    def _each_second(self, tracing: Tracing, now_ns: int) -> list[Batch]:
        self._follow_tree()
        batches = [open_batch(self._pairing.open_calls(), now_ns)]
        nothing = np.empty(0, np.uint64)
        batches.extend(self._kernels.resolve(pid, nothing, now_ns) for pid in self._tree.pids())
        assert self._watcher is not None
        batches.append(self._change_batch(self._watcher.take_changes(), now_ns))
        called = {SYMBOLS[index] for index in np.flatnonzero(self._hits).tolist()}
        probed = {symbol for symbol, _ in self._watcher.probed()}
        batches.append(self._losses.batch(tracing, called | probed, now_ns))
        if self._shedder is not None:
            batches.extend(self._shedder.batches(now_ns))
        return [batch for batch in batches if batch.rows.num_rows]

    def _change_batch(self, changes: Sequence[Change], now_ns: int) -> Batch:
        rows = [
            (one.time_ns, "library" if one.kind == "library" else "coverage", one)
            for one in changes
        ]
        self._losses.n_fork_gaps += sum(one.kind == "fork_gap" for one in changes)
        problems = [
            Change("coverage", now_ns, pid, "cuda", problem)
            for pid, one in (
                self._coverage().items() if now_ns - self._start_ns > 5 * SECOND_NS else ()
            )
            for problem in one.problems
            if (pid, problem[:40]) not in self._coverage_told
        ]
        self._coverage_told |= {(one.pid, one.detail[:40]) for one in problems}
        rows += [(one.time_ns, "coverage", one) for one in problems]
        return make_batch(
            EVENT,
            {
                "time_ns": [time_ns for time_ns, _, _ in rows],
                "kind": [kind for _, kind, _ in rows],
                "pid": [one.pid for _, _, one in rows],
                "duration_ns": [one.duration_ns for _, _, one in rows],
                "name": [one.name for _, _, one in rows],
                "detail": [one.detail for _, _, one in rows],
            },
        )

    def _call_batches(self, calls: Calls) -> list[Batch]:
        if not len(calls):
            return []
        self._losses.note(calls)
        for listener in self._listeners:
            listener.add(calls)
        arguments = decode(calls.entries)
        meaning = self._meaning.explain(calls, arguments)
        batch = make_batch(CUDA_CALL, call_columns(calls, arguments, meaning))
        return [
            Batch(CUDA_CALL, batch.rows.slice(start, MAX_ROWS))
            for start in range(0, batch.rows.num_rows, MAX_ROWS)
        ]


def _probe_costs(tracing: Tracing) -> Mapping[str, ProbeCost]:
    """What a probe costs here, or what is assumed where it cannot be measured."""
    try:
        return calibration.measure(tracing)
    except ProbeError:
        return calibration.ASSUMED


def _is_return_safe() -> bool:
    try:
        return returns_survive_seccomp()
    except ProbeError:
        return False
