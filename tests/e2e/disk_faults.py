"""Faults of the disk that a session is on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.fault_cases import (
    PATIENCE_S,
    Outcome,
    Recording,
    Tracer,
    examine,
    kinds,
    many,
    n_lost,
)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    mount = folder / f"disk{time.monotonic_ns()}"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def disk_full(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The disk fills up, and stays full; in every other run old detail is dropped meanwhile."""

    def one(index: int) -> Outcome:
        outcome = Outcome("disk full")
        with small_disk(folder, f"{300 + 40 * index}k") as disk:
            keep = ["--keep-s", 6] if index % 2 else []
            recording = Recording(disk / "s", "--calls-per-s", 20_000, *keep)
            time.sleep(5 + len(keep) * 3)
            filler = disk / "filler"
            with contextlib.suppress(OSError):
                filler.write_bytes(b"x" * (os.statvfs(disk).f_bavail * 4096))
            time.sleep(7)
            recording.end(signal.SIGTERM)
            session = examine(outcome, recording.path, None)
            # What was held back may have room for all that waited.
            code = 6 if n_lost(session) else 0
            outcome.expect(recording.process.returncode == code, "its exit code does not say it")
            outcome.expect(session.manifest.end_reason != "crashed", "it did not say why it ended")
            del session
            filler.unlink(missing_ok=True)
        return outcome

    return many("disk full", n_runs, one)


def min_free(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The disk fills up: the recording ends before, cleanly."""
    outcome = Outcome("little disk left")
    for _ in range(n_runs):
        with small_disk(folder, "1m") as disk:
            recording = Recording(disk / "s", "--calls-per-s", 20_000, "--min-free", 600_000)
            recording.process.wait(PATIENCE_S)
            until_ns = time.monotonic_ns()
            left = os.statvfs(disk).f_bavail * 4096
            session = examine(outcome, recording.path, until_ns)
            outcome.expect(session.manifest.end_reason == "disk_low", "it did not say why it ended")
            outcome.expect(n_lost(session) == 0, "rows were lost")
            outcome.expect(left > 300_000, f"only {left} bytes were left")
    return outcome


def read_only(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The file system becomes read-only for a while."""

    def one(index: int) -> Outcome:
        outcome = Outcome("read-only remount")
        with small_disk(folder, "16m") as disk:
            recording = Recording(disk / "s")
            time.sleep(4)
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            time.sleep(7)
            if index % 2:
                recording.end(signal.SIGTERM)
                examine(outcome, recording.path, None)
                return outcome
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            time.sleep(8)
            until_ns = recording.end(signal.SIGTERM)
            session = examine(outcome, recording.path, until_ns)
            outcome.expect(n_lost(session) > 0, "what was lost is not told")
            outcome.expect("source_recovered" in kinds(session), "its return is not told")
        return outcome

    return many("read-only remount", n_runs, one)


@contextmanager
def quota_disk(folder: Path, n_bytes: int) -> Iterator[Path]:
    """A folder with a quota of so many bytes on a file system with more room (btrfs)."""
    image, mount = (folder / f"{name}{time.monotonic_ns()}" for name in ("image", "quota"))
    with image.open("wb") as file:
        file.truncate(160 << 20)
    mount.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        place = mount / "home"
        _btrfs("quota", "enable", mount)
        _btrfs("subvolume", "create", place)
        _btrfs("qgroup", "limit", n_bytes, place)
        yield place
    finally:
        subprocess.run(["umount", "-l", mount], check=True)
        image.unlink()


def _btrfs(*words: object) -> None:
    subprocess.run(["btrfs", *map(str, words)], check=True, capture_output=True)


def quota(folder: Path, n_runs: int, seed: int) -> Outcome:
    """A quota is used up; in every other run it is raised later."""
    outcome = Outcome("quota")
    if shutil.which("mkfs.btrfs") is None:
        outcome.seen.append("not done: it needs btrfs-progs")
        return outcome
    for index in range(n_runs):
        is_raised = index % 2 == 1
        with quota_disk(folder, (1500 + 200 * index) << 10) as place:
            recording = Recording(place / "s", "--calls-per-s", 20_000)
            filler = place / "filler"
            time.sleep(4)
            with contextlib.suppress(OSError), filler.open("wb", 0) as file:
                while True:
                    file.write(b"x" * 4096)
            time.sleep(7)
            if is_raised:
                _btrfs("qgroup", "limit", 60 << 20, place)
                time.sleep(8)
            until_ns = recording.end(signal.SIGTERM)
            session = examine(outcome, recording.path, until_ns if is_raised else None)
            outcome.expect(recording.process.returncode == 6, "its exit code does not say it")
            outcome.expect(session.manifest.end_reason != "crashed", "it did not say why it ended")
            reasons = set(session.table("loss")["reason"].to_pylist()) if n_lost(session) else set()
            outcome.expect("disk_full" in reasons, f"it says {sorted(reasons)} of the quota")
            if is_raised:
                outcome.expect("source_recovered" in kinds(session), "its return is not told")
            del session
    return outcome


def disk_gone(folder: Path, n_runs: int, seed: int) -> Outcome:
    """A full disk is taken away while it is written (lazily unmounted)."""
    outcome = Outcome("disk taken away")
    target = subprocess.Popen(["sleep", "1000"])
    try:
        for _ in range(n_runs):
            with small_disk(folder, "300k") as disk:
                inside = os.open(disk, os.O_PATH | os.O_DIRECTORY)
                tracer = Tracer("--pid", target.pid, "-o", disk / "s", "--min-free", 0)
                with contextlib.suppress(OSError):
                    (disk / "filler").write_bytes(b"x" * (os.statvfs(disk).f_bavail * 4096))
                time.sleep(4)
            try:
                _, said = tracer.process.communicate(timeout=PATIENCE_S)
                examine(outcome, Path(f"/proc/{os.getpid()}/fd/{inside}/s"), None)
            finally:
                os.close(inside)
            outcome.expect("was removed or moved" in said, "it did not say what happened")
            outcome.expect(tracer.process.returncode == 6, "its exit code does not say it")
    finally:
        target.kill()
        target.wait()
    return outcome
