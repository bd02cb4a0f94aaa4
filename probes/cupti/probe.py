"""Device times of programs that were started with the injection library.

The recorder switches collection on and off for all processes of the directory at once, drains their
rings in bulk, and tells for which time the device times are complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.schema import ANNOTATION, EVENT, GPU_ACTIVITY, LOSS, MEMORY_OPERATION, Table
from probes.cupti import ring
from probes.cupti.build import LIBRARY
from probes.cupti.process import CollectedProcess
from probes.cupti.rendezvous import DIRECTORY_VARIABLE, Rendezvous
from probes.cupti.ring import Losses, RingError
from probes.cupti.troubles import MISSING
from probes.host import proc
from probes.probe import Batch, ProbeError, SourceReport, make_batch
from probes.targets import TargetTree

#: How often the directory is searched for processes that loaded the library.
SEARCH_NS = 200_000_000
#: How long the end of a recording waits for the programs to hand over the rest.
STOP_WAIT_S = 0.8
MAX_PROCESSES = 256
#: A process that has loaded the library shows its ring within this time.
SHOW_NS = 3_000_000_000
_REASONS = {
    "ring": ("ring_full", "The recorder did not keep up; some device times are missing."),
    "cupti": ("buffer_full", "CUPTI had no buffer; some device times are missing."),
    "names": ("names_full", "Some kernels have no name."),
    "invalid": ("bad_record", "Activities without times: cut off, or without device memory."),
    "ranges": ("ranges_full", "Some ranges that the program named are missing: too many at once."),
}

#: Told once, with what mends it.
FLOOD = (
    "More device records came than could be taken: some device times are missing. Record them in "
    "windows (--window 2s --every 60s){}."
)
FORKED = (
    "It forked a child after it had used CUDA: CUDA does not work in such a child, and no device "
    "times come from it. Start workers that need CUDA with the spawn method."
)


@dataclass(frozen=True)
class CuptiOptions:
    """When to collect device times, and how.

    Attributes:
        directory: Where recorder and programs meet; None to read it from the target's environment.
        window_ns: Length of each window of collection; None collects all the time.
        every_ns: From the begin of one window to that of the next; None for windows only when
            :meth:`CuptiProbe.look_closer` asks for one.
        has_graph_nodes: Each node of a CUDA graph by itself.
        is_owned: The directory was made for this recording and goes with it.
    """

    directory: Path | None = None
    window_ns: int | None = None
    every_ns: int | None = None
    has_graph_nodes: bool = False
    is_owned: bool = False


class CuptiProbe:
    """Collects ``gpu_activity`` from the programs' own CUPTI.

    Args:
        tree: Processes that are recorded.
        options: When to collect, and how.
        clock_ns: Reads CLOCK_MONOTONIC.
    """

    name = "cupti"
    tables: Sequence[Table] = (GPU_ACTIVITY, ANNOTATION, MEMORY_OPERATION, EVENT, LOSS)
    period_ns = 50_000_000

    def __init__(
        self,
        tree: TargetTree,
        options: CuptiOptions,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._tree = tree
        self._options = options
        self._clock_ns = clock_ns
        self._rendezvous: Rendezvous | None = None
        self._processes: dict[str, CollectedProcess] = {}
        #: When a program was last seen to be replaced by another in its process, by pid.
        self._images: dict[int, int] = {}
        self._n_lost = 0
        self._has_looked = False
        self._refused: set[str] = set()
        self._told: dict[str, Losses] = {}
        self._is_flood_told = False
        self._forks_told: set[str] = set()
        self._start_ns = 0
        self._search_due_ns = 0
        self._closer_until_ns = 0
        self._troubles: list[str] = []
        self._n_rows = 0
        self._ended_facts: list[dict[str, object]] = []

    def start(self) -> None:
        """Switch collection on.

        Raises:
            ProbeError: the program was not started with the library.
        """
        directory = self._options.directory or self._directory_of_target()
        self._rendezvous = Rendezvous(directory)
        self._start_ns = self._clock_ns()
        self._sweep()
        self._schedule(self._start_ns)

    def look_closer(self, now_ns: int) -> None:
        """Collect for one window from now on, whatever the schedule says."""
        if self._options.window_ns is not None:
            self._closer_until_ns = now_ns + self._options.window_ns
            self.switch(True)

    def switch(self, is_on: bool) -> None:
        """Switch collection on or off at once."""
        if self._rendezvous is not None and self._rendezvous.is_on != is_on:
            self._rendezvous.switch(
                is_on, self._clock_ns(), graph_nodes=self._options.has_graph_nodes
            )

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return the rows that became complete."""
        if self._rendezvous is None:
            return
        self._rendezvous.beat(now_ns)
        self._schedule(now_ns)
        if now_ns >= self._search_due_ns:
            self._search_due_ns = now_ns + SEARCH_NS
            self._search()
            yield from self._end_dead(now_ns)
            yield from self._tell_unreachable(now_ns)
        for key, process in self._processes.items():
            if not process.is_over:
                yield from self._counted(process.drain(now_ns))
                yield from self._tell_losses(key, process, now_ns)
                yield from self._tell_trouble(process, now_ns)
                yield from self._tell_forks(key, process, now_ns)

    def stop(self) -> Iterable[Batch]:
        """Switch collection off and return what the programs hand over."""
        if self._rendezvous is None:
            return
        self.switch(False)
        self._search()
        deadline = time.monotonic() + STOP_WAIT_S
        while time.monotonic() < deadline and any(self._is_pending(p) for p in self._living()):
            for process in self._living():
                yield from self._counted(process.drain(self._clock_ns()))
            time.sleep(0.01)
        now_ns = self._clock_ns()
        for key, process in self._processes.items():
            if not process.is_over:
                yield from self._end(key, process, now_ns)
        self._rendezvous.close(remove=self._options.is_owned)
        self._rendezvous = None

    def report(self) -> SourceReport:
        """Return what it did so far."""
        lost = [process.losses() for process in self._living()]
        n_lost = sum(item.ring + item.cupti for item in lost)
        n_lost += self._n_lost
        note = " ".join(dict.fromkeys(self._troubles))
        if not self._processes and not note:
            note = "No process has loaded the library yet; CUDA loads it at its first use."
        return SourceReport(
            self.name,
            self._n_rows,
            n_lost,
            note=note,
            details={"processes": [*self._ended_facts, *(item.facts() for item in self._living())]},
        )

    def _living(self) -> list[CollectedProcess]:
        return [process for process in self._processes.values() if not process.is_over]

    def _is_pending(self, process: CollectedProcess) -> bool:
        state = int(process.ring.header()["state"])
        return state == ring.ON and self._tree.is_alive(process.pid)

    def _schedule(self, now_ns: int) -> None:
        """Follow the windows; without any it is on all the time."""
        self.switch(self._is_due(now_ns))

    def _is_due(self, now_ns: int) -> bool:
        window_ns, every_ns = self._options.window_ns, self._options.every_ns
        if window_ns is None or now_ns < self._closer_until_ns:
            return True
        return every_ns is not None and (now_ns - self._start_ns) % every_ns < window_ns

    def _search(self) -> None:
        """Take in the rings of processes that were not known."""
        assert self._rendezvous is not None
        try:
            names = sorted(
                path.name for path in self._rendezvous.reach.iterdir()
                if path.name.startswith("ring-")
            )  # fmt: skip
        except OSError:
            return
        for name in names:
            pid = self._host_pid(name)
            if name in self._processes or name in self._refused or pid is None:
                continue
            if len(self._living()) >= MAX_PROCESSES:
                self._refused.add(name)
                continue
            path = self._rendezvous.reach / name
            start_ns = max(self._start_ns, self._images.get(pid, 0))
            try:
                process = CollectedProcess(path, pid, start_ns, self._start_ns)
            except (RingError, OSError) as error:
                self._refused.add(name)
                self._troubles.append(f"A process's records cannot be read: {error}.")
                continue
            self._processes[name] = process

    def _host_pid(self, name: str) -> int | None:
        """The pid here of the process that made a ring, which names its own in its namespace; None
        where it is not of the tree.
        """
        own = _own_pid(name)
        for pid in self._tree.pids():
            if proc.namespace_pids(pid)[-1:] == [own]:
                return pid
        # It may have ended already; in a place of our own, before the tree had seen it. One that
        # runs is seen soon.
        if any(target.pid == own for target in self._tree.targets()):
            return own
        is_gone = self._options.is_owned and proc.read_stat(own) is None
        return own if is_gone else None

    def _sweep(self) -> None:
        """Remove rings of processes that have ended without anybody looking."""
        assert self._rendezvous is not None
        living = {own for pid in proc.list_pids() for own in proc.namespace_pids(pid)[-1:]}
        for path in self._rendezvous.reach.glob("ring-*"):
            if _own_pid(path.name) not in living:
                path.unlink(missing_ok=True)

    def _end_dead(self, now_ns: int) -> Iterator[Batch]:
        """Take the last records of processes that have ended, or that execute another program."""
        living = [item for item in self._processes.items() if not item[1].is_over]
        newest = {process.pid: key for key, process in sorted(living, key=_age)}
        for key, process in living:
            is_replaced = newest[process.pid] != key
            if is_replaced or not self._tree.is_alive(process.pid):
                yield from self._end(key, process, now_ns, is_replaced=is_replaced)

    def _end(
        self, key: str, process: CollectedProcess, now_ns: int, *, is_replaced: bool = False
    ) -> Iterator[Batch]:
        yield from self._counted(process.end(now_ns))
        yield from self._tell_losses(key, process, now_ns)
        yield from self._tell_trouble(process, now_ns)
        yield from self._tell_forks(key, process, now_ns)
        is_alive = self._tree.is_alive(process.pid)
        if process.state == ring.ON and not is_alive:
            detail = "It ended while device times were collected: those of its last moment are lost"
            yield _event(now_ns, process.pid, "coverage", f"{detail}.")
        self._ended_facts.append(process.facts())
        lost = process.losses()
        self._n_lost += lost.ring + lost.cupti
        self._images[process.pid] = now_ns
        # A program that runs on keeps its ring for the next recording.
        process.ring.close(remove=not is_alive or is_replaced)

    def _tell_unreachable(self, now_ns: int) -> Iterator[Batch]:
        """Say once which process has the library and cannot use the place to meet."""
        if self._processes or self._has_looked or now_ns < self._start_ns + SHOW_NS:
            return
        self._has_looked = True
        for pid in sorted(self._tree.pids()):
            if any(LIBRARY in mapping.path for mapping in proc.read_maps(pid)):
                trouble = (
                    f"{MISSING}: process {pid} has loaded the library and cannot use the "
                    "place to meet. Prepare it for the program's user, at the same path: "
                    "tracer cupti --user UID --directory DIR."
                )
                self._troubles.append(trouble)
                yield _event(now_ns, pid, "source_lost", trouble)
                return

    def _tell_trouble(self, process: CollectedProcess, now_ns: int) -> Iterator[Batch]:
        """One event for each trouble, however many processes have it."""
        if process.trouble and process.trouble not in self._troubles:
            self._troubles.append(process.trouble)
            yield _event(now_ns, process.pid, "source_lost", process.trouble)

    def _tell_forks(self, key: str, process: CollectedProcess, now_ns: int) -> Iterator[Batch]:
        """Say once of each process that children which it forked cannot use CUDA."""
        if process.n_forked() > 0 and key not in self._forks_told:
            self._forks_told.add(key)
            yield _event(now_ns, process.pid, "coverage", FORKED)

    def _tell_losses(self, key: str, process: CollectedProcess, now_ns: int) -> Iterator[Batch]:
        now, before = process.losses(), self._told.get(key, Losses())
        self._told[key] = now
        for field, (reason, meaning) in _REASONS.items():
            n_new = getattr(now.since(before), field)
            if n_new > 0:
                columns = {
                    "time_ns": [now_ns],
                    "source": [self.name],
                    "reason": [reason],
                    "n_lost": [n_new],
                    "pid": [process.pid],
                    "detail": [meaning],
                }
                yield make_batch(LOSS, columns)
        if (now.ring or now.cupti) and not self._is_flood_told:
            self._is_flood_told = True
            nodes = ", or without --graph-nodes" if self._options.has_graph_nodes else ""
            yield _event(now_ns, process.pid, "coverage", FLOOD.format(nodes))

    def _counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._n_rows += batch.rows.num_rows
            yield batch

    def _directory_of_target(self) -> Path:
        """The directory that the target's environment names, as it is seen from here.

        Raises:
            ProbeError: it names none.
        """
        for pid in sorted(self._tree.pids()):
            data = proc.read_bytes(f"{proc.PROC}/{pid}/environ") or b""
            for item in data.split(b"\0"):
                name, _, value = item.partition(b"=")
                if name == DIRECTORY_VARIABLE.encode() and value.startswith(b"/"):
                    text = value.decode(errors="replace")
                    return Path(f"{proc.PROC}/{pid}/root{text}")
        raise ProbeError(
            "The program was not started with the library for device times. Start it with "
            "tracer record --cupti -- COMMAND, or with the variables that tracer cupti prints."
        )


def _own_pid(name: str) -> int:
    """The pid in a ring's name: ``ring-PID-TIME``; 0 where there is none."""
    text = name.split("-")[1]
    return int(text) if text.isdecimal() else 0


def _age(item: tuple[str, CollectedProcess]) -> int:
    return int(item[1].ring.header()["attached_ns"])


def _event(time_ns: int, pid: int, kind: str, detail: str) -> Batch:
    columns = {"time_ns": [time_ns], "kind": [kind], "pid": [pid], "name": ["cupti"]}
    return make_batch(EVENT, {**columns, "detail": [detail]})
