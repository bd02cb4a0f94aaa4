"""Another process works on the same device, without MPS."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def add_neighbour(
    stage: Stage,
    burst_s: float,
    pause_s: float,
    start_s: float = 0.0,
    share: float = 1.0,
    in_mps: bool = False,
) -> int:
    """Start the embedding job beside the service; its pid."""
    child = stage.start_module(
        "neighbour",
        {
            "name": "embed-worker",
            "cpus": stage.cpus.others,
            "runtime": 12,
            "device": 0,
            "n_kernels": 12,
            "kernel_ns": 1_500_000,
            "burst_s": burst_s,
            "pause_s": pause_s,
            "start_s": start_s,
            "share": share,
        },
        in_mps=in_mps,
    )
    return child.pid


def prepare(stage: Stage) -> None:
    """Serve chats beside a job that takes turns on the device."""
    serve_chats(stage)
    stage.culprits["embed-worker"] = add_neighbour(stage, burst_s=2.0, pause_s=0.7)


SCENARIO = Scenario(
    name="second_process",
    summary="An embedding job of another process takes turns on the device, in bursts.",
    expected=Expected("contention.cross_process"),
    prepare=prepare,
    confounders=("idle_neighbour", "cpu_contention"),
)
