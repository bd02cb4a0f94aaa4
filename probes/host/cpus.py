"""What /sys tells of the host's CPUs: their NUMA nodes, and how long they were deeply idle."""

from __future__ import annotations

from pathlib import Path

from probes.host.proc import read_bytes

#: Where the kernel's device files are.
SYS = Path("/sys")
#: An idle state that takes this long to wake from is a deep one, in us: a launch takes 5.
DEEP_US = 50
#: Files that one look at the idle states reads at most; beyond, none is told.
MAX_FILES = 4096


def parse_list(text: str | None) -> list[int]:
    """Return the numbers of a kernel list such as ``0-3,8``; empty when it is none."""
    numbers: list[int] = []
    try:
        for part in (text or "").strip().split(","):
            first, _, last = part.partition("-")
            begin, end = int(first), int(last or first)
            if end - begin > 1 << 16:
                return []
            numbers.extend(range(begin, end + 1))
    except ValueError:
        return []
    return numbers


def numa_nodes(root: Path = SYS) -> dict[int, int]:
    """Return the NUMA node of each CPU; empty where the kernel does not tell."""
    nodes: dict[int, int] = {}
    for folder in _numbered(root / "devices/system/node", "node"):
        data = read_bytes(folder / "cpulist") or b""
        number = int(folder.name.removeprefix("node"))
        nodes.update(dict.fromkeys(parse_list(data.decode("ascii", "replace")), number))
    return nodes


class IdleStates:
    """The deep idle states of all CPUs.

    Args:
        root: Where /sys is.
    """

    def __init__(self, root: Path = SYS) -> None:
        self._is_known = False
        self._deep: list[Path] = []
        for cpu in _numbered(root / "devices/system/cpu", "cpu"):
            for state in _numbered(cpu / "cpuidle", "state"):
                self._is_known = True
                latency = _number(state / "latency")
                if latency is not None and latency >= DEEP_US:
                    self._deep.append(state)
        if 2 * len(self._deep) > MAX_FILES:
            self._is_known = False

    def sample(self) -> dict[str, int]:
        """Return the columns of ``host_sample`` about deep idleness; empty where not told."""
        if not self._is_known:
            return {}
        times = [_number(state / "time") for state in self._deep]
        counts = [_number(state / "usage") for state in self._deep]
        return {
            "cpu_deep_idle_ns": sum(value or 0 for value in times) * 1000,
            "n_deep_idles": sum(value or 0 for value in counts),
        }


def _numbered(folder: Path, prefix: str) -> list[Path]:
    """Entries of a folder that are a prefix and a number, in order of the number."""
    try:
        names = [entry.name for entry in folder.iterdir() if entry.name.startswith(prefix)]
    except OSError:
        return []
    numbers = sorted(
        int(name.removeprefix(prefix)) for name in names if name.removeprefix(prefix).isdecimal()
    )
    return [folder / f"{prefix}{number}" for number in numbers]


def _number(path: Path) -> int | None:
    data = (read_bytes(path, 64) or b"").strip()
    return int(data) if data.isdigit() else None
