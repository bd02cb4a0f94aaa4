"""What the analyzers share about one session: computed once, on demand, from its tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals, quantiles
from analysis.absences import Absences, load_absences
from analysis.calls import Calls, load_calls
from analysis.columns import tally
from analysis.device import Steps, process_steps
from analysis.device_coverage import load_coverage, of_processes
from analysis.engine import EngineSeries, load_engine
from analysis.gpu import GpuSamples, Samples, load_gpu
from analysis.idleness import Idleness, timed_devices
from analysis.open_calls import load_open_calls
from analysis.threads import Launcher
from analysis.timeline import Session
from analysis.waits import children, thread_shares, waits_of

Ints = npt.NDArray[np.int64]

#: Pauses between two CUDA calls are looked at one by one from here on.
PAUSE_NS = 10_000_000
#: A pause between two CUDA calls in which the launching thread mostly sleeps counts as "nothing
#: was asked" from here on, where no engine tells the demand. An engine or training loop that has
#: work pauses for less than a tenth of a second; a shorter sleep is charged to the host.
QUIET_NS = 100_000_000
#: Devices that a call can name (see :mod:`analysis.calls`).
_MOST_DEVICES = 128
#: Waits are of like length when they differ by at most this (deviation over mean).
REGULAR = 0.35
#: The same where the scheduler was not recorded, so that a sleep cannot be told from computing.
UNSEEN_QUIET_NS = 1_000_000_000


@dataclass(frozen=True)
class Loss:
    """Records that one source lost, and the share of its records that this is."""

    source: str
    n_lost: int
    share: float


class Facts:
    """Shared evidence of one session. Every property is computed at its first use."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.manifest = session.manifest

    @cached_property
    def start_ns(self) -> int:
        """Begin of the recording, ns."""
        return self.session.start_ns

    @cached_property
    def end_ns(self) -> int:
        """End of the recording, ns."""
        return self.session.end_ns

    @cached_property
    def complete_ns(self) -> int:
        """Until when the recording holds every call, ns: its end, unless it was thinned."""
        found = [
            int(source.details["thinned_from_ns"])
            for source in self.manifest.sources
            if isinstance(source.details.get("thinned_from_ns"), int)
        ]
        return min([self.end_ns, *found])

    @cached_property
    def is_thinned(self) -> bool:
        """Whether rows are missing on purpose (an imported recording that kept outliers, or one
        that kept to a budget).
        """
        return any(source.details.get("is_thinned") for source in self.manifest.sources)

    @cached_property
    def sliced_share(self) -> float:
        """Share of the recording in [0, 1] in which frequent calls were left out for a budget."""
        length_ns = max(self.end_ns - self.start_ns, 1)
        budgets = [source.details.get("budget") for source in self.manifest.sources]
        blind = [one.get("blind_ns") for one in budgets if isinstance(one, dict)]
        return min(max([ns for ns in blind if isinstance(ns, int)], default=0) / length_ns, 1.0)

    @cached_property
    def calls(self) -> Calls | None:
        """Outermost CUDA calls, None where none was recorded."""
        calls = load_calls(self.session)
        return calls if calls is not None and len(calls) else None

    @cached_property
    def absences(self) -> Absences | None:
        """Off-CPU intervals of launching threads, None where not recorded."""
        return load_absences(self.session)

    @cached_property
    def engine(self) -> EngineSeries | None:
        """Metrics of the inference engine, None where it was not scraped."""
        return load_engine(self.session)

    @cached_property
    def gpu(self) -> GpuSamples | None:
        """GPU samples, None where none was taken."""
        return load_gpu(self.session)

    @cached_property
    def names(self) -> dict[int, str]:
        """Process names by pid, as far as known."""
        found = {target.pid: target.name for target in self.manifest.targets if target.name}
        if self.session.has("process_sample"):
            rows = self.session.table("process_sample", columns=["time_ns", "pid", "name"])
            pids, words = rows["pid"].to_pylist(), rows["name"].to_pylist()
            found.update({pid: name for pid, name in zip(pids, words, strict=True) if name})
        return found

    @cached_property
    def processes(self) -> list[int]:
        """Processes that handed work to a device, the busiest first."""
        if self.calls is None:
            return []
        totals: dict[int, int] = {}
        for (pid, _tid), n in zip(self.calls.threads, self._thread_weights, strict=True):
            totals[pid] = totals.get(pid, 0) + n
        used = [pid for pid, n in totals.items() if n]
        return sorted(used, key=lambda pid: (-totals[pid], pid))

    @cached_property
    def _thread_weights(self) -> list[int]:
        """Submissions and syncs of each thread."""
        calls = self.calls
        assert calls is not None
        is_used = calls.is_submission | calls.is_sync
        return [int(n) for n in tally(calls.thread, is_used, len(calls.threads))]

    @cached_property
    def device_of(self) -> dict[int, int | None]:
        """The device that each process works on mostly; None where nothing tells."""
        result: dict[int, int | None] = {}
        only = self.manifest.gpus[0].index if len(self.manifest.gpus) == 1 else None
        for pid in self.processes:
            result[pid] = only
            assert self.calls is not None
            device = self.calls.device
            told = tally(device, self.calls.of_process(pid) & (device >= 0), _MOST_DEVICES)
            if told.any():
                result[pid] = int(np.argmax(told))
            elif only is None and self.gpu is not None:
                rows = self.gpu.processes
                seen = rows[rows["pid"] == pid]["device"].unique()
                result[pid] = int(seen[0]) if len(seen) == 1 else None
        return result

    @cached_property
    def devices(self) -> list[int | None]:
        """Devices that processes of the session worked on, or that were sampled if none did."""
        found: set[int | None] = set(self.device_of.values())
        found.update(self.activity)
        if not found and self.gpu is not None:
            found.update(self.gpu.devices)
        if not found:
            found.update(gpu.index for gpu in self.manifest.gpus)
        return sorted(found or {None}, key=lambda device: -1 if device is None else device)

    def pids_on(self, device: int | None) -> list[int]:
        """Return the processes of the session that work on a device, the busiest first."""
        return [pid for pid in self.processes if self.device_of[pid] == device]

    @cached_property
    def launchers(self) -> dict[int, Launcher]:
        """The main launching thread of each process: the one with the most submissions."""
        result: dict[int, Launcher] = {}
        calls = self.calls
        if calls is None:
            return result
        for pid in self.processes:
            own = [index for index, thread in enumerate(calls.threads) if thread[0] == pid]
            index = max(own, key=lambda item: self._thread_weights[item])
            result[pid] = Launcher(calls, index, self.absences, self.start_ns, self.end_ns)
        return result

    def pauses(self, pid: int) -> tuple[Ints, int | None]:
        """Return the pauses of a process longer than :data:`PAUSE_NS` as ``(n, 2)`` ns, and the
        median of all its pauses, ns.
        """
        if pid not in self._pauses:
            assert self.calls is not None
            self._pauses[pid] = self.calls.pauses(pid, PAUSE_NS)
        return self._pauses[pid]

    @cached_property
    def _pauses(self) -> dict[int, tuple[Ints, int | None]]:
        return {}

    def main_launcher(self, device: int | None) -> Launcher | None:
        """Return the launching thread of the busiest process on a device, None without calls."""
        pids = self.pids_on(device)
        return self.launchers[pids[0]] if pids else None

    def steps(self, pid: int) -> Steps:
        """Return the steps (submissions up to a sync) of a process, in the complete part of the
        recording.
        """
        if pid not in self._steps:
            calls = self.calls
            assert calls is not None
            own = calls.of_process(pid)
            own[np.searchsorted(calls.start, self.complete_ns) :] = False
            self._steps[pid] = process_steps(calls, own, self.absences, self.complete_ns)
        return self._steps[pid]

    @cached_property
    def _steps(self) -> dict[int, Steps]:
        return {}

    def workers(self, pid: int) -> set[int]:
        """Return the child processes of a process that launch nothing themselves."""
        return children(self.session, pid) - set(self.processes)

    def input_waits(self, pid: int) -> Ints:
        """Return when the launching thread of a process slept until one of its workers woke it,
        as ``(n, 2)`` ns: by a worker, or by a thread of its own that mostly sleeps itself (one
        that hands the workers' results on) while workers compute. A child that ends a single wait
        (a compiler, by its exit) is no worker.
        """
        if pid not in self._input_waits:
            waits, workers = waits_of(self.launchers[pid]), self.workers(pid)
            wakers, n_woken = np.unique(waits.waker_pid, return_counts=True)
            by_worker = np.isin(waits.waker_pid, list(workers & set(wakers[n_woken > 1].tolist())))
            own = (waits.waker_pid == pid) & (waits.waker_tid != self.launchers[pid].tid)
            if workers and own.any():
                span_ns = self.end_ns - self.start_ns
                told = thread_shares(self.session, {pid, *workers}, span_ns) or {}
                computing = sum(item.wanted for (one, _), item in told.items() if one in workers)
                idle = [
                    tid for (one, tid), item in told.items() if one == pid and item.wanted < 0.1
                ]
                if computing >= 0.5:
                    by_worker |= own & np.isin(waits.waker_tid, idle)
            self._input_waits[pid] = waits.spans[by_worker]
        return self._input_waits[pid]

    def regular_waits(self, pid: int) -> Ints:
        """Return when the launching thread of a process slept until another process woke it that
        is not known as its child, as ``(n, 2)`` ns; none where these waits differ much in length.
        """
        waits = waits_of(self.launchers[pid])
        known = [pid, *self.processes, *self.workers(pid)]
        spans: Ints = waits.spans[(waits.waker_pid > 0) & ~np.isin(waits.waker_pid, known)]
        length = spans[:, 1] - spans[:, 0]
        spans = spans[2 * length > (quantiles.median(length) or 0)]
        length = spans[:, 1] - spans[:, 0]
        if len(spans) == 0 or float(length.std()) > REGULAR * float(length.mean()):
            return intervals.EMPTY
        return spans

    @cached_property
    def _input_waits(self) -> dict[int, Ints]:
        return {}

    def copies(self, pid: int, kinds: Iterable[str]) -> Ints:
        """Return the copies of some kinds of a process as ``(n, 2)``: entry in ns, bytes."""
        wanted = pa.array(list(kinds), pa.string())
        columns = ("start_ns", "pid", "copy_kind", "size_bytes")

        def convert(part: pa.Table) -> Ints:
            is_one = pc.fill_null(pc.is_in(part["copy_kind"], wanted), False)
            own = part.filter(pc.and_(is_one, pc.equal(part["pid"], pid)))
            own = own.filter(pc.is_valid(own["size_bytes"]))
            start, size = own["start_ns"].to_numpy(), own["size_bytes"].to_numpy()
            found: Ints = np.stack((start, size), axis=1)
            return found

        parts = self.session.collect("cuda_call", columns, convert)
        rows: Ints = np.concatenate(parts) if parts else intervals.EMPTY
        ordered: Ints = rows[np.argsort(rows[:, 0], kind="stable")]
        return ordered

    @cached_property
    def activity(self) -> dict[int, dict[str, Ints]]:
        """Disjoint busy intervals by device and class (compute, copy, collective) from device
        times; empty without them.
        """
        result: dict[int, dict[str, Ints]] = {}
        if not self.session.has("gpu_activity"):
            return result
        columns = ["start_ns", "duration_ns", "device", "kind", "is_collective"]
        rows = self.session.table("gpu_activity", columns=columns)
        start = rows["start_ns"].to_numpy()
        spans = intervals.make(start, start + rows["duration_ns"].to_numpy())
        device = rows["device"].to_numpy()
        kind = rows["kind"].to_numpy(zero_copy_only=False)
        is_collective = pc.fill_null(rows["is_collective"], False).to_numpy()
        is_copy = (kind == "copy") | (kind == "set")
        for index in np.unique(device).tolist():
            mine = device == index
            result[index] = {
                "compute": intervals.union(spans[mine & ~is_copy & ~is_collective]),
                "collective": intervals.union(spans[mine & is_collective]),
                "copy": intervals.union(spans[mine & is_copy & ~is_collective]),
            }
        return result

    @cached_property
    def timed(self) -> list[Idleness]:
        """What each device with device times ran, and why it was idle; empty without them."""
        return timed_devices(self.session, None if self._coverage is None else self.covered)

    @cached_property
    def _coverage(self) -> dict[int, Ints] | None:
        """Where the device times of each process are complete; None for everywhere."""
        return load_coverage(self.session)

    @property
    def has_live_times(self) -> bool:
        """Whether device times were recorded beside the scheduler, not imported from a trace."""
        return self._coverage is not None

    def covered(self, device: int) -> Ints:
        """Return the disjoint intervals in ns in which the device times of a device are complete:
        those of every process of the session that works on it.
        """
        if self._coverage is None:
            return intervals.make([self.start_ns], [self.end_ns])
        if device not in self._covered:
            rows = self.session.table("gpu_activity", columns=["start_ns", "device", "pid"])
            own = rows.filter(pc.equal(rows["device"], device))["pid"]
            pids = {pid for pid in pc.unique(own).to_pylist() if pid is not None}
            self._covered[device] = of_processes(self._coverage, pids | set(self.pids_on(device)))
        return self._covered[device]

    @cached_property
    def _covered(self) -> dict[int, Ints]:
        return {}

    def uncovered(self, device: int) -> Ints:
        """Return the disjoint intervals in ns in which device times of a device are missing."""
        return intervals.gaps(self.covered(device), self.start_ns, self.end_ns)

    def idle(self, device: int | None) -> Ints:
        """Return the disjoint intervals in which a device certainly ran nothing of the session."""
        if device not in self._idle:
            self._idle[device] = self._find_idle(device)
        return self._idle[device]

    @cached_property
    def _idle(self) -> dict[int | None, Ints]:
        return {}

    def _find_idle(self, device: int | None) -> Ints:
        if device is not None and device in self.activity:
            busy = np.concatenate(list(self.activity[device].values()))
            idle = intervals.gaps(busy, self.start_ns, self.end_ns)
            missing = self.uncovered(device)
            if len(missing) == 0:
                return idle
            told = intervals.intersect(self._idle_by_calls(device), missing)
            known = np.concatenate((intervals.subtract(idle, missing), told))
            return intervals.subtract(known, busy)
        return self._idle_by_calls(device)

    def _idle_by_calls(self, device: int | None) -> Ints:
        """When a device certainly ran nothing of the session, as its calls tell."""
        result: Ints | None = None
        assert self.calls is not None or not self.pids_on(device)
        for pid in self.pids_on(device):
            steps = self.steps(pid)
            own = steps.idle
            if result is not None and len(steps):
                # Before a further process appears it leaves the device alone.
                quiet = intervals.make([self.start_ns], [int(steps.first_launch[0])])
                own = np.concatenate((own, quiet))
            own = intervals.union(own)
            result = own if result is None else intervals.intersect(result, own)
        return intervals.EMPTY if result is None else result

    def busy(self, device: int | None) -> Ints:
        """Return the disjoint intervals in which a device certainly had work of the session."""
        if device not in self._busy:
            self._busy[device] = self._find_busy(device)
        return self._busy[device]

    @cached_property
    def _busy(self) -> dict[int | None, Ints]:
        return {}

    def _find_busy(self, device: int | None) -> Ints:
        if device is not None and device in self.activity:
            ran = np.concatenate(list(self.activity[device].values()))
            missing = self.uncovered(device)
            if len(missing):
                told = intervals.intersect(self._busy_by_calls(device), missing)
                ran = np.concatenate((ran, told))
            return intervals.union(ran)
        return self._busy_by_calls(device)

    def _busy_by_calls(self, device: int | None) -> Ints:
        """When a device certainly had work of the session, as its calls tell."""
        parts = [self.steps(pid).busy for pid in self.pids_on(device)]
        return intervals.union(np.concatenate(parts)) if parts else intervals.EMPTY

    def utilisation(self, device: int | None) -> Samples | None:
        """Return the utilisation samples of a device in %, None where there are none."""
        if self.gpu is None:
            return None
        if device is None:
            if len(self.gpu.devices) != 1:
                return None
            device = self.gpu.devices[0]
        return self.gpu.quantity(device, "util_pct")

    @cached_property
    def open_calls(self) -> list[dict[str, Any]]:
        """Outermost calls that were open at the last snapshot and did not return since, each as a
        row of open_call.
        """
        return load_open_calls(self.session)

    @cached_property
    def demand(self) -> Ints:
        """Disjoint intervals in which work was asked of the process: as the engine tells and as
        the calls tell (see :data:`QUIET_NS`); within the complete part of the recording.
        """
        told = self.engine.demand if self.engine is not None else None
        parts = [self._active(pid) for pid in self.processes]
        if told is not None:
            # An engine that launches has work, also before its gauges say so. Where its sleeps are
            # known too, they tell better what lies between two scrapes.
            certain = self.engine.certain_demand if self.engine is not None else None
            is_seen = bool(self.processes) and self.absences is not None
            parts.append(certain if is_seen and certain is not None else told)
        timed = [spans for kinds in self.activity.values() for spans in kinds.values()]
        ran = intervals.union(np.concatenate(timed)) if timed else intervals.EMPTY
        parts.append(_bridge(ran, UNSEEN_QUIET_NS))
        spans = intervals.union(np.concatenate(parts))
        if len(ran) and self._coverage is None:
            # What the host did before the first activity was not asked of the device.
            spans = intervals.clip(spans, int(ran[0, 0]), int(ran[-1, 1]))
        return intervals.clip(spans, self.start_ns, self.complete_ns)

    @property
    def is_demand_told(self) -> bool:
        """Whether an engine tells the demand, rather than the calls."""
        return self.engine is not None and self.engine.demand is not None

    @cached_property
    def demand_ns(self) -> int:
        """Length of the demand, ns; at least 1."""
        return max(intervals.total(self.demand), 1)

    def _active(self, pid: int) -> Ints:
        """When a process was calling, launching or computing towards its next call."""
        calls = self.calls
        assert calls is not None
        launcher = self.launchers[pid]
        shortest = UNSEEN_QUIET_NS if launcher.absences is None else QUIET_NS
        pauses, _median = self.pauses(pid)
        pauses = pauses[pauses[:, 1] - pauses[:, 0] > shortest]
        if launcher.absences is not None:
            away = intervals.overlap_each(pauses, launcher.absences.spans)
            ready = intervals.overlap_each(pauses, launcher.absences.ready_spans)
            pauses = pauses[2 * (away - ready) > pauses[:, 1] - pauses[:, 0]]
            if not self.is_demand_told:
                # A program that waits for its own workers wants to go on.
                loading = intervals.overlap_each(pauses, intervals.union(self.input_waits(pid)))
                pauses = pauses[2 * loading < pauses[:, 1] - pauses[:, 0]]
        own = calls.of_process(pid)
        first, last = int(np.argmax(own)), len(own) - 1 - int(np.argmax(own[::-1]))
        end = int(calls.start[last] + calls.duration[last])
        active = intervals.subtract(intervals.make([calls.start[first]], [end]), pauses)
        opened = [
            (int(row["start_ns"]), self.end_ns)
            for row in self.open_calls
            if row["pid"] == pid and not row["is_doubtful"]
        ]
        if opened:
            active = np.concatenate((active, np.array(opened, dtype=np.int64)))
        return intervals.union(active)

    @cached_property
    def losses(self) -> list[Loss]:
        """What each source lost, from the manifest and the loss table."""
        lost: dict[str, int] = {}
        if self.session.has("loss"):
            rows = self.session.table("loss", columns=["time_ns", "source", "n_lost"])
            for row in rows.group_by("source").aggregate([("n_lost", "sum")]).to_pylist():
                lost[row["source"]] = int(row["n_lost_sum"] or 0)
        kept: dict[str, int] = {}
        for source in self.manifest.sources:
            kept[source.name] = source.n_rows
            lost[source.name] = max(lost.get(source.name, 0), source.n_lost)
        return [
            Loss(name, n, n / max(n + kept.get(name, 0), 1))
            for name, n in sorted(lost.items())
            if n > 0
        ]

    def trust(self, *sources: str) -> float:
        """Return a factor in (0, 1] for confidence: the share of records that was kept, of the
        worst of the sources whose name contains one of these words.

        What the disk did not take may have been of any source.
        """
        shares = [
            loss.share
            for loss in self.losses
            if any(word in loss.source for word in sources) or loss.source in ("ingero", "session")
        ]
        return max(1.0 - max(shares, default=0.0), 0.3)

    @property
    def missing_share(self) -> float:
        """Share of the session in [0, 1] that was recorded and is not there: dropped by the disk,
        or in segments that cannot be read, as far as tables were read until now.
        """
        dropped = [loss.share for loss in self.losses if loss.source == "session"]
        return max([*dropped, *self.session.damage.values()], default=0.0)

    def process_name(self, pid: int | None) -> str | None:
        """Return the name of a process, None where not known."""
        return None if pid is None else self.names.get(pid)

    def has(self, names: Iterable[str]) -> bool:
        """Return whether the session has all of these tables."""
        return all(self.session.has(name) for name in names)


def _bridge(spans: Ints, gap_ns: int) -> Ints:
    """Join spans that are at most a gap apart."""
    rows = intervals.union(spans)
    pauses = intervals.make(rows[:-1, 1], rows[1:, 0])
    return intervals.union(np.concatenate((rows, pauses[pauses[:, 1] - pauses[:, 0] <= gap_ns])))
