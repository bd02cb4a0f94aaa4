"""What the probe knows of one process that loaded the library: its ring, rows and coverage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.schema import EVENT
from probes.cupti import ring
from probes.cupti.activities import ActivityTables
from probes.cupti.coverage import Coverage, Opening
from probes.cupti.devices import device_indices
from probes.cupti.ring import Losses, RingFile
from probes.cupti.troubles import explain
from probes.probe import Batch, make_batch

#: Covered time is told in pieces of about this length.
PIECE_NS = 1_000_000_000


class CollectedProcess:
    """One process under collection.

    Args:
        path: Its ring.
        pid: Its pid here.
        start_ns: From when on it could not have given work unseen, ns: the begin of the
            recording, or of the program that it executes now.
        recording_ns: Begin of the recording, ns.

    Raises:
        RingError: the file is none.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, pid: int, start_ns: int, recording_ns: int) -> None:
        self.ring = RingFile(path)
        self.pid = pid
        self.tables = ActivityTables(pid, self.ring.name)
        self.coverage = Coverage(pid)
        #: Why nothing is collected; empty while all is well.
        self.trouble = ""
        #: Last state of the ring.
        self.state = ring.OFF
        self._on_ns = 0
        self._told_site = (0, 0)
        self.is_over = False
        header = self.ring.header()
        self._opening: Opening | None = None
        self._before = Losses()
        self._n_missing = 0
        self._forked_before = 0
        if header["attached_ns"] < recording_ns:
            # The ring has served another recording.
            self.ring.skip()
            self._before = self.ring.losses()
            self._n_missing = self._before.ring + self._before.cupti
            self._forked_before = int(header["n_forked"])
            self._on_ns = int(header["on_ns"]) if header["on_ns"] < recording_ns else 0
        elif header["is_early"]:
            # It could give no work before: nothing of it is missing.
            self.coverage.begin(start_ns)
            self._on_ns = int(header["on_ns"])

    def drain(self, now_ns: int, *, is_last: bool = False) -> Iterator[Batch]:
        """Return the rows that became complete.

        Args:
            now_ns: Present time, CLOCK_MONOTONIC.
            is_last: The process has ended, or the recording does.
        """
        header = self.ring.header()
        self._note_state(header, now_ns)
        if self.tables.devices is None and header["n_devices"]:
            self.tables.devices = device_indices(self.pid, header)
        records = self.ring.drain()
        yield from self.tables.add(records, now_ns, is_last=is_last)
        self._note_missing(now_ns)
        if self._opening is not None:
            self._opening.see(records)
            begin_ns = self._opening.begin_ns(now_ns, is_over=is_last or bool(header["off_ns"]))
            if begin_ns is not None:
                self.coverage.begin(begin_ns)
                self._opening = None
        if self._on_ns and self._opening is None:
            is_all = header["off_ns"] and self.ring.header()["head"] == self.ring.n_drained
            newest = min(int(header["off_ns"]), now_ns) if is_all else self.tables.newest_ns
            self.coverage.advance(newest, self.tables.unanswered_ns(is_all=bool(is_all)))
        piece = self.coverage.take(1 if is_last or header["off_ns"] else PIECE_NS)
        if piece is not None:
            yield self._covered(*piece)

    def end(self, now_ns: int) -> Iterator[Batch]:
        """Return what is left of a process that has ended, or is let go."""
        yield from self.drain(now_ns, is_last=True)
        self.is_over = True

    def losses(self) -> Losses:
        """Return what was lost so far."""
        return self.ring.losses().since(self._before)

    def n_forked(self) -> int:
        """Return how many children were forked since then, after CUDA had been used."""
        return int(self.ring.header()["n_forked"]) - self._forked_before

    def facts(self) -> dict[str, Any]:
        """Return facts about it for the manifest."""
        header = self.ring.header()
        library = bytes(header["library"]).split(b"\0")[0].decode("utf-8", "replace")
        return {
            "pid": self.pid,
            "library": library,
            "cupti_version": int(header["cupti_version"]),
            "n_records": self.ring.n_records,
            "n_without_call": self.tables.n_unjoined,
            "helper_cpu_ns": int(header["helper_ns"]),
        }

    def _note_state(self, header: Any, now_ns: int) -> None:
        state, on_ns = int(header["state"]), min(int(header["on_ns"]), now_ns)
        self.state = state
        if state == ring.FAILED:
            site = (int(header["site"]), int(header["error"]))
            if site != self._told_site:
                self._told_site = site
                self.trouble = explain(*site, int(header["cupti_version"]))
        elif state == ring.ON:
            self.trouble = ""
        if on_ns != self._on_ns:
            self._on_ns = on_ns
            self._opening = Opening(on_ns)

    def _note_missing(self, now_ns: int) -> None:
        """Where activities were lost, a device without one is not known to be idle."""
        lost = self.ring.losses()
        if lost.ring + lost.cupti > self._n_missing:
            self._n_missing = lost.ring + lost.cupti
            self.coverage.interrupt()
            self._opening = Opening(now_ns)

    def _covered(self, begin_ns: int, end_ns: int) -> Batch:
        return make_batch(
            EVENT,
            {
                "time_ns": [begin_ns],
                "kind": ["device_times"],
                "pid": [self.pid],
                "duration_ns": [end_ns - begin_ns],
                "name": ["cupti"],
            },
        )
