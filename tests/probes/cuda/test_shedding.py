"""The budget on a real process, and attaching to what is new without waiting for the next look."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from probes import attach
from probes.cuda import calibration, watching
from probes.cuda.loading import ModuleLoading
from probes.cuda.tracing import Tracing
from tests.probes.traced import build_library, build_program, recording, started

pytestmark = pytest.mark.root

LAUNCH = "cudaLaunchKernel(A(0x1000), g, b, 0, 77, A(0x99));"
#: Launches without rest until a line comes, and a sync now and then.
BUSY = (
    "volatile int stop; void *wait_for_it(void *x) { getchar(); stop = 1; return 0; } MAIN"
    " pthread_t t; pthread_create(&t, 0, wait_for_it, 0);"
    f" for (long i = 0; !stop; i++) {{ {LAUNCH} if (i % 100000 == 0) cudaDeviceSynchronize(); }}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shedding")


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return build_library(folder)


@pytest.fixture
def never_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at an interval: what is found was told by the kernel side."""
    monkeypatch.setattr(watching, "LOOK_NS", 60_000_000_000)


def test_a_probe_is_measured_and_leaves_nothing_behind():
    tracing = Tracing(ModuleLoading())
    try:
        costs = calibration.measure(tracing)
        assert 50 < costs["emulated"].entry_ns < 100_000
        assert 50 < costs["emulated"].return_ns < 100_000
        assert costs["stepped"].entry_ns >= costs["emulated"].entry_ns
        assert len(tracing.entries.drain()) == len(tracing.returns.drain()) == 0
        assert tracing.target_pids() == set()
    finally:
        tracing.close()


@pytest.mark.skipif(not attach.has_uprobe_multi(), reason="slices need a kernel with uprobe_multi")
def test_a_busy_target_is_recorded_in_slices_and_that_is_told(folder, library):
    program = build_program(folder, library, BUSY, "busy")
    with started(program) as target, recording(target.pid, budget_share=0.01) as found:
        target.go()
        for _ in range(30):
            time.sleep(0.1)
            found.drain()
        details = found.calls.report().details
        note = found.calls.report().note
        target.run()
    budget = details["budget"]
    assert "cudaLaunchKernel" in budget["sliced"]
    assert "cudaDeviceSynchronize" not in budget["sliced"]
    second_ns = 0.01 * 1e9
    assert 0 < budget["spent_ns"] < 2 * (budget["allowed_ns"] + second_ns)
    assert details["is_thinned"] and details["thinned_from_ns"] > 0
    assert "slices" in note
    events = [row for row in found.rows("event") if row["kind"] == "shed"]
    assert any(row["duration_ns"] for row in events)
    lost = {row["function"]: row for row in found.rows("loss") if row["reason"] == "shed"}
    assert lost["cudaLaunchKernel"]["n_lost"] > 0
    rows = found.named("cudaLaunchKernel")
    assert rows and all(row["depth"] == 0 for row in rows)
    # What was open when a slice ended (after a second at the latest) is no proof of a hang.
    for row in found.rows("open_call"):
        is_old = row["time_ns"] - row["start_ns"] > 2_000_000_000
        assert row["is_doubtful"] or not is_old or row["function"] not in budget["sliced"]


def test_within_the_budget_every_call_is_recorded(folder, library):
    body = f"for (int i = 0; i < 101; i++) {{ {LAUNCH} usleep(1000); }}"
    program = build_program(folder, library, body, "calm")
    with started(program) as target, recording(target.pid, budget_share=0.5) as found:
        target.run()
        assert "is_thinned" not in found.calls.report().details
    rows = found.named("cudaLaunchKernel")
    assert len(rows) == 101 and all(row["duration_ns"] > 0 for row in rows)
    assert found.rows("loss") == []


def test_a_library_opened_late_is_probed_at_once(folder, library, tmp_path, never_look):
    copy = tmp_path / "libcudart-copy.so.12"
    shutil.copy(library, copy)
    body = (
        "#include <dlfcn.h>\nMAIN "
        'void *h = dlopen(getenv("COPY"), RTLD_NOW); int (*f)(void) = dlsym(h, '
        '"cudaDeviceSynchronize"); usleep(500000); for (int i = 0; i < 101; i++) f();'
    )
    program = build_program(folder, library, body, "late")
    with started(program, COPY=str(copy)) as target, recording(target.pid) as found:
        target.run()
    assert len(found.named("cudaDeviceSynchronize")) == 101


def test_the_gap_of_a_forked_child_is_short_and_told_where_others_map_the_file(
    folder, library, never_look
):
    body = f"if (!fork()) {{ usleep(500000); {LAUNCH * 101} _exit(0); }} wait(0);"
    program = build_program(folder, library, body, "gap")
    with started(program), started(program) as target, recording(target.pid) as found:
        target.run()
        time.sleep(1.1)
        found.drain()
    rows = found.named("cudaLaunchKernel")
    assert len(rows) == 101 and {row["pid"] for row in rows} != {target.pid}
    gaps = [row for row in found.rows("loss") if row["reason"] == "fork_gap"]
    assert sum(row["n_lost"] for row in gaps) == 1
    (told,) = (
        row for row in found.rows("event") if "before it was probed" in (row["detail"] or "")
    )
    assert told["pid"] == rows[0]["pid"] and told["duration_ns"] > 0


def test_a_child_that_runs_another_program_is_probed_at_once(folder, library, never_look):
    body = (
        f'if (getenv("CHILD")) {{ usleep(500000); {LAUNCH * 7} }} else {{ if (!fork()) {{ close(0);'
        ' setenv("CHILD", "1", 1); execl("/proc/self/exe", "child", (char *)0); } wait(0); }'
    )
    program = build_program(folder, library, body, "execs")
    with started(program), started(program) as target, recording(target.pid) as found:
        target.run()
        target.wait_done()
        found.drain()
    assert len(found.named("cudaLaunchKernel")) == 7
