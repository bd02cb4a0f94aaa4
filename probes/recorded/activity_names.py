"""What the names of kernels, copies and ranges say: collectives, directions, steps."""

from __future__ import annotations

import re
from functools import lru_cache

#: Names whose answers are kept.
_KEPT = 4096

_COLLECTIVE = re.compile(
    r"nccl(Kernel|DevKernel|Dev_|SymKernel|_)|\brccl|msccl|^nccl"
    r"|cross_device_reduce|(one|two)_?shot_?all_?reduce|multimem_all_?reduce"
    r"|all_?reduce_?(kernel|one|two|fusion|sum)|all_?gather_?(kernel|push|pull)"
    r"|reduce_?scatter_?kernel|nvshmem|all_?to_?all_?(kernel|dispatch|combine)",
    re.IGNORECASE,
)
_COPY = re.compile(r"\b(?:Copy)?(HtoD|DtoH|DtoD|HtoH|PtoP|Host[Tt]oDevice|Device[Tt]oHost)")
_COPY_KINDS = {
    "htod": "h2d",
    "dtoh": "d2h",
    "dtod": "d2d",
    "htoh": "h2h",
    "ptop": "p2p",
    "hosttodevice": "h2d",
    "devicetohost": "d2h",
}
_STEP = re.compile(
    r"^(ProfilerStep\s?#?|execute_(context|new|\d+)|(step|iteration)\b"
    r"|(prefill|decode|extend|mixed|idle)([_ ]?(step|batch|forward))?\b"
    r"|run_batch|forward_(decode|extend|mixed))",
    re.IGNORECASE,
)


#: What PyTorch appends to an operator's name in an NVTX range, different in each.
RANGE_COUNTERS = r", (seq|op_id) = .*$"


@lru_cache(_KEPT)
def is_collective_name(name: str) -> bool:
    """Whether a kernel's name is that of a known collective or send/receive."""
    return _COLLECTIVE.search(name) is not None


@lru_cache(_KEPT)
def copy_kind_of(name: str) -> str | None:
    """Return h2d, d2h, d2d, h2h or p2p for a copy's name, or None."""
    match = _COPY.search(name)
    return None if match is None else _COPY_KINDS[match[1].lower()]


@lru_cache(_KEPT)
def is_step_name(name: str) -> bool:
    """Whether a range's name is that of one step of a profiler or an inference engine."""
    return _STEP.match(name) is not None


def range_category(name: str) -> str:
    """Return step, operator or user for an NVTX range: PyTorch's own carry an operator's name."""
    if is_step_name(name):
        return "step"
    return "operator" if name.startswith(("aten::", "autograd::")) else "user"
