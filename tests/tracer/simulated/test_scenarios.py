from dataclasses import replace
from pathlib import Path

import pytest

from analysis.causes import CAUSES
from tracer.errors import UsageError
from tracer.simulated.disturbance import Disturbance, DisturbanceMeter
from tracer.simulated.scenarios import registry
from tracer.simulated.stage import CpuPlan

FOLDER = Path(registry.__file__).parent
#: Modules of the folder that are no scenario.
OTHERS = {"__init__", "judgement", "registry", "scenario", "serving"}


def test_the_registry_is_sorted_and_complete():
    names = [scenario.name for scenario in registry.SCENARIOS]
    assert names == sorted(set(names))
    assert set(names) == {path.stem for path in FOLDER.glob("*.py")} - OTHERS


@pytest.mark.parametrize("scenario", registry.SCENARIOS, ids=lambda item: item.name)
def test_a_scenario_says_what_is_wrong_and_names_real_confounders(scenario):
    assert scenario.summary.endswith(".")
    assert len(scenario.summary) <= 100
    names = {item.name for item in registry.SCENARIOS}
    assert set(scenario.confounders) <= names - {scenario.name}
    assert scenario.expected.statuses


def test_every_expected_cause_is_declared():
    declared = {cause.slug for cause in CAUSES}
    for scenario in registry.SCENARIOS:
        for cause in (scenario.expected.cause, *scenario.expected.or_causes):
            assert cause in declared, f"{scenario.name} expects {cause}"


def test_an_unknown_scenario_is_refused_with_a_close_name_or_the_way_to_list_them():
    with pytest.raises(UsageError, match="did you mean cpu_contention"):
        registry.find("cpu_contentoin")
    with pytest.raises(UsageError, match="tracer demo --list"):
        registry.find("xyzzy")


def test_the_launcher_has_a_cpu_of_its_own_where_there_are_two():
    assert CpuPlan.of((0, 1, 2)) == CpuPlan((2,), (0, 1))
    assert CpuPlan.of((4,)) == CpuPlan((4,), (4,))


def test_waits_and_stolen_time_disturb_a_run(tmp_path: Path):
    proc = tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "schedstat").write_text("1000000000 200000000 5")
    (proc / "stat").write_text("cpu  0\ncpu1 1 2 3 4 5 6 7 100 0 0\n")
    meter = DisturbanceMeter(7, 1, root=tmp_path)
    (proc / "7" / "schedstat").write_text("1500000000 700000000 9")
    (proc / "stat").write_text("cpu  0\ncpu1 1 2 3 4 5 6 7 110 0 0\n")
    measured = meter.read(elapsed_s=10.0)
    assert measured == Disturbance(pytest.approx(0.05), pytest.approx(0.01))
    assert measured.excuses(has_cpu_contention=False)
    assert not measured.excuses(has_cpu_contention=True)
    assert Disturbance(None, 0.2).excuses(has_cpu_contention=True)
    assert not Disturbance(None, None).excuses(has_cpu_contention=False)


def process(root: Path, pid: int, session: int, cpus: str, ticks: int) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    rest = ["S", "1", "1", str(session), *["0"] * 7, str(ticks), "0", *["0"] * 10]
    (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(rest)}\n")
    (folder / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{cpus}\nThreads:\t1\n")


@pytest.mark.parametrize(
    ("pid", "session", "cpus", "is_foreign"),
    [(8, 7, "1", False), (8, 99, "1", True), (8, 7, "0-1", True)],
    ids=["staged", "of another session", "staged elsewhere"],
)
def test_what_others_do_on_the_launchers_cpu_disturbs_staged_contention(
    tmp_path, pid, session, cpus, is_foreign
):
    process(tmp_path, 7, 7, "1", 0)
    process(tmp_path, pid, session, cpus, 0)
    (tmp_path / "proc" / "7" / "schedstat").write_text("0 0 5")
    (tmp_path / "proc" / "stat").write_text("cpu1 100 0 50 4 5 6 7 0 0 0\n")
    meter = DisturbanceMeter(7, 1, sessions=[7], root=tmp_path)
    (tmp_path / "proc" / "7" / "schedstat").write_text("0 1000000000 5")
    process(tmp_path, 7, 7, "1", 300)
    process(tmp_path, pid, session, cpus, 200)
    (tmp_path / "proc" / "stat").write_text("cpu1 500 0 150 4 5 6 7 0 0 0\n")
    measured = meter.read(elapsed_s=10.0)
    assert measured.foreign_share == pytest.approx(0.2 if is_foreign else 0.0)
    assert measured.excuses(has_cpu_contention=True) is is_foreign
    unhurt = replace(measured, waiting_share=0.01)
    assert not unhurt.excuses(has_cpu_contention=True)
