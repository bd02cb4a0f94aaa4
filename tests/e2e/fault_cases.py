"""What every injected fault needs: recorders to do it to, and how to judge what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from analysis.attribution import attribute
from analysis.schema import TABLES
from analysis.timeline import Session, open_session
from tracer.recovery import recover_crashed

#: What may be missing at the end of what a recorder wrote, in s.
MOST_MISSING_S = 5.0
ROOT = Path(__file__).resolve().parents[2]
PARALLEL = 3
PATIENCE_S = 60.0


@dataclass
class Outcome:
    """What one fault left, over its runs."""

    name: str
    n_runs: int = 0
    n_unreadable: int = 0
    missing_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.n_runs += other.n_runs
        self.n_unreadable += other.n_unreadable
        self.missing_s = max(self.missing_s, other.missing_s)
        self.wrong += other.wrong
        self.seen = sorted({*self.seen, *other.seen})

    @property
    def is_good(self) -> bool:
        return not self.n_unreadable and not self.wrong and self.missing_s <= MOST_MISSING_S

    def line(self) -> str:
        more = "; ".join([*self.wrong, *self.seen])
        mark = ("ok " if self.n_runs else "-- ") if self.is_good else "BAD"
        return (
            f"{mark} {self.name:<20} {self.n_runs:>4} {self.n_unreadable:>10} "
            f"{self.missing_s:>9.1f}  {more}"
        ).rstrip()

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)


class Recording:
    """A stand-in recorder in a process of its own.

    Args:
        path: The session.
        options: Options of ``tests.e2e.fault_recorder``.
        prefix: Command that runs it.
        env: Further variables of its environment.
    """

    def __init__(
        self,
        path: Path,
        *options: object,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        command = [*prefix, sys.executable, "-m", "tests.e2e.fault_recorder", path, *options]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "up\n":
            raise RuntimeError(f"the recorder did not come up: {self.process.communicate()[1]}")

    def end(self, number: int) -> int:
        """Send a signal; return CLOCK_MONOTONIC in ns of that moment."""
        self.process.send_signal(number)
        now_ns = time.monotonic_ns()
        self.process.wait(PATIENCE_S)
        return now_ns


def examine(
    outcome: Outcome,
    path: Path,
    until_ns: int | None,
    is_attributed: bool = False,
    first_id: int = 0,
) -> Session:
    """Open a session as a person would, read all of it, and note what is wrong with it.

    Args:
        outcome: Where it is noted.
        path: The session.
        until_ns: Until when it was recorded; None where that does not matter.
        is_attributed: Whether the analyzers must answer, too.
        first_id: Number of the first call.
    """
    outcome.n_runs += 1
    recover_crashed(path)
    session = open_session(path)
    try:
        for table in TABLES:
            if session.has(table.name):
                session.table(table.name)
        if is_attributed:
            attribute(session)
    except Exception as error:  # whatever it is, this session is not readable
        outcome.n_unreadable += 1
        outcome.wrong.append(f"{type(error).__name__}: {error}")
        return session
    if session.problems:
        outcome.n_unreadable += 1
        outcome.wrong.append(session.problems[0])
    if session.has("cuda_call"):
        rows = session.table("cuda_call", columns=["start_ns", "call_id"])
        ids, starts = rows["call_id"].to_pylist(), rows["start_ns"].to_pylist()
        outcome.expect(len(set(ids)) == len(ids), "a call is there twice")
        if until_ns is not None and starts:
            outcome.missing_s = max(outcome.missing_s, (until_ns - starts[-1]) / 1e9)
        if session.has("call_second") and session.manifest.end_reason == "terminated":
            n = sum(session.table("call_second")["n_calls"].to_pylist())
            n_made = max(ids) - first_id + 1
            # The lost ones may be the last that were made, and may be counted all the same.
            n_off = n_lost(session, "cuda_call")
            outcome.expect(abs(n - n_made) <= n_off, f"{n} calls counted of {n_made} ± {n_off}")
    elif session.has("call_second"):  # all detail was dropped for want of room
        last = max(session.table("call_second")["start_ns"].to_pylist()) + 1_000_000_000
        if until_ns is not None:
            outcome.missing_s = max(outcome.missing_s, (until_ns - last) / 1e9)
    elif until_ns is not None:
        outcome.missing_s = max(outcome.missing_s, (until_ns - session.start_ns) / 1e9)
    return session


def kinds(session: Session) -> set[str]:
    return set(session.table("event")["kind"].to_pylist()) if session.has("event") else set()


def n_lost(session: Session, table: str = "") -> int:
    """How many rows the session says to have lost, of one table or of all."""
    rows = session.table("loss").to_pylist() if session.has("loss") else []
    words = f"Rows of {table} " if table else ""
    return sum(row["n_lost"] for row in rows if words in (row["detail"] or ""))


def many(name: str, n_runs: int, one: Callable[[int], Outcome]) -> Outcome:
    """Run a fault many times, a few at once."""
    total = Outcome(name)
    with ThreadPoolExecutor(PARALLEL) as pool:
        for outcome in pool.map(one, range(n_runs)):
            total.add(outcome)
    return total


class Tracer:
    """The real command, in the background."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tracer", "record", *map(str, arguments)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("Recording "):
                return
        raise RuntimeError(f"tracer record did not come up: {''.join(said)}")

    def end(self) -> float:
        """Stop it; return after how many s its files were closed, as it says itself."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        words = errors.split("Files closed after ")
        return float(words[1].split()[0]) if len(words) > 1 else float("inf")
