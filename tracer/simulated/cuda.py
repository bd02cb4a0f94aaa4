"""The CUDA runtime as a workload calls it: ctypes over whichever libcudart the loader finds."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char, c_char_p, c_double, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

#: cudaMemcpyKind.
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
#: cudaDeviceSchedule flags.
SCHEDULE_SPIN, SCHEDULE_BLOCKING = 1, 4
_CAPTURE_RELAXED = 2
_NON_BLOCKING = 1
_WRAPPER_MAGIC = 0x466243B1
_FATBIN_MAGIC = 0xBA55ED50


class CudaError(RuntimeError):
    """A CUDA call failed; the text names the function and its return code."""


class _Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class _Wrapper(ctypes.Structure):
    _fields_ = (("magic", c_int), ("version", c_int), ("data", c_void_p), ("file", c_void_p))


class Grid:
    """Grid and block of a launch, made once and passed by value."""

    __slots__ = ("block", "grid")

    def __init__(self, blocks: int, threads: int, blocks_y: int = 1) -> None:
        self.grid = _Dim3(blocks, blocks_y, 1)
        self.block = _Dim3(threads, 1, 1)


class Cuda:
    """The runtime of one process.

    Every call gives up the interpreter, as PyTorch's operators do. The cost of a kernel on the
    simulated device is told to the simulation just before the launch; a real device has no such
    function and would need none.

    Args:
        runtime: Major version of the library: 12 or 13.

    Raises:
        OSError: the loader finds no such library.
    """

    def __init__(self, runtime: int = 12) -> None:
        self.runtime = runtime
        self._simulation = ctypes.PyDLL("libtracersim.so")
        self._runtime = ctypes.CDLL(f"libcudart.so.{runtime}")
        self._next = self._simulation.tracer_sim_next
        self._next.argtypes = (c_ulonglong, c_ulonglong)
        self._next.restype = None
        self._next_share = self._simulation.tracer_sim_next_share
        self._next_share.argtypes = (c_double,)
        self._next_share.restype = None
        self._next_collective = self._simulation.tracer_sim_next_collective
        self._next_collective.argtypes = (c_ulonglong, c_uint)
        self._next_collective.restype = None
        self._next_hang = self._simulation.tracer_sim_next_hang
        self._next_hang.restype = None
        launch = "__cudaLaunchKernel" if runtime >= 13 else "cudaLaunchKernel"
        self._launch = self._runtime[launch]
        self._launch.argtypes = (c_void_p, _Dim3, _Dim3, c_void_p, c_size_t, c_void_p)
        self._graph_launch = self._runtime.cudaGraphLaunch
        self._graph_launch.argtypes = (c_void_p, c_void_p)
        self._copy = self._runtime.cudaMemcpyAsync
        self._copy.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_void_p)
        self._copy_now = self._runtime.cudaMemcpy
        self._copy_now.argtypes = (c_void_p, c_void_p, c_size_t, c_int)
        self._stream_sync = self._runtime.cudaStreamSynchronize
        self._stream_sync.argtypes = (c_void_p,)
        self._arguments = (c_void_p * 8)()
        self._kept: list[object] = []

    def check(self, function: str, code: int) -> None:
        """Raise on a return code other than 0."""
        if code:
            raise CudaError(f"{function} returned {code}")

    def set_device(self, device: int, flags: int) -> None:
        """Choose the device of this process and how its waits wait."""
        self.check("cudaSetDevice", self._runtime.cudaSetDevice(c_int(device)))
        self.check("cudaSetDeviceFlags", self._runtime.cudaSetDeviceFlags(c_uint(flags)))
        self.check("cudaFree", self._runtime.cudaFree(c_void_p(0)))

    def register(self, names: Sequence[str]) -> dict[str, int]:
        """Register a module with kernels of these names; return their handles for ``launch``."""
        image = (c_uint * 4)(_FATBIN_MAGIC, 0x00100001, 0, 0)
        wrapper = _Wrapper(_WRAPPER_MAGIC, 1, ctypes.addressof(image), None)
        stubs = (c_char * max(len(names), 1))()
        self._kept += [image, wrapper, stubs]
        register = self._runtime["__cudaRegisterFatBinary"]
        register.restype = c_void_p
        register.argtypes = (c_void_p,)
        handle = c_void_p(register(byref(wrapper)))
        function = self._runtime["__cudaRegisterFunction"]
        function.argtypes = (
            *(c_void_p, c_void_p, c_char_p, c_char_p, c_int),
            *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        )
        function.restype = None
        handles = {}
        for index, name in enumerate(names):
            stub = ctypes.addressof(stubs) + index
            text = ctypes.create_string_buffer(name.encode())
            self._kept.append(text)
            pointer = ctypes.cast(text, c_char_p)
            function(handle, stub, pointer, pointer, -1, None, None, None, None, None)
            handles[name] = stub
        self._runtime["__cudaRegisterFatBinaryEnd"](handle)
        if self.runtime >= 13:
            handles = {name: self._handle(stub) for name, stub in handles.items()}
        return handles

    def _handle(self, stub: int) -> int:
        handle = c_void_p()
        code = self._runtime["__cudaGetKernel"](byref(handle), c_void_p(stub))
        self.check("__cudaGetKernel", code)
        return handle.value or 0

    def launch(
        self, kernel: int, grid: Grid, stream: int, compute_ns: int, memory_ns: int = 0
    ) -> None:
        """Launch a kernel that takes the larger of the two times on an idle device."""
        self._next(compute_ns, memory_ns)
        code = self._launch(kernel, grid.grid, grid.block, self._arguments, 0, stream)
        if code:
            self.check("cudaLaunchKernel", code)

    def launch_small(
        self, kernel: int, grid: Grid, stream: int, compute_ns: int, share: float
    ) -> None:
        """Launch a kernel that fills only a share of the device, in (0, 1]."""
        self._next(compute_ns, 0)
        self._next_share(share)
        code = self._launch(kernel, grid.grid, grid.block, self._arguments, 0, stream)
        self.check("cudaLaunchKernel", code)

    def launch_collective(
        self, kernel: int, grid: Grid, stream: int, compute_ns: int, key: int, n_ranks: int
    ) -> None:
        """Launch a collective: it begins when all ranks have come to the one of that key."""
        self._next(compute_ns, 0)
        self._next_collective(key, n_ranks)
        code = self._launch(kernel, grid.grid, grid.block, self._arguments, 0, stream)
        self.check("cudaLaunchKernel", code)

    def launch_hanging(self, kernel: int, grid: Grid, stream: int) -> None:
        """Launch a kernel that never ends."""
        self._next(0, 0)
        self._next_hang()
        code = self._launch(kernel, grid.grid, grid.block, self._arguments, 0, stream)
        self.check("cudaLaunchKernel", code)

    def stream(self) -> int:
        """Return a new stream that does not wait for the default stream."""
        stream = c_void_p()
        code = self._runtime.cudaStreamCreateWithFlags(byref(stream), c_uint(_NON_BLOCKING))
        self.check("cudaStreamCreateWithFlags", code)
        return stream.value or 0

    def synchronize(self, stream: int) -> None:
        """Wait until all work of the stream is done."""
        code = self._stream_sync(stream)
        if code:
            self.check("cudaStreamSynchronize", code)

    def begin_capture(self, stream: int) -> None:
        """Record the following launches into a graph."""
        code = self._runtime.cudaStreamBeginCapture(c_void_p(stream), c_int(_CAPTURE_RELAXED))
        self.check("cudaStreamBeginCapture", code)

    def end_capture(self, stream: int) -> int:
        """Return an executable graph of the launches since ``begin_capture``."""
        graph, executable = c_void_p(), c_void_p()
        code = self._runtime.cudaStreamEndCapture(c_void_p(stream), byref(graph))
        self.check("cudaStreamEndCapture", code)
        code = self._runtime.cudaGraphInstantiate(byref(executable), graph, c_ulonglong(0))
        self.check("cudaGraphInstantiate", code)
        self.check("cudaGraphDestroy", self._runtime.cudaGraphDestroy(graph))
        return executable.value or 0

    def graph_launch(self, graph: int, stream: int, compute_ns: int, memory_ns: int) -> None:
        """Launch a graph whose kernels together take the larger of the two times."""
        self._next(compute_ns, memory_ns)
        code = self._graph_launch(graph, stream)
        if code:
            self.check("cudaGraphLaunch", code)

    def malloc(self, n_bytes: int) -> int:
        """Return device memory."""
        pointer = c_void_p()
        code = self._runtime.cudaMalloc(byref(pointer), c_size_t(n_bytes))
        self.check("cudaMalloc", code)
        return pointer.value or 0

    def malloc_host(self, n_bytes: int) -> int:
        """Return page-locked host memory."""
        pointer = c_void_p()
        code = self._runtime.cudaMallocHost(byref(pointer), c_size_t(n_bytes))
        self.check("cudaMallocHost", code)
        return pointer.value or 0

    def copy(self, to: int, source: int, n_bytes: int, kind: int, stream: int) -> None:
        """Enqueue a copy."""
        code = self._copy(to, source, n_bytes, kind, stream)
        if code:
            self.check("cudaMemcpyAsync", code)

    def copy_and_wait(self, to: int, source: int, n_bytes: int, kind: int) -> None:
        """Copy on the default stream and wait for it."""
        self.check("cudaMemcpy", self._copy_now(to, source, n_bytes, kind))
