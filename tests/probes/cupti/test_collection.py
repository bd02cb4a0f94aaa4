"""Device times of real processes on the simulated device, against what the device really did."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.cupti import rendezvous, ring
from probes.cupti.probe import FLOOD, FORKED, SHOW_NS, CuptiOptions, CuptiProbe
from probes.cupti.rendezvous import Rendezvous
from probes.cupti.ring import RingFile
from probes.probe import Batch, ProbeError
from probes.targets import TargetTree
from tests.probes.cupti.conftest import Collection
from tests.probes.cupti.programs import CONTEXT, COPIES
from tests.tracer.simulated.conftest import Machine

#: What is asked of the agreement with the device's clock, ns.
AGREEMENT_NS = 1_000


def assert_agrees(collection: Collection) -> None:
    """Every activity of the device has its row, at its times."""
    truth = collection.machine.device.truth()
    rows = collection.table("gpu_activity").sort_by("start_ns")
    start = rows["start_ns"].to_numpy()
    end = np.sort(start + rows["duration_ns"].to_numpy())
    assert len(start) == len(truth)
    assert np.abs(start - np.sort(truth["start_ns"])).max() <= AGREEMENT_NS
    assert np.abs(end - np.sort(truth["end_ns"])).max() <= AGREEMENT_NS


def rows_of(batches: Iterable[Batch], table: str) -> list[dict[str, Any]]:
    return [row for b in batches if b.table.name == table for row in b.rows.to_pylist()]


def covered_ns(collection: Collection) -> list[tuple[int, int]]:
    pieces = collection.events("device_times")
    return [(row["time_ns"], row["time_ns"] + row["duration_ns"]) for row in pieces]


@pytest.mark.parametrize("major", (12, 13))
def test_kernels_at_the_times_of_the_device(collection: Collection, major: int) -> None:
    collection.launch(f"cudart={major}", "launches=600", "rate=3000", "kernel_us=40", "streams=3")
    assert collection.status == 0, collection.out
    assert_agrees(collection)
    first = collection.rows("gpu_activity")[0]
    process = collection.probe.report().details["processes"][0]
    pid = collection.process.pid
    assert first["kind"] == "kernel"
    assert first["name"] == "launcher_kernel"
    assert (first["pid"], first["tid"]) == (pid, pid)
    assert (first["grid_x"], first["block_x"]) == (1, 32)
    assert first["call_start_ns"] < first["start_ns"]
    assert process["library"].endswith(f"libcupti.so.{major}")
    assert process["n_without_call"] == 0
    assert collection.probe.report().n_lost == 0


def test_copies_and_sets_with_their_direction_and_memory(collection: Collection) -> None:
    collection.python(COPIES)
    assert collection.status == 0, collection.out
    assert_agrees(collection)
    found = [
        (row["kind"], row["copy_kind"], row["size_bytes"], row["is_pageable"])
        for row in collection.rows("gpu_activity")
    ]
    assert found == [
        ("copy", "h2d", 1 << 20, False),
        ("copy", "d2h", 1 << 16, True),
        ("set", None, 4096, None),
    ]
    syncs = [row["name"] for row in collection.rows("annotation") if row["category"] == "sync"]
    assert "context synchronisation" in syncs


def test_names_are_readable(collection: Collection) -> None:
    collection.python(CONTEXT + "launch(); wait()")
    (row,) = collection.rows("gpu_activity")
    assert row["name"] == "stream(float*, float*, int)"
    assert [row[f"grid_{axis}"] for axis in "xyz"] == [3, 2, 1]


@pytest.mark.parametrize("by_node", (False, True))
def test_graphs_as_a_whole_or_node_by_node(machine: Machine, tmp_path: Path, by_node: bool) -> None:
    collection = Collection(machine, tmp_path, has_graph_nodes=by_node)
    collection.launch("launches=40", "graph=5", "kernel_us=10", "sync=4")
    assert_agrees(collection)
    rows = collection.rows("gpu_activity")
    assert {row["kind"] for row in rows} == {"kernel" if by_node else "graph"}
    assert len({row["graph_id"] for row in rows}) == 1
    assert rows[0]["graph_id"] is not None


def test_a_full_queue_is_told_as_back_pressure(collection: Collection) -> None:
    collection.machine.device.set("queue_depth", 16, 0)
    collection.launch("launches=60", "kernel_us=2000")
    full = [row for row in collection.rows("annotation") if row["category"] == "overhead"]
    assert {row["name"] for row in full} == {"command buffer full"}
    assert {row["tid"] for row in full} == {collection.process.pid}
    assert 1 <= len(full) <= 60


def test_all_of_a_program_from_its_first_call_on_is_covered(collection: Collection) -> None:
    collection.launch("launches=200", "rate=1000", "kernel_us=50")
    pieces = covered_ns(collection)
    begin, end = min(p[0] for p in pieces), max(p[1] for p in pieces)
    rows = collection.table("gpu_activity")
    last = rows["start_ns"].to_numpy() + rows["duration_ns"].to_numpy()
    assert begin <= rows["start_ns"].to_numpy().min()
    assert end >= last.max()
    inside = sum(stop - start for start, stop in pieces)
    assert inside >= last.max() - begin, "in one piece"


def test_windows_hold_rows_and_nothing_is_known_between_them(
    machine: Machine, tmp_path: Path
) -> None:
    collection = Collection(machine, tmp_path, window_ns=300_000_000, every_ns=900_000_000)
    collection.launch("launches=2600", "rate=1000", "kernel_us=50")
    assert collection.status == 0, collection.out
    start = collection.table("gpu_activity")["start_ns"].to_numpy()
    truth = np.sort(machine.device.truth()["start_ns"])
    gaps = np.diff(np.sort(start))
    assert (gaps > 200_000_000).sum() >= 2, "three windows in 2.6 s"
    assert 0.05 < len(start) / len(truth) < 0.95
    for begin, end in covered_ns(collection):
        inside = truth[(truth > begin) & (truth < end)]
        assert np.isin(inside, start).all(), "what is covered is complete"


def test_without_a_schedule_a_window_comes_when_it_is_asked_for(
    machine: Machine, tmp_path: Path
) -> None:
    collection = Collection(machine, tmp_path, window_ns=300_000_000)
    collection.prepare(str(machine.device.libraries.launcher), "launches=1200", "rate=1000")
    collection.probe.start()
    collection.release()
    time.sleep(0.4)
    collection.drain()
    assert not list(collection.directory.glob("ring-*"))
    collection.probe.look_closer(time.monotonic_ns())
    collection.follow()
    assert collection.status == 0, collection.out
    n_rows = len(collection.rows("gpu_activity"))
    assert 0 < n_rows < len(machine.device.truth())


def test_nothing_is_loaded_or_made_while_nobody_records(machine: Machine, tmp_path: Path) -> None:
    collection = Collection(machine, tmp_path)
    process = machine.start("launches=0", "rate=100", **collection.variables)
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "libtracer_cupti.so" in maps
    assert "libcupti.so" not in maps
    assert [path.name for path in collection.directory.iterdir()] == ["control"]


def test_a_recorder_that_shows_no_life_is_not_served(machine: Machine, tmp_path: Path) -> None:
    collection = Collection(machine, tmp_path)
    meeting = Rendezvous(collection.directory)
    meeting.switch(True, time.monotonic_ns() - 60_000_000_000)
    process = machine.start("launches=0", "rate=100", **collection.variables)
    time.sleep(0.2)
    assert "libcupti.so" not in Path(f"/proc/{process.pid}/maps").read_text()
    meeting.close(remove=False)


def test_collection_ends_by_itself_when_the_recorder_shows_no_more_life(
    machine: Machine, tmp_path: Path
) -> None:
    collection = Collection(machine, tmp_path)
    meeting = Rendezvous(collection.directory)
    meeting.switch(True, time.monotonic_ns() - 4_200_000_000)
    machine.start("launches=0", "rate=1000", **collection.variables)
    (path,) = collection.directory.glob("ring-*")
    found = RingFile(path)
    for _ in range(200):
        if found.header()["state"] != ring.ON:
            break
        time.sleep(0.02)
    assert found.header()["state"] == ring.OFF
    assert found.header()["on_ns"] < found.header()["off_ns"]
    meeting.close(remove=False)
    found.close(remove=True)


def test_one_program_can_be_recorded_again_and_again(machine: Machine, tmp_path: Path) -> None:
    collection = Collection(machine, tmp_path)
    process = machine.start("launches=0", "rate=1000", "kernel_us=50", **collection.variables)
    seen = []
    for _ in range(3):
        probe = CuptiProbe(TargetTree([process.pid]), CuptiOptions())
        begin = time.monotonic_ns()
        probe.start()
        time.sleep(0.5)
        batches = [*probe.drain(time.monotonic_ns()), *probe.stop()]
        rows = rows_of(batches, "gpu_activity")
        assert rows
        assert min(row["start_ns"] for row in rows) > begin, "nothing of the recording before"
        pieces = [row for row in rows_of(batches, "event") if row["kind"] == "device_times"]
        assert all(row["time_ns"] > begin for row in pieces)
        assert probe.report().n_lost == 0
        seen += [row["correlation_id"] for row in rows]
        time.sleep(0.3)
    assert len(set(seen)) == len(seen)
    assert len(list(collection.directory.glob("ring-*"))) == 1, "the program goes on with its own"
    process.kill()
    process.wait()
    other = machine.start("launches=0", "rate=1000", **collection.variables)
    probe = CuptiProbe(TargetTree([other.pid]), CuptiOptions())
    probe.start()
    assert not list(collection.directory.glob("ring-*")), "those of the dead are swept"
    list(probe.stop())


def test_another_program_of_the_same_place_is_left_alone(machine: Machine, tmp_path: Path) -> None:
    collection = Collection(machine, tmp_path)
    mine, other = (
        machine.start("launches=0", "rate=500", "kernel_us=50", **collection.variables)
        for _ in range(2)
    )
    probe = CuptiProbe(TargetTree([mine.pid]), CuptiOptions())
    probe.start()
    time.sleep(0.5)
    batches = [*probe.drain(time.monotonic_ns()), *probe.stop()]
    assert {row["pid"] for row in rows_of(batches, "gpu_activity")} == {mine.pid}
    assert other.poll() is None
    assert len(list(collection.directory.glob("ring-*"))) == 2


@pytest.mark.parametrize(
    ("ending", "status"),
    (
        ("os._exit(7)", 7),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("ctypes.string_at(8)", -signal.SIGSEGV),
        ("os.abort()", -signal.SIGABRT),
        ("os.execv('/bin/sh', ['sh', '-c', 'sleep 0.3; exit 9'])", 9),
    ),
)
def test_however_a_program_ends_its_status_stays_and_its_rows_too(
    collection: Collection, ending: str, status: int
) -> None:
    work = "for _ in range(50): launch()\nwait()\ntime.sleep(0.4)\n"
    collection.python(f"{CONTEXT}\nimport faulthandler\n{work}{ending}")
    assert collection.status == status, collection.out
    assert len(collection.rows("gpu_activity")) == 50
    collection.machine.device.truth()
    assert not list(collection.directory.glob("ring-*"))


def test_a_child_forked_after_cuda_leaves_the_parent_alone(collection: Collection) -> None:
    collection.python(
        f"""{CONTEXT}
launch()
child = os.fork()
if child == 0:
    time.sleep(0.3)
    sys.exit(5)
for _ in range(20): launch()
wait()
_, state = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(state) + 10)
"""
    )
    assert collection.status == 15, collection.out
    assert len(collection.rows("gpu_activity")) == 21
    assert_agrees(collection)
    (event,) = collection.events("coverage")
    assert (event["pid"], event["detail"]) == (collection.process.pid, FORKED)


@pytest.mark.parametrize("by_node", (False, True))
def test_more_records_than_can_be_taken_are_counted_and_the_mend_is_told_once(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_node: bool
) -> None:
    monkeypatch.setattr(rendezvous, "N_RECORDS", 1024)
    collection = Collection(machine, tmp_path, has_graph_nodes=by_node)
    collection.launch("launches=60000", "graph=3", "kernel_us=0.2", "sync=1000")
    assert collection.status == 0, collection.out
    lost = sum(row["n_lost"] for row in collection.rows("loss"))
    assert lost > 0
    n_calls = 60_000
    assert len(collection.rows("gpu_activity")) + lost <= 2 * n_calls + 60
    (event,) = collection.events("coverage")
    assert event["detail"] == FLOOD.format(", or without --graph-nodes" if by_node else "")
    assert not collection.events("source_lost"), "what can be taken goes on to be"
    start = collection.table("gpu_activity")["start_ns"].to_numpy()
    truth = machine.device.truth()["start_ns"]
    for begin, end in covered_ns(collection):
        inside = truth[(truth > begin) & (truth < end)]
        assert np.isin(inside, start).all(), "what is covered is complete"


def test_a_context_that_is_reset_goes_on_being_collected(collection: Collection) -> None:
    again = CONTEXT.split("check(cuda.cuInit(0))")[1]
    collection.python(f"{CONTEXT}\nlaunch(); wait()\ncuda.cuDevicePrimaryCtxReset_v2(0)\n{again}"
                      "\nlaunch(); wait()")  # fmt: skip
    assert collection.status == 0, collection.out
    assert len(collection.rows("gpu_activity")) == 2


@pytest.mark.parametrize(
    ("failure", "words"),
    (
        ("cuptiSubscribe=39", "another tool"),
        ("cuptiActivityEnable=35", "NVreg_RestrictProfilingToAdminUsers"),
        ("cuptiActivityEnable=33", "vGPU"),
        ("cuptiSubscribe=43", "MIG"),
        ("cuptiActivityEnable=41", "confidential computing"),
        ("cuptiActivityRegisterTimestampCallback=15", "clock"),
        ("cuptiActivityRegisterCallbacks=8", "buffers"),
        ("cuptiGetVersion=999", "999"),
    ),
)
def test_where_cupti_refuses_one_event_says_why_and_the_program_runs(
    collection: Collection, failure: str, words: str
) -> None:
    collection.launch("launches=100", "rate=1000", TRACER_SIM_CUPTI_FAIL=failure)
    assert collection.status == 0, collection.out
    (event,) = collection.events("source_lost")
    assert words in event["detail"]
    assert event["detail"].startswith("No device times and no named ranges (NVTX): ")
    assert collection.probe.report().note == event["detail"]
    assert not collection.rows("gpu_activity")


def test_a_library_of_another_major_version_is_refused(machine: Machine, tmp_path: Path) -> None:
    collection = Collection(machine, tmp_path, str(machine.device.libraries.libcupti13))
    collection.launch("cudart=12", "launches=100", "rate=1000")
    assert collection.status == 0, collection.out
    (event,) = collection.events("source_lost")
    assert "another major version (CUDA 13.5)" in event["detail"]


def test_without_any_libcupti_the_mend_is_named(machine: Machine, tmp_path: Path) -> None:
    collection = Collection(machine, tmp_path, "/nowhere/libcupti.so.12")
    collection.launch("launches=100", "rate=1000")
    assert collection.status == 0, collection.out
    (event,) = collection.events("source_lost")
    assert "pip install nvidia-cuda-cupti-cu12" in event["detail"]


def test_a_program_that_was_started_without_the_library_is_told_how(machine: Machine) -> None:
    process = machine.start("launches=0", "rate=100")
    probe = CuptiProbe(TargetTree([process.pid]), CuptiOptions())
    with pytest.raises(ProbeError, match="tracer record --cupti -- COMMAND"):
        probe.start()


def test_the_place_is_found_in_the_environment_of_the_program(
    machine: Machine, tmp_path: Path
) -> None:
    collection = Collection(machine, tmp_path)
    process = machine.start("launches=300", "rate=1000", **collection.variables)
    probe = CuptiProbe(TargetTree([process.pid]), CuptiOptions())
    probe.start()
    machine.finish(process)
    batches = [*probe.drain(time.monotonic_ns()), *probe.stop()]
    assert 0 < len(rows_of(batches, "gpu_activity")) <= 300
    assert (collection.directory / "control").exists(), "it was not ours to remove"


def test_a_child_that_the_recorder_has_not_seen_yet_keeps_its_ring(
    machine: Machine, tmp_path: Path
) -> None:
    collection = Collection(machine, tmp_path, is_owned=True)
    tree = TargetTree([])
    probe = CuptiProbe(tree, collection.options)
    probe.start()
    process = machine.start("launches=300", "rate=1000", **collection.variables)
    list(probe.drain(time.monotonic_ns()))
    assert len(list(collection.directory.glob("ring-*"))) == 1
    tree.add_root(process.pid)
    machine.finish(process)
    batches = [*probe.drain(time.monotonic_ns() + 1_000_000_000), *probe.stop()]
    assert len(rows_of(batches, "gpu_activity")) == 300
    assert not collection.directory.exists()


def test_a_program_that_cannot_reach_the_place_is_told_of(machine: Machine, tmp_path: Path) -> None:
    collection = Collection(machine, tmp_path)
    elsewhere = {**collection.variables, "TRACER_CUPTI": str(tmp_path / "elsewhere")}
    process = machine.start("launches=0", "rate=100", **elsewhere)
    probe = CuptiProbe(TargetTree([process.pid]), collection.options)
    probe.start()
    assert not rows_of(probe.drain(time.monotonic_ns()), "event")
    later = time.monotonic_ns() + 2 * SHOW_NS
    (event,) = rows_of(probe.drain(later), "event")
    assert (event["kind"], event["pid"]) == ("source_lost", process.pid)
    assert "tracer cupti --user UID" in event["detail"]
    assert not rows_of(probe.drain(later + SHOW_NS), "event"), "once"
    list(probe.stop())
