"""The probe of NVML: what the driver tells of each GPU and of the processes on it.

All calls into the driver happen in child processes (:mod:`probes.gpu.nvml_child`). A call past
its deadline costs one event and a gap for its device: the child is abandoned, the other devices
go on in a new one, and the lost device is tried again ever less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.schema import EVENT, GPU_INSTANCE_SAMPLE, GPU_PROCESS, GPU_SAMPLE, Table
from probes.clocks import ClockReaders, read_anchor
from probes.gpu.contexts import ContextBoard
from probes.gpu.events import ALL, driver_event, gpu_name, health_events
from probes.gpu.inventory import Inventory, unique_uuids
from probes.gpu.losses import FIRST_PAUSE_NS, DeviceLosses
from probes.gpu.nvml_process import Frame, SamplerProcess
from probes.gpu.rows import (
    ProcessNamer,
    ToMonotonic,
    buffer_rows,
    clean,
    fast_rows,
    process_batch,
    process_rows,
    sample_batch,
)
from probes.host.proc import PROC
from probes.probe import Batch, PidSource, ProbeError, SourceReport, make_batch, remedy

SECOND_NS = 1_000_000_000
#: Time that starting waits for the library to tell whether it can be used at all.
_HELLO_NS = SECOND_NS // 2
_FINISH_NS = 3 * SECOND_NS // 10
#: Abandoned children that still hang, at which no further one is started.
_MAX_HANGING = 4
#: Pids without a process that are counted; a driver may list garbage, other at each look.
_MOST_UNSEEN = 10_000
#: Numbers of a GPU in the manifest.
_LIMITS = ("memory_bytes", "power_limit_mw", "sm_clock_max_mhz", "numa_node")
_REMEDY = "check that 'nvidia-smi' works on this host"


@dataclass
class _Cost:
    """Last statistics of a child."""

    stats: dict[str, Any] = field(default_factory=dict)


class NvmlProbe:
    """Samples all GPUs through NVML.

    Args:
        targets: Tells the recorded processes, to mark them; None marks none.
        interval_ns: Time between two fast samples.
        slow_interval_ns: Time between two looks at processes, links and the driver's buffers.
        deadline_ns: Most time for one call into the driver.
        library_dir: Folder to look for ``libnvidia-ml.so.1`` in first.
        env: Further variables of the children's environment.
        to_monotonic: Maps wall-clock times to CLOCK_MONOTONIC with error bounds
            (``ClockAnchors.map_received``); by default the clocks are read at each drain.
        contexts: Gets the newest lists of processes on each GPU.
        root: Where /proc is.
        retry_ns: Time after which a device whose call never returned is tried again.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        targets: PidSource | None = None,
        interval_ns: int = SECOND_NS // 10,
        slow_interval_ns: int = SECOND_NS,
        deadline_ns: int = 2 * SECOND_NS,
        library_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
        to_monotonic: ToMonotonic | None = None,
        contexts: ContextBoard | None = None,
        root: Path = PROC,
        retry_ns: int = FIRST_PAUSE_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = "nvml"
        self.tables: Sequence[Table] = (GPU_SAMPLE, GPU_INSTANCE_SAMPLE, GPU_PROCESS, EVENT)
        self.period_ns = SECOND_NS // 2
        self._targets = targets
        self._interval_ns = interval_ns
        self._slow_interval_ns = slow_interval_ns
        self._deadline_ns = deadline_ns
        self._library_dir = library_dir
        self._env = env
        self._to_monotonic = to_monotonic
        self._contexts = contexts or ContextBoard()
        self._clock = clock
        self._namer = ProcessNamer(root)
        self._samplers: dict[SamplerProcess, _Cost] = {}
        self._hanging: list[SamplerProcess] = []
        self._losses = DeviceLosses(retry_ns)
        self._gpus: dict[int, dict[str, Any]] = {}
        self._versions: dict[str, str | None] = {}
        self._health: dict[int, dict[str, int]] = {}
        self._topology: dict[str, Any] = {}
        self._instances: dict[str, list[dict[str, Any]]] = {}
        self._errors: dict[str, int] = {}
        self._unseen: set[int] = set()
        self._start_ns = 0
        self._n_rows = 0
        self._n_lost = 0
        self._past_cost_ns = 0
        self._past_driver_ns = 0
        self._early: list[Frame] = []

    def start(self) -> None:
        """Start the sampler; waits at most half a second for the library's answer.

        Raises:
            ProbeError: there is no NVML here.
        """
        self._start_ns = self._clock()
        sampler = self._spawn(None)
        self._early = list(sampler.wait(_HELLO_NS))
        failures = [text for frame in self._early for text in frame.get("failed", ())]
        if failures or (not self._early and sampler.has_ended()):
            self._release(sampler)
            reason = failures[0] if failures else "the sampler of NVML ended at once"
            raise ProbeError(f"{reason}; {_REMEDY}")

    def inventory(self, timeout_ns: int = 5 * SECOND_NS) -> Inventory:
        """Return the GPUs found, waiting for the driver's first answer at most ``timeout_ns``."""
        end = self._clock() + timeout_ns
        self._note_hello(self._early)
        while not self._gpus and self._clock() < end and self._samplers:
            for sampler in self._samplers:
                frames = sampler.wait(SECOND_NS // 20)
                self._early.extend(frames)
                self._note_hello(frames)
            if all(sampler.has_ended() for sampler in self._samplers):
                break
        gpus = [self._gpus[index] for index in sorted(self._gpus)]
        return Inventory(
            gpus, self._versions.get("driver_version"), self._versions.get("nvml_version")
        )

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return what the children sent since the last call; never waits for the driver."""
        batches: list[Batch] = []
        early, self._early = self._early, []
        for sampler in list(self._samplers):
            frames = early + sampler.read()
            early = []
            self._take(sampler, frames, now_ns, batches)
            stuck = sampler.stuck_call(now_ns, self._deadline_ns)
            if stuck is not None:
                self._give_up(sampler, now_ns, *stuck)
            elif sampler.has_ended():
                self._take(sampler, sampler.read(), now_ns, batches)
                self._ended(sampler, now_ns)
        self._try_again(now_ns)
        return self._with_events(batches)

    def stop(self) -> Iterable[Batch]:
        """Stop the children and return what is left; a child that hangs is abandoned."""
        batches = list(self.drain(self._clock()))
        for sampler in list(self._samplers):
            frames = sampler.finish(_FINISH_NS)
            self._take(sampler, frames, self._clock(), batches)
            self._release(sampler)
        return self._with_events(batches)

    def report(self) -> SourceReport:
        """Return what was sampled, the CPU time of the children and their time in the driver."""
        stats = [cost.stats for cost in self._samplers.values()]
        found = self.inventory(timeout_ns=0)
        notes = []
        if self._losses.lost:
            names = ", ".join(gpu_name(device) for device in sorted(self._losses.lost))
            notes.append(f"{names} did not answer at the end")
        if self._unseen:
            notes.append(
                f"{len(self._unseen)} processes on the GPUs are not visible here: "
                "run in the host's PID namespace"
            )
        intervals = [item["interval_ns"] for item in stats if "interval_ns" in item]
        if intervals and max(intervals) > self._interval_ns:
            notes.append("the driver is slow, so it was asked less often")
        return SourceReport(
            name=self.name,
            n_rows=self._n_rows,
            n_lost=self._n_lost,
            cost_ns=self._past_cost_ns + sum(item.get("cpu_ns", 0) for item in stats),
            note="; ".join(notes),
            details={
                **self._versions,
                "gpus": found.gpus,
                "is_simulated": found.is_simulated,
                "driver_ns": self._past_driver_ns + sum(item.get("driver_ns", 0) for item in stats),
                "interval_ns": max(intervals, default=self._interval_ns),
                "errors": self._errors,
                "health": {str(device): health for device, health in self._health.items()},
                "topology": self._topology,
                "mig_instances": self._instances,
                "n_hanging": sum(child.exit_code is None for child in self._hanging),
            },
        )

    def _spawn(self, devices: Sequence[int] | None, excluded: Sequence[int] = ()) -> SamplerProcess:
        sampler = SamplerProcess(
            self._interval_ns,
            self._slow_interval_ns,
            devices,
            excluded,
            self._library_dir,
            self._env,
            self._clock,
            unique_uuids(self._gpus),
        )
        self._samplers[sampler] = _Cost()
        return sampler

    def _release(self, sampler: SamplerProcess) -> None:
        """Forget a child, keeping its cost; remember it if it still hangs."""
        sampler.abandon()
        cost = self._samplers.pop(sampler, _Cost())
        self._past_cost_ns += cost.stats.get("cpu_ns", 0)
        self._past_driver_ns += cost.stats.get("driver_ns", 0)
        if sampler.exit_code is None:
            self._hanging.append(sampler)

    def _note_hello(self, frames: Iterable[Frame]) -> None:
        """Learn the GPUs; a child that leaves some alone tells only placeholders of them."""
        for frame in frames:
            for hello in frame.get("hello", ()):
                self._versions = {
                    "driver_version": hello["driver_version"],
                    "nvml_version": hello["nvml_version"],
                }
                for gpu in hello["gpus"]:
                    if len(gpu) > 2 or gpu["index"] not in self._gpus:
                        limits = {
                            name: clean(name, gpu.get(name)) for name in _LIMITS if name in gpu
                        }
                        self._gpus[gpu["index"]] = {**gpu, **limits}

    def _take(
        self,
        sampler: SamplerProcess,
        frames: Sequence[Frame],
        now_ns: int,
        batches: list[Batch],
    ) -> None:
        """Add the rows of a child's frames, and note its events."""
        if not frames:
            return
        self._note_hello(frames)
        if sampler.devices is None and self._gpus:
            sampler.devices = set(self._gpus)

        def all_of(kind: str) -> list[Any]:
            return [row for frame in frames for row in frame.get(kind, ())]

        rows = fast_rows(all_of("fast"))
        self._losses.recover({row["device"] for row in rows}, now_ns)
        buffers = all_of("buffers")
        if buffers:
            mapping = self._to_monotonic or _mapping_now()
            more, n_dropped = buffer_rows(buffers, mapping, self._start_ns, now_ns)
            rows.extend(more)
            self._n_lost += n_dropped
        for time_ns, device, columns in all_of("gpm"):
            rows.append({"time_ns": time_ns, "device": device, "source": "gpm", **columns})
        if rows:
            batches.append(sample_batch(rows))
        parts = [
            {"time_ns": time_ns, "device": device, **row}
            for time_ns, device, row in all_of("instance_samples")
        ]
        if parts:
            batches.append(sample_batch(parts, GPU_INSTANCE_SAMPLE))
        targets = self._targets.pids() if self._targets is not None else set()
        self._contexts.put_frames(all_of("processes"))
        processes, unseen = process_rows(all_of("processes"), self._namer, targets)
        if len(self._unseen) < _MOST_UNSEEN:
            self._unseen |= unseen
        if processes:
            batches.append(process_batch(processes))
        for time_ns, device, reason in all_of("events"):
            self._losses.lose(device, time_ns, reason)
            if sampler.devices is not None:
                sampler.devices.discard(device)
            # Only who initialises the library anew finds a GPU again that was reset.
            self._losses.retry_later([device], now_ns)
        for time_ns, device, kind, data in all_of("xids"):
            self._losses.events.append(driver_event(time_ns, device, kind, data))
        for time_ns, device, health, before in all_of("health"):
            self._health[device] = health
            self._losses.events.extend(health_events(time_ns, device, health, before))
        for topology in all_of("topology"):
            self._topology = topology
        for device, instances in all_of("instances"):
            self._instances[str(device)] = instances
        for text in all_of("failed"):
            sampler.failure = str(text)
            self._losses.lose(ALL, now_ns, sampler.failure)
        for stats in all_of("stats"):
            self._samplers.get(sampler, _Cost()).stats = stats
            self._errors.update(stats["errors"])

    def _give_up(
        self, sampler: SamplerProcess, now_ns: int, device: int, function: str, duration_ns: int
    ) -> None:
        """Abandon a child that is stuck; go on with the other devices in a new one."""
        devices = sampler.devices
        self._release(sampler)
        reason = f"{function} has not returned for {duration_ns / 1e9:.1f} s"
        self._losses.lose(device, now_ns - duration_ns, reason)
        if device == ALL:
            self._losses.retry_later(devices, now_ns)
            return
        self._losses.retry_later([device], now_ns)
        rest = sorted((set(self._gpus) if devices is None else devices) - {device})
        if rest:
            self._spawn_again(rest, now_ns, [device])
        elif devices is None and not self._gpus:
            self._spawn(None, [device])

    def _ended(self, sampler: SamplerProcess, now_ns: int) -> None:
        """Note the end of a child, and plan another."""
        devices = sampler.devices
        text = sampler.failure or f"the sampler of NVML ended (exit code {sampler.exit_code})"
        self._release(sampler)
        for device in [ALL] if devices is None else sorted(devices):
            self._losses.lose(device, now_ns, text)
        self._losses.retry_later(devices, now_ns)

    def _try_again(self, now_ns: int) -> None:
        """Start children for devices whose time has come, unless too many already hang."""
        self._hanging = [sampler for sampler in self._hanging if sampler.exit_code is None]
        if len(self._hanging) < _MAX_HANGING:
            for devices in self._losses.take_due(now_ns):
                self._spawn_again(devices, now_ns)

    def _spawn_again(
        self, devices: Sequence[int] | None, now_ns: int, excluded: Sequence[int] = ()
    ) -> None:
        """Start a child in the place of another; where none can be started now, try later."""
        try:
            self._spawn(devices, excluded)
        except OSError as error:
            for device in [ALL] if devices is None else devices:
                text = f"no process can be started ({error.strerror}); {remedy(error)}"
                self._losses.lose(device, now_ns, text)
            self._losses.retry_later(devices, now_ns)

    def _with_events(self, batches: list[Batch]) -> list[Batch]:
        """Add the events since the last call."""
        events = self._losses.take_events()
        if events:
            columns = {name: [event.get(name) for event in events] for name in EVENT.column_names}
            batches.append(make_batch(EVENT, columns))
        self._n_rows += sum(batch.rows.num_rows for batch in batches)
        return batches


def inventory(
    library_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_ns: int = 5 * SECOND_NS,
) -> Inventory:
    """Return the GPUs of this host.

    Args:
        library_dir: Folder to look for ``libnvidia-ml.so.1`` in first.
        env: Further variables of the child's environment.
        timeout_ns: Most time to wait for the driver.

    Raises:
        ProbeError: there is no NVML here, or it does not answer.
    """
    probe = NvmlProbe(
        interval_ns=SECOND_NS, slow_interval_ns=60 * SECOND_NS, library_dir=library_dir, env=env
    )
    probe.start()
    found = probe.inventory(timeout_ns)
    list(probe.stop())
    if not found.gpus:
        raise ProbeError(f"NVML did not answer within {timeout_ns / 1e9:g} s; {_REMEDY}")
    return found


def gpus(
    library_dir: Path | None = None, env: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the GPUs of this host, each a dict with the fields of the manifest's ``Gpu``.

    Raises:
        ProbeError: there is no NVML here, or it does not answer.
    """
    return inventory(library_dir, env).gpus


def _mapping_now() -> ToMonotonic:
    """Map by the clocks as they stand to each other now."""
    anchor = read_anchor(ClockReaders())
    offset = anchor.realtime_ns - anchor.monotonic_ns
    return lambda realtime_ns, _near_ns: (
        realtime_ns - offset,
        np.full(realtime_ns.size, anchor.error_ns),
    )
