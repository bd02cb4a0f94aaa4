"""The directory in shared memory where the recorder and the library in the program meet."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import struct
import tempfile
import time
from pathlib import Path

from probes.cupti.build import LIBRARY, build_library
from probes.probe import ProbeError

#: Variables that make a CUDA program load the library, have NVTX tell it ranges, and tell it the
#: directory.
INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
RANGES_VARIABLE = "NVTX_INJECTION64_PATH"
DIRECTORY_VARIABLE = "TRACER_CUPTI"
#: Room of each process: records of 88 bytes, and bytes of kernel names.
N_RECORDS = 1 << 17
NAMES_BYTES = 4 << 20
FLUSH_MS = 100

_MEMORY = Path("/dev/shm")
_PREFIX = "tracer-cupti-"
_CONTROL = "control"
#: A place of a recorder that has shown no life for so long is of one that was killed.
_ABANDONED_NS = 60_000_000_000
#: ``struct control`` (native/shared.h): magic, changes, mode, beat, flush, records, names, library.
_MAGIC = 0x7472636374726C31
_FORMAT = struct.Struct("=QIIQIIII1024s")
_SIZE = 4096
_CHANGES, _MODE, _BEAT = 8, 12, 16
_ON, _GRAPH_NODES = 1, 2
_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAKE = 1


class Rendezvous:
    """The recorder's end: switches collection on and off, and shows that it is alive.

    Args:
        directory: An existing directory with a control file.

    Raises:
        ProbeError: there is none of this version.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            # It is written by calls: a mapped file that is cut short would end the recorder.
            control = os.open(directory / _CONTROL, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._control = control
            try:
                self._map = mmap.mmap(control, _SIZE)
            except BaseException:
                os.close(control)
                raise
        except (OSError, ValueError) as error:
            raise ProbeError(
                f"The directory {directory} is not prepared for device times ({error}). "
                "Prepare it with: tracer cupti, and start the program with what it prints."
            ) from error
        # The directory may be seen through a process that ends before the recording does.
        self._descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        #: The directory as this process reaches it for as long as this is open.
        self.reach = Path(f"/proc/self/fd/{self._descriptor}")
        if self._word("=Q", 0) != _MAGIC:
            self.close(remove=False)
            raise ProbeError(
                f"The directory {directory} was prepared by another version of tracer. "
                "Prepare a new one with: tracer cupti, and start the program again."
            )

    @classmethod
    def create(cls, directory: Path | None = None, *, library: str = "") -> Rendezvous:
        """Make the control file, switched off, and return the recorder's end.

        Args:
            directory: Where; None for a new directory in shared memory.
            library: Path of the libcupti to use, as the program sees it; empty to look for it.

        Raises:
            ProbeError: it cannot be made.
        """
        try:
            if directory is None:
                _remove_abandoned(time.monotonic_ns())
                directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY))
            directory.mkdir(mode=0o700, exist_ok=True)
            content = _FORMAT.pack(
                _MAGIC, 0, 0, 0, FLUSH_MS, N_RECORDS, NAMES_BYTES, 0, os.fsencode(library)[:1023]
            )
            hidden = directory / f".control-{os.getpid()}"
            hidden.write_bytes(content.ljust(_SIZE, b"\0"))
            hidden.chmod(0o600)
            hidden.rename(directory / _CONTROL)
        except OSError as error:
            raise ProbeError(
                f"The directory for device times cannot be made: {error}. "
                "Name one on a file system in memory that the program can write."
            ) from error
        return cls(directory)

    def environment(self) -> dict[str, str]:
        """Return the variables with which a program has to be started.

        Raises:
            ProbeError: the library cannot be built.
        """
        own = self.directory / LIBRARY
        library = own if own.is_file() else build_library()
        return {
            INJECTION_VARIABLE: str(library),
            RANGES_VARIABLE: str(library),
            DIRECTORY_VARIABLE: str(self.directory),
        }

    def add_library(self) -> Path:
        """Put the library itself into the directory, for programs that see nothing else of ours.

        Raises:
            ProbeError: the library cannot be built.
        """
        target = self.directory / LIBRARY
        shutil.copyfile(build_library(), target)
        target.chmod(0o755)
        return target

    @property
    def is_on(self) -> bool:
        """Whether collection is switched on."""
        return bool(self._word("=I", _MODE) & _ON)

    def switch(self, is_on: bool, now_ns: int, *, graph_nodes: bool = False) -> None:
        """Switch collection on or off in every process, at once.

        Args:
            is_on: What is wanted.
            now_ns: Present time, CLOCK_MONOTONIC.
            graph_nodes: Each node of a CUDA graph by itself instead of the graph as a whole.
        """
        self.beat(now_ns)
        mode = (_ON if is_on else 0) | (_GRAPH_NODES if graph_nodes else 0)
        self._write("=I", _MODE, mode)
        self._write("=I", _CHANGES, (self._word("=I", _CHANGES) + 1) & 0xFFFFFFFF)
        self._wake()

    def beat(self, now_ns: int) -> None:
        """Show that somebody reads; without that collection ends by itself after 5 s."""
        self._write("=Q", _BEAT, now_ns)

    def close(self, *, remove: bool) -> None:
        """Let go of the directory; with ``remove`` it goes, though a program may still map it."""
        self._map.close()
        os.close(self._control)
        os.close(self._descriptor)
        if remove:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _word(self, format: str, place: int) -> int:
        n_bytes = struct.calcsize(format)
        content = os.pread(self._control, n_bytes, place).ljust(n_bytes, b"\0")
        word: int = struct.unpack(format, content)[0]
        return word

    def _write(self, format: str, place: int, word: int) -> None:
        with contextlib.suppress(OSError):  # cut short by the program, and the disk is full
            os.pwrite(self._control, struct.pack(format, word), place)

    def _wake(self) -> None:
        """End the sleep of every helper thread; without it they look once a second."""
        number = _FUTEX.get(os.uname().machine)
        if number is None:
            return
        word = ctypes.c_uint32.from_buffer(self._map, _CHANGES)
        try:
            ctypes.CDLL(None).syscall(
                ctypes.c_long(number), ctypes.byref(word), ctypes.c_int(_FUTEX_WAKE),
                ctypes.c_int(0x7FFFFFFF), None, None, ctypes.c_int(0),
            )  # fmt: skip
        finally:
            del word  # it keeps the map from being closed


def _remove_abandoned(now_ns: int) -> None:
    """Remove places of recorders that were killed; those that ``tracer cupti`` made hold the
    library, and stay.
    """
    for directory in _MEMORY.glob(f"{_PREFIX}*"):
        try:
            if directory.stat().st_uid != os.geteuid() or (directory / LIBRARY).exists():
                continue
            content = (directory / _CONTROL).read_bytes()
            magic, _, _, beat_ns, *_ = _FORMAT.unpack_from(content)
        except (OSError, struct.error):
            continue
        if magic == _MAGIC and 0 < beat_ns < now_ns - _ABANDONED_NS:
            shutil.rmtree(directory, ignore_errors=True)
