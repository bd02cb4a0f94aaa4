from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracer.simulated.build import BuildError, build
from tracer.simulated.device import SimulatedDevice


class Machine:
    """A simulated machine and the processes that a test starts on it."""

    def __init__(self, folder: Path, devices: int) -> None:
        self.device = SimulatedDevice(folder / "machine", devices=devices)
        self.processes: list[subprocess.Popen[str]] = []

    def environment(self, **extra: str) -> dict[str, str]:
        return {**os.environ, **self.device.env(), **extra}

    def start(self, *options: str, **extra: str) -> subprocess.Popen[str]:
        """A launcher that has made its context and begins to launch."""
        process = subprocess.Popen(
            [str(self.device.libraries.launcher), *options],
            env=self.environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("ready"), process.communicate(timeout=10)
        return process

    def finish(self, process: subprocess.Popen[str]) -> dict[str, int]:
        """What the launcher prints at its end."""
        out, error = process.communicate(timeout=30)
        assert process.returncode == 0, error
        return {k: int(v) for k, v in (pair.split("=") for pair in out.split())}

    def launch(self, *options: str, **extra: str) -> dict[str, int]:
        return self.finish(self.start(*options, **extra))

    def python(self, code: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """A Python program that uses the libraries from within."""
        return subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate(timeout=10)
        self.device.close()


def _machine(folder: Path, devices: int) -> Iterator[Machine]:
    try:
        build()
    except BuildError as error:
        pytest.skip(str(error))
    machine = Machine(folder, devices)
    yield machine
    machine.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield from _machine(tmp_path, 1)


@pytest.fixture
def two_devices(tmp_path: Path) -> Iterator[Machine]:
    yield from _machine(tmp_path, 2)
