"""A training loop that now and then waits long for whoever feeds it, with little known of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Status
from analysis.manifest import Target
from tests.analysis.builder import MS, S, Service
from tests.analysis.scrapes import finding

FEEDER, READER = 4_900, 3_970


def fed(
    path: Path, seed: int, *, blocked: str = "long", has_habit: bool = True, long_ms: int = 4_000
) -> Attribution:
    """Twenty seconds of steps that begin with a short wait, then as many with long ones.

    Args:
        path: Folder for the session.
        seed: Of all lengths.
        blocked: When the reading process is in state D: ``long``, ``always`` or ``never``.
        has_habit: Whether the short waits are ended by the process that ends the long ones.
        long_ms: Length of the long waits.
    """
    service = Service(seed=seed, has_engine=False, name="python3")
    middle = service.start + 20 * S
    while service.now < service.start + 40 * S:
        is_long = service.now >= middle
        waker = FEEDER if is_long or has_habit else 0
        length = service.shake((long_ms if is_long else 4) * MS)
        if is_long:
            # Waits of like length would be a rhythm of their own.
            length = int(length * service.rng.uniform(0.4, 1.6))
        woken = {"waker_pid": waker, "waker_tid": waker}
        service.absent(service.now, service.now + length, "sleeping", 5_000, **woken)
        service.now += length
        end = service.now
        for index in range(20):
            service.compute(200_000)
            end = service.run_device(18 * MS)
            service.launch_kernel(100 + index)
        service.sync(end)
    rows = []
    for index in range((service.now - service.start) // S):
        is_blocked = blocked == "always" or (blocked == "long" and index >= 20)
        rows.append(
            {
                "start_ns": service.start + index * S,
                "duration_ns": S,
                "pid": READER,
                "tid": READER + 1,
                "running_ns": S // 20,
                "waiting_ns": 0,
                "sleeping_ns": S - S // 20,
                "state": "D" if is_blocked else "S",
            }
        )
    targets = [Target(service.pid, name="python3"), Target(READER, name="reader")]
    builder = service.builder(path / "session", targets=targets)
    return attribute(builder.add("thread_second", rows).write())


@pytest.mark.parametrize("seed", range(4))
def test_long_waits_while_a_process_hangs_on_storage_are_suspected(
    tmp_path: Path, seed: int
) -> None:
    attribution = fed(tmp_path, seed)
    answer = finding(attribution, "host.input_starvation")
    assert answer.status is Status.UNDECIDED
    assert "reader (pid 3970)" in answer.undecided_because
    assert answer.lost_share == pytest.approx(0.5 * 4_000 / 4_370, abs=0.1)
    assert attribution.verdict.candidates[0] == "host.input_starvation"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "change",
    [{"blocked": "always"}, {"blocked": "never"}, {"has_habit": False}, {"long_ms": 4}],
    ids=["always blocked", "never blocked", "somebody else", "short"],
)
def test_other_waits_are_not(tmp_path: Path, seed: int, change: dict[str, object]) -> None:
    attribution = fed(tmp_path, seed, **change)  # type: ignore[arg-type]
    assert finding(attribution, "host.input_starvation").status is Status.NOT_FOUND
