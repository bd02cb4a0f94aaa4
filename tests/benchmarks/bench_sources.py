"""What the sources beside eBPF cost at 10 Hz, alone and all together, and what a parse costs.

The target is a tree of three processes with 24 threads; the driver is the simulated device's NVML
with one GPU; the engine's page is a real vLLM's (53 kB, 430 samples), of which each scrape gets the
next recorded one. Figures are CPU time over wall time in per cent of one core, NVML's child
included, after two seconds of warming up, with the heap set as ``tracer record`` sets it. All
together is the least of three runs, because a busy neighbour only adds (it empties the caches
between two samples), and one long run, in which the session merges its small segments. Serving the
page is not counted: another process does it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from analysis.manifest import Manifest
from analysis.schema import Table
from probes.clocks import ClockAnchors
from probes.engine.exposition import ExpositionParser
from probes.engine.reading import PageReader
from probes.engine.scrape import EngineProbe
from probes.gpu.contexts import ContextBoard
from probes.gpu.nvml import NvmlProbe
from probes.host.host import HostProbe
from probes.host.kernel_log import KernelLogProbe
from probes.host.process import ProcessProbe
from probes.host.threads import ThreadProbe
from probes.mps.probe import MpsProbe
from probes.probe import Batch, Probe, SourceReport
from probes.targets import TargetTree
from tests.conftest import DATA_VARIABLE
from tracer.lean_arrow import give_memory_back, make_arrow_lean
from tracer.lean_heap import make_heap_lean
from tracer.recorder import Recorder
from tracer.session import SessionWriter
from tracer.simulated.device import SimulatedDevice

SECOND_NS = 1_000_000_000
RATE_NS = SECOND_NS // 10
SECONDS = 6.0
#: Long enough for segments to be merged, which shorter runs do not see.
LONG_S = 90.0
WARM_UP_S = 2.0

_TARGET = """
import os, sys, threading, time
for _ in range(2):
    if os.fork() == 0:
        break
def work():
    while True:
        time.sleep(0.02)
for _ in range(7):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""
_SERVER = """
import gzip, json, socket, sys
with gzip.open(sys.argv[1], "rt") as stream:
    pages = [json.loads(line)["text"].encode() for line in stream]
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
served = 0
while True:
    connection, _ = server.accept()
    with connection:
        while connection.recv(65536):
            status, page = "200 OK", pages[served % len(pages)]
            served += 1
            if served % len(pages) == 0:  # it begins anew, as an engine that is started again
                status, page = "503 Service Unavailable", b""
            head = "HTTP/1.1 %s\\r\\nContent-Length: %d\\r\\n\\r\\n" % (status, len(page))
            connection.sendall(head.encode() + page)
"""


def scrapes_file() -> Path:
    """The recorded scrapes of a real vLLM."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get(DATA_VARIABLE, default))
    return folder / "metrics" / "vllm-0.32.0-cpu-recorded" / "scrapes.jsonl.gz"


@contextmanager
def child(code: str, *arguments: str) -> Iterator[tuple[int, str]]:
    """A Python process in a session of its own: its pid and first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def child_cpu_ns(probes: Sequence[Probe]) -> int:
    """CPU time of NVML's child, as it told last."""
    return sum(probe.report().cost_ns or 0 for probe in probes if probe.name == "nvml")


class Meter:
    """A probe that records nothing: it reads each second what the others have cost by then."""

    name = "meter"
    tables: Sequence[Table] = ()
    period_ns = SECOND_NS

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        #: Time, CPU time of this process, CPU time of NVML's child, each in ns.
        self.marks: list[tuple[int, int, int]] = []

    def start(self) -> None:
        """Begin with the first drain."""

    def drain(self, _now_ns: int) -> Iterable[Batch]:
        """Take a reading."""
        child_ns = child_cpu_ns(self._probes)
        self.marks.append((time.monotonic_ns(), time.process_time_ns(), child_ns))
        return ()

    def stop(self) -> Iterable[Batch]:
        """End."""
        return ()

    def report(self) -> SourceReport:
        """Say that it recorded nothing."""
        return SourceReport(self.name, 0, 0)

    def pct(self, warm_up_s: float) -> tuple[float, float]:
        """Return the CPU time of this process and of NVML's child, in % of the time after the
        warming up.
        """
        first = self.marks[0][0]
        begin = next(item for item in self.marks if item[0] - first >= warm_up_s * 1e9)
        end = self.marks[-1]
        wall = end[0] - begin[0]
        return 100 * (end[1] - begin[1]) / wall, 100 * (end[2] - begin[2]) / wall


def cost_pct(
    probes: Sequence[Probe], tree: TargetTree, anchors: ClockAnchors, seconds: float = SECONDS
) -> tuple[float, float]:
    """Cost of a recording of these sources, in % of a core: this process, and NVML's child."""
    folder = Path(tempfile.mkdtemp(prefix="bench-sources-"))
    meter = Meter(probes)
    try:
        writer = SessionWriter(folder / "s.tracer", Manifest(tool_version="bench"))
        recorder = Recorder(
            [*probes, meter],
            writer,
            tree,
            duration_ns=int((WARM_UP_S + seconds) * 1e9),
            anchors=anchors,
        )
        recorder.start()
        recorder.run()
        recorder.finish()
    finally:
        shutil.rmtree(folder)
    return meter.pct(WARM_UP_S)


def figure(name: str, value: float, unit: str, baseline: float | None = None) -> None:
    """Print one line of five fields."""
    rest = f"{baseline:.3f} {value / baseline:.3f}" if baseline else "- -"
    print(f"{name} {value:.3f} {unit} {rest}", flush=True)


def parse_pct(path: Path) -> float:
    """Cost of reading the recorded pages at 1 Hz, in % of a core, without fetching."""
    with gzip.open(path, "rt") as stream:
        texts = [json.loads(line)["text"] for line in stream]
    parser, reader = ExpositionParser(), PageReader("bench")
    reader.read(parser.parse(texts[0]), 0, 1)
    begin = time.process_time_ns()
    for text in texts[1:]:
        reader.read(parser.parse(text), 0, 1)
    return 100 * (time.process_time_ns() - begin) / (len(texts) - 1) / SECOND_NS


def main() -> None:
    """Measure each source alone and all together."""
    make_heap_lean()
    make_arrow_lean()
    give_memory_back()
    with ExitStack() as stack:
        pid, _ = stack.enter_context(child(_TARGET))
        time.sleep(0.5)
        tree = TargetTree([pid])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        device = stack.enter_context(SimulatedDevice(folder / "device"))
        url = None
        if scrapes_file().is_file():
            figure("engine_parse_at_1hz", parse_pct(scrapes_file()), "%core")
            _, port = stack.enter_context(child(_SERVER, str(scrapes_file())))
            url = f"http://127.0.0.1:{port}/metrics"
        else:
            print(f"no recorded pages: set {DATA_VARIABLE}; the engine is left out")

        anchors = ClockAnchors()

        def probes() -> list[Probe]:
            board = ContextBoard()
            return [
                *([EngineProbe(urls=[url], interval_ns=RATE_NS)] if url else []),
                HostProbe(tree, interval_ns=RATE_NS),
                KernelLogProbe(),
                MpsProbe(board, tree),
                NvmlProbe(
                    tree,
                    interval_ns=RATE_NS,
                    library_dir=device.libraries.driver,
                    env=device.env(),
                    to_monotonic=anchors.map_received,
                    contexts=board,
                ),
                ProcessProbe(tree, interval_ns=RATE_NS),
                ThreadProbe(tree, interval_ns=RATE_NS),
            ]

        empty, _ = cost_pct([], tree, anchors)
        figure("recorder_without_sources", empty, "%core")
        for name in [probe.name for probe in probes()]:
            own, other = cost_pct(
                [probe for probe in probes() if probe.name == name], tree, anchors
            )
            figure(f"source_{name}_at_10hz", own - empty + other, "%core")
        own, other = min(cost_pct(probes(), tree, anchors) for _ in range(3))
        figure("sources_all_at_10hz", own + other, "%core", 2.0)
        figure("sources_all_at_10hz_nvml_child", other, "%core")
        own, other = cost_pct(probes(), tree, anchors, LONG_S)
        figure(f"sources_all_at_10hz_for_{LONG_S:g}_s", own + other, "%core", 2.0)


if __name__ == "__main__":
    main()
