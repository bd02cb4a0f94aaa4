"""Makes a session whose recorder died tidy again: nothing half-written, an end, and a reason."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.manifest import FILE_NAME, Manifest, ManifestError
from analysis.schema import TABLES, Table
from probes.host.kernel_log import was_killed_for_memory
from tracer.errors import InputError, SessionError
from tracer.host_facts import boot_id
from tracer.lock import SessionLock, is_being_recorded
from tracer.segments import TEMPORARY_SUFFIX, list_segments, replace_file, split_visible

#: Reasons of the end that recovery writes: the second where the kernel's log tells it.
CRASHED, OUT_OF_MEMORY = "crashed", "out_of_memory"


@dataclass
class Recovery:
    """What :func:`recover` found: the last time seen in ns, the reason of the end, and what it
    removed or set aside.
    """

    end_ns: int | None = None
    end_reason: str | None = None
    n_rows: int = 0
    was_finished: bool = False
    removed: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def recover(path: Path) -> Recovery:
    """Return what was mended in a session; a finished one is only checked.

    Temporary files and segments that a merged one covers are removed, unreadable segments get the
    suffix ``.damaged``, and the manifest gets the last time seen as its end and ``crashed`` as its
    reason, or ``out_of_memory`` where the kernel says that it killed the recorder for that.

    Raises:
        InputError: it is not a session.
        SessionError: it is still being recorded, or cannot be written.
    """
    try:
        manifest = Manifest.read(path)
    except ManifestError as error:
        raise InputError(str(error)) from None
    try:
        lock = SessionLock.acquire(path)
        if lock is None:
            raise SessionError(f"{path} is still being recorded; stop the recorder first")
        try:
            return _mend(path, manifest)
        finally:
            lock.release()
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "make room there and repeat" if is_full else "repeat as its owner"
        raise SessionError(f"{path} cannot be mended ({error.strerror}); {remedy}") from None


def _mend(path: Path, manifest: Manifest) -> Recovery:
    result = Recovery(was_finished=manifest.end_ns is not None)
    for temporary in [
        *path.glob(f".*{TEMPORARY_SUFFIX}"),
        *path.glob(f"*/.*{TEMPORARY_SUFFIX}"),
    ]:
        temporary.unlink()
        result.removed.append(str(temporary.relative_to(path)))
    for table in TABLES:
        folder = path / table.name
        if folder.is_dir():
            _mend_table(path, folder, table, result)
    if not result.was_finished:
        manifest.end_ns = result.end_ns if result.end_ns is not None else manifest.start_ns
        manifest.end_reason = OUT_OF_MEMORY if _lacked_memory(manifest) else CRASHED
        replace_file(path / FILE_NAME, manifest.to_json().encode())
    result.end_reason = manifest.end_reason
    return result


def _lacked_memory(manifest: Manifest) -> bool:
    """Whether the kernel's log of the same boot has the recorder's end for lack of memory."""
    recorder = manifest.source("recorder")
    pid = recorder.details.get("pid") if recorder is not None else None
    if not isinstance(pid, int) or manifest.start_ns is None:
        return False
    if manifest.host.get("boot_id") != boot_id():
        return False
    return was_killed_for_memory(pid, manifest.start_ns)


def _mend_table(session: Path, folder: Path, table: Table, result: Recovery) -> None:
    # An unreadable merged file must not hide the readable ones that it covers.
    for file in sorted(folder.iterdir()):
        if file.suffix == ".parquet" and not _is_readable(file):
            file.rename(file.with_name(file.name + ".damaged"))
            result.damaged.append(str(file.relative_to(session)))
    for segment in split_visible(folder.iterdir())[1]:
        segment.path.unlink()
        result.removed.append(str(segment.path.relative_to(session)))
    for segment in list_segments(folder):
        with pq.ParquetFile(segment.path) as file:
            result.n_rows += file.metadata.num_rows
        last_ns = _last_time(segment.path, table)
        if last_ns is not None:
            result.end_ns = max(result.end_ns or last_ns, last_ns)


def _is_readable(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return not os.access(path, os.R_OK)
    return True


def _last_time(path: Path, table: Table) -> int | None:
    """Last instant of a segment in ns, from its footer; ends of intervals are not in there."""
    with pq.ParquetFile(path) as file:
        index = file.schema_arrow.get_field_index(table.order)
        times = [
            statistics.max
            for group in range(file.metadata.num_row_groups)
            if index >= 0
            and (statistics := file.metadata.row_group(group).column(index).statistics) is not None
            and statistics.has_min_max
        ]
    return max(times, default=None)


def mended_line(path: Path) -> str:
    """Return the sentence about a session that :func:`recover_crashed` mended."""
    why = "its recorder was killed, or could write no more"
    if Manifest.read(path).end_reason == OUT_OF_MEMORY:
        why = "the kernel killed its recorder for lack of memory"
    return (
        f"The recording of {path} ended without a last word ({why}); what it had written was "
        "mended."
    )


def recover_crashed(path: Path) -> Recovery | None:
    """Return what was mended where the recorder of a session died; None where nothing was to do.

    A session that is still being recorded, or that may only be read, is left as it is.
    """
    try:
        if Manifest.read(path).end_ns is not None or is_being_recorded(path):
            return None
        return recover(path)
    except (ManifestError, InputError, SessionError, OSError):
        return None
