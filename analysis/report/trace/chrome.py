"""Writes a trace as Chrome's JSON: for tools that do not read Perfetto's own format.

Times are microseconds since the begin of the session, as numbers with three decimals: exact to the
nanosecond for weeks, which times since boot or since 1970 would not be.
"""

from __future__ import annotations

import json
from typing import IO

from analysis.report.trace.model import Instants, Item, Samples, Slices, Track

#: Process ids of tracks that belong to no process: above any that a kernel gives.
_FIRST_GROUP = 1 << 23


class ChromeWriter:
    """Writes items into an open text file; :meth:`close` ends the JSON.

    Args:
        file: Where the text goes.
        start_ns: Time that becomes 0, ns.
        facts: JSON-able facts about the session, kept beside the events.
    """

    def __init__(self, file: IO[str], start_ns: int, facts: dict[str, object]) -> None:
        self._file = file
        self._start_ns = start_ns
        self._places: dict[int, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self._flows: set[int] = set()
        self._is_first = True
        head = json.dumps({"displayTimeUnit": "ns", "otherData": facts})[:-1]
        file.write(f'{head}, "traceEvents": [\n')

    def close(self) -> None:
        """End the JSON; the file itself stays open."""
        self._file.write("\n]}\n")

    def write(self, item: Item) -> None:
        """Write one item; its track must have been written before."""
        if isinstance(item, Track):
            self._track(item)
        elif isinstance(item, Slices):
            self._slices(item)
        elif isinstance(item, Instants):
            pid, tid = self._places[item.track]
            for time, name in zip(item.time.tolist(), item.name.tolist(), strict=True):
                event = {"ph": "i", "s": "t", "name": item.names[name], "ts": self._us(time)}
                self._event({**event, "pid": pid, "tid": tid})
        else:
            self._samples(item)

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._start_ns) / 1000

    def _event(self, event: dict[str, object]) -> None:
        self._file.write(("" if self._is_first else ",\n") + json.dumps(event))
        self._is_first = False

    def _track(self, track: Track) -> None:
        self._names[track.uuid] = track.name
        if track.pid is not None:
            pid, tid = track.pid, track.tid if track.tid is not None else track.pid
        elif track.parent:
            # A line of its own below the same process; a counter shares the process.
            pid, tid = self._places[track.parent][0], _FIRST_GROUP + track.uuid
        else:
            pid = tid = _FIRST_GROUP + track.uuid
        self._places[track.uuid] = (pid, tid)
        if track.unit is not None:
            return
        is_thread = track.tid is not None or track.parent != 0
        name = "thread_name" if is_thread else "process_name"
        self._event({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": track.name}})

    def _slices(self, item: Slices) -> None:
        pid, tid = self._places[item.track]
        flows = item.flow.tolist() if item.flow is not None else [0] * len(item)
        columns = (item.start, item.end, item.name, item.detail)
        for start, end, name, detail, flow in zip(
            *(column.tolist() for column in columns), flows, strict=True
        ):
            event: dict[str, object] = {
                "ph": "X",
                "name": item.names[name],
                "ts": self._us(start),
                "dur": (end - start) / 1000,
                "pid": pid,
                "tid": tid,
            }
            if detail >= 0:
                event["args"] = {item.detail_name: item.details[detail]}
            self._event(event)
            if flow:
                self._flow(flow, start, pid, tid)

    def _flow(self, flow: int, time: int, pid: int, tid: int) -> None:
        """The launch begins a flow, what it started ends it."""
        is_begun = flow in self._flows
        self._flows.add(flow)
        event = {"ph": "f", "bp": "e"} if is_begun else {"ph": "s"}
        place = {"ts": self._us(time), "pid": pid, "tid": tid}
        self._event({**event, "id": flow, "name": "launch", "cat": "flow", **place})

    def _samples(self, item: Samples) -> None:
        pid, _tid = self._places[item.track]
        name = self._names[item.track]
        for time, value in zip(item.time.tolist(), item.value.tolist(), strict=True):
            place = {"ts": self._us(time), "pid": pid, "args": {"value": value}}
            self._event({"ph": "C", "name": name, **place})
