"""One recorded run of a scenario: staged, recorded as ``tracer record --pid`` does, taken down."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tracer.errors import RequirementError
from tracer.recording import RecordOptions, record
from tracer.simulated.build import BuildError
from tracer.simulated.disturbance import Disturbance, DisturbanceMeter
from tracer.simulated.scenarios.scenario import Scenario
from tracer.simulated.stage import Stage

#: Told what is being done, one short sentence each.
Teller = Callable[[str], None]


@dataclass
class Performance:
    """What a run left behind.

    Attributes:
        session: The session directory.
        culprits: Names of staged culprits and their pids.
        disturbance: What the launching thread suffered, for acceptance runs only.
    """

    session: Path
    culprits: Mapping[str, int] = field(default_factory=dict)
    disturbance: Disturbance = field(default_factory=lambda: Disturbance(None, None))


@dataclass(frozen=True)
class RunOptions:
    """How a scenario is run.

    Attributes:
        session: Session directory to write.
        seed: Of everything that is drawn.
        duration_ns: Length of the recording.
        force: Replace an existing session.
        is_terminal: Whether to keep a status line on standard error.
        has_device_times: Record the device's own times too, through the simulated CUPTI.
    """

    session: Path
    seed: int
    duration_ns: int
    force: bool = False
    is_terminal: bool = False
    has_device_times: bool = False


def perform(
    scenario: Scenario,
    options: RunOptions,
    tell: Teller,
    linger: Callable[[Stage], None] | None = None,
) -> Performance:
    """Run a scenario once and return what it left.

    Args:
        scenario: What to stage.
        options: How.
        tell: Gets a sentence per step.
        linger: Called with the service still running, after the recording.

    Raises:
        RequirementError: the scenario cannot be staged on this machine.
        StageError: the service did not come up.
    """
    reason = scenario.missing() if scenario.missing is not None else ""
    if reason:
        raise RequirementError(f"scenario {scenario.name} cannot be staged here: {reason}")
    tell("Building the simulated device and starting the service ...")
    try:
        stage = Stage(options.seed, options.duration_ns / 1e9, scenario.n_devices)
    except BuildError as error:
        raise RequirementError(str(error)) from None
    with stage:
        cupti = stage.prepare_device_times() if options.has_device_times else None
        scenario.prepare(stage)
        result = Performance(options.session, stage.culprits)
        meters: list[DisturbanceMeter] = []

        def begin() -> None:
            is_apart = stage.cpus.launcher != stage.cpus.others
            meters.append(
                DisturbanceMeter(
                    stage.target.launcher_pid,
                    stage.cpus.launcher[0],
                    stage.sessions() if is_apart else (),
                )
            )
            stage.mark_begin()
            if scenario.happen is not None:
                threading.Thread(target=scenario.happen, args=(stage,), daemon=True).start()

        url = stage.target.url
        began = time.monotonic()
        with _beside(stage):
            record(
                RecordOptions(
                    pids=(stage.target.pid,),
                    output=options.session,
                    duration_ns=options.duration_ns,
                    engine_urls=(f"{url}/metrics",) if url is not None else (),
                    cupti=cupti,
                    force=options.force,
                    on_ready=begin,
                    is_terminal=options.is_terminal,
                )
            )
        if meters:
            result.disturbance = meters[0].read(time.monotonic() - began)
        if linger is not None:
            linger(stage)
    return result


@contextmanager
def _beside(stage: Stage) -> Iterator[None]:
    """Keep this process off the launcher's CPU, and let it see the simulated NVML."""
    cpus = os.sched_getaffinity(0)
    variables = stage.device.env()
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    os.sched_setaffinity(0, stage.cpus.others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
