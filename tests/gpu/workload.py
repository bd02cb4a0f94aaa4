"""A program that makes a known number of calls of the CUDA runtime and driver, by ctypes alone.

Used on a node with a GPU, and on the simulated device so that it is itself tested. Prints one line
of JSON: what it called, and how long the loops took.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

#: Prime, so that a count cannot be right by accident.
N_LAUNCHES = 997
N_SETS = 503
N_SYNCS = 23
#: Bytes of its one allocation.
ALLOCATED = 1 << 20

#: A library loaded while recording is found by looking again, within a second.
LOAD_S = 1.5

PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry nothing() { ret; }
\0"""


def check(code: int, what: str) -> None:
    if code:
        raise SystemExit(f"{what} returned {code}")


def main() -> None:
    runtime = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libcudart.so.12")
    driver = ctypes.CDLL("libcuda.so.1")
    time.sleep(LOAD_S)
    memory = ctypes.c_void_p()
    check(runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(ALLOCATED)), "cudaMalloc")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuModuleLoadData(ctypes.byref(module), PTX), "cuModuleLoadData")
    check(
        driver.cuModuleGetFunction(ctypes.byref(function), module, b"nothing"),
        "cuModuleGetFunction",
    )
    nothing = ctypes.c_void_p()
    begin = time.monotonic_ns()
    for _ in range(N_LAUNCHES):
        driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nothing, nothing, nothing)
    launches_ns = time.monotonic_ns() - begin
    for _ in range(N_SETS):
        runtime.cudaMemsetAsync(memory, 0, ctypes.c_size_t(4096), nothing)
    for _ in range(N_SYNCS):
        runtime.cudaMemsetAsync(memory, 0, ctypes.c_size_t(1 << 20), nothing)
        check(runtime.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
    check(runtime.cudaFree(memory), "cudaFree")
    print(json.dumps({"launches_ns": launches_ns}))


if __name__ == "__main__":
    main()
