"""What a probe costs on this machine: measured on a function of our own, with the real programs."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import statistics
import threading
import time
from collections.abc import Mapping

import numpy as np

from probes.attach import Attachment, Place
from probes.cuda.budget import ProbeCost
from probes.cuda.program import ENTRY_PROGRAM, cookie_of
from probes.cuda.tracing import Tracing
from probes.probe import ProbeError

#: Assumed where nothing can be measured: dear, so that rather too much is left out.
ASSUMED: Mapping[str, ProbeCost] = {
    "emulated": ProbeCost(2000.0, 2000.0),
    "stepped": ProbeCost(12_000.0, 2000.0),
}
_ROUNDS = 3
_CALLS = 3000
_STEPPED_CALLS = 500
#: Function whose programs are measured: the one that is called most.
_SYMBOL = "cudaLaunchKernel"

#: void repeat(long n, void (*function)(void)) for x86-64.
_REPEAT = bytes.fromhex("53 4154 4883ec18 4889fb 4989f4 41ffd4 48ffcb 75f8 4883c418 415c 5b c3")
#: push %rbp; mov %rsp,%rbp; pop %rbp; ret -- and one that must be single-stepped.
_EMULATED = bytes.fromhex("55 4889e5 5d c3")
_STEPPED = bytes.fromhex("4889f8 c3")
_FUNCTIONS = {
    "bare": (0x100, _EMULATED),
    "entry": (0x140, _EMULATED),
    "both": (0x180, _EMULATED),
    "stepped_bare": (0x1C0, _STEPPED),
    "stepped": (0x200, _STEPPED),
}


def measure(tracing: Tracing) -> Mapping[str, ProbeCost]:
    """Return the cost of a probe by class of the first instruction.

    Takes some 0.1 s. Its records are taken out of the rings again.

    Raises:
        ProbeError: it cannot be measured on this machine.
    """
    if platform.machine() != "x86_64":
        raise ProbeError(f"what a probe costs cannot be measured on {platform.machine()}")
    image = bytearray(b"\xcc" * mmap.PAGESIZE)
    image[: len(_REPEAT)] = _REPEAT
    for offset, instructions in _FUNCTIONS.values():
        image[offset : offset + len(instructions)] = instructions
    descriptor = os.memfd_create("calibration", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, image)
        code = mmap.mmap(
            descriptor, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC
        )
        return _measure(tracing, code, f"/proc/{os.getpid()}/fd/{descriptor}")
    except OSError as error:
        raise ProbeError(f"what a probe costs cannot be measured: {error}") from error
    finally:
        os.close(descriptor)


def _measure(tracing: Tracing, code: mmap.mmap, path: str) -> Mapping[str, ProbeCost]:
    start = int(np.frombuffer(code, np.uint8).ctypes.data)
    repeat = ctypes.CFUNCTYPE(None, ctypes.c_long, ctypes.c_void_p)(start)
    places = [
        Place(_FUNCTIONS[name][0], cookie_of(_SYMBOL, has_return), ENTRY_PROGRAM, has_return)
        for name, has_return in (("entry", False), ("both", True), ("stepped", True))
    ]
    tracing.add_target(os.getpid())
    attachment = Attachment()
    times: dict[str, list[float]] = {name: [] for name in _FUNCTIONS}
    try:
        attachment = tracing.attacher.attach(path, places)
        for _ in range(_ROUNDS):
            for name, (offset, _) in _FUNCTIONS.items():
                n = _STEPPED_CALLS if name == "stepped" else _CALLS
                begin_ns = time.thread_time_ns()
                repeat(n, start + offset)
                times[name].append((time.thread_time_ns() - begin_ns) / n)
    finally:
        tracing.remove_target(os.getpid())
        # Detaching waits for the kernel; nothing calls these functions any more.
        threading.Thread(target=attachment.close, name="calibration", daemon=True).start()
        tracing.entries.drain()
        tracing.returns.drain()
    spent = {name: statistics.median(values) for name, values in times.items()}
    entry_ns = max(spent["entry"] - spent["bare"], 1.0)
    return_ns = max(spent["both"] - spent["entry"], 1.0)
    stepped_ns = max(spent["stepped"] - spent["stepped_bare"] - return_ns, entry_ns)
    return {
        "emulated": ProbeCost(entry_ns, return_ns),
        "stepped": ProbeCost(stepped_ns, return_ns),
    }
