"""Reads a session as a trace: yields tracks and what lies on them, table by table.

Tables are read in parts of at most a million rows; what is yielded can be written at once, in any
order of time: both formats sort by time when they are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.attribution import Attribution
from analysis.facts import Facts
from analysis.report.trace import counters
from analysis.report.trace.builder import Lines, Rows, encoded
from analysis.report.trace.model import Clocks, Ints, Item
from analysis.report.words import REASON_TEXT, STATE_TEXT, shown
from analysis.timeline import Session, TimelineError

_CALL_COLUMNS = (
    *("start_ns", "duration_ns", "pid", "tid", "function", "depth", "kernel"),
    "correlation_id",
)
_OFF_COLUMNS = (
    *("start_ns", "duration_ns", "pid", "tid", "state", "runnable_ns"),
    *("taker_tid", "taker_pid", "taker_name", "occupant_tid", "occupant_pid", "occupant_name"),
)
_ACTIVITY_COLUMNS = (
    *("start_ns", "duration_ns", "device", "pid", "stream", "kind", "name", "correlation_id"),
)
_ANNOTATION_COLUMNS = ("start_ns", "duration_ns", "pid", "tid", "category", "name")
#: Annotations that are ranges on the axis of time.
_RANGES = ("step", "user", "operator", "python", "os", "overhead")


def clocks_of(session: Session) -> Clocks | None:
    """Return the first reading of the clocks of a session, None where there is none."""
    if not session.has("clock_anchor"):
        return None
    rows = session.table("clock_anchor").slice(0, 1).to_pylist()
    if not rows:
        return None
    return Clocks(rows[0]["time_ns"], rows[0]["realtime_ns"], rows[0]["boottime_ns"])


def write_items(session: Session, attribution: Attribution, write: Callable[[Item], None]) -> None:
    """Hand the whole trace of a session to ``write``: every track before what lies on it.

    Raises:
        TimelineError: a running recording compacted the session meanwhile.
    """
    facts = Facts(session)
    lines = Lines(dict(facts.names), _thread_names(session))
    flows = _Flows(session)
    kernels = _kernel_names(session)

    def stream(
        table: str, columns: tuple[str, ...], convert: Callable[[pa.Table], Iterator[Item]]
    ) -> None:
        _each_part(session, table, columns, lambda part: _hand(convert(part), write))

    _hand(_findings(lines, attribution), write)
    _hand(_budget(lines, attribution), write)
    stream("cuda_call", _CALL_COLUMNS, lambda part: _calls(lines, part, kernels, flows))
    _hand(_open_calls(lines, facts), write)
    stream("offcpu", _OFF_COLUMNS, lambda part: _off_cpu(lines, part))
    stream("gpu_activity", _ACTIVITY_COLUMNS, lambda part: _activities(lines, part, flows))
    stream("annotation", _ANNOTATION_COLUMNS, lambda part: _annotations(lines, part))
    _hand(counters.all_counters(lines, session), write)
    stream("event", ("time_ns", "kind", "name"), lambda part: _events(lines, part))


def _hand(found: Iterator[Item], write: Callable[[Item], None]) -> None:
    for item in found:
        write(item)


def _thread_names(session: Session) -> dict[tuple[int, int], str]:
    if not session.has("thread_second"):
        return {}
    rows = session.table("thread_second", columns=["start_ns", "pid", "tid", "name"])
    pairs = zip(rows["pid"].to_pylist(), rows["tid"].to_pylist(), strict=True)
    return {key: name for key, name in zip(pairs, rows["name"].to_pylist(), strict=True) if name}


def _each_part(
    session: Session,
    table: str,
    columns: tuple[str, ...],
    handle: Callable[[pa.Table], None],
) -> None:
    """Call ``handle`` for each part of a table; nothing where it was not recorded."""
    if not session.has(table):
        return
    n_starts = 0

    def start_over() -> None:
        nonlocal n_starts
        n_starts += 1
        if n_starts > 1:
            raise TimelineError(
                f"table {table} was compacted while it was read; repeat when the recording is over"
            )

    session.collect(table, columns, handle, start_over=start_over)


def _by(rows: pa.Table, *columns: str) -> Iterator[tuple[tuple[int, ...], pa.Table]]:
    """Rows grouped by columns of whole numbers, null as -1, each group in its order."""
    keys = np.stack(
        [pc.fill_null(rows[name].cast(pa.int64()), -1).to_numpy() for name in columns], axis=1
    )
    if len(keys) == 0:
        return
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    order = np.argsort(inverse, kind="stable")
    cuts = np.append(np.searchsorted(inverse[order], np.arange(len(unique))), len(order))
    for index, key in enumerate(unique.tolist()):
        yield tuple(key), rows.take(pa.array(order[cuts[index] : cuts[index + 1]]))


def _spans(rows: pa.Table) -> tuple[Ints, Ints]:
    start = rows["start_ns"].to_numpy()
    return start, start + pc.fill_null(rows["duration_ns"], 0).to_numpy()


class _Flows:
    """Joins launches with the activities that they started, by process and correlation id."""

    def __init__(self, session: Session) -> None:
        found: list[Ints] = []
        _each_part(
            session,
            "gpu_activity",
            ("pid", "correlation_id"),
            lambda part: found.append(np.unique(self._ids(part))),
        )
        known = np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
        self._known = known[known != 0]

    @staticmethod
    def _ids(rows: pa.Table) -> Ints:
        """Ids of flows; 0 where a row has no correlation id."""
        pid = pc.fill_null(rows["pid"].cast(pa.int64()), 0).to_numpy()
        correlation = pc.fill_null(rows["correlation_id"], 0).to_numpy()
        mixed: Ints = ((pid & 0x7FFF_FFFF) << 32) | (correlation & 0xFFFF_FFFF)
        return np.where(correlation > 0, mixed, 0)

    def of(self, rows: pa.Table) -> Ints | None:
        """Return the flow of each row, 0 for none; None where the session has no flow."""
        if len(self._known) == 0:
            return None
        ids = self._ids(rows)
        at = np.minimum(np.searchsorted(self._known, ids), len(self._known) - 1)
        return np.where(self._known[at] == ids, ids, 0)


def _calls(
    lines: Lines, part: pa.Table, names: dict[tuple[int, int], str], flows: _Flows
) -> Iterator[Item]:
    """Every call that returned, on its thread; the kernel is its detail."""
    for (pid, tid), rows in _by(part, "pid", "tid"):
        yield from lines.thread(pid, tid)
        is_back = rows["duration_ns"].is_valid()
        unseen = rows.filter(pc.invert(is_back))
        rows = rows.filter(is_back)
        start, end = _spans(rows)
        detail = None
        if names:
            told = [names.get((pid, kernel)) for kernel in rows["kernel"].to_pylist()]
            detail = encoded(pa.array(told, pa.string()))
        yield from lines.slices(
            (pid, tid),
            Rows(
                start,
                end,
                encoded(rows["function"]),
                rows["depth"].to_numpy(),
                detail,
                "kernel",
                flows.of(rows),
            ),
        )
        if unseen.num_rows:
            word = pc.binary_join_element_wise(
                unseen["function"].cast(pa.string()), "return not seen", ": "
            )
            yield from lines.instants((pid, tid), unseen["start_ns"].to_numpy(), encoded(word))


def _kernel_names(session: Session) -> dict[tuple[int, int], str]:
    if not session.has("kernel_function"):
        return {}
    rows = session.table("kernel_function", columns=["time_ns", "pid", "kernel", "name"])
    return {(row["pid"], row["kernel"]): row["name"] for row in rows.to_pylist() if row["name"]}


def _open_calls(lines: Lines, facts: Facts) -> Iterator[Item]:
    """Calls that had not returned at the end, each from its entry to the last look."""
    for row in facts.open_calls:
        key = (row["pid"], row["tid"])
        yield from lines.thread(*key)
        yield from lines.child(key, "open at the end")
        span = np.array([row["start_ns"]]), np.array([max(row["time_ns"], row["start_ns"])])
        name = encoded(pa.array([f"{row['function']} (has not returned)"]))
        yield from lines.slices((key, "open at the end"), Rows(*span, name))


def _off_cpu(lines: Lines, part: pa.Table) -> Iterator[Item]:
    """Every interval off the CPU, below its thread: how it left, and who had the CPU."""
    for (pid, tid), rows in _by(part, "pid", "tid"):
        yield from lines.thread(pid, tid)
        yield from lines.child((pid, tid), "off CPU")
        start, end = _spans(rows)
        names = pa.array(
            [
                "preempted" if word == "running" else word or "off the CPU"
                for word in rows["state"].to_pylist()
            ]
        )
        yield from lines.slices(
            ((pid, tid), "off CPU"),
            Rows(start, end, encoded(names), None, _takers(rows), "CPU held by"),
        )


def _takers(rows: pa.Table) -> pa.DictionaryArray:
    """Who had the CPU while the thread was ready to run; null where it did not wait."""
    columns = [
        rows[f"{who}_{what}"].to_pylist()
        for who in ("occupant", "taker")
        for what in ("tid", "pid", "name")
    ]
    waited = rows["runnable_ns"].to_pylist()
    told: list[str | None] = []
    for ready, *tasks in zip(waited, *columns, strict=True):
        tid, pid, name = tasks[:3] if tasks[0] else tasks[3:]
        word = "an idle CPU" if tid == 0 else f"{name or 'a task'} ({pid if pid else tid})"
        told.append(word if ready and tid is not None else None)
    return encoded(pa.array(told, pa.string()))


def _activities(lines: Lines, part: pa.Table, flows: _Flows) -> Iterator[Item]:
    """Every activity of every GPU, by stream."""
    stream = pc.fill_null(part["stream"], 0).cast(pa.int64(), safe=False)
    part = part.set_column(part.column_names.index("stream"), "stream", stream)
    for (device, pid, stream_id), rows in _by(part, "device", "pid", "stream"):
        gpu = f"GPU {device}"
        yield from lines.group(gpu)
        owner = "" if pid < 0 else f" of process {pid}"
        handle = stream_id & 0xFFFF_FFFF_FFFF_FFFF
        line = f"stream {handle if handle < 1 << 16 else hex(handle)}{owner}"
        yield from lines.child(gpu, line)
        start, end = _spans(rows)
        name = pc.coalesce(rows["name"].cast(pa.string()), rows["kind"].cast(pa.string()))
        yield from lines.slices((gpu, line), Rows(start, end, encoded(name), flow=flows.of(rows)))


def _annotations(lines: Lines, part: pa.Table) -> Iterator[Item]:
    """Ranges that the program named, below their thread, one line a category."""
    ranges = part.filter(pc.is_in(part["category"].cast(pa.string()), pa.array(_RANGES)))
    for (pid, tid), own in _by(ranges, "pid", "tid"):
        key = (max(pid, 0), max(tid, 0))
        yield from lines.thread(*key)
        for category in _RANGES:
            rows = own.filter(pc.equal(own["category"].cast(pa.string()), category))
            if rows.num_rows:
                yield from lines.child(key, category)
                start, end = _spans(rows)
                yield from lines.slices((key, category), Rows(start, end, encoded(rows["name"])))


def _findings(lines: Lines, attribution: Attribution) -> Iterator[Item]:
    """Each finding on a line of its own; its sentence is the detail."""
    yield from lines.group("tracer: findings")
    for number, finding in enumerate(attribution.findings, start=1):
        spans = finding.spans
        if len(spans) == 0:
            if finding.start_ns is None or finding.end_ns is None:
                continue
            spans = np.array([[finding.start_ns, max(finding.end_ns, finding.start_ns)]])
        line = f"{number}. {finding.cause} ({finding.status.value})"
        yield from lines.child("tracer: findings", line)
        n = len(spans)
        name = encoded(pa.array([finding.cause] * n))
        text = shown(finding.summary or finding.undecided_because, 380)
        detail = encoded(pa.array([text] * n))
        yield from lines.slices(
            ("tracer: findings", line),
            Rows(spans[:, 0], spans[:, 1], name, None, detail, "finding"),
        )


def _budget(lines: Lines, attribution: Attribution) -> Iterator[Item]:
    """The leading state and reason of each window of each device, equal neighbours as one."""
    for budget in attribution.budgets:
        keys = list(budget.spent)
        if not keys:
            continue
        table = np.stack([budget.spent[key] for key in keys])
        leading = table.argmax(axis=0)
        first = np.flatnonzero(np.append(True, leading[1:] != leading[:-1]))
        last = np.append(first[1:], len(leading))
        words = []
        for state, reason in (keys[int(leading[at])] for at in first):
            tail = "" if reason in ("work", state) else f": {REASON_TEXT[reason]}"
            words.append(f"{STATE_TEXT[state]}{tail}")
        gpu = "Device" if budget.device is None else f"GPU {budget.device}"
        yield from lines.group(gpu)
        yield from lines.child(gpu, "mostly")
        yield from lines.slices(
            (gpu, "mostly"),
            Rows(budget.edges[first], budget.edges[last], encoded(pa.array(words))),
        )


def _events(lines: Lines, part: pa.Table) -> Iterator[Item]:
    """What happened: forks, libraries, Xids, lost sources."""
    if part.num_rows:
        yield from lines.group("tracer: events")
        word = pc.binary_join_element_wise(
            part["kind"].cast(pa.string()), part["name"].cast(pa.string()), ": "
        )
        yield from lines.instants("tracer: events", part["time_ns"].to_numpy(), encoded(word))
