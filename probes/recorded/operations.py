"""Operation logs of training jobs: Parquet plus YAML, in the layout of ByteDance's analysis.

Times in such a log are seconds since the begin of each step, and steps may be missing between
those logged. The steps are laid end to end in the order of their numbers, the first at 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.schema import OPERATION
from probes.probe import Batch, make_batch
from probes.recorded.calls import nullable
from probes.recorded.recording import BATCH_ROWS, NAME_CHARACTERS, Problems, RecordingError

MAGIC = b"PAR1"

_REQUIRED = ("rank", "step", "optype", "start_ts", "duration")
_OPTIONAL = {
    "dp_rank": "dp_rank",
    "stage": "stage",
    "tp_rank": "tp_rank",
    "microbatch": "mb_id",
    "model_chunk": "mc",
    "sequence": "seq_id",
}
_SIZES = ("dp_size", "pp_size", "tp_size", "dsp_size", "vpp_size", "world_size")
_MAX_META_BYTES = 64 << 10
_MAX_STEPS = 1_000_000
_MAX_SECONDS = 1e6
_COMPUTE = re.compile(r"compute|^optimizer$")
_COMMUNICATION = re.compile(
    r"send|recv|all-?reduce|reduce-?scatter|all-?gather|all-?to-?all|broadcast"
)


class OperationsRecording:
    """One job's operation log.

    Args:
        path: The Parquet file; ``meta-X.yaml`` beside ``trace-X.parquet`` is read if it is there.

    Raises:
        RecordingError: it is no Parquet file, or not of this layout.
    """

    format = "operations"

    def __init__(self, path: Path) -> None:
        self.problems = Problems()
        self._path = path
        try:
            self._file = pq.ParquetFile(path)
            names = self._file.schema_arrow.names
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:200]
            raise RecordingError(
                f"{path} cannot be read as Parquet ({reason}); copy it again"
            ) from None
        missing = [name for name in _REQUIRED if name not in names]
        if missing:
            raise RecordingError(
                f"{path} has no column {', '.join(missing)}; an operation log has "
                f"{', '.join(_REQUIRED)}"
            )
        self._columns = [*_REQUIRED, *(name for name in _OPTIONAL.values() if name in names)]
        self._end_ns: int | None = None

    def manifest_facts(self) -> dict[str, Any]:
        """Return what a session's manifest says of it; see ``Recording``."""
        return {
            "origin": self.format,
            "host": {},
            "gpus": [],
            "targets": [],
            "sources": [
                {
                    "name": "operations",
                    "state": "ok",
                    "tables": ["operation"],
                    "details": {**self._sizes(), "time_base": "steps laid end to end"},
                }
            ],
            "start_ns": 0,
            "end_ns": self._end_ns,
            "start_realtime_ns": None,
        }

    def _sizes(self) -> dict[str, int]:
        """Sizes of the job from the file beside the log: only ``NAME: NUMBER`` lines count."""
        path = self._path.with_name(self._path.stem.replace("trace", "meta", 1) + ".yaml")
        if path.is_symlink() or not path.is_file():
            return {}
        with path.open("rb") as file:
            text = file.read(_MAX_META_BYTES).decode("utf-8", "replace")
        found = re.findall(r"^\s*(\w+)\s*:\s*(\d{1,9})\s*$", text, re.MULTILINE)
        return {name: int(value) for name, value in found if name in _SIZES}

    def batches(self) -> Iterator[Batch]:
        """Yield the rows; see ``Recording``."""
        steps, starts = self._layout()
        for rows in self._rows(self._columns):
            yield self._convert(rows, steps, starts)

    def _rows(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._file.iter_batches(BATCH_ROWS, columns=columns):
                rows.validate(full=True)  # of a damaged file, a place beyond the words it names
                yield rows
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:200]
            raise RecordingError(f"{self._path} is damaged ({reason}); copy it again") from None

    def _layout(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the steps' numbers and when each begins in the session."""
        lengths: dict[int, int] = {}
        for rows in self._rows(["step", "start_ts", "duration"]):
            step, no_step = _integers(rows["step"])
            end_ns = _nanoseconds(rows["start_ts"])[0] + _nanoseconds(rows["duration"])[0]
            numbers, inverse = np.unique(step[~no_step], return_inverse=True)
            longest = np.zeros(len(numbers), np.int64)
            np.maximum.at(longest, inverse, end_ns[~no_step])
            for number, length in zip(numbers.tolist(), longest.tolist(), strict=True):
                lengths[number] = max(length, lengths.get(number, 0))
            if len(lengths) > _MAX_STEPS:
                raise RecordingError(
                    f"{self._path} has more than {_MAX_STEPS} steps; is 'step' the step's number?"
                )
        steps = np.array(sorted(lengths), np.int64)
        ends = np.cumsum([lengths[step] for step in steps.tolist()], dtype=np.int64)
        self._end_ns = int(ends[-1]) if len(ends) else 0
        return steps, np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends

    def _convert(
        self,
        rows: pa.RecordBatch,
        steps: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
    ) -> Batch:
        (start, no_start), (duration, no_duration) = (
            _nanoseconds(rows["start_ts"]),
            _nanoseconds(rows["duration"]),
        )
        (rank, no_rank), (step, no_step) = _integers(rows["rank"]), _integers(rows["step"])
        name = rows["optype"].cast(pa.string())
        no_name = name.is_null().to_numpy(zero_copy_only=False)
        no_rank = no_rank | (rank < 0) | (rank >= 1 << 31)
        self.problems.add(
            "operation without rank, step or kind", int((no_rank | no_step | no_name).sum())
        )
        keep = ~(no_rank | no_step | no_name)
        self.problems.add(
            "operation without a possible time", int((keep & (no_start | no_duration)).sum())
        )
        keep &= ~(no_start | no_duration)
        time = np.where(keep, start, 0)
        if len(steps):
            time += starts[np.searchsorted(steps, np.where(keep, step, steps[0]))]
        index = np.flatnonzero(keep)
        index = index[np.argsort(time[index], kind="stable")]
        encoded = name.take(pa.array(index)).dictionary_encode()
        words = [word[:NAME_CHARACTERS] for word in encoded.dictionary.to_pylist()]
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        columns: dict[str, Any] = {
            "start_ns": time[index],
            "duration_ns": duration[index],
            "rank": rank[index],
            "step": step[index],
            "name": pa.array(words, pa.string()).take(encoded.indices),
            "is_compute": _matches(words, _COMPUTE)[codes],
            "is_communication": _matches(words, _COMMUNICATION)[codes],
        }
        for column, source in _OPTIONAL.items():
            if source in self._columns:
                values, is_null = _integers(rows[source])
                is_null = is_null | (values < 0) | (values >= 1 << 31)
                columns[column] = nullable(values[index], is_null[index])
        return make_batch(OPERATION, columns)


def is_operation_log(path: Path) -> bool:
    """Whether a Parquet file has the columns of an operation log."""
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return False
    return set(_REQUIRED) <= set(names)


def _matches(words: list[str], pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    return np.array([pattern.search(word) is not None for word in words], bool)


def _integers(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    if not pa.types.is_integer(column.type):
        return np.zeros(len(column), np.int64), np.ones(len(column), bool)
    values = column.cast(pa.int64(), safe=False)
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    return values.fill_null(0).to_numpy(zero_copy_only=False), is_null


def _nanoseconds(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Nanoseconds of seconds, and where they are missing, negative, not finite or absurd."""
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        return np.zeros(len(column), np.int64), np.ones(len(column), bool)
    seconds = pc.cast(column, pa.float64(), safe=False).fill_null(float("nan")).to_numpy()
    is_bad = ~((seconds >= 0) & (seconds <= _MAX_SECONDS))
    return np.rint(np.where(is_bad, 0, seconds) * 1e9).astype(np.int64), is_bad
