"""The declarations against the exported names and the calling convention."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.cuda.abi import STRUCTS, Source, parse_parameters
from probes.cuda.functions import FUNCTIONS, SYMBOL_INDEX, SYMBOLS, by_symbol
from probes.cuda.program import (
    COOKIE_LAYOUT_SHIFT,
    COOKIE_NO_RETURN,
    ENTRY_PROGRAM,
    RETURN_PROGRAM,
    cookie_of,
    descriptions,
    hot_layouts,
    is_described,
    layout_of,
    source_text,
)
from tests.probes.cuda.test_elf import readelf_functions
from tests.real_libraries import library

NAMES = Path(__file__).parents[3] / "tracer" / "simulated" / "native" / "names"
KINDS = {
    "launch",
    "graph_launch",
    "graph",
    "capture",
    "sync",
    "query",
    "wait",
    "copy",
    "set",
    "memory",
    "module",
    "stream",
    "event",
    "device",
    "collective",
    "other",
}


def exported() -> set[str]:
    return {
        line
        for path in NAMES.glob("libcu*.txt")
        for line in path.read_text().splitlines()
        if not line.startswith("#")
    }


#: Newer than the simulated libraries; the real runtime is looked at in test_every_function.py.
NEW_IN_13_5 = {
    "cudaExecutionCtxRecordEvent",
    "cudaExecutionCtxSynchronize",
    "cudaExecutionCtxWaitEvent",
    "cudaLaunchHostFunc_v2",
    "cudaLaunchHostFunc_v2_ptsz",
    "cudaMemcpy3DWithAttributesAsync",
    "cudaMemcpy3DWithAttributesAsync_ptsz",
    "cudaMemcpyWithAttributesAsync",
    "cudaMemcpyWithAttributesAsync_ptsz",
    "cudaStreamBeginRecaptureToGraph",
    "cudaStreamBeginRecaptureToGraph_ptsz",
}


def test_every_declared_symbol_is_exported_by_some_release():
    unknown = {name for name in SYMBOLS if not name.startswith("nccl")} - exported()
    assert unknown == NEW_IN_13_5


def test_every_exported_launch_sync_and_stream_twin_is_declared():
    """Whatever launches or waits, with every twin, is probed, or is named here with the reason."""
    wanted = {
        name
        for name in exported()
        if any(
            part in name
            for part in ("LaunchKernel", "LaunchCooperative", "GraphLaunch", "Synchronize")
        )
    }
    left_out = {
        "__cudaLaunchKernel",  # jumps into cudaLaunchKernel, which is probed
        "__cudaLaunchKernel_ptsz",
    }
    assert wanted - set(SYMBOLS) == left_out


def test_no_symbol_is_declared_twice():
    names = [symbol for function in FUNCTIONS for symbol in function.symbols]
    assert len(names) == len(set(names)) == len(SYMBOLS)
    assert len(SYMBOLS) < 1 << 16
    assert all(SYMBOLS[SYMBOL_INDEX[name]] == name for name in names)


def test_kinds_and_layers_are_the_schemas():
    assert {function.kind for function in FUNCTIONS} <= KINDS
    assert by_symbol["cudaLaunchKernel_ptsz"].layer == "runtime"
    assert by_symbol["__cudaRegisterFunction"].layer == "runtime"
    assert by_symbol["cuLaunchKernelEx"].layer == "driver"
    assert by_symbol["ncclAllReduce"].layer == "nccl"


def test_arguments_lie_where_the_calling_convention_puts_them():
    launch = {field.role: field for field in by_symbol["cudaLaunchKernel"].fields}
    assert launch["grid_y"].source == Source(1) and launch["grid_y"].shift == 32
    assert launch["block_z"].source == Source(4, 4)
    assert launch["shared"].source == Source(6) and launch["stream"].source == Source(7)
    # A struct that does not fit in registers goes to the stack and leaves them to the others.
    (rank,) = parse_parameters("_ _ memory:16 rank")
    assert rank.source == Source(2, 4)
    extent = parse_parameters("_ extent stream")
    assert [field.source.slot for field in extent] == [6, 7, 8, 1]
    # A dim3 for which one register is left goes to the stack whole; the register stays free.
    fields = parse_parameters("_ _ _ _ _ grid stream")
    assert [field.source.slot for field in fields] == [6, 6, 7, 5]


def test_an_unknown_struct_is_an_error():
    with pytest.raises(ValueError, match="not declared"):
        parse_parameters("@Unknown")


def test_every_function_has_a_way_to_be_read_and_fits_in_the_words():
    for function in FUNCTIONS:
        layout, places = layout_of(function)
        assert len(layout.words) <= 6
        assert {place.role for place in places} == {field.role for field in function.fields}
        assert not (function.kind == "launch" and is_described(function))
    assert len(hot_layouts()) <= 4
    described = {name for name in SYMBOLS if is_described(by_symbol[name])}
    assert {SYMBOLS[index] for index in descriptions()} == described


def test_a_cookie_tells_function_layout_and_return():
    text = source_text(4096, 4096, 4096)
    for name in SYMBOLS:
        cookie = cookie_of(name)
        assert cookie & 0xFFFF == SYMBOL_INDEX[name] and not cookie & COOKIE_NO_RETURN
        assert cookie_of(name, has_return=False) == cookie | COOKIE_NO_RETURN
        number = cookie >> COOKIE_LAYOUT_SHIFT
        assert (number == 0) is is_described(by_symbol[name])
        assert number == 0 or text.count(f"case {number}:") == 1


def test_neighbours_in_memory_are_read_at_once():
    text = source_text(4096, 4096, 4096)
    cases = text.split("#define LAYOUT_CASES")[1].split("/*")[0]
    # Two for the launches whose arguments lie on the stack, one for the struct of the third kind.
    assert cases.count("READ(") == 3


def test_the_source_has_every_program_once():
    text = source_text(4096, 4096, 4096)
    for name in (ENTRY_PROGRAM, RETURN_PROGRAM):
        assert text.count(f"int {name}(") == 1


def test_structs_are_read_in_aligned_words():
    for fields in STRUCTS.values():
        for _, offset, width in fields:
            assert offset % width == 0


#: Functions of NCCL that only ask, or only describe something.
NCCL_ASKS = (
    "ncclCommCount",
    "ncclCommCuDevice",
    "ncclCommGetAsyncError",
    "ncclCommMemStats",
    "ncclCommQueryProperties",
    "ncclCommUserRank",
    "ncclGet",
    "ncclGinBarrier",
    "ncclGinInbox",
    "ncclGinOutbox",
    "ncclGroupSimulateEnd",
    "ncclLLA2A",
    "ncclLsaBarrier",
    "ncclParam",
    "ncclRedOp",
    "ncclResetDebugInit",
    "ncclSetEncryption",
    "ncclTeam",
    "ncclWinGetUserPtr",
)


def nccl_exports(source: str) -> set[str]:
    """Exported functions: as listed of the newest library, or of the real one that pip fetches."""
    if source == "list":
        lines = Path(__file__).with_name("libnccl.so.2.txt").read_text().splitlines()
        return {line for line in lines if not line.startswith("#")}
    found = readelf_functions(library("nvidia-nccl-cu12", "libnccl.so.2"))
    return {name for name in found if name.startswith("nccl")}


@pytest.mark.parametrize("source", ["list", "library"])
def test_every_nccl_function_that_does_something_is_declared(source):
    declared = {name for name in SYMBOLS if name.startswith("nccl")}
    exported = nccl_exports(source)
    assert declared - exported == set()
    assert {name for name in exported - declared if not name.startswith(NCCL_ASKS)} == set()
