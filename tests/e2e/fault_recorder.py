"""A recorder of made-up calls with everything real behind it: retention, segments, marks, samples.

``python -m tests.e2e.fault_recorder DIR [--calls-per-s N] [--keep-s S] [--max-bytes N]
[--min-free N] [--step-clock] [--lose-source] [--nvml] [--grow-bytes-per-s N]``; it prints "up" and
records until a signal ends it.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from probes.clocks import ClockAnchors, ClockReaders
from probes.gpu.nvml import NvmlProbe
from probes.host.host import HostProbe
from probes.host.process import ProcessProbe
from probes.probe import Batch, ProbeError
from probes.targets import TargetTree
from tests.tracer.fake_probes import FakeCalls
from tracer.free_space import FreeSpace
from tracer.recorder import Recorder, first_manifest, stopped_by_signals
from tracer.retention import Retention
from tracer.session import SessionWriter

PERIOD_NS = 20_000_000


class Lost(FakeCalls):
    """A source without rows that fails at its third drain."""

    tables = ()

    def drain(self, now_ns: int) -> Iterable[Batch]:
        self.n_rows += 1
        if self.n_rows == 3:
            raise ProbeError("the driver does not answer; look at dmesg")
        return []

    def stop(self) -> Iterable[Batch]:
        return []


def grow(bytes_per_s: int) -> None:
    """Take more and more memory."""
    taken = []
    while True:
        taken.append(b"x" * (bytes_per_s // 10))
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--calls-per-s", type=int, default=2000)
    parser.add_argument("--keep-s", type=float)
    parser.add_argument("--max-bytes", type=int)
    parser.add_argument("--min-free", type=int)
    parser.add_argument("--step-clock", action="store_true")
    parser.add_argument("--lose-source", action="store_true")
    parser.add_argument("--nvml", action="store_true")
    parser.add_argument("--grow-bytes-per-s", type=int, default=0)
    arguments = parser.parse_args()
    retention = None
    if arguments.keep_s is not None or arguments.max_bytes is not None:
        keep_ns = None if arguments.keep_s is None else int(arguments.keep_s * 1e9)
        retention = Retention(keep_ns, arguments.max_bytes)
    watchers = [] if arguments.min_free is None else [FreeSpace(arguments.path, arguments.min_free)]
    tree = TargetTree([os.getppid()])
    calls = FakeCalls(n=arguments.calls_per_s // 50, period_ns=PERIOD_NS)
    probes = [calls, HostProbe(tree), ProcessProbe(tree)]
    if arguments.lose_source:
        probes.append(Lost("nvml"))
    if arguments.nvml:
        probes.append(NvmlProbe(tree))
    readers = ClockReaders()
    if arguments.step_clock:
        begin = time.monotonic()
        readers = ClockReaders(
            realtime=lambda: time.time_ns() - (10**10 if time.monotonic() - begin > 6 else 0)
        )
    writer = SessionWriter(arguments.path, first_manifest("0"), retention=retention)
    recorder = Recorder(probes, writer, tree, anchors=ClockAnchors(readers), watchers=watchers)
    with stopped_by_signals(recorder):
        recorder.start()
        print("up", flush=True)
        if arguments.grow_bytes_per_s:
            threading.Thread(target=grow, args=(arguments.grow_bytes_per_s,), daemon=True).start()
        recorder.run()
        is_complete = recorder.finish()
    return 0 if is_complete and not writer.source().n_lost else 6


if __name__ == "__main__":
    raise SystemExit(main())
