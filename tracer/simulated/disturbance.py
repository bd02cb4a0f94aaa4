"""Whether something that was not staged disturbed a scenario: waits for the CPU, stolen time."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

#: Shares of the time above which a run does not count.
MAX_WAITING_SHARE = 0.04
MAX_STOLEN_SHARE = 0.03
MAX_FOREIGN_SHARE = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Disturbance:
    """What the launching thread suffered, as shares of the time in [0, 1]; None is unknown.

    Attributes:
        waiting_share: Ready to run without a CPU.
        stolen_share: Its CPU was taken away by the hypervisor.
        foreign_share: Its CPU worked for processes that belong to no scenario.
    """

    waiting_share: float | None
    stolen_share: float | None
    foreign_share: float | None = None

    def excuses(self, has_cpu_contention: bool) -> bool:
        """Whether the run does not count.

        Args:
            has_cpu_contention: Waits for the CPU were staged: they excuse only where others worked
                on that CPU too.
        """
        is_excused = (self.waiting_share or 0.0) > MAX_WAITING_SHARE
        if has_cpu_contention:
            is_excused = is_excused and (self.foreign_share or 0.0) > MAX_FOREIGN_SHARE
        return is_excused or (self.stolen_share or 0.0) > MAX_STOLEN_SHARE


class DisturbanceMeter:
    """Measures from its construction on.

    Args:
        pid: Process whose main thread launches.
        cpu: The CPU it stays on.
        sessions: Session ids of the processes that are staged; empty where everything shares one
            CPU, so that foreign work cannot be told.
        root: Where ``proc`` is.
    """

    def __init__(
        self, pid: int, cpu: int, sessions: Collection[int] = (), root: Path = Path("/")
    ) -> None:
        self._schedstat = root / "proc" / str(pid) / "schedstat"
        self._stat = root / "proc" / "stat"
        self._proc = root / "proc"
        self._cpu_number = cpu
        self._cpu = f"cpu{cpu}"
        self._sessions = frozenset(sessions)
        self._before = self._read()

    def read(self, elapsed_s: float) -> Disturbance:
        """Return what happened in the ``elapsed_s`` seconds since the construction."""
        before, after = self._before, self._read()
        shares = [
            None if old is None or new is None else (new - old) / elapsed_s
            for old, new in zip(before, after, strict=True)
        ]
        return Disturbance(*shares)

    def _read(self) -> tuple[float | None, float | None, float | None]:
        """Seconds waited for a CPU, stolen from the CPU, and worked by it for others, since each
        began.
        """
        waiting: float | None = None
        stolen: float | None = None
        foreign: float | None = None
        try:
            waiting = int(self._schedstat.read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            waiting = None
        try:
            for line in self._stat.read_text().splitlines():
                fields = line.split()
                if fields[0] == self._cpu:
                    stolen = int(fields[8]) / _TICKS_PER_S
                    if self._sessions:
                        worked = sum(int(fields[index]) for index in (1, 2, 3))
                        foreign = worked / _TICKS_PER_S - self._staged_s()
        except (OSError, IndexError, ValueError):
            stolen = foreign = None
        return waiting, stolen, foreign

    def _staged_s(self) -> float:
        """CPU time in seconds of the staged processes that stay on the launcher's CPU."""
        ticks = 0
        for folder in self._proc.iterdir():
            if not folder.name.isdecimal():
                continue
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                status = (folder / "status").read_text()
            except OSError:
                continue
            if int(fields[3]) in self._sessions and (
                f"\nCpus_allowed_list:\t{self._cpu_number}\n" in status
            ):
                ticks += int(fields[11]) + int(fields[12])
        return ticks / _TICKS_PER_S
