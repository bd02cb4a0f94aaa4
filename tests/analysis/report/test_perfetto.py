"""The trace is what Perfetto's own definitions read, with the counts of the session."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from analysis import attribute
from analysis.report.trace import wire
from analysis.report.trace.export import write_perfetto
from analysis.timeline import Session
from tests.analysis.builder import S, SessionBuilder
from tests.analysis.report.sessions import HOSTILE, hostile, story, traced

Event = protos.TrackEvent


def read(path: Path) -> Any:
    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    return trace


class Trace:
    """The packets put together again: tracks by uuid, and slices with their names."""

    def __init__(self, path: Path) -> None:
        self.tracks: dict[int, Any] = {}
        self.slices: list[dict[str, Any]] = []
        self.counters: Counter[str] = Counter()
        self.instants = 0
        self.clocks: list[Any] = []
        self._defaults: dict[int, int] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._texts: dict[tuple[int, int], str] = {}
        self._open: dict[int, list[dict[str, Any]]] = {}
        for packet in read(path).packet:
            self._read(packet)
        assert not any(self._open.values()), "a slice has no end"

    def _read(self, packet: Any) -> None:
        sequence = packet.trusted_packet_sequence_id
        assert sequence
        if packet.HasField("clock_snapshot"):
            self.clocks.append(packet.clock_snapshot)
        if packet.HasField("trace_packet_defaults"):
            self._defaults[sequence] = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if packet.HasField("track_descriptor"):
            self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        for word in packet.interned_data.event_names:
            self._names[sequence, word.iid] = word.name
        for word in packet.interned_data.debug_annotation_string_values:
            self._texts[sequence, word.iid] = word.str.decode()
        if packet.HasField("track_event"):
            self._event(packet, self._defaults[sequence], sequence)

    def _event(self, packet: Any, track: int, sequence: int) -> None:
        event, time = packet.track_event, packet.timestamp
        stack = self._open.setdefault(track, [])
        if event.type == Event.TYPE_SLICE_BEGIN:
            details = [self._texts[sequence, a.string_value_iid] for a in event.debug_annotations]
            found = {"track": track, "start": time, "name": self._names[sequence, event.name_iid]}
            found |= {"details": details, "flows": list(event.flow_ids), "depth": len(stack)}
            self.slices.append(found)
            stack.append(found)
        elif event.type == Event.TYPE_SLICE_END:
            stack.pop()["end"] = time
        elif event.type == Event.TYPE_COUNTER:
            descriptor = self.tracks[track]
            assert descriptor.HasField("counter")
            self.counters[descriptor.name] += 1
        else:
            self.instants += 1

    def on(self, *words: str) -> list[dict[str, Any]]:
        """Slices of tracks whose own name, or whose thread, is one of these."""
        return [item for item in self.slices if self.label(item["track"]) in words]

    def label(self, uuid: int) -> str:
        track = self.tracks[uuid]
        return str(track.thread.tid) if track.HasField("thread") else track.name


def exported(session: Session, path: Path) -> Trace:
    write_perfetto(session, attribute(session), path)
    return Trace(path)


def test_calls_waits_and_activities_are_all_there(tmp_path: Path) -> None:
    session, counts = traced(tmp_path / "s.tracer")
    trace = exported(session, tmp_path / "t")
    calls = trace.on("11", "12")
    assert len(calls) == counts["cuda_call"]
    assert {(item["name"], item["depth"]) for item in calls} == {
        ("cudaLaunchKernel", 0),
        ("cuLaunchKernel", 1),
    }
    assert {item["end"] - item["start"] for item in calls} == {12_000}
    assert {tuple(item["details"]) for item in calls if item["depth"] == 0} == {
        ("k0",),
        ("k1",),
        ("k2",),
    }
    waits = trace.on("off CPU")
    assert len(waits) == counts["offcpu"]
    assert {(item["name"], *item["details"]) for item in waits} == {("preempted", "hog (5)")}
    assert len(trace.on("stream 7 of process 10", "overlapping 2")) == counts["gpu_activity"]
    assert trace.counters["utilisation"] == trace.counters["power"] == 5


def test_launches_flow_to_their_kernels(tmp_path: Path) -> None:
    session, counts = traced(tmp_path / "s.tracer")
    trace = exported(session, tmp_path / "t")
    ends: dict[int, list[str]] = {}
    for item in trace.slices:
        for flow in item["flows"]:
            ends.setdefault(flow, []).append(item["name"])
    assert len(ends) == counts["gpu_activity"]
    assert all(
        sorted(names)[0] == "cudaLaunchKernel" and len(names) == 2 for names in ends.values()
    )


def test_overlapping_kernels_of_a_stream_are_on_two_lines(tmp_path: Path) -> None:
    session, _counts = traced(tmp_path / "s.tracer")
    trace = exported(session, tmp_path / "t")
    second = trace.on("overlapping 2")
    assert second
    for item in trace.on("stream 7 of process 10", "overlapping 2"):
        assert item["depth"] == 0 and item["end"] - item["start"] == 30_000


def test_the_clocks_and_the_processes_are_told(tmp_path: Path) -> None:
    session, _counts = traced(tmp_path / "s.tracer")
    trace = exported(session, tmp_path / "t")
    assert trace.clocks[0].primary_trace_clock == protos.BUILTIN_CLOCK_MONOTONIC
    told = {clock.clock_id: clock.timestamp for clock in trace.clocks[0].clocks}
    assert told[1] == 1_700_000_000 * S and told[3] == 1000 * S
    processes = [track.process for track in trace.tracks.values() if track.HasField("process")]
    assert [(item.pid, item.process_name) for item in processes] == [(10, "service")]


def test_a_clock_is_named_only_where_it_can_be_mapped(tmp_path: Path) -> None:
    session, _counts = traced(tmp_path / "s.tracer")
    without = story(tmp_path / "w.tracer", "healthy")
    for opened, clocks in ((session, {protos.BUILTIN_CLOCK_MONOTONIC}), (without, {0})):
        write_perfetto(opened, attribute(opened), tmp_path / "t")
        packets = [
            item for item in read(tmp_path / "t").packet if item.HasField("track_descriptor")
        ]
        assert {item.trace_packet_defaults.timestamp_clock_id for item in packets} == clocks


@pytest.mark.parametrize("name", ["launch.cpu_delay", "hang.kernel"])
def test_findings_are_slices_with_their_sentence(tmp_path: Path, name: str) -> None:
    session = story(tmp_path / "s.tracer", name)
    found = attribute(session).findings[0]
    trace = exported(session, tmp_path / "t")
    slices = trace.on(f"1. {name} (found)")
    assert slices and slices[0]["name"] == name
    assert slices[0]["details"] == [found.summary]
    assert [item["name"] for item in trace.on("mostly")]


def test_an_event_takes_less_than_60_bytes(tmp_path: Path) -> None:
    session, _counts = traced(tmp_path / "s.tracer", n_steps=3000)
    n = write_perfetto(session, attribute(session), tmp_path / "t")
    assert n > 20_000
    assert (tmp_path / "t").stat().st_size / n < 60


def test_strange_names_arrive_as_text(tmp_path: Path) -> None:
    trace = exported(hostile(tmp_path / "s.tracer"), tmp_path / "t")
    names = [item.process.process_name for item in trace.tracks.values()]
    assert any(name.startswith(HOSTILE[:60]) for name in names)
    assert all(len(name) < 500 for name in names)


def test_a_call_without_a_return_is_a_moment_and_damaged_nesting_goes_aside(tmp_path: Path) -> None:
    call = {"pid": 1, "tid": 1, "layer": "runtime", "kind": "sync", "depth": 0}
    rows = [
        {**call, "start_ns": 100, "duration_ns": 50, "function": "a", "call_id": 1},
        {**call, "start_ns": 120, "duration_ns": 50, "function": "b", "call_id": 2},
        {**call, "start_ns": 130, "duration_ns": 5, "function": "c", "call_id": 3},
        {**call, "start_ns": 200, "duration_ns": None, "function": "d", "call_id": 4},
        {**call, "start_ns": 210, "duration_ns": 0, "function": "e", "call_id": 5},
    ]
    session = SessionBuilder(tmp_path / "s.tracer", start_ns=0, end_ns=S).add("cuda_call", rows)
    trace = exported(session.write(), tmp_path / "t")
    spans = {item["name"]: (item["start"], item["end"]) for item in trace.on("1", "overlapping 2")}
    assert spans == {"a": (100, 150), "b": (120, 170), "c": (130, 135), "e": (210, 210)}
    assert trace.instants == 1


def test_padded_numbers_are_read_as_they_were() -> None:
    values = np.array([0, 1, 127, 128, 1 << 40, (1 << 62) + 5], dtype=np.int64)
    rows = wire.message_column(1, wire.number_column(8, values, 9))
    trace = protos.Trace()
    trace.ParseFromString(rows.tobytes())
    assert [packet.timestamp for packet in trace.packet] == values.tolist()
    assert wire.varint(300) == b"\xac\x02"
