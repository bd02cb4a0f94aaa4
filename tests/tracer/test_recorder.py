"""The life of a recording: sources that fail, ends by time, signal and target, clocks, losses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from analysis.manifest import Manifest
from analysis.schema import EVENT
from analysis.timeline import Session, open_session
from probes.clocks import ClockAnchors, ClockReaders
from probes.probe import SourceReport, make_batch
from probes.targets import TargetTree
from tests.tracer.fake_probes import FailsLater, FakeCalls, OpenCalls, StopsSlowly, Unavailable
from tracer import recorder as recorder_module
from tracer.recorder import Recorder, first_manifest, stopped_by_signals
from tracer.recovery import recover
from tracer.session import SessionWriter
from tracer.sources import SourceSlot

MS = 1_000_000


def record(path: Path, probes: list, **options) -> tuple[Recorder, str]:
    writer = SessionWriter(path, Manifest(tool_version="0"))
    pids = options.pop("pids", ())
    recorder = Recorder(probes, writer, TargetTree(pids), root_pids=pids, **options)
    recorder.start()
    reason = recorder.run()
    assert recorder.finish()
    return recorder, reason


def kinds(session: Session) -> list[tuple[str, str]]:
    rows = session.table("event").to_pylist() if session.has("event") else []
    return [(row["kind"], row["name"]) for row in rows]


def test_a_recording_of_a_given_length(tmp_path):
    probe = FakeCalls()
    _, reason = record(tmp_path / "s", [probe], duration_ns=300 * MS)
    assert reason == "duration"
    session = open_session(tmp_path / "s")
    manifest = session.manifest
    assert manifest.end_reason == "duration"
    assert 300 * MS <= manifest.end_ns - manifest.start_ns < 3000 * MS
    assert manifest.start_realtime_ns > 1_600_000_000 * 10**9
    assert manifest.host["kernel"] and manifest.host["boot_id"]
    ids = session.table("cuda_call")["call_id"].to_pylist()
    assert sorted(ids) == list(range(probe.n_rows)) and probe.n_rows > 20
    source = manifest.source("calls")
    assert (source.state, source.n_rows, source.tables) == ("ok", probe.n_rows, ["cuda_call"])
    assert source.cost_ns > 0 and source.details["longest_drain_ns"] > 0
    assert manifest.source("recorder").details["max_rss_bytes"] > 1 << 20
    assert manifest.source("session").n_rows >= probe.n_rows
    assert session.table("clock_anchor").num_rows == 3, "before and after starting, and at the end"
    assert (probe.started, probe.stopped) == (1, 1)


def test_a_source_that_cannot_run_does_not_end_the_recording(tmp_path):
    probes = [Unavailable("nvml"), FakeCalls(), FailsLater("engine")]
    record(tmp_path / "s", probes, duration_ns=300 * MS)
    session = open_session(tmp_path / "s")
    nvml, engine = session.manifest.source("nvml"), session.manifest.source("engine")
    assert (nvml.state, nvml.note) == ("unavailable", "no such device; load the driver")
    assert engine.state == "lost" and "RuntimeError: boom" in engine.note
    assert engine.n_rows == 31, "rows before the failure are kept, and its stop was called"
    assert session.manifest.source("calls").state == "ok"
    assert kinds(session) == [("source_lost", "nvml"), ("source_lost", "engine")]
    assert probes[0].stopped == 0 and probes[2].stopped == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds(tmp_path, number):
    writer = SessionWriter(tmp_path / "s", Manifest(tool_version="0"))
    recorder = Recorder([FakeCalls(), StopsSlowly("slow")], writer, TargetTree([]))
    sent = []

    def send() -> None:
        time.sleep(0.3)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)
        time.sleep(0.1)
        os.kill(os.getpid(), number)

    with stopped_by_signals(recorder):
        recorder.start()
        threading.Thread(target=send).start()
        reason = recorder.run()
        time.sleep(0.2)
        assert recorder.finish()
    assert time.monotonic() - sent[0] < 2.0
    assert reason == {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted"}[number]
    manifest = Manifest.read(tmp_path / "s")
    assert manifest.end_reason == reason
    assert "detaching took long" in manifest.source("slow").note
    assert not recorder.wait_detached(0.0)
    assert recorder.wait_detached(10.0)


def test_the_end_of_the_target_ends_it(tmp_path):
    target = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    other = subprocess.Popen(["sleep", "30"])
    try:
        begin = time.monotonic()
        _, reason = record(tmp_path / "s", [FakeCalls()], pids=[target.pid])
        assert time.monotonic() - begin < 3
        assert reason == "target_ended"
        session = open_session(tmp_path / "s")
        assert ("exit" in [kind for kind, _ in kinds(session)]) is True
        [entry] = session.manifest.targets
        assert entry.pid == target.pid and entry.end_ns is not None
        assert target.wait(5) == 0

        def end_both() -> None:
            time.sleep(0.3)
            other.terminate()
            other.wait()

        threading.Thread(target=end_both).start()
        _, reason = record(tmp_path / "t", [FakeCalls()], pids=[other.pid])
        assert reason == "target_ended"
    finally:
        for process in (target, other):
            process.kill()
            process.wait()


def test_children_of_the_target_become_targets_and_events(tmp_path):
    shell = subprocess.Popen(["sh", "-c", "sleep 0.3; sleep 1.3; true"])
    try:
        record(tmp_path / "s", [], pids=[shell.pid], duration_ns=5000 * MS)
    finally:
        shell.kill()
        shell.wait()
    session = open_session(tmp_path / "s")
    assert len(session.manifest.targets) >= 2
    assert {"fork", "exit"} <= {kind for kind, _ in kinds(session)}


def test_steps_and_suspends_become_events(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module, "ANCHOR_NS", 100 * MS)
    calls = [0]

    def wall() -> int:
        calls[0] += 1
        return time.time_ns() - (20_000 * MS if calls[0] > 8 else 0)

    anchors = ClockAnchors(ClockReaders(realtime=wall))
    record(tmp_path / "s", [FakeCalls()], duration_ns=500 * MS, anchors=anchors)
    session = open_session(tmp_path / "s")
    assert kinds(session) == [("clock_step", "clock")]
    assert session.table("clock_anchor").num_rows >= 4


def test_losses_become_rows_unless_the_probe_tells_them(tmp_path):
    probe = FakeCalls()
    probe.n_lost = 17
    record(tmp_path / "s", [probe], duration_ns=100 * MS)
    session = open_session(tmp_path / "s")
    [row] = session.table("loss").to_pylist()
    assert (row["source"], row["n_lost"]) == ("calls", 17)
    source = session.manifest.source("calls")
    assert (source.state, source.n_lost) == ("degraded", 17)


class Spy:
    """Counts the rows that it sees between two looks, and leaves a mark at each."""

    def __init__(self) -> None:
        self.n_new = 0
        self.looks: list[tuple[int, int]] = []
        self.is_closed = False

    def observe(self, batch, now_ns):
        self.n_new += batch.rows.num_rows if batch.table.name == "open_call" else 0

    def look(self, moment):
        self.looks.append((self.n_new, moment.status().n_rows))
        self.n_new = 0
        return [self.row("looked")]

    def close(self):
        self.is_closed = True
        return [self.row("closed")]

    def row(self, name):
        row = {"time_ns": [time.monotonic_ns()], "kind": ["mark"], "name": [name]}
        return make_batch(EVENT, row)


def test_watchers_see_every_row_and_add_their_own(tmp_path):
    spy = Spy()
    record(tmp_path / "s", [OpenCalls("calls")], duration_ns=1500 * MS, watchers=[spy])
    assert len(spy.looks) == 2 and spy.looks[1][0] > 10
    assert spy.looks[1][1] > spy.looks[0][1]
    assert spy.is_closed
    marks = [name for kind, name in kinds(open_session(tmp_path / "s")) if kind == "mark"]
    assert marks == ["looked", "looked", "closed"]


def test_a_recording_that_follows_outlives_its_target_and_takes_the_next(tmp_path):
    first = subprocess.Popen(["sleep", "0.3"])
    second = subprocess.Popen(["sleep", "30"])
    writer = SessionWriter(tmp_path / "s", Manifest(tool_version="0"))
    tree = TargetTree([first.pid])
    recorder = Recorder(
        [FakeCalls()], writer, tree, root_pids=[first.pid], is_following=True, duration_ns=10**11
    )
    reasons = []
    try:
        recorder.start()
        thread = threading.Thread(target=lambda: reasons.append(recorder.run()))
        thread.start()
        first.wait()
        time.sleep(0.3)
        assert thread.is_alive() and recorder.root_pids == ()
        assert tree.add_root(second.pid).pid == second.pid
        assert recorder.add_root(second.pid) and recorder.root_pids == (second.pid,)
        recorder.stop("interrupted")
        thread.join(10)
        assert recorder.finish() and reasons == ["interrupted"]
        assert {item.pid for item in tree.targets()} == {first.pid, second.pid}
        assert not recorder.add_root(4_194_304) and tree.add_root(4_194_304) is None
    finally:
        second.kill()
        second.wait()


def test_status_is_told_each_second(tmp_path):
    told = []
    record(tmp_path / "s", [FakeCalls()], duration_ns=1200 * MS, on_status=told.append)
    status = told[-1]
    assert 100 < status.calls_per_s < 1000
    assert (status.launch_p50_ns, status.launch_p99_ns) == (5000, 10_000)
    assert [source.name for source in status.sources] == ["calls", "session"]


def test_a_killed_recorder_leaves_a_readable_session(tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from tests.tracer.test_recorder import record\n"
        "from tests.tracer.fake_probes import FakeCalls\n"
        "record(Path(sys.argv[1]), [FakeCalls(n=100)])\n"
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "s")], cwd=root)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "s" / "cuda_call").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        time.sleep(0.7)
    finally:
        process.kill()
        process.wait()
    killed_ns = time.monotonic_ns()
    session = open_session(tmp_path / "s")
    assert session.manifest.end_ns is None
    last_ns = max(session.table("cuda_call")["start_ns"].to_pylist())
    assert killed_ns - last_ns < 5_000 * MS
    ids = session.table("cuda_call")["call_id"].to_pylist()
    assert ids == list(range(len(ids)))


def test_a_recorder_that_is_killed_at_once_leaves_a_begin(tmp_path):
    before_ns = time.monotonic_ns()
    manifest = first_manifest("0")
    writer = SessionWriter(tmp_path / "s", manifest)
    on_disk = Manifest.read(tmp_path / "s")
    assert before_ns <= on_disk.start_ns <= time.monotonic_ns()
    assert abs(on_disk.start_realtime_ns - time.time_ns()) < 60_000 * MS
    writer.close()
    recover(tmp_path / "s")
    session = open_session(tmp_path / "s")
    assert (session.start_ns, session.duration_ns) == (on_disk.start_ns, 0)


def test_calls_of_the_simulated_libraries_mark_the_session(tmp_path):
    class Calls(FakeCalls):
        library = "/root/.cache/tracer/simulated-0123456789abcdef/driver/libcuda.so.1"

        def report(self) -> SourceReport:
            function = {"function": "cuInit", "layer": "driver", "library": self.library}
            details = {"functions": [{**function, "device_inode": "8:1:2"}]}
            return SourceReport(self.name, self.n_rows, self.n_lost, None, "", details)

    class RealCalls(Calls):
        library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"

    record(tmp_path / "simulated", [Calls()], duration_ns=100 * MS)
    record(tmp_path / "real", [RealCalls()], duration_ns=100 * MS)
    assert open_session(tmp_path / "simulated").manifest.is_simulated
    assert not open_session(tmp_path / "real").manifest.is_simulated


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("can't start new thread"), "no room for a thread"),
        (MemoryError(), "no room for a thread or for memory"),
        (RuntimeError("another"), "report this as a defect"),
    ],
)
def test_a_shortage_is_not_called_a_defect(error, words):
    class Fails(FakeCalls):
        def start(self) -> None:
            raise error

    slot = SourceSlot(Fails())
    slot.start()
    assert slot.state == "unavailable" and words in slot.note
