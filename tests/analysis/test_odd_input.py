"""Odd sessions end in an answer that adds up, never in an exception."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analysis import schema
from analysis.attribution import attribute
from analysis.calls import KINDS
from analysis.schema import Column
from tests.analysis.builder import SessionBuilder
from tests.analysis.test_attribution import check

_WORDS = {
    "kind": [*KINDS, "gauge", "counter", "sum", "count", "fork", "exec", "kernel"],
    "function": ["cudaLaunchKernel", "cudaMemcpy", "cudaEventSynchronize", "cuCtxSynchronize"],
    "state": ["running", "sleeping", "uninterruptible", "other"],
    "metric": ["requests_running", "generation_tokens", "prompt_tokens", "inter_token_seconds"],
    "scope": ["host", "/a", "/b"],
    "source": ["nvml", "cuda"],
    "type": ["C", "M+C", "G"],
}


def value(rng: random.Random, column: Column) -> Any:
    """Any value that the schema allows, likely or not."""
    if column.nullable and rng.random() < 0.3:
        return None
    if column.name in _WORDS:
        return rng.choice(_WORDS[column.name])
    if column.type == "str":
        return rng.choice(["", "x", "gcc", "nvidia-cuda-mps-server"])
    if column.type == "bool":
        return rng.random() < 0.5
    if column.name in ("pid", "tid", "waker_tid", "occupant_tid", "taker_tid", "parent_pid"):
        return rng.randint(0, 3)
    if column.name == "depth":
        return rng.choice([0, 0, 0, 1])
    if column.name == "device":
        return rng.randint(0, 2)
    if column.name in ("stream", "kernel"):
        return rng.randint(0, 4)
    if column.name.endswith("_ns"):
        return rng.choice([rng.randint(0, 20 * 10**9), rng.randint(-10, 10**6), 0])
    if column.type == "f64":
        return rng.choice([rng.uniform(-1, 200), float("nan"), float("inf"), 0.0])
    return rng.randint(0, 100)


@pytest.mark.parametrize("seed", range(60))
def test_any_tables_are_answered(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    builder = SessionBuilder(tmp_path / "s")
    if rng.random() < 0.5:
        builder.manifest.start_ns, builder.manifest.end_ns = 0, 20 * 10**9
    for declared in schema.TABLES:
        if rng.random() < 0.6:
            builder.add(
                declared.name,
                [
                    {column.name: value(rng, column) for column in declared}
                    for _ in range(rng.choice([0, 1, 5, 200]))
                ],
            )
    check(attribute(builder.write()))
