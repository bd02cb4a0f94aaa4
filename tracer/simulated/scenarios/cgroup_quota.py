"""A CPU quota parks the engine."""

from dataclasses import replace

from tracer.simulated.cgroup import missing_quota, set_quota
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER, serve_chats
from tracer.simulated.stage import Stage

#: An engine that needs a third of a CPU.
BUSY_SERVER = replace(SERVER, host_work_ns=3_000_000)


def prepare(stage: Stage) -> None:
    """Serve chats with a fifth of a CPU, where a third is needed."""
    serve_chats(stage, BUSY_SERVER)
    set_quota(stage, stage.target.launcher_pid, quota_us=18_000, period_us=100_000)


SCENARIO = Scenario(
    name="cgroup_quota",
    summary="The engine's control group has a CPU quota below what the engine needs.",
    expected=Expected("launch.cgroup_throttle"),
    prepare=prepare,
    confounders=("cpu_contention", "quota_unused"),
    has_cpu_contention=True,
    missing=missing_quota,
)
