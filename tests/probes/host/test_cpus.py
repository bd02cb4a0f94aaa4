from __future__ import annotations

from pathlib import Path

import pytest

from probes.host import cpus
from probes.host.cpus import IdleStates, numa_nodes, parse_list
from probes.host.host import HostProbe


def state(root: Path, cpu: int, number: int, latency: str, time_us: int, usage: int) -> None:
    folder = root / f"devices/system/cpu/cpu{cpu}/cpuidle/state{number}"
    folder.mkdir(parents=True)
    (folder / "latency").write_text(f"{latency}\n")
    (folder / "time").write_text(f"{time_us}\n")
    (folder / "usage").write_text(f"{usage}\n")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("5\n", [5]),
        ("", []),
        (None, []),
        ("a-b", []),
        ("0-99999999", []),
    ],
)
def test_lists_of_the_kernel(text: str | None, numbers: list[int]) -> None:
    assert parse_list(text) == numbers


def test_nodes_of_cpus(tmp_path: Path) -> None:
    for number, text in ((0, "0-1,4\n"), (1, "2-3\n"), (2, "garbage\n")):
        folder = tmp_path / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(text)
    assert numa_nodes(tmp_path) == {0: 0, 1: 0, 4: 0, 2: 1, 3: 1}
    assert numa_nodes(tmp_path / "absent") == {}


def test_only_deep_states_count_summed_over_cpus(tmp_path: Path) -> None:
    for cpu in (0, 1):
        state(tmp_path, cpu, 0, "0", 1000, 9)
        state(tmp_path, cpu, 1, "2", 2000, 8)
        state(tmp_path, cpu, 2, "133", 30 + cpu, 5)
        state(tmp_path, cpu, 3, "broken", 4000, 7)
    (tmp_path / "devices/system/cpu/cpufreq").mkdir()
    assert IdleStates(tmp_path).sample() == {"cpu_deep_idle_ns": 61_000, "n_deep_idles": 10}


def test_a_host_without_deep_states_has_none_and_one_that_does_not_tell_is_unknown(
    tmp_path: Path,
) -> None:
    state(tmp_path, 0, 0, "1", 1000, 9)
    assert IdleStates(tmp_path).sample() == {"cpu_deep_idle_ns": 0, "n_deep_idles": 0}
    assert IdleStates(tmp_path / "absent").sample() == {}


def test_more_states_than_are_worth_reading_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "MAX_FILES", 3)
    for cpu in (0, 1):
        state(tmp_path, cpu, 0, "100", 1000, 9)
    assert IdleStates(tmp_path).sample() == {}


def test_the_host_probe_tells_them_every_ten_seconds(tmp_path: Path) -> None:
    class Nobody:
        def pids(self) -> set[int]:
            return set()

    state(tmp_path, 0, 0, "100", 7, 3)
    now = 10**12
    probe = HostProbe(Nobody(), system=tmp_path, clock=lambda: now)
    told = []
    for _ in range(12):
        [batch] = probe.drain(now)
        [row] = [row for row in batch.rows.to_pylist() if row["scope"] == "host"]
        told.append(row["cpu_deep_idle_ns"])
        now += 10**9
    assert told == [7000, *[None] * 9, 7000, None]
