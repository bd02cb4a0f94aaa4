"""NVIDIA's real CUDA runtime, shared and static: every failing call is recorded exactly.

There is no driver on a test machine, so each call of the real library fails with
cudaErrorInsufficientDriver (35), after it was entered and before it returns: what the probes need.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from analysis import open_session
from tests.real_libraries import library

pytestmark = pytest.mark.root

#: cudaErrorInsufficientDriver
NO_DRIVER = 35

PROGRAM = r"""
#include <stdio.h>
typedef struct { unsigned int x, y, z; } dim3_;
extern int cudaLaunchKernel(const void *, dim3_, dim3_, void **, size_t, void *);
extern int cudaLaunchKernel_ptsz(const void *, dim3_, dim3_, void **, size_t, void *);
extern int cudaMalloc(void **, size_t);
extern int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
extern int cudaMemcpy(void *, const void *, size_t, int);
extern int cudaMemsetAsync(void *, int, size_t, void *);
extern int cudaStreamSynchronize(void *);
extern int cudaDeviceSynchronize(void);
extern int cudaGraphLaunch(void *, void *);
void kernel_stub(void) {}
int main(void) {
    int codes = 0;
    dim3_ grid = {7, 5, 3}, block = {128, 2, 1};
    char buffer[64];
    void *p;
    for (int i = 0; i < 23; i++)
        codes += cudaLaunchKernel(kernel_stub, grid, block, 0, 4096 + i, (void *)0x1234) == 35;
    for (int i = 0; i < 3; i++)
        codes += cudaLaunchKernel_ptsz(kernel_stub, grid, block, 0, 17, 0) == 35;
    for (int i = 0; i < 11; i++) codes += cudaMalloc(&p, 1000 + i) == 35;
    for (int i = 0; i < 13; i++)
        codes += cudaMemcpyAsync(buffer, buffer, 32, 2, (void *)0x1234) == 35;
    for (int i = 0; i < 5; i++) codes += cudaMemcpy(buffer, buffer, 48, 1) == 35;
    for (int i = 0; i < 7; i++) codes += cudaMemsetAsync(buffer, 0, 16, (void *)0x77) == 35;
    for (int i = 0; i < 17; i++) codes += cudaStreamSynchronize((void *)0x1234) == 35;
    for (int i = 0; i < 2; i++) codes += cudaDeviceSynchronize() == 35;
    printf("%d\n", codes);
    return codes == 81 ? 0 : 1;
}
"""

#: Function -> (calls, columns that each of its rows must have).
EXPECTED = {
    "cudaLaunchKernel": (
        23,
        {
            "grid_x": 7,
            "grid_y": 5,
            "grid_z": 3,
            "block_x": 128,
            "block_y": 2,
            "block_z": 1,
            "stream": 0x1234,
        },
    ),
    "cudaLaunchKernel_ptsz": (3, {"grid_x": 7, "shared_memory_bytes": 17, "stream": 0}),
    "cudaMalloc": (11, {}),
    "cudaMemcpyAsync": (13, {"size_bytes": 32, "copy_kind": "d2h", "stream": 0x1234}),
    "cudaMemcpy": (5, {"size_bytes": 48, "copy_kind": "h2d"}),
    "cudaMemsetAsync": (7, {"size_bytes": 16, "stream": 0x77}),
    "cudaStreamSynchronize": (17, {"stream": 0x1234}),
    "cudaDeviceSynchronize": (2, {}),
}

WHEELS = {"12": "nvidia-cuda-runtime-cu12", "13": "nvidia-cuda-runtime"}


def build(folder: Path, major: str, linkage: str) -> Path:
    """Compile the program against the real library and return the executable."""
    source = folder / "calls.c"
    source.write_text(PROGRAM)
    binary = folder / f"calls-{major}-{linkage}"
    if linkage == "shared":
        runtime = library(WHEELS[major], f"libcudart.so.{major}")
        extra = [str(runtime), f"-Wl,-rpath,{runtime.parent}"]
    else:
        extra = [str(library(WHEELS[major], "libcudart_static.a")), "-ldl", "-lrt", "-lpthread"]
    subprocess.run(["cc", "-O0", "-o", binary, source, *extra], check=True)
    return binary


@pytest.mark.parametrize("linkage", ["shared", "static"])
@pytest.mark.parametrize("major", ["12", "13"])
def test_every_failing_call_is_recorded(tmp_path: Path, major: str, linkage: str):
    binary = build(tmp_path, major, linkage)
    session_path = tmp_path / "s.tracer"
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "record", "-o", str(session_path), "--", str(binary)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls = open_session(session_path).frame("cuda_call")
    runtime = calls[calls.layer == "runtime"]
    counts = runtime.function.value_counts().to_dict()
    assert {name: counts.get(name) for name in EXPECTED} == {
        name: count for name, (count, _) in EXPECTED.items()
    }
    for name, (_, columns) in EXPECTED.items():
        rows = runtime[runtime.function == name]
        assert set(rows.return_code) == {NO_DRIVER}, name
        for column, value in columns.items():
            assert set(rows[column]) == {value}, (name, column)
    launches = runtime[runtime.function == "cudaLaunchKernel"]
    assert sorted(launches.shared_memory_bytes) == [4096 + i for i in range(23)]
    assert sorted(runtime[runtime.function == "cudaMalloc"].size_bytes) == [
        1000 + i for i in range(11)
    ]
    assert launches.kernel.nunique() == 1 and launches.kernel.notna().all()
