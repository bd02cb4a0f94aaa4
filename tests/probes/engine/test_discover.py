from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from probes.engine.discover import Listener, find_listeners

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid inode"


def _line(address: str, port: int, state: str, inode: int) -> str:
    return (
        f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000"
        f"     0        0 {inode} 1 0000000000000000 100 0 0 10 0"
    )


def _process(root: Path, pid: int, inodes: list[int], tcp: list[str], tcp6: list[str]) -> None:
    folder = root / str(pid)
    for name in ("fd", "net", "ns"):
        (folder / name).mkdir(parents=True)
    (folder / "ns/net").symlink_to("net:[1]")
    for number, inode in enumerate(inodes):
        (folder / f"fd/{number}").symlink_to(f"socket:[{inode}]")
    (folder / "fd/99").symlink_to("/dev/null")
    (folder / "net/tcp").write_text("\n".join([HEADER, *tcp]) + "\n")
    (folder / "net/tcp6").write_text("\n".join([HEADER, *tcp6]) + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/net").symlink_to("net:[1]")
    return tmp_path


def test_listening_sockets_of_the_processes_known_ports_first(root: Path) -> None:
    tcp = [
        _line("00000000", 40001, "0A", 11),
        _line("0100007F", 8000, "0A", 12),
        _line("0100007F", 5555, "01", 13),
        _line("0200A8C0", 8080, "0A", 14),
        _line("00000000", 29500, "0A", 15),
        _line("00000000", 22, "0A", 77),
    ]
    tcp6 = [
        _line("0" * 32, 30000, "0A", 16),
        _line("0000000000000000FFFF00000100007F", 9, "0A", 17),
    ]
    _process(root, 100, [11, 12, 13, 14, 15, 16, 17], tcp, tcp6)
    _process(root, 101, [12], tcp, tcp6)
    assert find_listeners({100, 101, 999}, root) == [
        Listener(8000, "127.0.0.1", 100),
        Listener(30000, "::1", 100),
        Listener(8080, "192.168.0.2", 100),
        Listener(9, "127.0.0.1", 100),
        Listener(40001, "127.0.0.1", 100),
    ]


def test_ports_that_the_kernel_chose_come_last_and_those_of_workers_after_a_servers(
    root: Path,
) -> None:
    """As of a vLLM: the server's process has one port, the engine's core a dozen transports."""
    (root / "sys/net/ipv4").mkdir(parents=True)
    (root / "sys/net/ipv4/ip_local_port_range").write_text("32768\t60999\n")
    transports = [_line("0100007F", 35000 + n, "0A", 20 + n) for n in range(12)]
    tcp = [_line("0100007F", 45123, "0A", 11), _line("0100007F", 9123, "0A", 12), *transports]
    _process(root, 100, [11], tcp, [])
    _process(root, 101, [12, *range(20, 32)], tcp, [])
    found = find_listeners({100, 101}, root)
    assert [listener.port for listener in found] == [9123, 45123, *range(35000, 35012)]
    assert [listener.is_chosen for listener in found[:3]] == [True, False, False]
    assert [listener.n_ports for listener in found[:3]] == [13, 1, 13]


def test_a_process_in_another_network_is_asked_there(root: Path) -> None:
    _process(root, 100, [11], [_line("00000000", 8000, "0A", 11)], [])
    (root / "100/ns/net").unlink()
    (root / "100/ns/net").symlink_to("net:[2]")
    [listener] = find_listeners({100}, root)
    assert listener.namespace == f"{root}/100/ns/net"
    assert listener.base_urls == ["http://127.0.0.1:8000"]


def test_garbage_is_skipped(root: Path) -> None:
    _process(root, 100, [11], ["nonsense", _line("XYZ", 1, "0A", 11), _line("0", 1, "0A", 11)], [])
    assert find_listeners({100}, root) == []


def test_the_real_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert Listener(port, "127.0.0.1", os.getpid()) in find_listeners({os.getpid()})


def test_an_address_of_version_6_is_written_in_brackets() -> None:
    assert Listener(80, "::1", 1).base_urls == ["http://[::1]:80"]


def test_all_addresses_of_version_6_are_asked_by_version_4_too(root: Path) -> None:
    tcp6 = [_line("0" * 32, 8000, "0A", 11), _line("0" * 24 + "01000000", 8000, "0A", 12)]
    _process(root, 100, [11, 12], [], tcp6)
    [listener] = find_listeners({100}, root)
    assert listener.base_urls in (
        ["http://[::1]:8000", "http://127.0.0.1:8000"],
        ["http://[::1]:8000"],
    )
    _process(root, 101, [11], [], tcp6)
    [listener] = find_listeners({101}, root)
    assert listener.base_urls == ["http://[::1]:8000", "http://127.0.0.1:8000"]
