"""What a probe is: a named source of record batches with declared tables and requirements."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from analysis.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Requirement:
    """One thing a probe needs on this machine.

    Attributes:
        name: What is needed, e.g. ``kernel headers``.
        is_met: Whether it is there.
        detail: What was found or is missing, one sentence.
        loss: What cannot be told without it, one sentence.
        remedy: Command or step that mends it; empty when met.
    """

    name: str
    is_met: bool
    detail: str
    loss: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Batch:
    """Rows of one table, in that table's Arrow schema; columns of text may be coded: of type
    dictionary, with one and the same dictionary in every batch of a source.

    ``held_ns`` is how long the source kept back the oldest of them, where that is long: it counts
    for the time that the session keeps rows before they are written.
    """

    table: Table
    rows: pa.RecordBatch
    held_ns: int = 0


@dataclass(frozen=True)
class SourceReport:
    """What a probe did in a recording, for the manifest.

    Attributes:
        name: The probe's name.
        n_rows: Rows it delivered.
        n_lost: Records it knows to have lost.
        cost_ns: CPU or driver time that it knows to have cost, null if not measured.
        note: One sentence for the reader, e.g. why it was not available.
        details: JSON-able facts, e.g. the functions probed and their hits.
    """

    name: str
    n_rows: int
    n_lost: int
    cost_ns: int | None = None
    note: str = ""
    details: Mapping[str, Any] | None = None


class PidSource(Protocol):
    """Whatever tells the processes being recorded."""

    def pids(self) -> set[int]:
        """Return the ids of the processes."""


class ProbeError(Exception):
    """A probe cannot run here; the text says what failed and what to do."""


class Probe(Protocol):
    """A source of rows. The recorder calls start once, drain repeatedly, stop once."""

    name: str
    tables: Sequence[Table]
    #: Longest time between two drains, in ns.
    period_ns: int

    def start(self) -> None:
        """Begin observing.

        Raises:
            ProbeError: it cannot run here; the recording goes on without it.
        """

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return the rows that became complete since the last call; never blocks for long."""

    def stop(self) -> Iterable[Batch]:
        """Stop observing and return what is left; must not stall the target."""

    def report(self) -> SourceReport:
        """Return what it did so far; callable at any time after start."""


@runtime_checkable
class Detaching(Protocol):
    """A probe that is removed from the target in the background after its stop."""

    def wait_detached(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` s until it is gone; return whether it is."""


@runtime_checkable
class LookingCloser(Protocol):
    """A probe that can observe more for a while, when something has happened."""

    def look_closer(self, now_ns: int) -> None:
        """Begin, or go on, to observe more for as long as the probe was told to."""


#: What mends a shortage of the system, whatever was to be done.
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files: ulimit -n 65536",
    errno.ENFILE: "raise the system's limit of open files: sysctl fs.file-max",
    errno.ENOMEM: "free memory",
    errno.EAGAIN: "raise the limit of processes: ulimit -u",
    errno.ENOSPC: "make room",
}


def remedy(error: OSError, otherwise: str = "run as root on the host") -> str:
    """Return what mends an error of the system: a shortage by its kind, else what is given."""
    return _REMEDIES.get(error.errno or 0, otherwise)


def make_batch(table: Table, columns: Mapping[str, Any]) -> Batch:
    """Return a batch of ``table`` from columns of equal length.

    Args:
        table: Declaration of the table.
        columns: Column name to NumPy array, list or Arrow array; nullable columns may be absent.
            Text may be coded, and stays so.

    Raises:
        ValueError: a required column is absent, or one is not declared.
    """
    import pyarrow as pa

    unknown = columns.keys() - table.column_names
    if unknown:
        raise ValueError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    length = len(next(iter(columns.values())))
    schema = table.arrow_schema()
    arrays = []
    coded = {}
    for column, type_ in zip(table.columns, table.arrow_types, strict=True):
        values = columns.get(column.name)
        if values is None:
            if not column.nullable:
                raise ValueError(f"table {table.name} needs column {column.name}")
            arrays.append(_nulls(type_, length))
        elif isinstance(values, pa.DictionaryArray) and column.type == "str":
            arrays.append(values)
            coded[column.name] = values.type
        elif isinstance(values, (pa.Array, pa.ChunkedArray)):
            arrays.append(values if values.type == type_ else values.cast(type_))
        else:
            arrays.append(_array(values, type_))
    if coded:
        schema = _coded_schema(schema, tuple(coded.items()))
    return Batch(table, pa.RecordBatch.from_arrays(arrays, schema=schema))


def _array(values: Any, type_: pa.DataType) -> pa.Array:
    """An array of a column's values; what is no text in a name of a file is written as its code."""
    import pyarrow as pa

    try:
        return pa.array(values, type=type_)
    except UnicodeEncodeError:
        told = [
            None if text is None else text.encode("utf-8", "backslashreplace") for text in values
        ]
        return pa.array([None if text is None else text.decode() for text in told], type=type_)


#: Schemas with coded columns, by the declared schema and what is coded; that of a table is made
#: once, so its identity stands for it.
_coded_schemas: dict[tuple[int, tuple[tuple[str, Any], ...]], tuple[Any, Any]] = {}


def _coded_schema(declared: pa.Schema, coded: tuple[tuple[str, pa.DataType], ...]) -> pa.Schema:
    """A declared schema with other types for some columns; made once."""
    found = _coded_schemas.get((id(declared), coded))
    if found is None:
        schema = declared
        for name, kind in coded:
            place = schema.get_field_index(name)
            schema = schema.set(place, schema.field(place).with_type(kind))
        found = _coded_schemas[id(declared), coded] = (declared, schema)
    return found[1]


#: Nulls of each type, which batches share: columns that a source cannot fill cost no memory.
_shared_nulls: dict[Any, Any] = {}


def _nulls(kind: pa.DataType, n: int) -> pa.Array:
    """So many nulls of a type."""
    import pyarrow as pa

    found = _shared_nulls.get(kind)
    if found is None or len(found) < n:
        found = _shared_nulls[kind] = pa.nulls(max(n, 1024), kind)
    return found.slice(0, n)
