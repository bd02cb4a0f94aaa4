"""The stage of one scenario: a simulated machine, the processes on it, and their CPUs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tracer
from probes.cupti.probe import CuptiOptions
from probes.cupti.rendezvous import Rendezvous
from tracer.errors import TracerError
from tracer.simulated.build import Libraries, build
from tracer.simulated.device import SimulatedDevice
from tracer.simulated.leftovers import StageFolder, sweep
from tracer.simulated.load import Group, to_json
from tracer.simulated.options import ServerOptions

#: Longest time for a process of the stage to get ready, in seconds.
READY_S = 30.0


class StageError(TracerError):
    """The simulated service did not come up; the text says what failed."""


@dataclass(frozen=True)
class CpuPlan:
    """Which CPUs the parts of a scenario stay on.

    The launching thread has one CPU for itself (and for whoever is staged to disturb it); clients,
    the API process and the recorder stay off it. On a machine with one CPU they share it.
    """

    launcher: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def of(cls, cpus: Sequence[int]) -> CpuPlan:
        """Return the plan for the CPUs this process may use."""
        *others, launcher = sorted(cpus)
        return cls((launcher,), tuple(others) or (launcher,))


@dataclass(frozen=True)
class Service:
    """A running service: the process to record, the one that launches, where it is reached."""

    pid: int
    launcher_pid: int
    url: str | None = None


class Stage:
    """Starts and ends the processes of one scenario.

    Args:
        seed: Of everything that is drawn.
        duration_s: How long the recording will be; faults place themselves in it.
        n_devices: Devices of the simulated machine.
    """

    def __init__(self, seed: int = 0, duration_s: float = 8.0, n_devices: int = 1) -> None:
        self.seed = seed
        self.duration_s = duration_s
        self.cpus = CpuPlan.of(tuple(os.sched_getaffinity(0)))
        self.service: Service | None = None
        #: Names of staged culprits and their pids, for the check of a verdict.
        self.culprits: dict[str, int] = {}
        sweep()
        self._home = StageFolder()
        self.folder = self._home.path
        self.libraries: Libraries = build()
        self.device = SimulatedDevice(self.folder / "device", devices=n_devices)
        self._mps_pipe = self.folder / "mps"
        self._children: list[subprocess.Popen[str]] = []
        self._undo: list[Callable[[], None]] = []
        self._n_files = 0
        self._variables: dict[str, str] = {}
        self._ended = threading.Event()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def target(self) -> Service:
        """The service to record.

        Raises:
            StageError: none was started.
        """
        if self.service is None:
            raise StageError("the scenario started no service")
        return self.service

    def prepare_device_times(self) -> CuptiOptions:
        """Let processes that are started from now on load the injection library; return how to
        collect from them.
        """
        meeting = Rendezvous.create()
        self._variables = meeting.environment()
        directory = meeting.directory
        meeting.close(remove=False)
        self.on_close(lambda: shutil.rmtree(directory, ignore_errors=True))
        return CuptiOptions(directory)

    def start_mps(self) -> None:
        """Run an MPS server that processes started with ``in_mps`` from now on use."""
        self.device.start_mps(self._mps_pipe)

    def serve(
        self, options: ServerOptions, groups: Sequence[Group] = (), in_mps: bool = False
    ) -> Service:
        """Start the LLM server and wait until it is ready or held; then start its clients."""
        options = replace(
            options,
            seed=self.seed,
            engine_cpus=options.engine_cpus or self.cpus.launcher,
            server_cpus=options.server_cpus or self.cpus.others,
        )
        server = self.start_module("server", options.to_json(), in_mps=in_mps)
        port = json.loads(self._first_line(server))["port"]
        url = f"http://127.0.0.1:{port}"
        self._wait_for_engine(url, "held" if options.is_held else "ready")
        self.service = Service(server.pid, int(get(f"{url}/health")["engine_pid"]), url)
        if groups:
            self.add_load(groups)
        return self.service

    def add_load(self, groups: Sequence[Group]) -> subprocess.Popen[str]:
        """Start clients of the server in a process of their own."""
        url = self.target.url
        if url is None:
            raise StageError("the service has no address for clients")
        return self.start_module("load", to_json(url, list(groups), self.seed, self.cpus.others))

    def order(self, name: str, **arguments: Any) -> None:
        """Tell the engine to begin a fault of :mod:`tracer.simulated.faults`."""
        post(f"{self.target.url}/order", {"order": name, "arguments": arguments})

    def start_module(
        self,
        module: str,
        config: str | Mapping[str, Any],
        on_device: bool = True,
        in_mps: bool = False,
    ) -> subprocess.Popen[str]:
        """Start a process of this package with a configuration file.

        Args:
            module: Name of the module in ``tracer.simulated``.
            config: Text of the file, or what becomes its JSON.
            on_device: Whether the process sees the simulated libraries.
            in_mps: Whether it finds the control pipe of the stage's MPS server.
        """
        self._n_files += 1
        path = self.folder / f"{module}{self._n_files}.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config), "utf-8")
        environment = dict(os.environ)
        root = str(Path(tracer.__file__).resolve().parents[1])
        environment["PYTHONPATH"] = root
        if on_device:
            environment.update(self.device.env())
            environment.update(self._variables)
        if in_mps:
            environment["CUDA_MPS_PIPE_DIRECTORY"] = str(self._mps_pipe)
        child = subprocess.Popen(
            [sys.executable, "-m", f"tracer.simulated.{module}", "--config", str(path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{module}{self._n_files}.err").open("w"),
            text=True,
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def start_training(self, config: str) -> Service:
        """Start the training loop and wait until it is ready."""
        child = self.start_module("training", config)
        self._first_line(child)
        self.service = Service(child.pid, child.pid)
        return self.service

    def start_ranks(self, config: str) -> Service:
        """Start data-parallel ranks; the service is their launcher, the first rank launches."""
        child = self.start_module("ranks", config)
        pids = json.loads(self._first_line(child))["pids"]
        self.service = Service(child.pid, pids[0])
        return self.service

    def sessions(self) -> tuple[int, ...]:
        """Session ids of the processes of the stage: each child leads one."""
        return tuple(child.pid for child in self._children)

    def at(self, share: float) -> bool:
        """Wait until that share of the recording is over; False when the stage ended before."""
        return not self._ended.wait(max(0.0, self._begin + share * self.duration_s - _now()))

    def wait(self) -> None:
        """Return when the stage is taken down."""
        self._ended.wait()

    def mark_begin(self) -> None:
        """Note that the recording begins now."""
        self._begin = _now()

    def on_close(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when the stage is taken down; the last registered is called first."""
        self._undo.append(undo)

    def close(self) -> None:
        """End every process of the stage and remove its files."""
        self._ended.set()
        for undo in reversed(self._undo):
            with contextlib.suppress(OSError):
                undo()
        for child in reversed(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        self._children.clear()
        self.device.close()
        self._home.remove()

    def _first_line(self, child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        timer = threading.Timer(READY_S, child.kill)
        timer.start()
        line = child.stdout.readline()
        timer.cancel()
        if not line:
            raise StageError(
                f"the simulated service ended before it was ready: {self._errors() or 'no output'}"
            )
        return line

    def _errors(self) -> str:
        """Last lines that processes of the stage wrote to their standard error."""
        texts = [path.read_text("utf-8").strip() for path in sorted(self.folder.glob("*.err"))]
        return " / ".join(text.splitlines()[-1] for text in texts if text)

    def _wait_for_engine(self, url: str, state: str) -> None:
        end = _now() + READY_S
        seen = ""
        while _now() < end:
            seen = get(f"{url}/health")["state"]
            if seen == state:
                return
            if seen == "dead":
                raise StageError(f"the simulated engine ended: {self._errors() or 'no output'}")
            time.sleep(0.05)
        raise StageError(f"the simulated engine is '{seen}' after {READY_S:.0f} s, not '{state}'")


def _now() -> float:
    return time.monotonic()


def get(url: str) -> dict[str, Any]:
    """Return the JSON object that a local address answers with."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        data: dict[str, Any] = json.loads(answer.read())
        return data


def post(url: str, body: Mapping[str, Any]) -> None:
    """Send a JSON object to a local address."""
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()
