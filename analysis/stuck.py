"""Processes that stand still at the end of a recording, and what each of them launched last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis.facts import Facts

Ints = npt.NDArray[np.int64]

#: Kinds of calls in which a thread waits for a device that does not go on.
WAITS = ("sync", "copy", "launch", "graph_launch", "memory", "wait", "query")
#: How long a call must be open: ten times the longest completed wait, and at least 3 s; 10 s where
#: no completed wait tells what is usual. Prefills of very long prompts take a second or two.
OPEN_RATIO = 10
OPEN_NS = 3_000_000_000
OPEN_NS_UNKNOWN = 10_000_000_000
#: Time before a stall in which the kernels that a process launched are looked at, ns.
_LOOK_BACK_NS = 60 * 1_000_000_000
#: Words in the names of kernels that exchange data between devices.
_COLLECTIVE_WORDS = (
    "nccl",
    "rccl",
    "allreduce",
    "all_reduce",
    "allgather",
    "all_gather",
    "reducescatter",
    "reduce_scatter",
    "alltoall",
    "all_to_all",
    "sendrecv",
    "broadcast_ring",
    "nvshmem",
)


@dataclass(frozen=True)
class Rank:
    """One process that stands still.

    Attributes:
        pid: The process.
        device: Its device.
        opened: Its open call, as a row of ``open_call``; None when it is in no call.
        kernel: What it launched last: a kernel's name, else its handle; None without a launch.
        launched: Times at which it launched that kernel, ns.
        history: Times of its launches by kernel, ns.
        is_collective: Whether the last launch is known to be a collective.
    """

    pid: int
    device: int | None
    opened: dict[str, Any] | None
    kernel: str | int | None
    launched: Ints
    history: dict[str | int, Ints] = field(repr=False)
    is_collective: bool


def threshold(facts: Facts, pid: int) -> int:
    """Return the age in ns from which an open wait is beyond anything this process did before."""
    calls = facts.calls
    if calls is None:
        return OPEN_NS_UNKNOWN
    waits = calls.duration[calls.is_sync & calls.of_process(pid)]
    if len(waits) == 0:
        return OPEN_NS_UNKNOWN
    return max(OPEN_NS, OPEN_RATIO * int(waits.max()))


def is_still_open(facts: Facts, row: dict[str, Any]) -> bool:
    """Return whether a snapshot is from the end of the recording, not of a process that ended."""
    return int(row["time_ns"]) >= facts.end_ns - OPEN_NS


def ranks(facts: Facts) -> list[Rank]:
    """Return every process that works on a device, if all of them stand still and one waits in a
    call for longer than ever before; none otherwise.
    """
    opened: dict[int, dict[str, Any]] = {}
    for row in facts.open_calls:
        if row["kind"] in WAITS and not row["is_doubtful"] and is_still_open(facts, row):
            former = opened.get(int(row["pid"]))
            if former is None or int(row["start_ns"]) < int(former["start_ns"]):
                opened[int(row["pid"])] = row
    limits = {pid: threshold(facts, pid) for pid in opened}
    opened = {
        pid: row
        for pid, row in opened.items()
        if facts.end_ns - int(row["start_ns"]) >= limits[pid]
    }
    calls = facts.calls
    if not opened or calls is None:
        return []
    since = min(int(row["start_ns"]) for row in opened.values())
    quiet_from = since + max(limits[pid] for pid in opened) // 2
    if (calls.start[calls.is_submission] > quiet_from).any():
        return []
    history = _history(facts, since)
    result = []
    for pid in facts.processes:
        own = history.get(pid, {})
        last = max(own, key=lambda kernel: int(own[kernel][-1]), default=None)
        result.append(
            Rank(
                pid,
                facts.device_of[pid],
                opened.get(pid),
                last,
                own[last] if last is not None else np.empty(0, dtype=np.int64),
                own,
                _is_collective(last),
            )
        )
    return result


def _is_collective(kernel: str | int | None) -> bool:
    if not isinstance(kernel, str):
        return False
    word = kernel.lower()
    return any(part in word for part in _COLLECTIVE_WORDS)


def _history(facts: Facts, since: int) -> dict[int, dict[str | int, Ints]]:
    """Times of launches by process and kernel, in the time before a stall."""
    columns = ["start_ns", "pid", "kind", "depth", "function", "kernel"]
    rows = facts.session.table("cuda_call", since - _LOOK_BACK_NS, columns=columns)
    kinds = pa.array(["launch", "graph_launch", "collective"])
    rows = rows.filter(pc.and_(pc.is_in(rows["kind"], kinds), pc.equal(rows["depth"], 0)))
    names = _names(facts)
    is_call = pc.equal(rows["kind"], "collective")
    found: dict[int, dict[str | int, Ints]] = {}
    calls, launches = rows.filter(is_call), rows.filter(pc.invert(is_call))
    for pid, function, times in _grouped(calls, "function"):
        _add(found, pid, f"nccl call {function}", times)
    for pid, kernel, times in _grouped(launches, "kernel"):
        _add(found, pid, names.get((pid, kernel), kernel), times)
    return found


def _grouped(rows: pa.Table, column: str) -> list[tuple[int, Any, Ints]]:
    """Times of rows by process and value of a column, nulls left out."""
    rows = rows.filter(pc.is_valid(rows[column]))
    if rows.num_rows == 0:
        return []
    codes = rows[column].combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    index = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    values = codes.dictionary.to_pylist()
    pid = rows["pid"].to_numpy().astype(np.int64)
    start = rows["start_ns"].to_numpy()
    keys, inverse = np.unique(pid * len(values) + index, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(start[order], np.cumsum(np.bincount(inverse))[:-1])
    return [
        (key // len(values), values[key % len(values)], part)
        for key, part in zip(keys.tolist(), parts, strict=True)
    ]


def _add(found: dict[int, dict[str | int, Ints]], pid: int, key: str | int, times: Ints) -> None:
    own = found.setdefault(pid, {})
    former = own.get(key)
    own[key] = times if former is None else np.sort(np.concatenate((former, times)))


def collectives_by_process(facts: Facts) -> dict[int, Ints]:
    """Return when each process launched collectives, ns: calls of a collective library, and
    launches of kernels that are named like one; nothing for a single device.
    """
    if len({facts.device_of[pid] for pid in facts.processes}) < 2:
        return {}
    named = [kernel for (_pid, kernel), name in _names(facts).items() if _is_collective(name)]
    if not named and (facts.calls is None or not facts.calls.is_kind("collective").any()):
        return {}
    columns = ("start_ns", "pid", "kind", "depth", "kernel")

    def convert(part: pa.Table) -> pa.Table:
        is_call = pc.equal(part["kind"], "collective")
        is_kernel = pc.fill_null(pc.is_in(part["kernel"], pa.array(named, pa.uint64())), False)
        is_one = pc.and_(pc.equal(part["depth"], 0), pc.or_(is_call, is_kernel))
        return part.filter(is_one).select(["start_ns", "pid"])

    parts = facts.session.collect("cuda_call", columns, convert)
    if not parts:
        return {}
    rows = pa.concat_tables(parts)
    pid, start = rows["pid"].to_numpy(), rows["start_ns"].to_numpy()
    return {int(one): np.sort(start[pid == one]) for one in np.unique(pid)}


def _names(facts: Facts) -> dict[tuple[int, int], str]:
    if not facts.session.has("kernel_function"):
        return {}
    rows = facts.session.table("kernel_function", columns=["time_ns", "pid", "kernel", "name"])
    columns = (rows[name].to_pylist() for name in ("pid", "kernel", "name"))
    return {(pid, kernel): name for pid, kernel, name in zip(*columns, strict=True) if name}
