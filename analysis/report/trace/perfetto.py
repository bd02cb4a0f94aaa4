"""Writes a trace in Perfetto's own format, packet by packet: nothing is held but one batch.

Every track is a packet sequence of its own, so that its uuid, its clock and its words are said
once; names are interned. Field numbers are those of Perfetto's ``trace_packet.proto`` and
``track_event.proto``; the tests read the result with Perfetto's own definitions.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from analysis.report.trace import wire
from analysis.report.trace.model import Clocks, Instants, Ints, Item, Samples, Slices, Track
from analysis.report.trace.nesting import positions
from analysis.report.trace.wire import Bytes

_PACKET = 1  # Trace
_CLOCK_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED = 6, 8, 10, 11, 12  # TracePacket
_FLAGS, _CLOCK, _DEFAULTS, _DESCRIPTOR = 13, 58, 59, 60
_ANNOTATION, _TYPE, _NAME_ID, _TRACK_ID, _DOUBLE, _FLOW = 4, 9, 10, 11, 44, 47  # TrackEvent
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_EVENT_NAMES, _ANNOTATION_NAMES, _STRINGS = 2, 3, 29  # InternedData
_STRING_ID = 17  # DebugAnnotation
_REALTIME, _MONOTONIC, _BOOTTIME = 1, 3, 6  # BuiltinClock
_CLEARED, _NEEDED = 1, 2  # TracePacket.SequenceFlags

#: Slices that are encoded at a time.
_CHUNK = 1 << 16


class PerfettoWriter:
    """Writes items into an open binary file.

    Args:
        file: Where the bytes go.
        clocks: A reading of the clocks, None where the session has none.
    """

    def __init__(self, file: IO[bytes], clocks: Clocks | None) -> None:
        self._file = file
        self._has_clocks = clocks is not None
        self._names: dict[int, dict[str, int]] = {}
        self._texts: dict[int, dict[str, int]] = {}
        self._sequences: dict[int, bytes] = {}
        if clocks is not None:
            readings = (
                (_REALTIME, clocks.realtime_ns),
                (_MONOTONIC, clocks.monotonic_ns),
                (_BOOTTIME, clocks.boottime_ns),
            )
            parts = [
                wire.message(1, wire.number(1, clock), wire.number(2, max(time, 0)))
                for clock, time in readings
            ]
            snapshot = wire.message(_CLOCK_SNAPSHOT, *parts, wire.number(2, _MONOTONIC))
            self._packet(snapshot, wire.number(_SEQUENCE, 1))

    def write(self, item: Item) -> None:
        """Write one item; its track must have been written before."""
        if isinstance(item, Track):
            self._track(item)
        elif isinstance(item, Slices):
            self._slices(item)
        elif isinstance(item, Instants):
            self._instants(item)
        else:
            self._samples(item)

    def _packet(self, *parts: bytes) -> None:
        self._file.write(wire.message(_PACKET, *parts))

    def _track(self, track: Track) -> None:
        parts = [wire.number(1, track.uuid)]
        if track.tid is not None and track.pid is not None:
            thread = (
                wire.signed(1, track.pid),
                wire.signed(2, track.tid),
                wire.text(5, track.name),
            )
            parts.append(wire.message(4, *thread))
        elif track.pid is not None:
            parts.append(wire.message(3, wire.signed(1, track.pid), wire.text(6, track.name)))
        else:
            parts.append(wire.text(2, track.name))
        if track.parent:
            parts.append(wire.number(5, track.parent))
        if track.unit is not None:
            parts.append(wire.message(8, wire.text(6, track.unit)))
        # Sequence 1 holds the clocks.
        sequence = wire.number(_SEQUENCE, track.uuid + 1)
        self._sequences[track.uuid] = sequence
        self._names[track.uuid], self._texts[track.uuid] = {}, {}
        # Without a reading of the clocks nothing maps one onto another: times are the trace's own.
        clock = wire.number(_CLOCK, _MONOTONIC) if self._has_clocks else b""
        defaults = wire.message(
            _DEFAULTS,
            clock,
            wire.message(_TRACK_EVENT, wire.number(_TRACK_ID, track.uuid)),
        )
        flags = wire.number(_FLAGS, _CLEARED)
        self._packet(sequence, flags, defaults, wire.message(_DESCRIPTOR, *parts))

    def _intern(
        self, track: int, names: list[str], texts: list[str], text_name: str
    ) -> tuple[Ints, Ints]:
        """Say new words of a track once; return the id of each name and of each text."""
        known, spoken = self._names[track], self._texts[track]
        parts = []
        for word in names:
            if word not in known:
                known[word] = len(known) + 1
                content = (wire.number(1, known[word]), wire.text(2, word))
                parts.append(wire.message(_EVENT_NAMES, *content))
        if texts and not spoken:
            content = (wire.number(1, 1), wire.text(2, text_name))
            parts.append(wire.message(_ANNOTATION_NAMES, *content))
        for word in texts:
            if word not in spoken:
                spoken[word] = len(spoken) + 1
                content = (wire.number(1, spoken[word]), wire.text(2, word))
                parts.append(wire.message(_STRINGS, *content))
        if parts:
            self._packet(self._sequences[track], wire.message(_INTERNED, *parts))
        ids = np.array([known[word] for word in names] or [0], dtype=np.int64)
        text_ids = np.array([spoken[word] for word in texts] or [0], dtype=np.int64)
        return ids, text_ids

    def _event(self, track: int, time: Ints, *columns: Bytes) -> Bytes:
        """Packets of one track event each, one row a packet."""
        n = len(time)
        flags = wire.constant(wire.number(_FLAGS, _NEEDED), n)
        return wire.message_column(
            _PACKET,
            wire.number_column(_TIMESTAMP, time, wire.width(int(time.max()))),
            wire.constant(self._sequences[track], n),
            flags,
            wire.message_column(_TRACK_EVENT, *columns),
        )

    def _slices(self, item: Slices) -> None:
        ids, text_ids = self._intern(item.track, item.names, item.details, item.detail_name)
        name_width = wire.width(int(ids.max()))
        text_width = wire.width(int(text_ids.max()))
        begin_at, end_at = positions(item.depth)
        has_text = item.detail >= 0
        has_flow = np.zeros(len(item), dtype=bool) if item.flow is None else item.flow != 0
        pieces: list[tuple[Ints, Bytes]] = []
        for with_text in (False, True):
            for with_flow in (False, True):
                own = np.flatnonzero((has_text == with_text) & (has_flow == with_flow))
                if len(own) == 0:
                    continue
                columns = [
                    wire.constant(wire.number(_TYPE, _BEGIN), len(own)),
                    wire.number_column(_NAME_ID, ids[item.name[own]], name_width),
                ]
                if with_text:
                    text = wire.number_column(_STRING_ID, text_ids[item.detail[own]], text_width)
                    name = wire.constant(wire.number(1, 1), len(own))
                    columns.append(wire.message_column(_ANNOTATION, name, text))
                if with_flow and item.flow is not None:
                    columns.append(wire.fixed64_column(_FLOW, item.flow[own]))
                pieces.append((begin_at[own], self._event(item.track, item.start[own], *columns)))
        end = wire.constant(wire.number(_TYPE, _END), len(item))
        pieces.append((end_at, self._event(item.track, item.end, end)))
        self._interleave(pieces, 2 * len(item))

    def _interleave(self, pieces: list[tuple[Ints, Bytes]], n: int) -> None:
        """Write rows of several lengths in the order of their positions."""
        lengths = np.zeros(n, dtype=np.int64)
        for at, rows in pieces:
            lengths[at] = rows.shape[1]
        offsets = np.cumsum(lengths) - lengths
        out = np.empty(int(lengths.sum()), dtype=np.uint8)
        for at, rows in pieces:
            for begin in range(0, len(at), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                out[offsets[at[part], None] + np.arange(rows.shape[1])] = rows[part]
        self._file.write(out.data)

    def _instants(self, item: Instants) -> None:
        ids, _texts = self._intern(item.track, item.names, [], "")
        columns = (
            wire.constant(wire.number(_TYPE, _INSTANT), len(item)),
            wire.number_column(_NAME_ID, ids[item.name], wire.width(int(ids.max()))),
        )
        self._file.write(self._event(item.track, item.time, *columns).tobytes())

    def _samples(self, item: Samples) -> None:
        columns = (
            wire.constant(wire.number(_TYPE, _COUNTER), len(item)),
            wire.double_column(_DOUBLE, item.value),
        )
        self._file.write(self._event(item.track, item.time, *columns).tobytes())
