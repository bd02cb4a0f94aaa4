"""What a CUDA, HIP or NCCL function does and which layer it belongs to, by its name alone."""

from __future__ import annotations

import re

_VERSION = re.compile(r"_v\d{4,}$")
_TWIN = re.compile(r"(_ptsz|_ptds|_v[1-9])+$")
_PREFIX = re.compile(r"^(__)?(cuda|cu|hip|hsa_|nccl|rccl)(?=[A-Z_a-z])")

#: First match wins; matched against the lower-case name without prefix, version and twin suffix.
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("graph_launch", r"^graphlaunch"),
        ("other", r"launchhostfunc|launchconfig"),
        ("launch", r"^(ext|module|extmodule)?launch"),
        ("capture", r"captur"),
        ("graph", r"^graph"),
        ("sync", r"synchronize"),
        ("query", r"query$"),
        ("wait", r"waitevent|waitvalue|waitexternal"),
        ("copy", r"memcpy|memprefetch"),
        ("set", r"memset"),
        (
            "memory",
            r"malloc|free|^mem|hostalloc|hostregister|hostunregister|hostget|pointerget|^ipc",
        ),
        ("module", r"module|library|fatbinary|^register|^unregister|^link"),
        ("stream", r"stream"),
        ("event", r"event"),
        ("device", r"device|ctx|^init|context|driver|runtime"),
    )
)


def plain_name(name: str) -> str:
    """Return the exported name without the version that Nsight Systems appends (``_v3020``)."""
    return _VERSION.sub("", name)


def call_kind(name: str) -> str:
    """Return what the function does, one of the kinds of ``cuda_call.kind``."""
    if name.startswith(("nccl", "rccl", "pnccl")):
        return "collective"
    stem = _TWIN.sub("", _PREFIX.sub("", plain_name(name))).lower()
    for kind, pattern in _KINDS:
        if pattern.search(stem):
            return kind
    return "other"


def call_layer(name: str) -> str:
    """Return runtime, driver or nccl for a function name; HIP functions are runtime."""
    if name.startswith(("nccl", "rccl", "pnccl")):
        return "nccl"
    if name.startswith("cu") and not name.startswith("cuda"):
        return "driver"
    return "runtime"
