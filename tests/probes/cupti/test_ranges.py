"""Ranges that a program names with NVIDIA's own NVTX header, through the library into rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from analysis import open_session
from analysis.causes.device_idle import find_input_starvation
from analysis.causes.engine_steps import find_by_batches
from analysis.facts import Facts
from analysis.finding import Status
from probes.cupti import ring
from probes.cupti.named_ranges import UNNAMED, range_rows
from tests.probes.cupti.conftest import Collection
from tests.probes.cupti.producing import build_ranges, nvtx_headers
from tests.probes.cupti.programs import with_ranges
from tests.probes.cupti.test_layouts import check
from tests.tracer.simulated.conftest import Machine

HERE = Path(__file__).parent


@pytest.fixture
def library(tmp_path: Path) -> str:
    return str(build_ranges(tmp_path))


def named(collection: Collection) -> list[tuple[str, str]]:
    rows = [row for row in collection.rows("annotation") if row["category"] not in _CUPTIS_OWN]
    rows.sort(key=lambda row: row["start_ns"])
    return [(row["category"], row["name"]) for row in rows]


_CUPTIS_OWN = ("sync", "overhead")


def test_the_protocol_is_that_of_nvidias_header(tmp_path: Path) -> None:
    lines = ["#include <nvtx3/nvToolsExt.h>", "#include <stddef.h>"]
    lines.append(f'#include "{HERE.parents[2]}/probes/cupti/native/nvtx.h"')
    numbers = {
        "NVTX_TABLE_CALLBACKS": "NVTX_ETID_CALLBACKS",
        "NVTX_MODULE_CORE": "NVTX_CB_MODULE_CORE",
        "NVTX_MODULE_CORE2": "NVTX_CB_MODULE_CORE2",
        "NVTX_RANGE_START_EX": "NVTX_CBID_CORE_RangeStartEx",
        "NVTX_RANGE_START_A": "NVTX_CBID_CORE_RangeStartA",
        "NVTX_RANGE_START_W": "NVTX_CBID_CORE_RangeStartW",
        "NVTX_RANGE_END": "NVTX_CBID_CORE_RangeEnd",
        "NVTX_RANGE_PUSH_EX": "NVTX_CBID_CORE_RangePushEx",
        "NVTX_RANGE_PUSH_A": "NVTX_CBID_CORE_RangePushA",
        "NVTX_RANGE_PUSH_W": "NVTX_CBID_CORE_RangePushW",
        "NVTX_RANGE_POP": "NVTX_CBID_CORE_RangePop",
        "NVTX_DOMAIN_RANGE_START_EX": "NVTX_CBID_CORE2_DomainRangeStartEx",
        "NVTX_DOMAIN_RANGE_END": "NVTX_CBID_CORE2_DomainRangeEnd",
        "NVTX_DOMAIN_RANGE_PUSH_EX": "NVTX_CBID_CORE2_DomainRangePushEx",
        "NVTX_DOMAIN_RANGE_POP": "NVTX_CBID_CORE2_DomainRangePop",
        "NVTX_DOMAIN_REGISTER_STRING_A": "NVTX_CBID_CORE2_DomainRegisterStringA",
        "NVTX_DOMAIN_REGISTER_STRING_W": "NVTX_CBID_CORE2_DomainRegisterStringW",
        "NVTX_DOMAIN_CREATE_A": "NVTX_CBID_CORE2_DomainCreateA",
        "NVTX_DOMAIN_CREATE_W": "NVTX_CBID_CORE2_DomainCreateW",
        "NVTX_MESSAGE_ASCII": "NVTX_MESSAGE_TYPE_ASCII",
        "NVTX_MESSAGE_UNICODE": "NVTX_MESSAGE_TYPE_UNICODE",
        "NVTX_MESSAGE_REGISTERED": "NVTX_MESSAGE_TYPE_REGISTERED",
        "sizeof(struct nvtx_attributes)": "sizeof(nvtxEventAttributes_t)",
        "sizeof(struct nvtx_callbacks)": "sizeof(NvtxExportTableCallbacks)",
    }
    for ours, theirs in {
        "size": "size",
        "message_type": "messageType",
        "message": "message",
    }.items():
        left = f"offsetof(struct nvtx_attributes, {ours})"
        numbers[left] = f"offsetof(nvtxEventAttributes_t, {theirs})"
    numbers["offsetof(struct nvtx_callbacks, functions_of)"] = (
        "offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable)"
    )
    lines += [f'_Static_assert({a} == {b}, "{b}");' for a, b in numbers.items()]
    check("\n".join(lines), [f"-I{nvtx_headers()}"], tmp_path)


def test_ranges_become_rows_with_their_thread_and_times(
    collection: Collection, library: str
) -> None:
    collection.python(
        with_ranges(library)
        + """
import threading
begin = time.monotonic_ns()
assert nvtx.push(b"outer") == 0
assert nvtx.push_wide("innér") == 1
time.sleep(0.01)
assert nvtx.pop() == 1
assert nvtx.pop() == 0
assert nvtx.pop() < 0, "nothing is left"
number = nvtx.start(b"across threads")
assert number != 0
ender = threading.Thread(target=lambda: nvtx.end(ctypes.c_ulonglong(number)))
ender.start(); ender.join()
nvtx.end(ctypes.c_ulonglong(number))
nvtx.end(ctypes.c_ulonglong(12345))
nvtx.mark(b"no range")
print(begin, time.monotonic_ns())
"""
    )
    assert collection.status == 0, collection.out
    assert named(collection) == [("user", "outer"), ("user", "innér"), ("user", "across threads")]
    begin, end = map(int, collection.out.split())
    rows = {row["name"]: row for row in collection.rows("annotation")}
    assert {row["tid"] for row in rows.values()} == {collection.process.pid}
    assert rows["innér"]["duration_ns"] >= 10_000_000
    for row in rows.values():
        assert begin <= row["start_ns"] <= row["start_ns"] + row["duration_ns"] <= end


def test_domains_registered_texts_and_names_of_any_length(
    collection: Collection, library: str
) -> None:
    collection.python(
        with_ranges(library)
        + """
mine, other = handle(nvtx.domain(b"mine")), handle(nvtx.domain(b"other"))
words = handle(nvtx.text(mine, b"aten::mul, seq = 7, op_id = 9"))
nvtx.push_in(mine, words)
nvtx.push_ascii_in(other, b"x" * 43)
assert nvtx.pop_in(mine) == 0, "not the innermost, but the innermost of its domain"
nvtx.pop_in(other)
for n in (44, 45, 87, 88, 500):
    nvtx.push(b"y" * n); nvtx.pop()
nvtx.push("é".encode() * 60); nvtx.pop()
nvtx.push(None); nvtx.pop()
nvtx.push_in(mine, handle(12345)); nvtx.pop_in(mine)
number = nvtx.start_in(mine, b"decode")
nvtx.end_in(mine, ctypes.c_ulonglong(number))
"""
    )
    assert collection.status == 0, collection.out
    assert named(collection) == [
        ("operator", "aten::mul"),
        ("user", "x" * 43),
        *(("user", "y" * n) for n in (44, 45, 87, 87, 87)),
        ("user", "é" * 43),
        ("user", UNNAMED),
        ("user", UNNAMED),
        ("step", "decode"),
    ]


def test_what_is_nested_too_deep_or_comes_too_fast_is_counted(
    collection: Collection, library: str
) -> None:
    collection.python(
        with_ranges(library)
        + """
import threading
for _ in range(40): nvtx.push(b"deep")
for level in reversed(range(40)): assert nvtx.pop() == level
threads = [threading.Thread(target=nvtx.many, args=(b"fast", 20000)) for _ in range(3)]
for one in threads: one.start()
for one in threads: one.join()
time.sleep(0.3)
"""
    )
    assert collection.status == 0, collection.out
    names = [name for _, name in named(collection)]
    lost = sum(row["n_lost"] for row in collection.rows("loss") if row["reason"] == "ranges_full")
    assert names.count("deep") == 32
    assert names.count("fast") + lost == 60_000 + 8
    assert lost >= 8


def test_outside_of_collection_a_range_leaves_nothing(
    machine: Machine, tmp_path: Path, library: str
) -> None:
    collection = Collection(machine, tmp_path)
    code = with_ranges(library) + 'assert nvtx.push(b"a") == 0 and nvtx.pop() == 0'
    environment = machine.environment(**collection.variables)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in collection.directory.iterdir()] == ["control"]


def test_in_windows_the_ranges_that_began_in_one_are_taken(
    machine: Machine, tmp_path: Path, library: str
) -> None:
    collection = Collection(machine, tmp_path, window_ns=300_000_000, every_ns=900_000_000)
    collection.python(
        with_ranges(library)
        + """
nvtx.push(b"all the time")
until = time.monotonic() + 2.2
while time.monotonic() < until:
    nvtx.push(b"step"); launch(); time.sleep(0.002); nvtx.pop()
nvtx.pop()
"""
    )
    assert collection.status == 0, collection.out
    steps = [row for row in collection.rows("annotation") if row["name"] == "step"]
    start = np.sort([row["start_ns"] for row in steps])
    assert (np.diff(start) > 200_000_000).sum() == 2, "three windows"
    assert max(row["duration_ns"] for row in steps) < 300_000_000
    assert ("user", "all the time") not in named(collection)


def test_ranges_say_nothing_of_what_the_device_did(collection: Collection, library: str) -> None:
    collection.python(
        with_ranges(library)
        + """
check(cuda.cuInit(0)); launch(); wait(); time.sleep(0.3)
for _ in range(10): nvtx.push(b"later"); time.sleep(0.05); nvtx.pop()
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    pieces = collection.events("device_times")
    known = max(row["time_ns"] + row["duration_ns"] for row in pieces)
    first = min(row["start_ns"] for row in collection.rows("annotation") if row["name"] == "later")
    assert known < first + 50_000_000


def test_a_text_of_hostile_bytes_is_a_row_and_a_lost_half_is_a_short_name() -> None:
    records = np.zeros(3, ring.RECORD)
    raw = records.view(np.uint8).reshape(3, -1)
    records["kind"] = ring.RANGE, ring.RANGE, ring.RANGE_TEXT
    records["start_ns"], records["end_ns"] = (10, 20, 0), (15, 19, 0)
    raw[0, 32:76] = 0xFF
    batch = range_rows(records, 7)
    assert batch is not None
    assert batch.rows.to_pylist()[0]["name"] == "\ufffd" * 44
    assert batch.rows.num_rows == 1, "the second ends before it starts"


#: Makes `step(name, n)`: n launches of half a millisecond and a wait, in a range of that name.
STEPS = """
sim = ctypes.CDLL("libtracersim.so")
cost = sim.tracer_sim_kernel
cost.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64] + [ctypes.c_double] * 3
cost(name, 500_000, 0, 1, 1, 0.5)
def step(words, n):
    nvtx.push(words)
    for _ in range(n): launch()
    check(cuda.cuStreamSynchronize(stream))
    nvtx.pop()
"""


def recorded(machine: Machine, session: Path, code: str) -> Facts:
    command = [sys.executable, "-m", "tracer", "record", "-o", str(session), "--cupti", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        env=machine.environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return Facts(open_session(session))


def test_steps_that_a_live_program_names_tell_prompts_from_decodes(
    machine: Machine, tmp_path: Path, library: str
) -> None:
    """Decodes of two requests wait in each step of prompts, which the steps' names tell."""
    work = """
for _ in range(8):
    for _ in range(6): step(b"execute_context_0()_generation_2(sq2sk200)", 2)
    step(b"execute_context_1(sq2048sk2048)_generation_2(sq2sk200)", 100)
"""
    finding = find_by_batches(
        recorded(machine, tmp_path / "s.tracer", with_ranges(library) + STEPS + work)
    )
    assert finding is not None
    assert finding.status is Status.FOUND, finding
    told = {item.name: item.value for item in finding.evidence}
    assert told["prompt_tokens_in_them"] == 8 * 2048
    assert told["decode_tokens_in_them"] == 8 * 2


@pytest.mark.parametrize(("load", "status"), (("load", "found"), ("think", "not_found")))
def test_input_that_a_live_program_loads_too_slowly_is_told_by_its_name(
    machine: Machine, tmp_path: Path, library: str, load: str, status: str
) -> None:
    """The same work on the launching thread is starvation where its range loads input."""
    name = {"load": "DataLoader.__next__", "think": "scheduler"}[load]
    work = f"""
for _ in range(60):
    nvtx.push(b"{name}")
    until = time.thread_time_ns() + 15_000_000
    while time.thread_time_ns() < until: pass
    nvtx.pop()
    step(b"forward", 10)
"""
    facts = recorded(machine, tmp_path / "s.tracer", with_ranges(library) + STEPS + work)
    finding = find_input_starvation(facts)
    assert finding.status.value == status, finding
    told = {item.name: item.value for item in finding.evidence}
    assert (told.get("input_loads", 0) > 40) == (status == "found")
