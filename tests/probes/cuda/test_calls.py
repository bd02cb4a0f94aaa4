"""Real uprobes on a real process: every call, its arguments, and nobody else's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.probes.traced import PROTOTYPES, build_library, build_program, recording, started

pytestmark = pytest.mark.root

LAUNCH = "cudaLaunchKernel(A(0x1000), g, b, 0, 77, A(0x99));"
LOOP = f"for (int i = 0; i < 1009; i++) {LAUNCH}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calls")


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return build_library(folder)


def code_of(function: str) -> int:
    """Return value of a stub."""
    return next(i for i, text in enumerate(PROTOTYPES) if f" {function}(" in text)


@pytest.mark.parametrize("is_multi", [True, False], ids=["uprobe_multi", "perf_event"])
def test_every_launch_is_recorded_with_the_driver_call_inside_it(folder, library, is_multi):
    program = build_program(folder, library, LOOP)
    with started(program) as target, recording(target.pid, is_multi=is_multi) as found:
        target.run()
    runtime, driver = found.named("cudaLaunchKernel"), found.named("cuLaunchKernel")
    assert len(runtime) == len(driver) == 1009
    outer = {row["call_id"]: row for row in runtime}
    for row in driver:
        parent = outer[row["parent_call_id"]]
        assert row["depth"] == 1 and parent["depth"] == 0 and parent["parent_call_id"] is None
        assert parent["start_ns"] <= row["start_ns"]
        assert row["start_ns"] + row["duration_ns"] <= parent["start_ns"] + parent["duration_ns"]
    assert found.calls.report().n_lost == 0
    hits = {one["function"]: one["n_hits"] for one in found.calls.report().details["functions"]}
    assert hits["cudaLaunchKernel"] == hits["cuLaunchKernel"] == 1009
    assert hits["cudaMalloc"] == 0


def test_a_backlog_is_worked_on_in_pieces_without_a_difference(folder, library, monkeypatch):
    monkeypatch.setattr("probes.cuda.calls.PIECE_RECORDS", 37)
    program = build_program(folder, library, LOOP)
    with started(program) as target, recording(target.pid) as found:
        target.run()
    assert len(found.named("cudaLaunchKernel")) == len(found.named("cuLaunchKernel")) == 1009
    parents = {row["call_id"] for row in found.named("cudaLaunchKernel")}
    assert {row["parent_call_id"] for row in found.named("cuLaunchKernel")} == parents
    assert all(row["duration_ns"] is not None for row in found.named("cuLaunchKernel"))
    assert found.calls.report().n_lost == 0


GOLDEN = {
    LAUNCH: (
        "cudaLaunchKernel",
        {
            "kernel": 0x1000,
            "grid_x": 1,
            "grid_y": 2,
            "grid_z": 3,
            "block_x": 4,
            "block_y": 5,
            "block_z": 6,
            "shared_memory_bytes": 77,
            "stream": 0x99,
            "kind": "launch",
            "layer": "runtime",
        },
    ),
    "cuLaunchKernel(A(0x2000), 7, 8, 9, 10, 11, 12, 13, A(0x98), 0, 0);": (
        "cuLaunchKernel",
        {
            "kernel": 0x2000,
            "grid_x": 7,
            "grid_y": 8,
            "grid_z": 9,
            "block_x": 10,
            "block_y": 11,
            "block_z": 12,
            "shared_memory_bytes": 13,
            "stream": 0x98,
            "layer": "driver",
        },
    ),
    "Config c = {{1,2,3},{4,5,6},1L<<33,A(0x97),0,0}; cudaLaunchKernelExC(&c, A(0x3000), 0);": (
        "cudaLaunchKernelExC",
        {
            "kernel": 0x3000,
            "grid_x": 1,
            "grid_y": 2,
            "grid_z": 3,
            "block_x": 4,
            "block_y": 5,
            "block_z": 6,
            "shared_memory_bytes": 1 << 33,
            "stream": 0x97,
        },
    ),
    "DriverConfig d = {1,2,3,4,5,6,7,A(0x96),0,~0u}; cuLaunchKernelEx_ptsz(&d, A(0x4000), 0, 0);": (
        "cuLaunchKernelEx_ptsz",
        {
            "kernel": 0x4000,
            "grid_x": 1,
            "grid_y": 2,
            "grid_z": 3,
            "block_x": 4,
            "block_y": 5,
            "block_z": 6,
            "shared_memory_bytes": 7,
            "stream": 0x96,
        },
    ),
    "cudaGraphLaunch(A(0x5000), A(0x95));": (
        "cudaGraphLaunch",
        {"kernel": 0x5000, "stream": 0x95, "kind": "graph_launch", "grid_x": None},
    ),
    "cudaMemcpyAsync(0, 0, 1L<<40, 1, A(7));": (
        "cudaMemcpyAsync",
        {"size_bytes": 1 << 40, "copy_kind": "h2d", "stream": 7, "kernel": None},
    ),
    "cudaMemcpyPeerAsync(0, 1, 0, 2, 4096, A(6));": (
        "cudaMemcpyPeerAsync",
        {"size_bytes": 4096, "copy_kind": "p2p", "stream": 6},
    ),
    "cudaMemcpy2DAsync(0, 1, 0, 1, 100, 10, 2, A(8));": (
        "cudaMemcpy2DAsync",
        {"size_bytes": 1000, "copy_kind": "d2h", "stream": 8},
    ),
    "cudaMemcpy2DArrayToArray(0, 1, 1, 0, 1, 1, 30, 20, 3);": (
        "cudaMemcpy2DArrayToArray",
        {"size_bytes": 600, "copy_kind": "d2d", "stream": None},
    ),
    "Parms3D p = {0}; p.extent = (Extent){4, 5, 6}; p.kind = 1; cudaMemcpy3DAsync(&p, A(9));": (
        "cudaMemcpy3DAsync",
        {"size_bytes": 120, "copy_kind": "h2d", "stream": 9},
    ),
    "cudaMemcpy3D((void *)16);": (
        "cudaMemcpy3D",
        {"size_bytes": None, "copy_kind": None},
    ),
    "cudaMemset3DAsync((Pitched){0, 1, 2, 3}, 0, (Extent){7, 8, 9}, A(10));": (
        "cudaMemset3DAsync",
        {"size_bytes": 504, "stream": 10, "kind": "set"},
    ),
    "cudaMalloc3D(0, (Extent){2, 3, 4});": ("cudaMalloc3D", {"size_bytes": 24}),
    "cudaMalloc(0, 123);": ("cudaMalloc", {"size_bytes": 123, "kind": "memory"}),
    "Copy2D t = {0}; t.srcType = 1; t.dstType = 2; t.width = 10; t.height = 3;"
    " cuMemcpy2DAsync_v2(&t, A(11));": (
        "cuMemcpy2DAsync_v2",
        {"size_bytes": 30, "copy_kind": "h2d", "stream": 11},
    ),
    "Copy3D u = {0}; u.srcType = 2; u.dstType = 1; u.width = 10; u.height = 3; u.depth = 2;"
    " cuMemcpy3D_v2(&u);": (
        "cuMemcpy3D_v2",
        {"size_bytes": 60, "copy_kind": "d2h"},
    ),
    "cuMemcpyHtoD_v2_ptds(0, 0, 55);": (
        "cuMemcpyHtoD_v2_ptds",
        {"size_bytes": 55, "copy_kind": "h2d"},
    ),
    "cuMemsetD2D32Async(0, 1, 0, 10, 20, A(12));": (
        "cuMemsetD2D32Async",
        {"size_bytes": 800, "stream": 12},
    ),
    "ncclAllReduce(0, 0, 1000, 9, 0, A(1), A(13));": (
        "ncclAllReduce",
        {"size_bytes": 2000, "stream": 13, "kind": "collective", "layer": "nccl"},
    ),
    "UniqueId id; ncclCommInitRank(0, 8, id, 5);": ("ncclCommInitRank", {"rank": 5}),
}


@pytest.mark.parametrize("is_multi", [True, False], ids=["uprobe_multi", "perf_event"])
def test_arguments_of_every_shape_are_exact(folder, library, is_multi):
    program = build_program(folder, library, "\n".join(GOLDEN))
    with started(program) as target, recording(target.pid, is_multi=is_multi) as found:
        target.run()
    for function, expected in GOLDEN.values():
        rows = [row for row in found.named(function) if row["depth"] == 0]
        assert len(rows) == 1, function
        got = {name: rows[0][name] for name in expected}
        assert got == expected, function
        if function != "cudaLaunchKernel":
            assert rows[0]["return_code"] == code_of(function)


def test_device_capture_and_first_launch_are_told(folder, library):
    body = (
        f"{LAUNCH} cudaSetDevice(0); {LAUNCH} cudaStreamBeginCapture(A(0x99), 0); {LAUNCH}"
        f" cudaStreamEndCapture(A(0x99), 0); {LAUNCH}"
    )
    # The stubs of these three do not return 0, which would be a failure: make ones that do.
    program = build_program(
        folder,
        library,
        "int cudaSetDevice(int d) { return 0; }"
        "int cudaStreamBeginCapture(void *s, int m) { return 0; } MAIN" + body,
        "meaning",
    )
    with started(program) as target, recording(target.pid) as found:
        target.run()
    rows = found.named("cudaLaunchKernel")
    assert [row["device"] for row in rows] == [None, 0, 0, 0]
    assert [row["is_capture"] for row in rows] == [False, False, True, False]
    assert [row["is_first_seen"] for row in rows] == [True, False, False, False]
    # The process began before the recording: its first launch may have been its thousandth.
    assert [row["is_first_use"] for row in rows] == [None, False, False, False]


def test_neighbours_are_not_recorded(folder, library):
    program = build_program(folder, library, LOOP)
    with started(program) as target, started(program) as neighbour:
        with recording(target.pid) as found:
            neighbour.run()
            target.run()
        assert {row["pid"] for row in found.rows("cuda_call")} == {target.pid}
        assert len(found.named("cudaLaunchKernel")) == 1009
    with started(program) as target, recording(target.pid) as found:
        # Nobody else mapped the file at the attach: the kernel side filters who comes later.
        with started(program) as neighbour:
            neighbour.run()
        target.run()
    assert {row["pid"] for row in found.rows("cuda_call")} == {target.pid}


def test_a_forked_child_is_recorded_from_its_first_call(folder, library):
    body = f"for (int i = 0; i < 5; i++) {LAUNCH} if (!fork()) {{ {LOOP} _exit(0); }} wait(0);"
    program = build_program(folder, library, body)
    with started(program) as target, recording(target.pid) as found:
        target.run()
        found.drain()
    rows = found.named("cudaLaunchKernel")
    by_pid = {pid: [r for r in rows if r["pid"] == pid] for pid in {r["pid"] for r in rows}}
    (child,) = set(by_pid) - {target.pid}
    assert len(by_pid[target.pid]) == 5 and len(by_pid[child]) == 1009
    # The child's start was seen, so its first launch of the kernel is known to be the first.
    assert by_pid[child][0]["is_first_use"] is True
    assert [row["is_first_use"] for row in by_pid[child][1:]] == [False] * 1008
    kinds = {(row["kind"], row["pid"]) for row in found.rows("event")}
    assert {("fork", child), ("exit", child)} <= kinds
    fork = next(row for row in found.rows("event") if row["kind"] == "fork")
    assert fork["parent_pid"] == target.pid


def test_a_thread_may_end_inside_a_call(folder, library):
    thread = f"void *work(void *x) {{ dim3 g={{1}}, b={{1}}; {LAUNCH} cudaDeviceSynchronize(); }}"
    body = f"{thread} MAIN pthread_t t; pthread_create(&t, 0, work, 0); pthread_join(t, 0); {LOOP}"
    program = build_program(folder, library, body)
    with started(program, SYNC="exit") as target, recording(target.pid) as found:
        target.run()
        time.sleep(0.1)
        found.drain()
        found.drain()
    (sync,) = found.named("cudaDeviceSynchronize")
    assert sync["duration_ns"] is None and sync["return_code"] is None
    assert sync["tid"] != target.pid
    assert len(found.named("cudaLaunchKernel")) == 1010
    assert found.rows("open_call") == []


def test_a_call_left_by_longjmp_is_closed_by_the_next(folder, library):
    deeper = "void deeper(void) { char room[512]; room[0] = 1; cudaDeviceSynchronize(); }"
    body = f"{deeper} MAIN if (!setjmp(escape)) deeper(); {LAUNCH} {LAUNCH}"
    program = build_program(folder, library, body)
    with started(program, SYNC="jump") as target, recording(target.pid) as found:
        target.run()
    (sync,) = found.named("cudaDeviceSynchronize")
    assert sync["duration_ns"] is None
    launches = found.named("cudaLaunchKernel")
    assert [row["depth"] for row in launches] == [0, 0]
    assert all(row["duration_ns"] > 0 for row in launches)
    missed = [row for row in found.rows("loss") if row["reason"] == "return_missed"]
    assert [(row["function"], row["n_lost"]) for row in missed] == [("cudaDeviceSynchronize", 1)]


def test_a_hang_is_an_open_call(folder, library):
    program = build_program(folder, library, f"{LAUNCH} cudaDeviceSynchronize();")
    with started(program, SYNC="hang") as target, recording(target.pid) as found:
        target.go()
        time.sleep(0.2)
    (row,) = found.rows("open_call")
    assert row["function"] == "cudaDeviceSynchronize" and row["tid"] == target.pid
    assert row["thread_state"] == "S" and row["is_doubtful"] is False
    assert row["start_ns"] < row["time_ns"]
    assert found.named("cudaDeviceSynchronize") == []


def test_what_finds_the_ring_full_is_counted_exactly(folder, library):
    program = build_program(folder, library, LOOP)
    options = {"entry_bytes": 4096, "return_bytes": 1 << 17}
    with started(program) as target, recording(target.pid, **options) as found:
        target.run()
    n_kept = len(found.rows("cuda_call"))
    losses = found.rows("loss")
    full = [row for row in losses if row["reason"] == "ring_full"]
    assert 0 < n_kept < 2018
    assert n_kept + sum(row["n_lost"] for row in full) == 2018
    assert {row["function"] for row in full} == {"cudaLaunchKernel", "cuLaunchKernel"}
    # A call around the first missing record has a return that may be another call's.
    missed = [row for row in losses if row["reason"] == "return_missed"]
    assert sum(row["n_lost"] for row in missed) <= 2
    assert len(full) + len(missed) == len(losses)
    assert found.calls.report().n_lost == sum(row["n_lost"] for row in losses)


def test_entry_only_calls_have_no_duration(folder, library):
    program = build_program(folder, library, LOOP)
    with started(program) as target, recording(target.pid, is_entry_only=True) as found:
        target.run()
    rows = found.named("cudaLaunchKernel")
    assert len(rows) == 1009
    assert {row["duration_ns"] for row in rows} == {None}
    assert found.rows("loss") == [] and found.rows("open_call") == []


def test_the_target_outlives_a_killed_recorder(folder, library):
    program = build_program(folder, library, LOOP + " getchar(); " + LOOP)
    script = (
        "import sys, time\n"
        "from probes.cuda.calls import CudaCalls\n"
        "from probes.targets import TargetTree\n"
        "calls = CudaCalls(TargetTree([int(sys.argv[1])]))\n"
        "calls.start()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with started(program) as target:
        recorder = subprocess.Popen(
            [sys.executable, "-c", script, str(target.pid)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        assert recorder.stdout is not None
        assert recorder.stdout.readline().strip() == "ready"
        target.go()
        recorder.send_signal(signal.SIGKILL)
        recorder.wait()
        target.go()
        target.wait_done()
        target.go()
        assert target.process.wait(timeout=10) == 0


def test_a_seccomp_filtered_target_is_recorded_and_survives(folder, library):
    program = build_program(folder, library, LOOP)
    filtered = Path(__file__).with_name("filtered.py")
    prefix = (sys.executable, str(filtered))
    with started(program, prefix) as target, recording(target.pid) as found:
        status = Path(f"/proc/{target.pid}/status").read_text()
        assert "Seccomp:\t2" in status
        target.run()
        target.go()
        assert target.process.wait(timeout=10) == 0
    assert len(found.named("cudaLaunchKernel")) == 1009


def test_a_copy_opened_late_is_probed_too(folder, library, tmp_path):
    copy = tmp_path / "libcudart-copy.so.12"
    shutil.copy(library, copy)
    body = (
        "#include <dlfcn.h>\nMAIN "
        'void *h = dlopen(getenv("COPY"), RTLD_NOW); int (*f)(void) = dlsym(h, '
        f'"cudaDeviceSynchronize"); usleep(1500000); for (int i = 0; i < 101; i++) f(); {LAUNCH}'
    )
    program = build_program(folder, library, body, "late")
    with started(program, COPY=str(copy)) as target, recording(target.pid) as found:
        target.run()
    assert len(found.named("cudaDeviceSynchronize")) == 101
    assert len(found.named("cudaLaunchKernel")) == 1
    libraries = {row["name"] for row in found.rows("event") if row["kind"] == "library"}
    assert {str(library), str(copy)} <= libraries


def test_a_child_that_runs_another_program_is_recorded(folder, library):
    body = (
        'if (getenv("CHILD")) {' + LOOP + "} else { if (!fork()) { close(0);"
        ' setenv("CHILD", "1", 1); execl("/proc/self/exe", "child", (char *)0); } wait(0); }'
    )
    program = build_program(folder, library, body, "execs")
    with started(program) as target, recording(target.pid) as found:
        target.run()
        target.wait_done()
        found.drain()
    rows = found.named("cudaLaunchKernel")
    assert len(rows) == 1009 and {row["pid"] for row in rows} != {target.pid}
    assert [row["is_first_use"] for row in rows[:2]] == [True, False]
    child = rows[0]["pid"]
    assert {("fork", child), ("exec", child), ("exit", child)} <= {
        (row["kind"], row["pid"]) for row in found.rows("event")
    }


def test_attaching_and_detaching_under_load_does_no_harm(folder, library):
    body = (
        "volatile int stop; void *wait_for_it(void *x) { getchar(); stop = 1; return 0; } MAIN"
        " pthread_t t; pthread_create(&t, 0, wait_for_it, 0); long n = 0, sum = 0;"
        " while (!stop) { n++; sum += cudaMalloc(0, n); }"
        f" if (sum != n * {code_of('cudaMalloc')}) return 1;"
    )
    program = build_program(folder, library, body, "loaded")
    with started(program) as target:
        target.go()
        for _ in range(3):
            with recording(target.pid) as found:
                time.sleep(0.1)
            assert target.process.poll() is None
            assert len(found.named("cudaMalloc")) > 100
        target.run()
        target.go()
        assert target.process.wait(timeout=10) == 0
