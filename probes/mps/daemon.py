"""The MPS daemons of this host and their servers, and whose control pipe a process would find.

All from /proc, without a word to the daemon. Paths of a process are looked up from its own root
directory and never lead out of it, whatever links a container may hold.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from probes.host import proc

#: Where a process looks for the daemon when its environment does not say otherwise.
DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
#: The variable that says otherwise.
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
#: Beginning of the names of daemon and server, as far as the kernel keeps them.
COMM = b"nvidia-cuda-mps"

_CONTROL = "nvidia-cuda-mps-control"
_SERVER = "nvidia-cuda-mps-server"
_MULTIUSER = {"-multiuser-server", "--multiuser-server"}
_DAEMON_FLAGS = {"-d", "-f"}
#: Flag of a listening socket in ``/proc/PID/net/unix``.
_LISTENING = 0x00010000
#: Longest environment that is read: what the kernel takes with the default stack, and more.
_MAX_ENVIRONMENT = 16 << 20
_SYS_OPENAT2 = 437
_RESOLVE_IN_ROOT = 0x10
_RESCAN = 12

_libc = ctypes.CDLL(None, use_errno=True)

#: Device and inode of a file.
Identity = tuple[int, int]


@dataclass(frozen=True)
class Server:
    """One server process of MPS, and the user (host uid) it runs as."""

    pid: int
    uid: int | None


@dataclass(frozen=True)
class Daemon:
    """One control daemon.

    Attributes:
        pid: Host pid.
        start_ticks: Its start in ticks of CLOCK_BOOTTIME.
        uid: User it runs as; only root may serve others.
        ipc: Its IPC namespace as the kernel writes it.
        mount: Its mount namespace.
        directory: Folder of its control pipe, as seen from its own root.
        control: Identity of the control pipe; None when the file is gone.
        is_multiuser: One server takes clients of several users.
        container: Container it runs in, if any.
        servers: Its servers.
    """

    pid: int
    start_ticks: int
    uid: int | None
    ipc: str | None
    mount: str | None
    directory: str
    control: Identity | None
    is_multiuser: bool
    container: str | None = None
    servers: tuple[Server, ...] = ()

    @property
    def served_uid(self) -> int | None:
        """User whose processes are served now; None when anyone's may be."""
        if self.is_multiuser:
            return None
        if self.servers:
            return self.servers[0].uid
        return self.uid or None


@dataclass
class DaemonFinder:
    """Finds daemons again and again; only processes not seen before are looked at closely.

    Args:
        root: Where /proc is.
    """

    root: Path = proc.PROC
    _seen: set[int] = field(default_factory=set)
    _mps: set[int] = field(default_factory=set)
    _n_looks: int = 0

    def find(self) -> list[Daemon]:
        """Return the daemons that run now, by pid."""
        if self._n_looks % _RESCAN == 0:
            self._seen.clear()
        self._n_looks += 1
        present = set(proc.list_pids(self.root))
        self._mps &= present
        for pid in present - self._seen:
            if is_part_of_mps(pid, self.root):
                self._mps.add(pid)
        self._seen = present
        programs = {pid: _program(pid, self.root) for pid in sorted(self._mps)}
        servers = [pid for pid, (name, _) in programs.items() if name == _SERVER]
        found = []
        for pid, (name, words) in programs.items():
            if name == _CONTROL:
                daemon = _daemon(pid, words, servers, self.root)
                if daemon is not None:
                    found.append(daemon)
        return found


def is_part_of_mps(pid: int, root: Path = proc.PROC) -> bool:
    """Return whether a process is a server or the daemon of MPS itself, by its name."""
    name = proc.read_bytes(f"{root}/{pid}/comm", 64)
    return name is not None and name.startswith(COMM)


def pipe_directory(pid: int, root: Path = proc.PROC) -> tuple[bool | None, str]:
    """Return whether a process was started with the variable, and the folder it looks in.

    The value is for look-ups only and is never to be stored. None: its environment is unreadable.
    """
    data = proc.read_bytes(f"{root}/{pid}/environ", _MAX_ENVIRONMENT)
    if data is None or len(data) >= _MAX_ENVIRONMENT:
        return None, DEFAULT_DIRECTORY
    key = f"{PIPE_VARIABLE}=".encode()
    for word in data.split(b"\0"):
        if word.startswith(key):
            return True, os.fsdecode(word[len(key) :])
    return False, DEFAULT_DIRECTORY


def control_identity(pid: int, directory: str, root: Path = proc.PROC) -> Identity | None:
    """Return the identity of the control pipe that a process finds in a folder; None without one.

    May block where the process's file system does not answer: not for the recorder's thread.
    """
    if not directory.startswith("/"):
        try:
            directory = f"{Path(f'{root}/{pid}/cwd').readlink()}/{directory}"
        except OSError:
            return None
    try:
        top = os.open(f"{root}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        descriptor = _open_in_root(top, f"{directory}/control")
    except OSError:
        return None
    finally:
        os.close(top)
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return status.st_dev, status.st_ino


def namespace(pid: int, kind: str, root: Path = proc.PROC) -> str | None:
    """Return a namespace (``ipc``, ``mnt``) of a process as the kernel writes it."""
    try:
        return str(Path(f"{root}/{pid}/ns/{kind}").readlink())
    except OSError:
        return None


def user_id(pid: int, root: Path = proc.PROC) -> int | None:
    """Return the effective user of a process as this host sees it."""
    words = (proc.read_status(pid, root) or {}).get("Uid", "").split()
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else None


def _open_in_root(top: int, path: str) -> int:
    """Open a path below a folder as if that were ``/``.

    Raises:
        OSError: it is not there.
    """
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    descriptor: int = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(top),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_char_p(how),
        ctypes.c_size_t(len(how)),
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return descriptor


def _program(pid: int, root: Path) -> tuple[str, list[str]]:
    """Base name of a program, and its arguments."""
    data = proc.read_bytes(f"{root}/{pid}/cmdline", 1 << 16) or b""
    words = [word.decode("utf-8", "replace") for word in data.rstrip(b"\0").split(b"\0")]
    name = PurePosixPath(words[0]).name
    if not name.startswith("nvidia-cuda-mps"):
        try:
            name = Path(f"{root}/{pid}/exe").readlink().name
        except OSError:
            name = ""
    return name, words[1:]


def _daemon(pid: int, words: list[str], servers: list[int], root: Path) -> Daemon | None:
    """The daemon of a process; None for the control program's user interface."""
    directory = _listening_directory(pid, root)
    if directory is None:
        if not _DAEMON_FLAGS & set(words):
            return None
        directory = pipe_directory(pid, root)[1]
    stat = proc.read_stat(pid, root)
    if stat is None or stat.is_dead:
        return None
    return Daemon(
        pid=pid,
        start_ticks=stat.start_ticks,
        uid=user_id(pid, root),
        ipc=namespace(pid, "ipc", root),
        mount=namespace(pid, "mnt", root),
        directory=directory,
        control=control_identity(pid, directory, root),
        is_multiuser=bool(_MULTIUSER & set(words)),
        container=proc.container_id(proc.read_cgroups(pid, root)),
        servers=tuple(
            Server(server, user_id(server, root))
            for server in servers
            if _parent(server, root) == pid
        ),
    )


def _parent(pid: int, root: Path) -> int | None:
    stat = proc.read_stat(pid, root)
    return None if stat is None else stat.parent_pid


def _listening_directory(pid: int, root: Path) -> str | None:
    """Folder of the socket ``control`` that a process listens on; None without one."""
    inodes = _socket_inodes(pid, root)
    if not inodes:
        return None
    data = proc.read_bytes(f"{root}/{pid}/net/unix", 16 << 20) or b""
    for line in data.splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) < 8 or not fields[7].endswith(b"/control") or fields[6] not in inodes:
            continue
        if int(fields[3], 16) & _LISTENING:
            return os.fsdecode(fields[7][: -len(b"/control")])
    return None


def _socket_inodes(pid: int, root: Path) -> set[bytes]:
    """Inodes of the sockets that a process has open."""
    inodes = set()
    try:
        with os.scandir(f"{root}/{pid}/fd") as entries:
            for entry in entries:
                try:
                    link = str(Path(entry.path).readlink())
                except OSError:
                    continue
                if link.startswith("socket:["):
                    inodes.add(link[8:-1].encode())
    except OSError:
        return set()
    return inodes
