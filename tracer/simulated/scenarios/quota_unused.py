"""A CPU quota is set, and never reached."""

from tracer.simulated.cgroup import missing_quota, set_quota
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve chats with nine tenths of a CPU, where a tenth is needed."""
    serve_chats(stage)
    set_quota(stage, stage.target.launcher_pid, quota_us=90_000, period_us=100_000)


SCENARIO = Scenario(
    name="quota_unused",
    summary="The engine's control group has a CPU quota that the engine never reaches.",
    expected=Expected("healthy"),
    prepare=prepare,
    confounders=("cgroup_quota",),
    missing=missing_quota,
)
