"""A process that burns CPU with no GPU in sight: ``python -m tracer.simulated.hog --config FILE``.

The configuration is a JSON object: ``name`` of the process, ``cpus`` it stays on, and
``busy_s`` and ``idle_s`` of its rhythm (no ``idle_s`` burns without a pause).
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import time
from pathlib import Path

from tracer.simulated.orphan import end_with_parent

_PR_SET_NAME = 15


def name_process(name: str) -> None:
    """Set the name that ``ps`` and the scheduler show for the calling thread (15 letters)."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def burn(busy_s: float, idle_s: float) -> None:
    """Compute checksums for ``busy_s``, rest for ``idle_s``, for ever."""
    block = bytes(1 << 16)
    while True:
        end = time.monotonic() + busy_s
        while time.monotonic() < end:
            hashlib.sha256(block).digest()
        if idle_s:
            time.sleep(idle_s)


def main() -> None:
    """Burn as the configuration says until the process is ended."""
    parser = argparse.ArgumentParser(description="a process that burns CPU")
    parser.add_argument("--config", type=Path, required=True)
    config = json.loads(parser.parse_args().config.read_text(encoding="utf-8"))
    os.sched_setaffinity(0, config["cpus"])
    end_with_parent()
    name_process(config["name"])
    burn(config["busy_s"], config["idle_s"])


if __name__ == "__main__":
    main()
