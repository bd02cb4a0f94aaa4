"""Pairing in bulk against a slow one that follows each thread record by record."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.cuda.pairing import ENTRY_DTYPE, RETURN_DTYPE, Pairing
from probes.cuda.program import NO_ENTRY


@dataclass
class Rec:
    """One record of the kernel side, in the order in which it was made."""

    thread: int
    sequence: int
    is_entry: bool
    function: int
    depth: int
    time_ns: int
    is_foreign: bool = False


@dataclass
class Kernel:
    """Makes the records of some threads the way the BPF programs do."""

    clock: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    stacks: dict[int, list[int]] = field(default_factory=dict)
    records: list[Rec] = field(default_factory=list)

    def _add(self, thread: int, is_entry: bool, function: int, depth: int) -> None:
        self.clock += 1
        self.sequences[thread] = self.sequences.get(thread, 0) + 1
        self.records.append(
            Rec(thread, self.sequences[thread], is_entry, function, depth, self.clock)
        )

    def enter(self, thread: int, function: int) -> None:
        stack = self.stacks.setdefault(thread, [])
        if len(stack) < 4:
            self._add(thread, True, function, len(stack))
            stack.append(function)

    def leave(self, thread: int) -> None:
        stack = self.stacks.setdefault(thread, [])
        if stack:
            function = stack.pop()
            self._add(thread, False, function, len(stack))

    def jump(self, thread: int) -> None:
        """Abandon the innermost frame without a return."""
        stack = self.stacks.setdefault(thread, [])
        if stack:
            stack.pop()


def slow(records: list[Rec], lost: set[int]) -> tuple[dict, set, int]:
    """Pairs of (thread, entry sequence) to end and parent; open calls; returns missed."""
    ended: dict[tuple[int, int], tuple[int, tuple[int, int] | None]] = {}
    missed = 0
    opened: set[tuple[int, int]] = set()
    for thread in {record.thread for record in records}:
        mine = [r for i, r in enumerate(records) if r.thread == thread and i not in lost]
        stack: list[tuple[Rec, int, tuple[int, int] | None]] = []
        n_gaps, previous = 0, 0
        latest: list[Rec] = []  # what can be the parent: the last record at a lower depth
        for record in mine:
            if record.sequence != previous + 1:
                n_gaps += 1
            previous = record.sequence
            closing = []
            while stack and stack[-1][0].depth >= record.depth:
                closing.append(stack.pop())
            for entry, gaps, parent in closing:
                is_own = (
                    not record.is_entry
                    and entry.depth == record.depth
                    and entry.function == record.function
                    and gaps == n_gaps
                )
                end = record.time_ns if is_own else -1
                missed += not is_own
                ended[thread, entry.sequence] = (end, parent)
            if record.is_entry:
                parent = None
                lower = [r for r in latest if r.depth < record.depth]
                if lower and lower[-1].is_entry and lower[-1].depth == record.depth - 1:
                    parent = (thread, lower[-1].sequence)
                stack.append((record, n_gaps, parent))
            latest.append(record)
        opened |= {(thread, entry.sequence) for entry, _, _ in stack}
    return ended, opened, missed


def arrays(records: list[Rec]) -> tuple[np.ndarray, np.ndarray]:
    entries = [r for r in records if r.is_entry]
    returns = [r for r in records if not r.is_entry]
    result = []
    for rows, dtype in ((entries, ENTRY_DTYPE), (returns, RETURN_DTYPE)):
        data = np.zeros(len(rows), dtype)
        data["time_ns"] = [r.time_ns for r in rows]
        data["pid_tgid"] = [(7 << 32) + r.thread for r in rows]
        data["function"] = [r.function for r in rows]
        data["depth"] = [r.depth | (NO_ENTRY if r.is_foreign else 0) for r in rows]
        data["sequence"] = np.array([r.sequence for r in rows], np.uint32)
        result.append(data)
    return result[0], result[1]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "leave", "leave", "jump"]),
        st.integers(1, 3),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(
    STEPS,
    st.sets(st.integers(0, 59), max_size=6),
    st.lists(st.integers(0, 60), max_size=4),
    st.integers(0, 3),
)
def test_it_agrees_with_following_each_record(steps, lost, cuts, lag):
    kernel = Kernel()
    for step, thread, function in steps:
        if step == "enter":
            kernel.enter(thread, function)
        elif step == "leave":
            kernel.leave(thread)
        else:
            kernel.jump(thread)
    lost = {index for index in lost if index < len(kernel.records)}
    ended, opened, missed = slow(kernel.records, lost)
    pairing = Pairing()
    got: dict = {}
    ids: dict[int, tuple[int, int]] = {}
    parents: dict[tuple[int, int], int] = {}
    kept = [(i, r) for i, r in enumerate(kernel.records) if i not in lost]
    bounds = [0, *sorted(cuts), 10**9, 10**9, 10**9]
    # Returns are read some records later than entries: the two rings are read one by one.
    for low, high in itertools.pairwise(bounds):
        entries, _ = arrays([r for i, r in kept if low <= i < high])
        is_early = low == 0
        _, returns = arrays(
            [r for i, r in kept if (0 if is_early else low - lag) <= i < high - lag]
        )
        calls = pairing.feed(entries, returns, is_complete=True)
        for entry, number, parent, end in zip(
            calls.entries, calls.call_id, calls.parent_id, calls.end_ns, strict=True
        ):
            key = (int(entry["pid_tgid"]) & 0xFFFFFFFF, int(entry["sequence"]))
            got[key] = int(end)
            ids[int(number)] = key
            parents[key] = int(parent)
    left = pairing.open_calls()
    for entry, number in zip(left.entries, left.call_id, strict=True):
        ids[int(number)] = (int(entry["pid_tgid"]) & 0xFFFFFFFF, int(entry["sequence"]))
    assert got == {key: end for key, (end, _) in ended.items()}
    assert {key for key in ids.values() if key not in got} == opened
    assert pairing.n_return_missed == missed
    for key, (_, parent) in ended.items():
        assert ids.get(parents[key]) == parent
    n_behind = sum(
        1 for i in lost if any(r.thread == kernel.records[i].thread for j, r in kept if j > i)
    )
    assert pairing.n_gap_records == n_behind


def test_a_late_record_is_waited_for_and_a_lost_one_is_not():
    kernel = Kernel()
    for _ in range(3):
        kernel.enter(1, 5)
        kernel.leave(1)
    entries, returns = arrays(kernel.records)
    pairing = Pairing()
    # The first return is late: nothing may be said of the second entry yet.
    assert len(pairing.feed(entries, returns[:0], is_complete=True)) == 0
    calls = pairing.feed(entries[:0], returns, is_complete=True)
    assert sorted(calls.end_ns) == [2, 4, 6] and pairing.n_return_missed == 0
    pairing = Pairing()
    assert len(pairing.feed(entries, returns[1:], is_complete=True)) == 0
    assert len(pairing.feed(entries[:0], returns[:0], is_complete=False)) == 0
    calls = pairing.feed(entries[:0], returns[:0], is_complete=True)
    assert sorted(calls.end_ns) == [-1, 4, 6]
    assert pairing.n_return_missed == 1 and pairing.n_gap_records == 1


def test_sequence_numbers_wrap():
    pairing = Pairing()
    entry, back = np.zeros(1, ENTRY_DTYPE), np.zeros(1, RETURN_DTYPE)
    entry["pid_tgid"] = back["pid_tgid"] = 99

    def feed(sequence: int) -> int:
        """Feed a call; number of calls closed with their return."""
        entry["sequence"] = np.uint32(sequence % (1 << 32))
        back["sequence"] = np.uint32((sequence + 1) % (1 << 32))
        n = len(pairing.feed(entry, back, is_complete=True))
        # A gap before the call is only believed at the second look.
        calls = pairing.feed(entry[:0], back[:0], is_complete=True)
        return n + int(calls.has_return.sum())

    for jump in range(1, 5):
        assert feed((jump << 30) - 3) == 1
    n_gaps = pairing.n_gap_records
    # From two below 2^32 on.
    assert [feed((1 << 32) - 1 + step) for step in range(0, 8, 2)] == [1, 1, 1, 1]
    assert pairing.n_gap_records == n_gaps == (1 << 32) - 4 - 6


def test_a_return_of_a_call_from_before_the_attach_closes_nothing():
    kernel = Kernel()
    kernel.enter(1, 5)
    kernel.leave(1)
    kernel.records.append(Rec(1, 3, False, 5, 0, 9, is_foreign=True))
    pairing = Pairing()
    calls = pairing.feed(*arrays(kernel.records), is_complete=True)
    assert list(calls.end_ns) == [2] and pairing.n_foreign_returns == 1


def test_the_end_of_a_thread_closes_its_calls():
    kernel = Kernel()
    kernel.enter(1, 5)
    kernel.enter(1, 6)
    kernel.enter(2, 5)
    pairing = Pairing()
    pairing.feed(*arrays(kernel.records), is_complete=True)
    calls = pairing.end_threads([(7 << 32) + 1])
    assert list(calls.end_ns) == [-1, -1] and list(calls.depth) == [0, 1]
    assert len(pairing.open_calls().entries) == 1
    # The same thread id begins anew.
    again = Kernel()
    again.enter(1, 5)
    again.leave(1)
    assert list(pairing.feed(*arrays(again.records), is_complete=True).end_ns) == [2]
    assert pairing.n_gap_records == 0
