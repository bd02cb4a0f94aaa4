"""The parent's end of one sampler process: starts it, reads its frames, sees when it is stuck.

A process stuck in the driver cannot be killed while the kernel does not let go of it. It is
abandoned then: signalled, and never waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probes.gpu.driver import N_SLOTS, WATCH_BYTES, call_under_way
from probes.gpu.nvml_child import FRAME_HEAD, Config

#: Longest frame that a child may send.
MAX_FRAME_BYTES = 64 << 20
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
#: A child that closed its pipe is on its way out: it gets this long to be gone.
_EXIT_S = 0.1
_CODE = "from probes.gpu.nvml_child import main; main()"
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])

#: Rows of one frame by kind.
Frame = Mapping[str, Sequence[Any]]


class SamplerProcess:
    """One child that samples some devices.

    Args:
        interval_ns: Time between two fast samples.
        slow_interval_ns: Time between two slow rounds.
        devices: The only devices to sample; None for all.
        excluded: Devices to leave alone.
        library_dir: Folder to look for ``libnvidia-ml.so.1`` in first.
        env: Further variables of the child's environment.
        clock: CLOCK_MONOTONIC in ns.
        uuids: Which GPU has which number, where that is known; empty and None let the library say.
    """

    def __init__(
        self,
        interval_ns: int,
        slow_interval_ns: int,
        devices: Sequence[int] | None = None,
        excluded: Sequence[int] = (),
        library_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        uuids: Mapping[int, str | None] | None = None,
    ) -> None:
        self.devices = None if devices is None else set(devices)
        #: Why it ends, as it said itself.
        self.failure = ""
        self._clock = clock
        self._buffer = bytearray()
        self._is_open = True
        watch_fd = os.memfd_create("nvml-watch")
        try:
            os.ftruncate(watch_fd, max(WATCH_BYTES, mmap.PAGESIZE))
            self._watch = mmap.mmap(watch_fd, 0)
            config = Config(
                watch_fd,
                interval_ns,
                slow_interval_ns,
                None if devices is None else sorted(devices),
                tuple(sorted(excluded)),
                dict(uuids or {}),
            )
            self._child = subprocess.Popen(
                [sys.executable, "-c", _CODE, config.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(library_dir, env),
                cwd="/",
                pass_fds=(watch_fd,),
                start_new_session=True,
            )
        finally:
            os.close(watch_fd)
        assert self._child.stdout is not None
        self._pipe = self._child.stdout.fileno()
        os.set_blocking(self._pipe, False)
        # select() refuses the descriptors of a process with many files.
        self._waiting = select.poll()
        self._waiting.register(self._pipe, select.POLLIN)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._pipe, _F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """How the child ended; None while it lives (or hangs)."""
        return self._child.poll()

    def read(self) -> list[Frame]:
        """Return the frames that have come whole; never waits."""
        while self._is_open:
            try:
                data = os.read(self._pipe, _PIPE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._close()
                break
            self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) >= FRAME_HEAD.size:
            (length,) = FRAME_HEAD.unpack_from(self._buffer)
            end = FRAME_HEAD.size + length
            if length > MAX_FRAME_BYTES:
                self._buffer.clear()
                self.abandon()
                break
            if len(self._buffer) < end:
                break
            frames.append(pickle.loads(self._buffer[FRAME_HEAD.size : end]))
            del self._buffer[:end]
        return frames

    def wait(self, timeout_ns: int) -> list[Frame]:
        """Return the next frames, waiting for them no longer than ``timeout_ns``."""
        end = self._clock() + timeout_ns
        while True:
            frames = self.read()
            left = (end - self._clock()) / 1e9
            if frames or left <= 0 or not self._is_open:
                return frames
            self._waiting.poll(left * 1000)

    def has_ended(self) -> bool:
        """Return whether nothing will come any more."""
        return not self._is_open

    def stuck_call(self, now_ns: int, deadline_ns: int) -> tuple[int, str, int] | None:
        """Return device, function and duration in ns of a call past its deadline, if there is."""
        for slot in range(N_SLOTS):
            call = call_under_way(self._watch, slot)
            if call is not None and now_ns - call[0] > deadline_ns:
                return call[1], call[2], now_ns - call[0]
        return None

    def finish(self, timeout_ns: int) -> list[Frame]:
        """Ask the child to end and return its last frames; abandons it after ``timeout_ns``."""
        with contextlib.suppress(OSError):
            self._child.send_signal(signal.SIGTERM)
        end = self._clock() + timeout_ns
        frames: list[Frame] = []
        while self._is_open and self._clock() < end:
            frames.extend(self.wait(max(end - self._clock(), 0)))
        if not self._is_open:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_EXIT_S)
        self.abandon()
        return frames

    def abandon(self) -> None:
        """Kill the child without waiting for its end."""
        if self._child.poll() is None:
            with contextlib.suppress(OSError):
                self._child.kill()
        self._close()

    def _close(self) -> None:
        if self._is_open and self._child.stdout is not None:
            self._is_open = False
            self._child.stdout.close()


def _environment(library_dir: Path | None, env: Mapping[str, str] | None) -> dict[str, str]:
    """Environment of the child: this package importable, the library's folder first."""
    result = {**os.environ, **(env or {})}
    paths = [_PACKAGE_ROOT, result.get("PYTHONPATH", "")]
    result["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if library_dir is not None:
        folders = [str(library_dir), result.get("LD_LIBRARY_PATH", "")]
        result["LD_LIBRARY_PATH"] = os.pathsep.join(folder for folder in folders if folder)
    return result
