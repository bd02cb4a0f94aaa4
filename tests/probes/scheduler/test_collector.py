"""Garbage collections of a real Python are told by its own markers, of recorded processes only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.cuda.calls import CudaCalls
from probes.cuda.elf import ElfFile
from probes.probe import ProbeError
from probes.scheduler.collector import GarbageCollections
from probes.scheduler.markers import read_markers
from probes.targets import TargetTree
from tests.probes.traced import build_library

COLLECTING = """
import ctypes, gc, sys
library = ctypes.CDLL(sys.argv[1])
gc.disable()
kept = [[index] for index in range(200_000)]
library.cudaSetDevice(0)
print("ready", flush=True)
for line in sys.stdin:
    library.cudaSetDevice(0)
    for _ in range(7):
        gc.collect()
    print("done", flush=True)
"""


def has_markers() -> bool:
    with ElfFile(Path(sys.executable).resolve()) as elf:
        return any(marker.name == "gc__start" for marker in read_markers(elf))


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is missing: binutils")
@pytest.mark.skipif(not has_markers(), reason="this Python has no markers; Debian's has")
def test_markers_are_read_as_readelf_reads_them() -> None:
    path = Path(sys.executable).resolve()
    text = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True)
    names = [
        line.split()[1] for line in text.stdout.splitlines() if line.strip().startswith("Name:")
    ]
    with ElfFile(path) as elf:
        assert [marker.name for marker in read_markers(elf)] == names


class _Elf:
    """A file with nothing in it but a section of notes."""

    def __init__(self, notes: bytes) -> None:
        self.notes = notes

    def section(self, name: str, limit: int) -> bytes:
        return self.notes[:limit]

    def file_offset(self, address: int) -> int | None:
        return None if address == 0xBAD else address - 0x1000


def note(
    address: int, counter: int, names: bytes = b"python\0gc__done\0\0", kind: int = 3
) -> bytes:
    data = b"".join(word.to_bytes(8, "little") for word in (address, 0, counter)) + names
    head = (8).to_bytes(4, "little") + len(data).to_bytes(4, "little") + kind.to_bytes(4, "little")
    return head + b"stapsdt\0" + data + b"\0" * (-len(data) % 4)


def test_damaged_notes_are_skipped() -> None:
    good = note(0x5000, 0x9000)
    notes = note(0xBAD, 0) + note(0x5000, 0, kind=9) + note(0x5000, 0, b"one word") + good
    [marker] = read_markers(_Elf(notes + good[:20]))  # type: ignore[arg-type]
    assert (marker.provider, marker.name) == ("python", "gc__done")
    assert (marker.offset, marker.counter) == (0x4000, 0x8000)


@pytest.mark.root
@pytest.mark.skipif(not has_markers(), reason="this Python has no markers; Debian's has")
@pytest.mark.parametrize("is_multi", [None, False], ids=["as the kernel can", "perf events"])
def test_collections_of_recorded_processes_are_events(tmp_path: Path, is_multi) -> None:
    from probes.cuda.loading import ModuleLoading

    library = build_library(tmp_path)
    command = [sys.executable, "-c", COLLECTING, str(library)]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    process = both[0]
    try:
        for one in both:
            assert one.stdout.readline() == "ready\n"
        tree = TargetTree([process.pid])
        calls = CudaCalls(tree, loading=ModuleLoading(is_multi=is_multi))
        probe = GarbageCollections(calls, tree)
        calls.start()
        try:
            probe.start()
            for one in both:
                one.stdin.write("\n")
                one.stdin.flush()
                assert one.stdout.readline() == "done\n"
            rows = [
                row for batch in probe.drain(time.monotonic_ns()) for row in batch.rows.to_pylist()
            ]
            rows += [row for batch in probe.stop() for row in batch.rows.to_pylist()]
            report = probe.report()
        finally:
            list(calls.stop())
            calls.wait_detached(10.0)
    finally:
        for one in both:
            one.kill()
            one.wait()
    assert len(rows) == 7 == report.n_rows
    assert {(row["kind"], row["pid"], row["tid"]) for row in rows} == {
        ("gc", process.pid, process.pid)
    }
    assert all(100_000 <= row["duration_ns"] < 5_000_000_000 for row in rows)
    assert report.details == {"pids": [process.pid]}


def test_it_does_not_run_without_the_calls() -> None:
    tree = TargetTree([os.getpid()])
    probe = GarbageCollections(CudaCalls(tree), tree)
    with pytest.raises(ProbeError, match="beside CUDA calls"):
        probe.start()
    assert probe.report().details == {"pids": []}
