"""What CUPTI's refusals mean, and what mends them."""

from __future__ import annotations

#: What there is none of without CUPTI: ranges are timed only while it collects.
MISSING = "No device times and no named ranges (NVTX)"
_SITES = {
    1: "no libcupti was found",
    2: "the only libcupti found is of another major version",
    3: "libcupti lacks functions",
    4: "CUPTI refuses a subscriber",
    5: "CUPTI refuses the clock",
    6: "CUPTI refuses the buffers",
    7: "CUPTI refuses to collect",
    8: "there is no memory for its buffers",
}
_MENDS = {
    1: "Install CUPTI beside the program's CUDA: pip install nvidia-cuda-cupti-cu12, or "
    "nvidia-cuda-cupti for CUDA 13.",
    2: "Install the CUPTI of the program's own CUDA version; the driver must not be older.",
    3: "Install the whole of CUPTI from 11.6 on.",
    8: "Free memory and record again.",
}
_ERRORS = {
    15: ("CUDA is not initialised", "Check that the program runs without tracer."),
    33: (
        "virtual GPUs do not allow it",
        "Let the administrator enable profiling for this vGPU, or record without --cupti.",
    ),
    35: (
        "it needs rights that the program lacks",
        "Set NVreg_RestrictProfilingToAdminUsers=0 for the driver, or run the program as root.",
    ),
    39: (
        "another tool has CUPTI already (Nsight, a profiler of the framework, a debugger)",
        "End the other tool, or record without --cupti.",
    ),
    40: (
        "this vGPU does not grant it",
        "Let the administrator enable profiling for this vGPU, or record without --cupti.",
    ),
    41: ("confidential computing forbids it", "Record without --cupti."),
    42: ("mining devices do not support it", "Record without --cupti."),
    43: ("it is not supported on this MIG instance", "Record without --cupti."),
    44: ("SLI devices do not support it", "Record without --cupti."),
    45: ("it is not supported under WSL", "Record without --cupti."),
}


def explain(site: int, error: int, version: int = 0) -> str:
    """Return one sentence of fact and one of remedy.

    Args:
        site: Where it failed (``enum ring_site``).
        error: CUPTI's code, 0 without one.
        version: CUPTI's version as it tells it, 0 where unknown.
    """
    fact = _SITES.get(site, "CUPTI cannot be used")
    reason, mend = _ERRORS.get(error, ("", _MENDS.get(site, "Record without --cupti.")))
    if not reason and error:
        reason = f"error {error}"
    told = f" ({version_text(version)})" if version and site in (2, 3) else ""
    return f"{MISSING}: {fact}{told}{f': {reason}' if reason else ''}. {mend}"


def version_text(version: int) -> str:
    """Return the CUDA release that a version of CUPTI belongs to, in words."""
    if version >= 10000:
        return f"CUDA {version // 10000}.{version // 100 % 100}"
    return f"CUPTI {version}, CUDA {12 if version >= 19 else 11}"
