"""Whether something that was not staged disturbed a scenario: waits for the CPU, stolen time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Shares of the time above which a run does not count.
MAX_WAITING_SHARE = 0.04
MAX_STOLEN_SHARE = 0.03


@dataclass(frozen=True)
class Disturbance:
    """What the launching thread suffered, as shares of the time in [0, 1]; None is unknown.

    Attributes:
        waiting_share: Ready to run without a CPU.
        stolen_share: Its CPU was taken away by the hypervisor.
    """

    waiting_share: float | None
    stolen_share: float | None

    def excuses(self, has_cpu_contention: bool) -> bool:
        """Whether the run does not count.

        Args:
            has_cpu_contention: Waits for the CPU were staged, so that they excuse nothing.
        """
        waiting = 0.0 if has_cpu_contention else self.waiting_share or 0.0
        return waiting > MAX_WAITING_SHARE or (self.stolen_share or 0.0) > MAX_STOLEN_SHARE


class DisturbanceMeter:
    """Measures from its construction on.

    Args:
        pid: Process whose main thread launches.
        cpu: The CPU it stays on.
        root: Where ``proc`` is.
    """

    def __init__(self, pid: int, cpu: int, root: Path = Path("/")) -> None:
        self._schedstat = root / "proc" / str(pid) / "schedstat"
        self._stat = root / "proc" / "stat"
        self._cpu = f"cpu{cpu}"
        self._before = self._read()

    def read(self, elapsed_s: float) -> Disturbance:
        """Return what happened in the ``elapsed_s`` seconds since the construction."""
        (waiting_before, stolen_before), (waiting, stolen) = self._before, self._read()

        def share(before: float | None, after: float | None) -> float | None:
            return None if before is None or after is None else (after - before) / elapsed_s

        return Disturbance(share(waiting_before, waiting), share(stolen_before, stolen))

    def _read(self) -> tuple[float | None, float | None]:
        """Seconds waited for a CPU, and stolen from the CPU, since each began."""
        waiting: float | None = None
        stolen: float | None = None
        try:
            waiting = int(self._schedstat.read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            waiting = None
        try:
            for line in self._stat.read_text().splitlines():
                fields = line.split()
                if fields[0] == self._cpu:
                    stolen = int(fields[8]) / 100
        except (OSError, IndexError, ValueError):
            stolen = None
        return waiting, stolen
