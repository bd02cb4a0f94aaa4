"""A recorder's end and a program on the simulated device, without the rest of a recording."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from probes.cupti.probe import CuptiOptions, CuptiProbe
from probes.cupti.rendezvous import Rendezvous
from probes.probe import Batch
from probes.targets import TargetTree
from tests.tracer.simulated.conftest import Machine
from tracer.simulated.build import BuildError, build

#: Longest run of a program in s.
PATIENCE_S = 40.0


class Collection:
    """One program from its start to its end, and what was collected of it."""

    def __init__(self, machine: Machine, folder: Path, library: str = "", **options: Any) -> None:
        self.machine = machine
        self.directory = folder / "meeting"
        meeting = Rendezvous.create(self.directory, library=library)
        self.variables = meeting.environment()
        meeting.close(remove=False)
        self.options = CuptiOptions(self.directory, **options)
        self.batches: list[Batch] = []
        self.out = ""
        self.status: int | None = None

    def prepare(self, *command: str, **extra: str) -> None:
        """Start the program, held before its first instruction, and the recorder's end."""
        self.process = subprocess.Popen(
            ["sh", "-c", 'read go; exec "$@"', "sh", *command],
            env=self.machine.environment(**self.variables, **extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.machine.processes.append(self.process)
        self.tree = TargetTree([self.process.pid])
        self.probe = CuptiProbe(self.tree, self.options)

    def release(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def drain(self) -> None:
        now_ns = time.monotonic_ns()
        self.tree.refresh(now_ns)
        self.batches += self.probe.drain(now_ns)

    def follow(self) -> Collection:
        """Drain until the program has ended, then stop."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.drain()
            time.sleep(0.02)
        assert self.process.poll() is not None, "the program did not end"
        self.status = self.process.returncode
        self.out = self.process.stdout.read()
        self.drain()
        self.batches += self.probe.stop()
        return self

    def run(self, *command: str, **extra: str) -> Collection:
        """Run a program to its end under collection."""
        self.prepare(*command, **extra)
        self.probe.start()
        self.release()
        return self.follow()

    def launch(self, *options: str, **extra: str) -> Collection:
        """Run the launcher."""
        return self.run(str(self.machine.device.libraries.launcher), *options, **extra)

    def python(self, code: str, **extra: str) -> Collection:
        """Run a Python program."""
        return self.run(sys.executable, "-c", code, **extra)

    def table(self, name: str) -> pa.Table:
        """Rows of one table; an empty table has no column."""
        parts = [batch.rows for batch in self.batches if batch.table.name == name]
        return pa.Table.from_batches(parts) if parts else pa.table({})

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pylist()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows("event") if row["kind"] == kind]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    try:
        build()
    except BuildError as error:
        pytest.skip(str(error))
    machine = Machine(tmp_path, 1)
    yield machine
    machine.close()


@pytest.fixture
def collection(machine: Machine, tmp_path: Path) -> Collection:
    return Collection(machine, tmp_path)
