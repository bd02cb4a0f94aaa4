"""Layouts and numbers that we wrote down, against NVIDIA's own headers of both major versions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from probes.cupti.build import NATIVE
from probes.cupti.ring import HEADER, RECORD
from tests.real_libraries import unpacked
from tracer.simulated.build import NATIVE as SIMULATED

WHEELS = {12: "nvidia-cuda-cupti-cu12", 13: "nvidia-cuda-cupti"}
#: Types of cuda.h that CUPTI's headers name; none lies inside of a record by value.
CUDA_H = """#pragma once
#include <stddef.h>
#include <stdint.h>
typedef struct any *CUcontext, *CUstream, *CUgraph, *CUgraphNode, *CUgraphExec, *CUevent;
typedef struct any *CUmodule, *CUfunction, *CUkernel;
typedef int CUdevice, CUresult, CUgraphNodeType, CUdevice_attribute, CUstreamAttrID;
typedef union { int unused; } CUstreamAttrValue;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { int unused; } CUaccessPolicyWindow;
typedef unsigned long long CUdeviceptr;
"""
#: Our record, NVIDIA's by major version, and (our member, theirs).
RECORDS = (
    (
        "kernel",
        {12: "Kernel9", 13: "Kernel13"},
        "start end completed device:deviceId context:contextId stream:streamId grid:gridX "
        "block:blockX correlation:correlationId name graph_node:graphNodeId graph:graphId",
    ),
    (
        "memcpy",
        {12: "Memcpy6", 13: "Memcpy7"},
        "copy_kind:copyKind source_kind:srcKind target_kind:dstKind flags bytes start end "
        "device:deviceId context:contextId stream:streamId correlation:correlationId "
        "graph_node:graphNodeId graph:graphId",
    ),
    (
        "memset",
        {12: "Memset4", 13: "Memset5"},
        "value bytes start end device:deviceId context:contextId stream:streamId "
        "correlation:correlationId flags memory_kind:memoryKind graph:graphId",
    ),
    (
        "api",
        {12: "API", 13: "API"},
        "cbid start end process:processId thread:threadId correlation:correlationId "
        "return_value:returnValue",
    ),
    (
        "synchronization",
        {12: "Synchronization2", 13: "Synchronization2"},
        "type start end correlation:correlationId context:contextId stream:streamId",
    ),
    (
        "overhead",
        {12: "Overhead3", 13: "Overhead3"},
        "overhead:overheadKind object:objectKind process:objectId.pt.processId "
        "thread:objectId.pt.threadId start end",
    ),
    (
        "graph",
        {12: "GraphTrace2", 13: "GraphTrace2"},
        "correlation:correlationId start end device:deviceId graph:graphId context:contextId "
        "stream:streamId",
    ),
    (
        "memory",
        {12: "Memory4", 13: "Memory4"},
        "operation:memoryOperationType memory_kind:memoryKind correlation:correlationId address "
        "bytes timestamp process:processId device:deviceId context:contextId stream:streamId "
        "is_async:isAsync pool_type:memoryPoolConfig.memoryPoolType "
        "pool_used:memoryPoolConfig.utilizedSize",
    ),
    (
        "external",
        {12: "ExternalCorrelation", 13: "ExternalCorrelation"},
        "external_kind:externalKind external:externalId correlation:correlationId",
    ),
)
PEER_COPY = (
    "copy_kind:copyKind bytes start end device:deviceId context:contextId stream:streamId "
    "source_device:srcDeviceId target_device:dstDeviceId correlation:correlationId graph:graphId"
)
NUMBERS = {
    "ACTIVITY_MEMCPY": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "ACTIVITY_MEMSET": "CUPTI_ACTIVITY_KIND_MEMSET",
    "ACTIVITY_KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL",
    "ACTIVITY_DRIVER": "CUPTI_ACTIVITY_KIND_DRIVER",
    "ACTIVITY_RUNTIME": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "ACTIVITY_CONCURRENT_KERNEL": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "ACTIVITY_OVERHEAD": "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "ACTIVITY_MEMCPY2": "CUPTI_ACTIVITY_KIND_MEMCPY2",
    "ACTIVITY_SYNCHRONIZATION": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "ACTIVITY_GRAPH_TRACE": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "ACTIVITY_EXTERNAL_CORRELATION": "CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION",
    "ACTIVITY_MEMORY2": "CUPTI_ACTIVITY_KIND_MEMORY2",
    "ATTRIBUTE_POOL_LIMIT": "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT",
    "ATTRIBUTE_ZEROED_BUFFERS": "CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER",
    "FLUSH_FORCED": "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
    "THREAD_ID_SYSTEM": "CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM",
    "DOMAIN_DRIVER": "CUPTI_CB_DOMAIN_DRIVER_API",
    "SITE_EXIT_CALL": "CUPTI_API_EXIT",
    "CUPTI_MAX_LIMIT_REACHED": "CUPTI_ERROR_MAX_LIMIT_REACHED",
    "CUPTI_MULTIPLE_SUBSCRIBERS": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    "6 << 16": "CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL",
    "4 << 16": "CUPTI_ACTIVITY_OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING",
    "2": "CUPTI_ACTIVITY_OBJECT_THREAD",
}


def headers(major: int, folder: Path) -> list[str]:
    """Compiler options that find NVIDIA's headers and stand-ins for what they include."""
    (folder / "cuda.h").write_text(CUDA_H)
    (folder / "builtin_types.h").touch()
    found = sorted(unpacked(WHEELS[major], (".so", ".h")).rglob("cupti_activity.h"))
    assert found, f"{WHEELS[major]} has no headers"
    return [f"-I{folder}", f"-I{found[0].parent}"]


def check(source: str, options: list[str], folder: Path) -> None:
    """Compile static assertions; the first that fails is shown."""
    file = folder / "check.c"
    file.write_text(source)
    command = ["cc", "-std=gnu11", "-w", "-fsyntax-only", *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert not errors, errors[:3]


def same(ours: str, theirs: str, members: str) -> list[str]:
    lines = []
    for pair in members.split():
        own, _, their = pair.partition(":")
        left, right = f"offsetof({ours}, {own})", f"offsetof({theirs}, {their or own})"
        lines.append(f'_Static_assert({left} == {right}, "{theirs}.{their or own}");')
    return lines


@pytest.mark.parametrize("major", (12, 13))
def test_the_collector_reads_records_where_nvidia_puts_them(major: int, tmp_path: Path) -> None:
    lines = ["#include <cupti_activity.h>", f'#include "{NATIVE}/abi.h"']
    for ours, theirs, members in RECORDS:
        lines += same(f"struct activity_{ours}", f"CUpti_Activity{theirs[major]}", members)
    lines += same("struct activity_memcpy2", "CUpti_ActivityMemcpyPtoP4", PEER_COPY)
    lines += same("struct callback_data", "CUpti_CallbackData", "site:callbackSite")
    lines += [
        f'_Static_assert(({ours.replace("SITE_EXIT_CALL", "SITE_EXIT")}) == {theirs}, "{theirs}");'
        for ours, theirs in NUMBERS.items()
    ]
    check("\n".join(lines), headers(major, tmp_path), tmp_path)


@pytest.mark.parametrize("major", (12, 13))
def test_the_simulated_records_are_nvidias_in_place_and_size(major: int, tmp_path: Path) -> None:
    simulated = SIMULATED / "cupti" / "records.h"
    lines = [f"#include <cupti_{part}.h>" for part in ("activity", "version")]
    lines.append(f'#include "{simulated}"')
    for ours, theirs, members in RECORDS:
        name = f"CUpti_Activity{theirs[major]}"
        lines += same(f"struct {ours}_record", name, members)
        size = f"sizeof(struct {ours}_record) == sizeof({name})"
        lines.append(f'_Static_assert({size}, "size of {name}");')
    lines.append('_Static_assert(VERSION == CUPTI_API_VERSION, "version");')
    check("\n".join(lines), [f"-DCUPTI={major}", *headers(major, tmp_path)], tmp_path)


@pytest.mark.parametrize("major", (12, 13))
def test_every_call_that_gives_work_is_on_the_list(major: int) -> None:
    folder = sorted(unpacked(WHEELS[major], (".so", ".h")).rglob("cupti_activity.h"))[0].parent
    text = (NATIVE / "calls.h").read_text()
    for layer in ("driver", "runtime"):
        part = text[text.index(f"{layer}_calls[]") :]
        part = part[: part.index("};")]
        listed = {
            number
            for first, last in re.findall(r"\{(\d+), (\d+)\}", part)
            for number in range(int(first), int(last) + 1)
        }
        header = (folder / f"cupti_{layer}_cbid.h").read_text()
        pattern = r"CBID_(cu(?:da)?(?:Launch|GraphLaunch|Memcpy|Memset)\w*)\s*=\s*(\d+)"
        named = {
            int(number): name
            for name, number in re.findall(pattern, header)
            if not name.startswith(("cuLaunchHostFunc", "cudaLaunchHostFunc"))
        }
        missing = {name for number, name in named.items() if number not in listed}
        assert not missing, f"{layer}: {sorted(missing)}"


def test_the_reader_has_the_layout_of_the_writer(tmp_path: Path) -> None:
    lines = [f'#include "{NATIVE}/shared.h"', "#include <stddef.h>"]
    for name in HEADER.names or ():
        offset = (HEADER.fields or {})[name][1]
        lines.append(f'_Static_assert(offsetof(struct ring_header, {name}) == {offset}, "{name}");')
    for name in RECORD.names or ():
        offset = (RECORD.fields or {})[name][1]
        lines.append(f'_Static_assert(offsetof(struct record, {name}) == {offset}, "{name}");')
    lines.append(f'_Static_assert(sizeof(struct record) == {RECORD.itemsize}, "record");')
    lines.append(f'_Static_assert(sizeof(struct ring_header) == {HEADER.itemsize}, "header");')
    check("\n".join(lines), [], tmp_path)
