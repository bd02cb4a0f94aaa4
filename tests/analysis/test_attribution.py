"""The verdicts on synthetic services: each cause, and what looks like it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Status
from analysis.manifest import Source
from analysis.report.terminal import WIDTH, render
from tests.analysis.builder import MS, S, Service, SessionBuilder

SEEDS = (1, 2, 3)


def check(attribution: Attribution) -> Attribution:
    """What holds for every attribution: it is JSON, its budget adds up, its text is narrow."""
    data = json.loads(json.dumps(attribution.to_json()))
    for window in data["budget"]:
        assert sum(part["ns"] for part in window["shares"]) == window["end_ns"] - window["start_ns"]
        assert sum(part["share"] for part in window["shares"]) == pytest.approx(1, abs=1e-12)
    assert all(len(line) <= WIDTH for line in render(attribution).splitlines())
    assert not [note for note in attribution.notes if "failed" in note]
    return attribution


def causes(attribution: Attribution) -> list[str]:
    return [item.cause for item in attribution.findings if item.status is Status.FOUND]


@pytest.mark.parametrize("seed", range(8))
def test_healthy_over_a_range_of_loads_has_no_finding(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    service = Service(
        seed=seed,
        decode=rng.choice([3, 8, 20, 40]) * MS,
        host=rng.choice([100_000, 300_000, 600_000]),
        running=rng.choice([1, 4, 32]),
        has_engine=rng.random() < 0.7,
        has_nvml=rng.random() < 0.7,
        is_sleepy=rng.random() < 0.7,
    )
    while service.now < service.start + 12 * S:
        for _ in range(rng.randint(20, 60)):
            service.decode_step()
        service.prefill_step(20 * MS, 200)
        if rng.random() < 0.3:
            service.preempt(rng.randint(1, 4) * MS)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "healthy"
    assert attribution.findings == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_engine", [True, False])
def test_cpu_delay_names_the_task_that_had_the_cpu(
    tmp_path: Path, seed: int, has_engine: bool
) -> None:
    service = Service(seed=seed, has_engine=has_engine)
    while service.now < service.start + 12 * S:
        service.compute(service.shake(service.host))
        service.preempt(service.shake(6 * MS), pid=4711, name="stress-ng-cpu")
        service.decode_step()
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "launch.cpu_delay"
    assert attribution.verdict.confidence >= 0.9
    assert causes(attribution)[0] == "launch.cpu_delay"
    assert "stress-ng-cpu (pid 4711)" in attribution.findings[0].summary
    assert attribution.findings[0].where.tid == service.pid


def test_a_spinning_thread_is_delayed_inside_its_sync(tmp_path: Path) -> None:
    service = Service(is_sleepy=False)
    while service.now < service.start + 10 * S:
        service.compute(service.host)
        end = service.run_device(8 * MS)
        service.call("cudaGraphLaunch", "graph_launch", 8_000, kernel=1)
        service.preempted_spin(end, 5 * MS, pid=4711, name="stress-ng")
        service.token(4)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "launch.cpu_delay"


def test_a_thread_that_only_sleeps_is_not_delayed(tmp_path: Path) -> None:
    service = Service(has_engine=False)
    while service.now < service.start + 10 * S:
        service.sleep(6 * MS)
        service.decode_step()
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert "launch.cpu_delay" not in causes(attribution)


def test_a_delay_of_another_process_is_no_evidence(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 10 * S)
    builder = service.builder(tmp_path / "s")
    rows = [
        {
            "start_ns": service.start + i * 100 * MS,
            "duration_ns": 90 * MS,
            "pid": 5000,
            "tid": 5000,
            "runnable_ns": 90 * MS,
            "state": "running",
            "taker_pid": 1,
            "taker_tid": 1,
            "taker_name": "x",
        }
        for i in range(100)
    ]
    attribution = check(attribute(builder.add("offcpu", rows).write()))
    assert attribution.verdict.cause == "healthy"


def throttled(
    service: Service, quota_ns: int | None, per_s_ns: int = 400 * MS
) -> list[dict[str, object]]:
    return [
        {
            "time_ns": service.start + index * S,
            "scope": "/kubepods/pod1",
            "cpu_quota_ns": quota_ns,
            "cpu_period_ns": 100 * MS,
            "n_cpu_periods": 10 * index,
            "n_cpu_throttled": 9 * index,
            "cpu_throttled_ns": per_s_ns * index,
        }
        for index in range(int((service.now - service.start) // S) + 1)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quota_is_told_from_contention(tmp_path: Path, seed: int) -> None:
    service = Service(seed=seed)
    while service.now < service.start + 12 * S:
        period_end = service.start + ((service.now - service.start) // (100 * MS) + 1) * 100 * MS
        service.decode_until(period_end - 45 * MS)
        if service.now < period_end:
            service.preempt(period_end - service.now, pid=0, name="swapper/0")
            service.rows["offcpu"][-1].update(taker_tid=0, occupant_tid=0)
    builder = service.builder(tmp_path / "s")
    builder.add("host_sample", throttled(service, 300 * MS))
    attribution = check(attribute(builder.write()))
    assert attribution.verdict.cause == "launch.cgroup_throttle"
    assert "launch.cpu_delay" not in causes(attribution)


@pytest.mark.parametrize(
    ("per_s_ms", "first", "share"),
    [(300, "launch.cgroup_throttle", 0.375), (30, "launch.cpu_delay", 0)],
)
def test_a_quota_explains_no_more_than_it_throttled(
    tmp_path: Path, per_s_ms: int, first: str, share: float
) -> None:
    """Long waits at the ends of periods, and short ones behind another task between them."""
    service = Service(seed=3)
    while service.now < service.start + 12 * S:
        period_end = service.start + ((service.now - service.start) // (100 * MS) + 1) * 100 * MS
        while service.now < period_end - 45 * MS:
            service.decode_step()
            service.preempt(7 * MS)
        if service.now < period_end:
            service.preempt(period_end - service.now)
    builder = service.builder(tmp_path / "s")
    builder.add("host_sample", throttled(service, 300 * MS, per_s_ms * MS))
    attribution = check(attribute(builder.write()))
    assert attribution.verdict.cause == first
    answers = {item.cause: item for item in (*attribution.findings, *attribution.checked)}
    assert answers["launch.cpu_delay"].status is Status.FOUND
    quota = answers["launch.cgroup_throttle"]
    assert quota.lost_share == pytest.approx(share, abs=0.08)
    both = quota.lost_ns + answers["launch.cpu_delay"].lost_ns
    assert both <= service.now - service.start


def test_waits_on_an_idle_cpu_without_quota_are_undecided(tmp_path: Path) -> None:
    service = Service()
    while service.now < service.start + 10 * S:
        service.preempt(6 * MS, pid=0, name="swapper/0")
        service.rows["offcpu"][-1].update(taker_tid=0, occupant_tid=0)
        service.decode_step()
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "unknown"
    assert attribution.verdict.candidates[0] == "launch.cpu_delay"


@pytest.mark.parametrize("seed", SEEDS)
def test_first_use_told_by_the_recorder(tmp_path: Path, seed: int) -> None:
    service = Service(seed=seed)
    kernel = 1000
    while service.now < service.start + 12 * S:
        for _ in range(10):
            service.decode_step()
        for _ in range(3):
            kernel += 1
            service.launch_kernel(kernel, service.shake(20 * MS), is_first_use=True)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "launch.first_use"
    assert attribution.verdict.confidence >= 0.9


def test_first_sights_of_a_late_attach_prove_nothing(tmp_path: Path) -> None:
    service = Service()
    kernel = 1000
    while service.now < service.start + 12 * S:
        for _ in range(10):
            service.decode_step()
        kernel += 1
        service.launch_kernel(kernel)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "healthy"


def test_slow_launches_of_known_kernels_are_not_first_use(tmp_path: Path) -> None:
    service = Service()
    while service.now < service.start + 10 * S:
        for index in range(10):
            service.decode_step()
            service.launch_kernel(5000 + index, 15 * MS if index % 2 else None, is_first_use=False)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert "launch.first_use" not in causes(attribution)


def compile_gap(service: Service, child_ns: int) -> None:
    service.rows.setdefault("event", []).append(
        {
            "time_ns": service.now + S,
            "kind": "fork",
            "pid": 9000,
            "parent_pid": service.pid,
            "name": "python3",
        }
    )
    service.compute(S + 1)
    service.sleep(child_ns)
    for kernel in range(7000, 7006):
        service.launch_kernel(kernel, 4 * MS)


def test_a_gap_of_compilation_is_found_by_its_child_and_its_first_uses(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 4 * S)
    compile_gap(service, 3 * S)
    service.decode_until(service.now + 4 * S)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "launch.first_use"
    assert attribution.verdict.confidence <= 0.8
    assert "not proven" in attribution.verdict.text


def test_an_idle_gap_before_new_kernels_is_no_compilation(tmp_path: Path) -> None:
    service = Service(has_engine=False)
    service.decode_until(service.start + 4 * S)
    service.sleep(4 * S)
    for kernel in range(7000, 7006):
        service.launch_kernel(kernel)
    service.decode_until(service.now + 4 * S)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "healthy"


@pytest.mark.parametrize("seed", SEEDS)
def test_host_bound_by_short_syncs_and_low_utilisation(tmp_path: Path, seed: int) -> None:
    service = Service(seed=seed)
    while service.now < service.start + 12 * S:
        for _ in range(40):
            service.compute(service.shake(60_000))
            service.run_device(service.shake(15_000))
            service.launch_kernel(3)
        service.compute(100_000)
        service.preempt(20_000, pid=2, name="kthreadd")
        # The last kernel is a longer one, but no longer than a tenth of the step.
        service.sync(service.run_device(seed * 80_000))
        service.token(4)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "launch.host_bound"


def test_host_work_in_every_step_is_host_bound(tmp_path: Path) -> None:
    service = Service(decode=4 * MS, host=4 * MS)
    service.decode_until(service.start + 12 * S)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "launch.host_bound"


@pytest.mark.parametrize("tail", [20_000, 150_000, 400_000])
def test_a_wake_that_waits_for_a_cpu_is_no_compute(tmp_path: Path, tail: int) -> None:
    # Woken by the device, held up by others, and slow to return: caches are cold on a busy machine.
    hog = {"occupant_pid": 99, "occupant_tid": 99, "occupant_name": "stress-ng"}
    service = Service(decode=8 * MS)
    while service.now < service.start + 12 * S:
        service.compute(300_000)
        service.launch_kernel(3)
        start, done = service.now, service.run_device(8 * MS)
        back = done + 3 * MS
        service.absent(start + 4_000, back, "sleeping", 3 * MS, **hog)
        # On the way out it is preempted once more.
        service.absent(back + tail // 2, back + tail // 2 + MS, "running", MS, **hog)
        service.call("cudaStreamSynchronize", "sync", back + tail + MS - start)
        service.token(4)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "launch.cpu_delay"
    delay = next(item for item in attribution.findings if item.cause == "launch.cpu_delay")
    assert delay.lost_share == pytest.approx(4 / (12.3 + tail / 1e6), abs=0.06)


def test_a_thread_that_spins_on_after_a_nap_waits_for_the_device(tmp_path: Path) -> None:
    service = Service(decode=8 * MS)
    while service.now < service.start + 12 * S:
        service.compute(300_000)
        service.launch_kernel(3)
        start, done = service.now, service.run_device(8 * MS)
        service.absent(start + 4_000, start + 4 * MS, "sleeping", 3 * MS)
        service.call("cudaStreamSynchronize", "sync", done + 12_000 - start)
        service.token(4)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "healthy"


def test_back_pressure_is_not_host_bound(tmp_path: Path) -> None:
    service = Service(has_engine=False)
    while service.now < service.start + 10 * S:
        for _ in range(200):
            end = service.run_device(400_000)
            # The queue is full: the launch returns when the device has caught up.
            service.launch_kernel(3, max(end - service.now - 5 * MS, 8_000))
        service.sync(service.busy[-1][1])
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "healthy"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_engine", [True, False])
def test_prefill_hogging(tmp_path: Path, seed: int, has_engine: bool) -> None:
    service = Service(seed=seed, has_engine=has_engine)
    service.decode_until(service.start + 6 * S)
    while service.now < service.start + 16 * S:
        for _ in range(6):
            service.prefill_step(200 * MS, 2048)
        service.decode_step()
    service.decode_until(service.now + 4 * S)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "prefill.hogging"


@pytest.mark.parametrize(("rest", "is_hogged"), [(0, True), (300 * MS, False)])
def test_prompts_that_come_seldom_do_not_hold_the_device(
    tmp_path: Path, rest: int, is_hogged: bool
) -> None:
    # Long eager steps among short graph steps, back to back or with nothing asked for in between.
    service = Service(has_engine=False)
    while service.now < service.start + 4 * S:
        service.prefill_step(100 * MS, 1024)
        for _ in range(3):
            service.decode_step()
        if rest:
            service.sleep(rest)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert ("prefill.hogging" in causes(attribution)) == is_hogged


@pytest.mark.parametrize("seed", SEEDS)
def test_prompts_and_decodes_that_take_turns_of_whole_seconds(tmp_path: Path, seed: int) -> None:
    # No second is without prompts soon or just before: only the tokens between two prompts tell
    # what undisturbed decodes do.
    service = Service(seed=seed)
    while service.now < service.start + 12 * S:
        for _ in range(5):
            service.prefill_step(200 * MS, 0)
        service.prefill_step(200 * MS, 16_000)
        service.decode_until(service.now + service.shake(800 * MS))
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "prefill.hogging"


@pytest.mark.parametrize(("hold", "rest"), [(400, 650), (600, 1100), (800, 1300)])
def test_prompts_that_stand_between_decodes_for_parts_of_a_second(
    tmp_path: Path, hold: int, rest: int
) -> None:
    service = Service(running=16, decode=5 * MS)
    while service.now < service.start + 12 * S:
        service.prefill_step(hold * MS, 20 * hold)
        service.decode_until(service.now + service.shake(rest * MS))
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "prefill.hogging"


@pytest.mark.parametrize("n_prompt", [100, 20_000])
def test_pauses_of_the_host_beside_prompts_are_no_hogging(tmp_path: Path, n_prompt: int) -> None:
    # Tokens wait as long, but the device has nothing to do meanwhile.
    service = Service(running=16, decode=5 * MS)
    while service.now < service.start + 12 * S:
        service.prefill_step(20 * MS, n_prompt)
        service.decode_until(service.now + service.shake(700 * MS))
        service.compute(400 * MS)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert "prefill.hogging" not in causes(attribution)


def test_prompts_that_delay_no_token_are_no_hogging(tmp_path: Path) -> None:
    # As many prompts, in chunks as short as a decode step.
    service = Service()
    while service.now < service.start + 12 * S:
        service.prefill_step(8 * MS, 512)
        service.decode_step()
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert "prefill.hogging" not in causes(attribution)
    assert attribution.verdict.cause == "healthy"


def test_short_prompts_between_decodes_are_no_hogging(tmp_path: Path) -> None:
    service = Service(has_engine=False)
    while service.now < service.start + 10 * S:
        for _ in range(25):
            service.decode_step()
        service.prefill_step(30 * MS, 300)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "healthy"


def neighbour(service: Service, spans: list[tuple[int, int]], share: float) -> list[dict]:
    rows = []
    for time in range(service.start + S, service.now, S):
        is_active = any(start < time and time - S < end for start, end in spans)
        for pid, util, name, is_target in (
            (service.pid, 50.0, service.name, True),
            (8000, share if is_active else 0.0, "embedder", False),
        ):
            rows.append(
                {
                    "time_ns": time,
                    "device": 0,
                    "pid": pid,
                    "type": "C",
                    "sm_util_pct": util,
                    "name": name,
                    "is_target": is_target,
                }
            )
    return rows


@pytest.mark.parametrize("seed", SEEDS)
def test_a_neighbour_that_stretches_steps_is_found(tmp_path: Path, seed: int) -> None:
    service = Service(seed=seed)
    service.decode_until(service.start + 5 * S)
    begin = service.now
    service.decode_until(service.start + 12 * S, slower=2.0)
    spans = [(begin, service.now)]
    service.decode_until(service.now + 3 * S)
    builder = service.builder(tmp_path / "s").add("gpu_process", neighbour(service, spans, 50.0))
    attribution = check(attribute(builder.write()))
    assert attribution.verdict.cause == "contention.cross_process"
    assert "embedder (pid 8000)" in attribution.verdict.text


def test_a_neighbour_that_does_not_stretch_steps_is_not(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 12 * S)
    spans = [(service.start + 5 * S, service.start + 9 * S)]
    builder = service.builder(tmp_path / "s").add("gpu_process", neighbour(service, spans, 10.0))
    attribution = check(attribute(builder.write()))
    assert attribution.verdict.cause == "healthy"


def test_a_neighbour_of_all_the_time_is_found_by_its_share(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 12 * S, slower=2.0)
    spans = [(service.start, service.now)]
    builder = service.builder(tmp_path / "s").add("gpu_process", neighbour(service, spans, 50.0))
    attribution = check(attribute(builder.write()))
    assert attribution.verdict.cause == "contention.cross_process"


def test_an_idle_context_is_no_contention(tmp_path: Path) -> None:
    service = Service(decode=20 * MS)
    service.decode_until(service.start + 12 * S)
    builder = service.builder(tmp_path / "s").add("gpu_process", neighbour(service, [], 0.0))
    attribution = check(attribute(builder.write()))
    assert attribution.verdict.cause == "healthy"


def hang(service: Service, seconds: int, is_doubtful: bool = False) -> int:
    """The next sync does not return; returns the end of the recording."""
    service.compute(service.host)
    service.launch_kernel(3)
    end = service.now + seconds * S
    service.run_device(seconds * S)
    service.rows.setdefault("open_call", []).extend(
        {
            "time_ns": service.now + (i + 1) * S - MS,
            "start_ns": service.now,
            "pid": service.pid,
            "tid": service.pid,
            "function": "cudaStreamSynchronize",
            "layer": "runtime",
            "kind": "sync",
            "call_id": 10**9,
            "depth": 0,
            "is_doubtful": is_doubtful,
        }
        for i in range(seconds)
    )
    return end


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_engine", [True, False])
def test_a_hung_kernel(tmp_path: Path, seed: int, has_engine: bool) -> None:
    service = Service(seed=seed, has_engine=has_engine)
    service.decode_until(service.start + 6 * S)
    end = hang(service, 8)
    attribution = check(attribute(service.session(tmp_path / "s", end)))
    assert attribution.verdict.cause == "hang.kernel"
    assert attribution.verdict.confidence >= 0.9
    evidence = {item.name: item.value for item in attribution.findings[0].evidence}
    assert evidence["last_launched"] == "kernel 0x3"
    assert attribution.budgets[0].by_state()["hung"] == pytest.approx(8 / 14, abs=0.02)


def test_a_doubtful_open_call_is_no_proof(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 6 * S)
    end = hang(service, 8, is_doubtful=True)
    attribution = check(attribute(service.session(tmp_path / "s", end)))
    assert "hang.kernel" not in causes(attribution)
    assert attribution.verdict.cause != "healthy"


def test_a_hang_without_nvml_is_undecided(tmp_path: Path) -> None:
    service = Service(has_nvml=False)
    service.decode_until(service.start + 6 * S)
    end = hang(service, 8)
    attribution = check(attribute(service.session(tmp_path / "s", end)))
    assert attribution.verdict.cause == "unknown"
    assert attribution.findings[0].cause == "hang.kernel"
    assert attribution.findings[0].status is Status.UNDECIDED


def test_an_open_call_on_an_idle_device_is_no_hung_kernel(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 6 * S)
    end = hang(service, 8)
    service.busy.pop()
    attribution = check(attribute(service.session(tmp_path / "s", end)))
    assert attribution.verdict.cause == "unknown"
    assert attribution.verdict.candidates == ()
    assert "cudaStreamSynchronize for 8.0 s" in attribution.verdict.text


def test_neighbours_inside_mps_run_side_by_side(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 12 * S)
    rows = neighbour(service, [(service.start, service.now)], 30.0)
    for row in rows:
        row["type"] = "M+C"
    attribution = check(attribute(service.builder(tmp_path / "s").add("gpu_process", rows).write()))
    assert attribution.verdict.cause == "healthy"


def test_a_process_outside_mps_is_the_root_of_the_contention(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 5 * S)
    begin = service.now
    service.decode_until(service.start + 12 * S, slower=2.0)
    rows = neighbour(service, [(begin, service.now)], 50.0)
    for row in rows:
        row["type"] = "C" if row["is_target"] else "M+C"
    attribution = check(attribute(service.builder(tmp_path / "s").add("gpu_process", rows).write()))
    assert attribution.verdict.cause == "contention.outside_mps"
    assert attribution.findings[0].symptoms == ["contention.cross_process"]


def test_a_long_prefill_at_the_end_is_no_hang(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 6 * S)
    end = hang(service, 2)
    attribution = check(attribute(service.session(tmp_path / "s", end)))
    assert attribution.verdict.cause == "healthy"


@pytest.mark.parametrize("running", [3, 0])
def test_a_hang_that_began_before_the_recording(tmp_path: Path, running: int) -> None:
    service = Service(running=running)
    service.run_device(20 * S)
    attribution = check(attribute(service.session(tmp_path / "s", service.start + 15 * S)))
    expected = "hang.kernel" if running else "no_demand"
    assert attribution.verdict.cause == expected


@pytest.mark.parametrize("has_engine", [True, False])
def test_no_demand(tmp_path: Path, has_engine: bool) -> None:
    service = Service(running=0, has_engine=has_engine)
    attribution = check(attribute(service.session(tmp_path / "s", service.start + 15 * S)))
    assert attribution.verdict.cause == "no_demand"


def test_nothing_recorded_is_unknown(tmp_path: Path) -> None:
    service = Service(has_engine=False, has_nvml=False)
    attribution = check(attribute(service.session(tmp_path / "s", service.start + 15 * S)))
    assert attribution.verdict.cause == "unknown"


def test_an_unexplained_stall_is_unknown_not_healthy(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 5 * S)
    service.sleep(8 * S)
    service.decode_until(service.now + 3 * S)
    attribution = check(attribute(service.session(tmp_path / "s")))
    assert attribution.verdict.cause == "unknown"
    assert causes(attribution) == []


def test_causes_that_lack_the_same_source_share_one_line(tmp_path: Path) -> None:
    service = Service(seed=1)
    while service.now < service.start + 6 * S:
        service.decode_step()
    attribution = check(attribute(service.session(tmp_path / "s")))
    text = render(attribution)
    reasons = [item.undecided_because for item in attribution.checked if item.undecided_because]
    assert len(set(reasons)) < len(reasons)
    lines = text.split("COULD NOT BE TOLD")[1].split("\n\n")[0]
    assert lines.count("\n  - ") == len(set(reasons))
    assert "not known: 100 % not known" not in text


def test_a_source_that_ran_and_saw_nothing_is_not_said_to_be_missing(tmp_path: Path) -> None:
    times = {"start_ns": S, "end_ns": 9 * S}
    ran = SessionBuilder(
        tmp_path / "ran", sources=[Source("cuda", "ok", ["cuda_call"])], **times
    ).write()
    lacked = SessionBuilder(
        tmp_path / "not", sources=[Source("cuda", "lost", ["cuda_call"])], **times
    ).write()
    assert "again under load" in " ".join(render(check(attribute(ran))).split())
    assert "has no cuda_call table" in " ".join(render(check(attribute(lacked))).split())
