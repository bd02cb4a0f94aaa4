"""What can go wrong inside the engine process, really: threads, garbage, modules, compilers."""

from __future__ import annotations

import gc
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer.simulated.model import Model

#: A C file that keeps a compiler busy for a while.
_MACROS = """
#define A(x) x x x x x x x x
#define B(x) A(x) A(x) A(x) A(x)
"""


class Faults:
    """The faults of one engine, off until ordered through the API process.

    Args:
        model: The engine's model, for faults of its kernels.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._n_steps = 0
        self._collect_every = 0
        self._objects: list[object] = []
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._orders: dict[str, Callable[..., None]] = {
            "hang": self._hang,
            "hold_interpreter": self._hold_interpreter,
            "collect": self._collect,
            "load_module": self._load_module,
            "compile": self._compile,
            "spawn_threads": self._spawn_threads,
            "stop": self._stop_all,
        }

    def order(self, name: str, arguments: dict[str, Any]) -> None:
        """Begin (or with ``stop`` end) the fault of that name; unknown names are ignored."""
        begin = self._orders.get(name)
        if begin is not None:
            begin(**arguments)

    def before_step(self) -> None:
        """Do what a fault does between two steps."""
        self._n_steps += 1
        if self._collect_every and self._n_steps % self._collect_every == 0:
            gc.collect()

    def _hang(self) -> None:
        self._model.hang()

    def _hold_interpreter(self, busy_ns: int, idle_ns: int, n_threads: int = 1) -> None:
        """Run threads that compute in Python for a while, then sleep for a while."""

        def poll() -> None:
            while not self._stop.is_set():
                end_ns = time.monotonic_ns() + busy_ns
                n = 0
                while time.monotonic_ns() < end_ns:
                    n += 1
                if idle_ns:
                    time.sleep(idle_ns / 1e9)

        self._start(poll, n_threads)

    def _spawn_threads(self, n_threads: int) -> None:
        """Run threads that burn the CPU outside of the interpreter."""
        import hashlib

        def burn() -> None:
            data = bytes(1 << 20)
            while not self._stop.is_set():
                hashlib.sha256(data).digest()

        self._start(burn, n_threads)

    def _collect(self, n_objects: int, every_steps: int) -> None:
        """Keep that many objects alive and collect garbage every so many steps."""
        self._objects = [[index] for index in range(n_objects)]
        self._collect_every = every_steps

    def _load_module(self, n_kernels: int, tag: str) -> None:
        """Use kernels that were never used before, as a new batch shape does."""
        names = [f"triton_poi_fused_{tag}_{index}" for index in range(n_kernels)]
        self._model.use_new_kernels(names)

    def _compile(self, n_lines: int, tag: str) -> None:
        """Compile a generated file with the system's compiler, then load what it made."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / f"{tag}.c"
            body = "\n".join(
                f"double f{index}(double x) {{ B(x = x * x + {index}.0;) return x; }}"
                for index in range(n_lines)
            )
            source.write_text(_MACROS + body, encoding="utf-8")
            subprocess.run(
                ["gcc", "-O2", "-c", "-o", os.devnull, str(source)], check=False, timeout=60
            )
        self._load_module(4, tag)

    def _stop_all(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=1)
        self._threads.clear()
        self._stop.clear()
        self._collect_every = 0
        self._objects = []

    def _start(self, body: Callable[[], None], n_threads: int) -> None:
        for _ in range(n_threads):
            thread = threading.Thread(target=body, daemon=True)
            thread.start()
            self._threads.append(thread)
