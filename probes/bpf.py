"""Loads BPF programs that a child process compiles, and keeps only their descriptors.

bcc is the distribution's own package (``python3-bpfcc``). It loads a compiler of some 100 MB, so
it runs in a child that hands the loaded programs and maps over a socket and ends; the recorder
keeps only file descriptors. bcc wants one tree of kernel headers; where the running kernel has
none, a tree of symbolic links over the distribution's two halves serves, because the programs use
only uapi headers and tracepoint formats.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes import compiler, program_store
from probes.compiler import find_bcc, find_headers
from probes.probe import ProbeError, Requirement

_BCC_REMEDY = "apt-get install python3-bpfcc (not the package 'bcc' of PyPI)"
_HEADERS_REMEDY = "apt-get install linux-headers-$(uname -r), or linux-headers-amd64"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ProgramRequest:
    """One program to load.

    Attributes:
        name: Function in the source.
        kind: ``uprobe_multi``, ``kprobe`` (perf-event uprobes) or ``tracepoint``.
    """

    name: str
    kind: str


@dataclass(frozen=True)
class Module:
    """Loaded programs and maps.

    Attributes:
        programs: Name to file descriptor.
        maps: Name to file descriptor.
        tracepoints: ``group/name`` to the id that perf events take.
    """

    programs: Mapping[str, int]
    maps: Mapping[str, int]
    tracepoints: Mapping[str, int]

    def close(self) -> None:
        """Close every descriptor; the kernel frees what no link uses."""
        for fd in (*self.programs.values(), *self.maps.values()):
            os.close(fd)


def requirements() -> list[Requirement]:
    """Return what compiling BPF programs needs on this machine."""
    bcc, headers = find_bcc(), find_headers()
    loss = "no CUDA calls and no off-CPU intervals"
    is_root = os.geteuid() == 0
    lockdown = _read_lockdown()
    return [
        Requirement(
            "rights",
            is_root,
            "running as root" if is_root else "not running as root",
            loss,
            "" if is_root else "run with sudo",
        ),
        Requirement(
            "lockdown",
            lockdown != "confidentiality",
            f"kernel lockdown is {lockdown or 'not built in'}",
            loss,
            "" if lockdown != "confidentiality" else "boot without lockdown=confidentiality",
        ),
        Requirement(
            "bcc",
            bcc is not None,
            f"found in {bcc}" if bcc else "the distribution's bcc is not installed",
            loss,
            "" if bcc else _BCC_REMEDY,
        ),
        Requirement(
            "kernel headers",
            bool(headers),
            "found " + " and ".join(map(str, headers)) if headers else "no kernel headers found",
            loss,
            "" if headers else _HEADERS_REMEDY,
        ),
        Requirement(
            "uprobes",
            Path("/sys/bus/event_source/devices/uprobe/type").is_file(),
            "the kernel has uprobes"
            if Path("/sys/bus/event_source/devices/uprobe/type").is_file()
            else "the kernel has no uprobe events (CONFIG_UPROBE_EVENTS)",
            loss,
            ""
            if Path("/sys/bus/event_source/devices/uprobe/type").is_file()
            else "boot a kernel with CONFIG_UPROBE_EVENTS=y",
        ),
    ]


def _read_lockdown() -> str:
    """Mode of the kernel's lockdown; empty when it has none."""
    try:
        text = Path("/sys/kernel/security/lockdown").read_text(encoding="ascii")
    except OSError:
        return ""
    match = re.search(r"\[(\w+)\]", text)
    return match.group(1) if match else ""


class Loading:
    """Programs that a child process is compiling; begun early, it costs the recorder no wait.

    Args:
        source: C text. For each tracepoint ``group/name`` a ``struct NAME_arguments`` with the
            fields of the running kernel is put before it, and ``NAME_HAS_FIELD`` is defined for
            each field.
        programs: What to load.
        maps: Names of the maps wanted.
        tracepoints: Tracepoints that the source uses.
        is_kept: Take what was compiled before for the same request since the boot, and keep what
            is compiled now for the next time.

    Raises:
        ProbeError: something is missing on this machine.
    """

    def __init__(
        self,
        source: str,
        programs: Sequence[ProgramRequest],
        maps: Sequence[str],
        tracepoints: Sequence[str],
        is_kept: bool = False,
    ) -> None:
        for requirement in requirements():
            if not requirement.is_met:
                raise ProbeError(f"{requirement.detail}; {requirement.remedy}")
        request = json.dumps(
            {
                "source": source,
                "programs": [[program.name, program.kind] for program in programs],
                "maps": list(maps),
                "tracepoints": list(tracepoints),
            }
        ).encode()
        self._key = program_store.key_of(request) if is_kept else None
        found = program_store.load(self._key) if self._key is not None else None
        self._module = None if found is None else Module(*found)
        if self._module is not None:
            return
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by result()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-S", compiler.__file__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
            )
        assert self._child.stdin is not None
        try:
            with self._child.stdin:
                self._child.stdin.write(request)
        except OSError:
            return  # the child has ended: result() says so

    def result(self) -> Module:
        """Return the loaded programs and maps, once; waits for the child.

        Raises:
            ProbeError: the programs cannot be compiled, or the kernel refuses them.
        """
        if self._module is not None:
            return self._module
        with self._ours, self._errors:
            self._ours.settimeout(_TIMEOUT_S)
            try:
                reply, descriptors = _receive(self._ours)
            except TimeoutError:
                late = f"compiling them took more than {_TIMEOUT_S:.0f} s; the machine is busy"
                reply, descriptors = {"error": late}, []
                self._child.kill()
            except (OSError, ValueError):
                reply, descriptors = {"error": "the compiling process ended early"}, []
            finally:
                try:
                    self._child.wait(timeout=_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._child.kill()
                    self._child.wait()
            if "error" in reply:
                self._errors.seek(0)
                detail = self._errors.read()[-2000:].decode(errors="replace").strip()
                raise ProbeError(
                    f"the BPF programs cannot be loaded: {reply['error']}"
                    + (f" [{detail}]" if detail else "")
                    + "; run 'tracer doctor' to see what is missing"
                )
        if self._key is not None:
            program_store.keep(self._key, reply["kept"])
        names = [*reply["programs"], *reply["maps"]]
        by_name = dict(zip(names, descriptors, strict=True))
        return Module(
            {name: by_name[name] for name in reply["programs"]},
            {name: by_name[name] for name in reply["maps"]},
            reply["tracepoints"],
        )


def load(
    source: str,
    programs: Sequence[ProgramRequest],
    maps: Sequence[str],
    tracepoints: Sequence[str],
) -> Module:
    """Return loaded programs and maps; the arguments and errors are those of :class:`Loading`."""
    return Loading(source, programs, maps, tracepoints).result()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Read the child's reply: JSON text with the descriptors spread over its messages."""
    text = b""
    descriptors: list[int] = []
    while True:
        data, received, _flags, _address = socket.recv_fds(
            connection, 65536, compiler.MAX_DESCRIPTORS
        )
        descriptors.extend(received)
        if not data:
            break
        text += data
    reply = json.loads(text)
    if not isinstance(reply, dict):
        raise ValueError("not a reply")
    return reply, descriptors
