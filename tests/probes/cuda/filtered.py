"""Run a program under a seccomp filter that knows no uretprobe system call, as containers do."""

import ctypes
import os
import struct
import sys

rows = ((0x20, 0, 0, 0), (0x15, 0, 1, 335), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
program = struct.pack("<HxxxxxxQ", len(rows), ctypes.addressof(code))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.create_string_buffer(program)):
    sys.exit("the filter was refused")
os.execv(sys.argv[1], sys.argv[1:])
