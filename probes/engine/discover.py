"""Finds the metrics endpoint of an inference engine among the listening ports of its processes.

Listening sockets come from ``/proc/PID/net/tcp`` and the processes' open files, so only ports of
the recorded tree are ever asked. Asking is polite: well-known ports first, then those that someone
chose, one GET each with a short deadline, and a port that did not answer in HTTP is never asked
again. Ports that the kernel chose mostly belong to rendezvous stores and transports of workers,
which may dislike being asked: they come last, and only those of processes that have few.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from probes.host.proc import PROC, read_bytes

#: Ports that engines serve metrics on by default, asked first.
KNOWN_PORTS = (8000, 30000, 8002, 8080, 3000, 8001, 9000)
#: Ports that never serve metrics and may dislike being asked (PyTorch's rendezvous store).
SHUNNED_PORTS = (29500,)
#: Paths asked, in order. TensorRT-LLM's server has JSON on the first.
METRIC_PATHS = ("/metrics", "/prometheus/metrics")

_LISTEN = "0A"
_ALL_6 = "0" * 32
_SOCKET_LINK = re.compile(r"^socket:\[(\d+)\]$")


@dataclass(frozen=True, order=True)
class Listener:
    """One listening TCP port of a process.

    Attributes:
        port: Its number.
        address: Where to connect to.
        pid: The process.
        namespace: Path of its network namespace; null in the reader's own.
        is_chosen: Whether someone chose the number, rather than the kernel.
        n_ports: Ports that the process listens on.
        other_address: Where to connect to when ``address`` is none here; empty for nowhere else.
    """

    port: int
    address: str
    pid: int
    namespace: str | None = None
    is_chosen: bool = field(default=True, compare=False)
    n_ports: int = field(default=1, compare=False)
    other_address: str = field(default="", compare=False)

    @property
    def base_urls(self) -> list[str]:
        """URLs of the listener as seen from its own network namespace: the same by any address."""
        addresses = (self.address, self.other_address)
        hosts = [f"[{host}]" if ":" in host else host for host in addresses if host]
        return [f"http://{host}:{self.port}" for host in hosts]


def find_listeners(pids: Iterable[int], root: Path = PROC) -> list[Listener]:
    """Return the TCP ports that the processes listen on, the likeliest to have metrics first.

    Args:
        pids: Processes to look at; those that end meanwhile are skipped.
        root: Where /proc is.
    """
    own = _network(root, "self")
    tables: dict[str, dict[int, tuple[str, int, str]]] = {}
    found: dict[tuple[str | None, int], Listener] = {}
    for pid in sorted(pids):
        network = _network(root, str(pid))
        if network is None:
            continue
        if network not in tables:
            tables[network] = _listening(root, pid)
        table = tables[network]
        if not table:
            continue
        namespace = None if network == own else f"{root}/{pid}/ns/net"
        first, last = _chosen_by_kernel(root)
        entries = {table[inode] for inode in _socket_inodes(root, pid) if inode in table}
        for address, port, other in sorted(entries):
            if port in SHUNNED_PORTS:
                continue
            is_chosen = not first <= port <= last
            listener = Listener(
                port, address, pid, namespace, is_chosen, len(entries), other_address=other
            )
            found.setdefault((network, port), listener)
    return sorted(found.values(), key=_likelihood)


def _likelihood(listener: Listener) -> tuple[int, bool, int, int]:
    """Sort key: well-known ports in their order, then those someone chose, then those of processes
    that have few, by number.
    """
    place = len(KNOWN_PORTS)
    if listener.port in KNOWN_PORTS:
        place = KNOWN_PORTS.index(listener.port)
    return place, not listener.is_chosen, listener.n_ports, listener.port


def _chosen_by_kernel(root: Path) -> tuple[int, int]:
    """First and last port that the kernel gives to who asks for any."""
    words = (read_bytes(f"{root}/sys/net/ipv4/ip_local_port_range") or b"").split()
    try:
        return int(words[0]), int(words[1])
    except (ValueError, IndexError):
        return 32768, 60999


def _network(root: Path, pid: str) -> str | None:
    """Identity of a process's network namespace; None when it is gone or hidden."""
    try:
        return str(Path(f"{root}/{pid}/ns/net").readlink())
    except OSError:
        return None


def _listening(root: Path, pid: int) -> dict[int, tuple[str, int, str]]:
    """Inode to address, port and other address of each listening TCP socket of the process's
    network.
    """
    table: dict[int, tuple[str, int, str]] = {}
    for name in ("tcp", "tcp6"):
        data = read_bytes(f"{root}/{pid}/net/{name}")
        for line in (data or b"").decode("ascii", "replace").splitlines()[1:]:
            words = line.split()
            if len(words) < 10 or words[3] != _LISTEN:
                continue
            try:
                address, port = words[1].split(":")
                # All addresses mostly means those of version 4 too, and these are there where
                # version 6 is switched off, as it is in containers.
                other = "127.0.0.1" if address == _ALL_6 else ""
                table[int(words[9])] = (_address(address), int(port, 16), other)
            except (ValueError, OSError, struct.error):
                continue
    return table


def _address(text: str) -> str:
    """Address to connect to for one of the kernel's hexadecimal addresses."""
    if len(text) not in (8, 32):
        raise ValueError(f"'{text}' is no address")
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    if len(raw) == 4:
        address = socket.inet_ntop(socket.AF_INET, raw)
        return "127.0.0.1" if address == "0.0.0.0" else address
    if raw[:12] == b"\0" * 10 + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    address = socket.inet_ntop(socket.AF_INET6, raw)
    return "::1" if address == "::" else address


def _socket_inodes(root: Path, pid: int) -> list[int]:
    """Inodes of the sockets a process has open."""
    inodes = []
    try:
        with os.scandir(f"{root}/{pid}/fd") as entries:
            for entry in entries:
                try:
                    match = _SOCKET_LINK.match(str(Path(entry.path).readlink()))
                except OSError:
                    continue
                if match:
                    inodes.append(int(match[1]))
    except OSError:
        return []
    return inodes
