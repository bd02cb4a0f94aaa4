"""The verdicts that are no cause: nothing was asked, nothing is wrong, or it cannot be told."""

from __future__ import annotations

from analysis.causes.declaration import Cause

CAUSES = (
    Cause(
        "healthy",
        "demand is met and nothing is wrong",
        "The service had work and the device did it.",
        "Demand, progress, and no cause that costs a tenth of the time.",
        "No demand; a fault that the recording cannot show.",
        "Record longer, or at the time of the complaint.",
        "Nothing to do.",
        stated_by="the verdict, from what all analyzers answer",
    ),
    Cause(
        "no_demand",
        "nothing was asked of it",
        "The device was idle because no work came.",
        "No request running or waiting, or no call and an idle device.",
        "A hang, and work that never reaches the device.",
        "Record the engine's metrics: tracer record --pid PID --engine URL.",
        "Look upstream if work was expected.",
        stated_by="the verdict, from what all analyzers answer",
    ),
    Cause(
        "unknown",
        "no cause is proven",
        "Time is lost and none of the known causes is proven.",
        "Lost time with demand that no finding explains.",
        "Anything: this is the honest answer where the proof is missing.",
        "See what each candidate still needs.",
        "Record what is named below, then analyse again.",
        stated_by="the verdict, from what all analyzers answer",
    ),
)
