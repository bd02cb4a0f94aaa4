"""Opens a recording of another tool, its format told from its content, never from its name."""

from __future__ import annotations

from pathlib import Path

from probes.recorded.ingero import IngeroRecording, is_ingero
from probes.recorded.kineto import KinetoRecording, is_trace_file
from probes.recorded.nsys import NsysRecording, is_nsys
from probes.recorded.operations import MAGIC as PARQUET_MAGIC
from probes.recorded.operations import OperationsRecording, is_operation_log
from probes.recorded.recording import Recording, RecordingError
from probes.recorded.scrapes import ScrapesRecording, is_scrapes_file
from probes.recorded.sqlite_file import MAGIC, SqliteFile
from probes.recorded_formats import RECORDED_FORMATS

#: Formats that can be imported, sorted.
FORMATS = tuple(RECORDED_FORMATS)


def open_recording(path: Path | str, format: str | None = None) -> Recording:
    """Return the recording in a file or folder.

    Args:
        path: A file, or a folder with one file per rank.
        format: One of ``FORMATS`` to insist on; None to recognise it.

    Raises:
        RecordingError: it cannot be read, or is of none of the formats.
    """
    if format is not None and format not in FORMATS:
        raise RecordingError(f"'{format}' is no format; choose one of {', '.join(FORMATS)}")
    path = Path(path)
    try:
        recording = _recognise(path)
    except OSError as error:
        raise RecordingError(
            f"{path} cannot be read ({error.strerror}); check its rights"
        ) from None
    if recording is None:
        raise RecordingError(
            f"{path} is none of the known recordings ({', '.join(FORMATS)}); "
            "export it again or name its format with --format"
        )
    if format is not None and recording.format != format:
        raise RecordingError(
            f"{path} is a recording of {recording.format}, not of {format}; leave out --format"
        )
    return recording


def _recognise(path: Path) -> Recording | None:
    if path.is_dir():
        recording = KinetoRecording(path)
        return recording if recording.n_files else None
    if not path.is_file():
        raise RecordingError(
            f"{path} is no regular file; give the recording's own path"
            if path.exists()
            else f"{path} does not exist; check the path"
        )
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if head == MAGIC:
        return _open_sqlite(path)
    if head.startswith(PARQUET_MAGIC) and is_operation_log(path):
        return OperationsRecording(path)
    if is_scrapes_file(path):
        return ScrapesRecording(path)
    if is_trace_file(path):
        return KinetoRecording(path)
    return None


def _open_sqlite(path: Path) -> Recording | None:
    file = SqliteFile(path)
    if is_ingero(file):
        return IngeroRecording(file)
    if is_nsys(file):
        return NsysRecording(file)
    file.close()
    return None
