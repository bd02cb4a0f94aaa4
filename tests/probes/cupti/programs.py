"""Programs on the simulated device, as Python text that uses the driver."""

#: Makes a context, a stream and a kernel; `launch()` launches it, `wait()` waits for all.
CONTEXT = """
import ctypes, os, signal, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
runtime = ctypes.CDLL("libcudart.so.12")
def check(rc):
    assert rc == 0, rc
check(cuda.cuInit(0))
context, stream, module, kernel = (ctypes.c_void_p() for _ in range(4))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
check(cuda.cuModuleLoadData(ctypes.byref(module), b"image"))
name = b"_Z6streamPfS_i"
check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name))
def launch():
    check(cuda.cuLaunchKernel(kernel, 3, 2, 1, 64, 1, 1, 0, stream, None, None))
def wait():
    check(cuda.cuCtxSynchronize())
"""

#: Copies 1 MB in and 64 KB out, and sets 4 KB, each once, from pinned memory but one.
COPIES = (
    CONTEXT
    + """
device, host = ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(1 << 20)))
check(cuda.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(1 << 20), 0))
pageable = ctypes.create_string_buffer(1 << 16)
check(cuda.cuMemcpyHtoDAsync_v2(device, host, ctypes.c_size_t(1 << 20), stream))
check(cuda.cuMemcpyDtoHAsync_v2(pageable, device, ctypes.c_size_t(1 << 16), stream))
check(cuda.cuMemsetD8Async(device, 0, ctypes.c_size_t(4096), stream))
wait()
"""
)


def with_ranges(library: str) -> str:
    """`CONTEXT` with `nvtx`, a library that names ranges."""
    return f"""{CONTEXT}
nvtx = ctypes.CDLL({library!r})
for entry in ("domain", "text"):
    getattr(nvtx, entry).restype = ctypes.c_void_p
for entry in ("start", "start_in"):
    getattr(nvtx, entry).restype = ctypes.c_ulonglong
def handle(value):
    return ctypes.c_void_p(value)
"""
