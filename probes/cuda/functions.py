"""Every CUDA and NCCL function that is probed, declared once.

The BPF programs, the decoding of their records, the documentation and the tests are generated
from :data:`FUNCTIONS`. A declaration gives the exported name, its twins, what kind of call it is
and its parameters in order; where each parameter lies (register or stack) follows from the x86-64
calling convention in :mod:`probes.cuda.abi`.

``__cudaLaunchKernel`` is left out on purpose: it jumps into ``cudaLaunchKernel``, so a probe on it
would count each launch twice. So are getters that cost more to probe than they tell
(``cudaGetDevice``, ``cudaGetLastError``), and the 32-bit driver functions of CUDA 3.1 whose
``_v2`` form replaced them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from probes.cuda.abi import Field, parse_parameters

#: ``copy_kind`` of each ``cudaMemcpyKind``.
COPY_KINDS = ("h2h", "h2d", "d2h", "d2d", "default")

#: Bytes of one element of each ``ncclDataType_t``.
NCCL_ELEMENT_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)


@dataclass(frozen=True)
class Function:
    """One function of the CUDA runtime, the driver or NCCL.

    Attributes:
        name: Base name.
        kind: As in ``cuda_call.kind``.
        parameters: Roles of the parameters in order, see :func:`probes.cuda.abi.parse_parameters`.
        suffixes: Endings of the exported twins that have the same parameters.
        copy_kind: Direction, where the name says it.
        element_bytes: Factor of ``size_bytes``, for functions that count elements.
        is_blocking: Whether it may wait for the device to finish earlier work.
        has_code: Whether it returns an error code.
    """

    name: str
    kind: str
    parameters: str = ""
    suffixes: tuple[str, ...] = ("",)
    copy_kind: str | None = None
    element_bytes: int = 1
    is_blocking: bool = False
    has_code: bool = True

    @property
    def layer(self) -> str:
        """Layer that exports it: runtime, driver or nccl."""
        if self.name.startswith("nccl"):
            return "nccl"
        return "runtime" if self.name.lstrip("_").startswith("cuda") else "driver"

    @property
    def symbols(self) -> tuple[str, ...]:
        """Exported names."""
        return tuple(self.name + suffix for suffix in self.suffixes)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """Where each recorded argument lies."""
        return parse_parameters(self.parameters)


_PTSZ = ("", "_ptsz")
_PTDS = ("", "_ptds")
_V2 = ("_v2", "_v2_ptds")
_V2_ASYNC = ("_v2", "_v2_ptsz")

_RUNTIME_LAUNCH = "kernel grid block _ shared stream"
_DRIVER_LAUNCH = "kernel grid_x:4 grid_y:4 grid_z:4 block_x:4 block_y:4 block_z:4 shared:4 stream"


def _same(kind: str, parameters: str, *names: str, **more: object) -> Iterable[Function]:
    """Declare several functions that differ only in their name."""
    return (Function(name, kind, parameters, **more) for name in names)  # type: ignore[arg-type]


_LAUNCHES = (
    Function("cudaLaunchKernel", "launch", _RUNTIME_LAUNCH, _PTSZ),
    Function("cudaLaunchCooperativeKernel", "launch", _RUNTIME_LAUNCH, _PTSZ),
    Function("cudaLaunchKernelExC", "launch", "@cudaLaunchConfig_t kernel", _PTSZ),
    Function("cudaLaunchCooperativeKernelMultiDevice", "launch"),
    Function("cudaLaunchHostFunc", "other", "stream", ("", "_ptsz", "_v2", "_v2_ptsz")),
    Function("cudaStreamAddCallback", "other", "stream", _PTSZ),
    Function("cuLaunchKernel", "launch", _DRIVER_LAUNCH, _PTSZ),
    Function("cuLaunchCooperativeKernel", "launch", _DRIVER_LAUNCH, _PTSZ),
    Function("cuLaunchKernelEx", "launch", "@CUlaunchConfig kernel", _PTSZ),
    Function("cuLaunchCooperativeKernelMultiDevice", "launch"),
    Function("cuLaunch", "launch", "kernel"),
    Function("cuLaunchGrid", "launch", "kernel grid_x:4 grid_y:4"),
    Function("cuLaunchGridAsync", "launch", "kernel grid_x:4 grid_y:4 stream"),
    Function("cuLaunchHostFunc", "other", "stream", _PTSZ),
    Function("cuStreamAddCallback", "other", "stream", _PTSZ),
)

_GRAPHS = (
    Function("cudaGraphLaunch", "graph_launch", "kernel stream", _PTSZ),
    Function("cuGraphLaunch", "graph_launch", "kernel stream", _PTSZ),
    Function("cudaGraphUpload", "graph", "kernel stream", _PTSZ),
    Function("cuGraphUpload", "graph", "kernel stream", _PTSZ),
    Function("cudaGraphInstantiateWithParams", "graph", "", _PTSZ),
    Function("cuGraphInstantiateWithParams", "graph", "", _PTSZ),
    Function("cudaGraphExecUpdate", "graph", "kernel"),
    Function("cuGraphExecUpdate", "graph", "kernel", ("", "_v2")),
    Function("cudaGraphExecDestroy", "graph", "kernel"),
    Function("cuGraphExecDestroy", "graph", "kernel"),
    Function("cuGraphInstantiate", "graph", "", ("", "_v2")),
    *_same(
        "graph",
        "",
        "cudaGraphCreate",
        "cudaGraphClone",
        "cudaGraphDestroy",
        "cudaGraphInstantiate",
        "cudaGraphInstantiateWithFlags",
        "cuGraphCreate",
        "cuGraphClone",
        "cuGraphDestroy",
        "cuGraphInstantiateWithFlags",
    ),
    Function("cudaStreamBeginCapture", "capture", "stream", _PTSZ),
    Function("cudaStreamBeginCaptureToGraph", "capture", "stream", _PTSZ),
    Function("cudaStreamBeginRecaptureToGraph", "capture", "stream", _PTSZ),
    Function("cudaStreamEndCapture", "capture", "stream", _PTSZ),
    Function("cuStreamBeginCapture", "capture", "stream", ("", "_ptsz", "_v2", "_v2_ptsz")),
    Function("cuStreamBeginCaptureToGraph", "capture", "stream", _PTSZ),
    Function("cuStreamEndCapture", "capture", "stream", _PTSZ),
)

_SYNCS = (
    Function("cudaDeviceSynchronize", "sync", is_blocking=True),
    Function("cudaThreadSynchronize", "sync", is_blocking=True),
    Function("cudaStreamSynchronize", "sync", "stream", _PTSZ, is_blocking=True),
    Function("cudaEventSynchronize", "sync", is_blocking=True),
    Function("cudaExecutionCtxSynchronize", "sync", is_blocking=True),
    Function("cuCtxSynchronize", "sync", "", ("", "_v2"), is_blocking=True),
    Function("cuStreamSynchronize", "sync", "stream", _PTSZ, is_blocking=True),
    Function("cuEventSynchronize", "sync", is_blocking=True),
    Function("cudaStreamQuery", "query", "stream", _PTSZ),
    Function("cudaEventQuery", "query"),
    Function("cudaEventElapsedTime", "query", "", ("", "_v2")),
    Function("cudaStreamIsCapturing", "query", "stream", _PTSZ),
    Function("cuStreamQuery", "query", "stream", _PTSZ),
    Function("cuEventQuery", "query"),
    Function("cuEventElapsedTime", "query", "", ("", "_v2")),
    Function("cuStreamIsCapturing", "query", "stream", _PTSZ),
    Function("cudaStreamWaitEvent", "wait", "stream", _PTSZ),
    *_same(
        "wait",
        "",
        "cudaExecutionCtxWaitEvent",
        "cuCtxWaitEvent",
        "cuGreenCtxWaitEvent",
    ),
    Function("cuStreamWaitEvent", "wait", "stream", _PTSZ),
    Function("cuStreamWaitValue32", "wait", "stream", ("", "_ptsz", "_v2", "_v2_ptsz")),
    Function("cuStreamWaitValue64", "wait", "stream", ("", "_ptsz", "_v2", "_v2_ptsz")),
    Function(
        "cudaWaitExternalSemaphoresAsync", "wait", "_ _ _ stream", ("", "_ptsz", "_v2", "_v2_ptsz")
    ),
    Function("cuWaitExternalSemaphoresAsync", "wait", "_ _ _ stream", _PTSZ),
)

_RUNTIME_COPIES = (
    Function("cudaMemcpy", "copy", "_ _ size copy_kind", _PTDS, is_blocking=True),
    Function("cudaMemcpyAsync", "copy", "_ _ size copy_kind stream", _PTSZ),
    Function("cudaMemcpyPeer", "copy", "_ _ _ _ size", copy_kind="p2p", is_blocking=True),
    Function("cudaMemcpyPeerAsync", "copy", "_ _ _ _ size stream", copy_kind="p2p"),
    Function("cudaMemcpy2D", "copy", "_ _ _ _ size size copy_kind", _PTDS, is_blocking=True),
    Function("cudaMemcpy2DAsync", "copy", "_ _ _ _ size size copy_kind stream", _PTSZ),
    *_same(
        "copy",
        "_ _ _ _ _ size size copy_kind",
        "cudaMemcpy2DFromArray",
        "cudaMemcpy2DToArray",
        suffixes=_PTDS,
        is_blocking=True,
    ),
    *_same(
        "copy",
        "_ _ _ _ _ size size copy_kind stream",
        "cudaMemcpy2DFromArrayAsync",
        "cudaMemcpy2DToArrayAsync",
        suffixes=_PTSZ,
    ),
    Function(
        "cudaMemcpy2DArrayToArray",
        "copy",
        "_ _ _ _ _ _ size size copy_kind",
        _PTDS,
        is_blocking=True,
    ),
    Function(
        "cudaMemcpyArrayToArray", "copy", "_ _ _ _ _ _ size copy_kind", _PTDS, is_blocking=True
    ),
    *_same(
        "copy",
        "_ _ _ _ size copy_kind",
        "cudaMemcpyFromArray",
        "cudaMemcpyToArray",
        suffixes=_PTDS,
        is_blocking=True,
    ),
    *_same(
        "copy",
        "_ _ _ _ size copy_kind stream",
        "cudaMemcpyFromArrayAsync",
        "cudaMemcpyToArrayAsync",
        suffixes=_PTSZ,
    ),
    *_same(
        "copy",
        "_ _ size _ copy_kind",
        "cudaMemcpyFromSymbol",
        "cudaMemcpyToSymbol",
        suffixes=_PTDS,
        is_blocking=True,
    ),
    *_same(
        "copy",
        "_ _ size _ copy_kind stream",
        "cudaMemcpyFromSymbolAsync",
        "cudaMemcpyToSymbolAsync",
        suffixes=_PTSZ,
    ),
    Function("cudaMemcpy3D", "copy", "@cudaMemcpy3DParms", _PTDS, is_blocking=True),
    Function("cudaMemcpy3DAsync", "copy", "@cudaMemcpy3DParms stream", _PTSZ),
    Function("cudaMemcpy3DPeer", "copy", "@cudaMemcpy3DPeerParms", _PTDS, "p2p", is_blocking=True),
    Function("cudaMemcpy3DPeerAsync", "copy", "@cudaMemcpy3DPeerParms stream", _PTSZ, "p2p"),
    Function("cudaMemcpyWithAttributesAsync", "copy", "_ _ size _ stream", _PTSZ, "default"),
    Function("cudaMemcpy3DWithAttributesAsync", "copy", "_ _ stream", _PTSZ),
    Function("cudaMemcpyBatchAsync", "copy", "", _PTSZ),
    Function("cudaMemcpy3DBatchAsync", "copy", "", _PTSZ),
    Function("cudaMemset", "set", "_ _ size", _PTDS),
    Function("cudaMemsetAsync", "set", "_ _ size stream", _PTSZ),
    Function("cudaMemset2D", "set", "_ _ _ size size", _PTDS),
    Function("cudaMemset2DAsync", "set", "_ _ _ size size stream", _PTSZ),
    Function("cudaMemset3D", "set", "memory:4 _ extent", _PTDS),
    Function("cudaMemset3DAsync", "set", "memory:4 _ extent stream", _PTSZ),
)

_DRIVER_COPIES = (
    Function("cuMemcpy", "copy", "_ _ size", _PTDS, "default", is_blocking=True),
    Function("cuMemcpyAsync", "copy", "_ _ size stream", _PTSZ, "default"),
    Function("cuMemcpyPeer", "copy", "_ _ _ _ size", _PTDS, "p2p", is_blocking=True),
    Function("cuMemcpyPeerAsync", "copy", "_ _ _ _ size stream", _PTSZ, "p2p"),
    Function("cuMemcpyHtoD", "copy", "_ _ size", _V2, "h2d", is_blocking=True),
    Function("cuMemcpyHtoDAsync", "copy", "_ _ size stream", _V2_ASYNC, "h2d"),
    Function("cuMemcpyDtoH", "copy", "_ _ size", _V2, "d2h", is_blocking=True),
    Function("cuMemcpyDtoHAsync", "copy", "_ _ size stream", _V2_ASYNC, "d2h"),
    Function("cuMemcpyDtoD", "copy", "_ _ size", _V2, "d2d"),
    Function("cuMemcpyDtoDAsync", "copy", "_ _ size stream", _V2_ASYNC, "d2d"),
    Function("cuMemcpyHtoA", "copy", "_ _ _ size", _V2, "h2d", is_blocking=True),
    Function("cuMemcpyHtoAAsync", "copy", "_ _ _ size stream", _V2_ASYNC, "h2d"),
    Function("cuMemcpyAtoH", "copy", "_ _ _ size", _V2, "d2h", is_blocking=True),
    Function("cuMemcpyAtoHAsync", "copy", "_ _ _ size stream", _V2_ASYNC, "d2h"),
    Function("cuMemcpyAtoD", "copy", "_ _ _ size", _V2, "d2d"),
    Function("cuMemcpyDtoA", "copy", "_ _ _ size", _V2, "d2d"),
    Function("cuMemcpyAtoA", "copy", "_ _ _ _ size", _V2, "d2d"),
    Function("cuMemcpy2D", "copy", "@CUDA_MEMCPY2D", _V2, is_blocking=True),
    Function("cuMemcpy2DUnaligned", "copy", "@CUDA_MEMCPY2D", _V2, is_blocking=True),
    Function("cuMemcpy2DAsync", "copy", "@CUDA_MEMCPY2D stream", _V2_ASYNC),
    Function("cuMemcpy3D", "copy", "@CUDA_MEMCPY3D", _V2, is_blocking=True),
    Function("cuMemcpy3DAsync", "copy", "@CUDA_MEMCPY3D stream", _V2_ASYNC),
    Function("cuMemcpy3DPeer", "copy", "@CUDA_MEMCPY3D", _PTDS, "p2p", is_blocking=True),
    Function("cuMemcpy3DPeerAsync", "copy", "@CUDA_MEMCPY3D stream", _PTSZ, "p2p"),
    Function("cuMemcpyBatchAsync", "copy", "", ("", "_ptsz", "_v2", "_v2_ptsz")),
    Function("cuMemcpy3DBatchAsync", "copy", "", ("", "_ptsz", "_v2", "_v2_ptsz")),
    *(
        Function(f"cuMemsetD{bits}", "set", "_ _ size", _V2, element_bytes=bits // 8)
        for bits in (8, 16, 32)
    ),
    *(
        Function(f"cuMemsetD{bits}Async", "set", "_ _ size stream", _PTSZ, element_bytes=bits // 8)
        for bits in (8, 16, 32)
    ),
    *(
        Function(f"cuMemsetD2D{bits}", "set", "_ _ _ size size", _V2, element_bytes=bits // 8)
        for bits in (8, 16, 32)
    ),
    *(
        Function(
            f"cuMemsetD2D{bits}Async",
            "set",
            "_ _ _ size size stream",
            _PTSZ,
            element_bytes=bits // 8,
        )
        for bits in (8, 16, 32)
    ),
)

_MEMORY = (
    Function("cudaMalloc", "memory", "_ size"),
    Function("cudaMallocAsync", "memory", "_ size stream", _PTSZ),
    Function("cudaMallocFromPoolAsync", "memory", "_ size _ stream", _PTSZ),
    Function("cudaMallocHost", "memory", "_ size"),
    Function("cudaMallocManaged", "memory", "_ size"),
    Function("cudaMallocPitch", "memory", "_ _ size size"),
    Function("cudaMalloc3D", "memory", "_ extent"),
    Function("cudaHostAlloc", "memory", "_ size"),
    Function("cudaHostRegister", "memory", "_ size"),
    Function("cudaFree", "memory", is_blocking=True),
    Function("cudaFreeAsync", "memory", "_ stream", _PTSZ),
    Function("cudaFreeHost", "memory", is_blocking=True),
    *_same(
        "memory",
        "",
        "cudaMallocArray",
        "cudaMalloc3DArray",
        "cudaMallocMipmappedArray",
        "cudaFreeArray",
        "cudaFreeMipmappedArray",
        "cudaHostUnregister",
        "cudaMemPoolCreate",
        "cudaMemPoolDestroy",
        "cudaMemPoolTrimTo",
        "cuMemFreeHost",
        "cuMemHostUnregister",
        "cuMemPoolCreate",
        "cuMemPoolDestroy",
        "cuMemPoolTrimTo",
        "cuMemRelease",
        "cuMemSetAccess",
    ),
    Function("cudaMemAdvise", "memory", "_ size", ("", "_v2")),
    Function("cudaMemPrefetchAsync", "memory", "_ size", ("", "_ptsz", "_v2", "_v2_ptsz")),
    Function("cuMemAlloc", "memory", "_ size", ("_v2",)),
    Function("cuMemAllocAsync", "memory", "_ size stream", _PTSZ),
    Function("cuMemAllocFromPoolAsync", "memory", "_ size _ stream", _PTSZ),
    Function("cuMemAllocHost", "memory", "_ size", ("_v2",)),
    Function("cuMemAllocManaged", "memory", "_ size"),
    Function("cuMemAllocPitch", "memory", "_ _ size size", ("_v2",)),
    Function("cuMemHostAlloc", "memory", "_ size"),
    Function("cuMemHostRegister", "memory", "_ size", ("", "_v2")),
    Function("cuMemFree", "memory", "", ("_v2",), is_blocking=True),
    Function("cuMemFreeAsync", "memory", "_ stream", _PTSZ),
    Function("cuMemAdvise", "memory", "_ size", ("", "_v2")),
    Function("cuMemPrefetchAsync", "memory", "_ size", ("", "_ptsz", "_v2", "_v2_ptsz")),
    Function("cuMemAddressReserve", "memory", "_ size"),
    Function("cuMemAddressFree", "memory", "_ size"),
    Function("cuMemCreate", "memory", "_ size"),
    Function("cuMemMap", "memory", "_ size"),
    Function("cuMemUnmap", "memory", "_ size"),
)

_MODULES = (
    Function("__cudaRegisterFunction", "module", "_ kernel", has_code=False),
    Function("__cudaRegisterFatBinary", "module", has_code=False),
    Function("__cudaRegisterFatBinaryEnd", "module", has_code=False),
    Function("__cudaUnregisterFatBinary", "module", has_code=False),
    *_same(
        "module",
        "",
        "cudaLibraryLoadData",
        "cudaLibraryLoadFromFile",
        "cudaLibraryUnload",
        "cudaLibraryGetKernel",
        "cuModuleLoad",
        "cuModuleLoadData",
        "cuModuleLoadDataEx",
        "cuModuleLoadFatBinary",
        "cuModuleUnload",
        "cuModuleGetFunction",
        "cuLibraryLoadData",
        "cuLibraryLoadFromFile",
        "cuLibraryUnload",
        "cuLibraryGetKernel",
        "cuLibraryGetModule",
        "cuLinkComplete",
    ),
    Function("__cudaGetKernel", "module", "_ kernel"),
    Function("cudaGetKernel", "module", "_ kernel"),
    Function("cudaGetFuncBySymbol", "module", "_ kernel"),
    Function("cuKernelGetFunction", "module", "_ kernel"),
    Function("cuFuncLoad", "module", "kernel"),
    Function("cuLinkCreate", "module", "", ("", "_v2")),
    Function("cuLinkAddData", "module", "", ("", "_v2")),
    Function("cuLinkAddFile", "module", "", ("", "_v2")),
)

_STREAMS = (
    *_same(
        "stream",
        "",
        "cudaStreamCreate",
        "cudaStreamCreateWithFlags",
        "cudaStreamCreateWithPriority",
        "cuStreamCreate",
        "cuStreamCreateWithPriority",
    ),
    Function("cudaStreamDestroy", "stream", "stream"),
    Function("cuStreamDestroy", "stream", "stream", ("", "_v2")),
    *_same(
        "event",
        "",
        "cudaEventCreate",
        "cudaEventCreateWithFlags",
        "cudaEventDestroy",
        "cuEventCreate",
    ),
    Function("cuEventDestroy", "event", "", ("", "_v2")),
    *_same(
        "event",
        "",
        "cudaExecutionCtxRecordEvent",
        "cuCtxRecordEvent",
        "cuGreenCtxRecordEvent",
    ),
    Function("cudaEventRecord", "event", "_ stream", _PTSZ),
    Function("cudaEventRecordWithFlags", "event", "_ stream", _PTSZ),
    Function("cuEventRecord", "event", "_ stream", _PTSZ),
    Function("cuEventRecordWithFlags", "event", "_ stream", _PTSZ),
)

_DEVICES = (
    Function("cudaSetDevice", "device", "device"),
    Function("cudaInitDevice", "device", "device"),
    Function("cudaDeviceReset", "device", is_blocking=True),
    Function("cuInit", "device"),
    Function("cuCtxSetCurrent", "device"),
    Function("cuDevicePrimaryCtxRetain", "device", "_ device"),
    Function("cuDevicePrimaryCtxRelease", "device", "device", ("", "_v2")),
    Function("cuDevicePrimaryCtxReset", "device", "device", ("", "_v2"), is_blocking=True),
    Function("cuCtxCreate", "device", "_ _ device", ("", "_v2")),
    Function("cuCtxCreate_v3", "device", "_ _ _ _ device"),
    Function("cuCtxCreate_v4", "device", "_ _ _ device"),
    Function("cuCtxDestroy", "device", "", ("", "_v2"), is_blocking=True),
)

#: NCCL's twin with a further, last parameter.
_CONFIG = ("", "Config")

_NCCL = (
    Function("ncclAllReduce", "collective", "_ _ size nccl_type _ _ stream", _CONFIG),
    Function("ncclReduce", "collective", "_ _ size nccl_type _ _ _ stream", _CONFIG),
    Function("ncclReduceScatter", "collective", "_ _ size nccl_type _ _ stream", _CONFIG),
    Function("ncclBroadcast", "collective", "_ _ size nccl_type _ _ stream", _CONFIG),
    Function("ncclBcast", "collective", "_ size nccl_type _ _ stream"),
    Function("ncclAllGather", "collective", "_ _ size nccl_type _ stream", _CONFIG),
    Function("ncclAlltoAll", "collective", "_ _ size nccl_type _ stream", _CONFIG),
    Function("ncclGather", "collective", "_ _ size nccl_type _ _ stream", _CONFIG),
    Function("ncclScatter", "collective", "_ _ size nccl_type _ _ stream", _CONFIG),
    Function("ncclSend", "collective", "_ size nccl_type _ _ stream"),
    Function("ncclRecv", "collective", "_ size nccl_type _ _ stream"),
    Function("ncclPutSignal", "collective", "_ size nccl_type _ _ _ _ _ _ _ stream"),
    Function("ncclSignal", "collective", "_ _ _ _ _ stream"),
    Function("ncclWaitSignal", "collective", "_ _ _ stream"),
    Function("ncclGroupStart", "other"),
    Function("ncclGroupEnd", "other"),
    Function("ncclCommInitRank", "other", "_ _ memory:16 rank"),
    Function("ncclCommInitRankConfig", "other", "_ _ memory:16 rank"),
    Function("ncclCommInitRankScalable", "other", "_ _ rank"),
    Function("ncclCommGrow", "other", "_ _ _ rank"),
    Function("ncclMemAlloc", "memory", "_ size"),
    Function("ncclMemFree", "memory"),
    Function("ncclCommRegister", "memory", "_ _ size"),
    Function("ncclCommDeregister", "memory"),
    Function("ncclCommWindowRegister", "memory", "_ _ size"),
    Function("ncclCommWindowDeregister", "memory"),
    *_same(
        "other",
        "",
        "ncclGetUniqueId",
        "ncclCommGetUniqueId",
        "ncclDevCommCreate",
        "ncclDevCommDestroy",
        "ncclCommInitAll",
        "ncclCommSplit",
        "ncclCommShrink",
        "ncclCommSuspend",
        "ncclCommResume",
        "ncclCommRevoke",
        "ncclCommFinalize",
        "ncclCommDestroy",
        "ncclCommAbort",
    ),
)

#: Every probed function; the order is the order of the documentation.
FUNCTIONS: tuple[Function, ...] = (
    *_LAUNCHES,
    *_GRAPHS,
    *_SYNCS,
    *_RUNTIME_COPIES,
    *_DRIVER_COPIES,
    *_MEMORY,
    *_MODULES,
    *_STREAMS,
    *_DEVICES,
    *_NCCL,
)

#: Exported name to function.
by_symbol: dict[str, Function] = {
    symbol: function for function in FUNCTIONS for symbol in function.symbols
}

#: Exported names, sorted; the index of a name is its number in kernel records.
SYMBOLS: tuple[str, ...] = tuple(sorted(by_symbol))

#: Exported name to its number in kernel records.
SYMBOL_INDEX: dict[str, int] = {symbol: index for index, symbol in enumerate(SYMBOLS)}
