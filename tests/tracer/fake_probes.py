"""Small probes for tests of the recorder: real rows, no kernel."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from analysis.schema import CUDA_CALL, OPEN_CALL
from probes.probe import Batch, ProbeError, SourceReport, make_batch


def call_batch(first: int, n: int, now_ns: int) -> Batch:
    ids = np.arange(first, first + n, dtype=np.int64)
    return make_batch(
        CUDA_CALL,
        {
            "start_ns": now_ns - (n - np.arange(n)) * 1000,
            "duration_ns": np.arange(1, n + 1) * 1000,
            "pid": np.full(n, 7),
            "tid": np.full(n, 8),
            "function": ["cudaLaunchKernel"] * n,
            "layer": ["runtime"] * n,
            "kind": ["launch"] * n,
            "call_id": ids,
            "depth": np.zeros(n),
        },
    )


class FakeCalls:
    """Delivers ``n`` calls with each drain."""

    tables = (CUDA_CALL,)

    def __init__(self, name: str = "calls", n: int = 10, period_ns: int = 20_000_000) -> None:
        self.name, self.n, self.period_ns = name, n, period_ns
        self.n_rows = self.n_lost = 0
        self.started = self.stopped = 0

    def start(self) -> None:
        self.started += 1

    def drain(self, now_ns: int) -> Iterable[Batch]:
        self.n_rows += self.n
        return [call_batch(self.n_rows - self.n, self.n, now_ns)]

    def stop(self) -> Iterable[Batch]:
        self.stopped += 1
        self.n_rows += 1
        return [call_batch(self.n_rows - 1, 1, time.monotonic_ns())]

    def report(self) -> SourceReport:
        return SourceReport(self.name, self.n_rows, self.n_lost)


class Unavailable(FakeCalls):
    """Cannot run here."""

    def start(self) -> None:
        raise ProbeError("no such device; load the driver")


class FailsLater(FakeCalls):
    """Fails at the third drain, after a row."""

    def drain(self, now_ns: int) -> Iterable[Batch]:
        yield from super().drain(now_ns)
        if self.n_rows >= 3 * self.n:
            raise RuntimeError("boom")


class StopsSlowly(FakeCalls):
    """Takes 4 s to detach."""

    def stop(self) -> Iterable[Batch]:
        time.sleep(4)
        return super().stop()


class OpenCalls(FakeCalls):
    """Tells one open call with each drain."""

    tables = (OPEN_CALL,)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        return [
            make_batch(
                OPEN_CALL,
                {
                    "time_ns": [now_ns],
                    "start_ns": [1],
                    "pid": [7],
                    "tid": [8],
                    "function": ["cudaStreamSynchronize"],
                    "layer": ["runtime"],
                    "kind": ["sync"],
                    "call_id": [1],
                    "depth": [0],
                    "is_doubtful": [False],
                },
            )
        ]
