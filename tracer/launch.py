"""Starts the command to record and holds it until the probes are in place.

The command is stopped at the entry point of its program (by ptrace): its libraries are mapped by
then and none of its own code has run, so probes find everything and miss nothing. Where ptrace is
refused it is held before its exec instead.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from tracer.errors import TargetError

_TRACEME, _PEEK, _POKE, _CONT, _DETACH = 0, 1, 4, 7, 17
_GETREGS, _SETREGS, _SETOPTIONS, _EXITKILL = 12, 13, 0x4200, 0x100000
_AT_ENTRY = 9
#: ``struct user_regs_struct`` of x86-64: 27 words, the instruction pointer is number 16.
_N_REGISTERS, _RIP = 27, 16
_BREAKPOINT = 0xCC


class LaunchedCommand:
    """A command that was started and is held.

    Args:
        arguments: Program and arguments, looked up in PATH.

    Raises:
        TargetError: it cannot be started.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.status: int | None = None
        #: Whether it runs, or has run, its own code.
        self.is_released = False
        self._is_traced = True
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            _become(arguments, write_end)
        os.close(write_end)
        _, state = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(state) and os.WSTOPSIG(state) == signal.SIGSTOP:
            # Without ptrace it stopped itself before its exec.
            self._is_traced = False
            os.close(read_end)
            return
        with os.fdopen(read_end, "rb") as pipe:
            failure = pipe.read()
        if failure:
            self.status = os.waitstatus_to_exitcode(state)
            reason = os.strerror(struct.unpack("i", failure)[0])
            raise TargetError(f"{arguments[0]} cannot be started ({reason}); check the command")
        if not os.WIFSTOPPED(state):
            self.status = os.waitstatus_to_exitcode(state)
            return
        _ptrace(_SETOPTIONS, self.pid, 0, _EXITKILL)
        if platform.machine() == "x86_64":
            self._run_to_entry()

    def _run_to_entry(self) -> None:
        """Let the dynamic linker do its work and stop where the program itself begins."""
        entry = _entry_point(self.pid)
        if entry is None:
            return
        word = _ptrace(_PEEK, self.pid, entry, 0)
        _ptrace(_POKE, self.pid, entry, (word & ~0xFF) | _BREAKPOINT)
        number = 0
        while True:
            _ptrace(_CONT, self.pid, 0, number)
            _, state = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(state):
                self.status = os.waitstatus_to_exitcode(state)
                return
            number = os.WSTOPSIG(state)
            if number == signal.SIGTRAP:
                break
        _ptrace(_POKE, self.pid, entry, word)
        registers = (ctypes.c_uint64 * _N_REGISTERS)()
        _ptrace(_GETREGS, self.pid, 0, ctypes.addressof(registers))
        if registers[_RIP] == entry + 1:
            registers[_RIP] = entry
            _ptrace(_SETREGS, self.pid, 0, ctypes.addressof(registers))

    def release(self) -> None:
        """Let the command run."""
        if self.status is not None:
            return
        self.is_released = True
        if self._is_traced:
            _ptrace(_DETACH, self.pid, 0, 0)
        else:
            os.kill(self.pid, signal.SIGCONT)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status (negative: ended by that signal), None if it still runs."""
        deadline = time.monotonic() + timeout_s
        while self.status is None:
            pid, state = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(state)
            elif time.monotonic() >= deadline:
                return None
            else:
                time.sleep(0.02)
        return self.status

    def terminate(self, timeout_s: float) -> int | None:
        """Ask the command to end (SIGTERM) and return its status, None if it does not end."""
        if self.wait(0.0) is None:
            os.kill(self.pid, signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """End the command at once; for when it could not be recorded."""
        if self.wait(0.0) is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(5.0)


def _become(arguments: Sequence[str], report_to: int) -> None:
    """In the child: become the command; an error goes to the pipe. Never returns."""
    try:
        # Python ignores the first two in itself; a program expects them as they are by default.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            _ptrace(_TRACEME, 0, 0, 0)
        except OSError:
            os.kill(os.getpid(), signal.SIGSTOP)
        os.execvp(arguments[0], list(arguments))
    except OSError as error:
        os.write(report_to, struct.pack("i", error.errno or 0))
    finally:
        os._exit(127)


def _ptrace(request: int, pid: int, address: int, data: int) -> int:
    """Call ptrace and return its result, for a peek the word read.

    Raises:
        OSError: it failed.
    """
    ctypes.set_errno(0)
    function = _LIBC.ptrace
    function.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_long
    result: int = function(request, pid, address, data & 0xFFFFFFFFFFFFFFFF)
    number = ctypes.get_errno()
    if result == -1 and number:
        raise OSError(number, os.strerror(number))
    return result


_LIBC = ctypes.CDLL(None, use_errno=True)


def _entry_point(pid: int) -> int | None:
    """Address of the program's entry point from the auxiliary vector, None if unknown."""
    try:
        content = Path(f"/proc/{pid}/auxv").read_bytes()
    except OSError:
        return None
    words = struct.unpack(f"={len(content) // 8}Q", content[: len(content) // 8 * 8])
    return dict(zip(words[::2], words[1::2], strict=False)).get(_AT_ENTRY)
