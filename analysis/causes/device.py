"""Causes on the device that are named but not yet found by an analyzer."""

from __future__ import annotations

from analysis.causes.declaration import Cause

CAUSES = (
    Cause(
        "prefill.decay",
        "prompts are computed more slowly with uptime",
        "Prefill speed falls over hours and a restart cures it.",
        "Computed prompt tokens per second of prefill against uptime at like load, with flat "
        "preemptions and clocks.",
        "A full KV cache, garbage collection, throttling.",
        "Record for hours with --engine URL.",
        "Test the engine's cache eviction in place, without a restart.",
    ),
    Cause(
        "request.heavy",
        "few requests do a huge amount of work per token",
        "Requests with n, logprobs, penalties or grammars hold the batch.",
        "Launches per step, bytes copied back and engine CPU rise with the request parameters.",
        "Scheduling.",
        "Record with --engine URL.",
        "Limit n and logprobs, or serve such requests elsewhere.",
    ),
    Cause(
        "memory_bandwidth",
        "the device memory is the limit",
        "Kernels wait for DRAM.",
        "DRAM activity is high while few instructions are issued; time is linear in bytes.",
        "Power-cap flags, PCIe.",
        "Record DRAM activity with GPM or DCGM: tracer record --for memory_bandwidth --pid PID.",
        "Move fewer bytes: quantise weights or KV cache, or batch more.",
    ),
    Cause(
        "power.throttle",
        "thermal or power limits slow the clocks",
        "The device runs below its clock because of heat or power.",
        "SM clock under its normal level with a reason bit, kernels longer by the same factor.",
        "A flag alone.",
        "Record GPU samples: tracer record --pid PID.",
        "Check cooling and power limit.",
    ),
    Cause(
        "speculation.loss",
        "speculative decoding costs more than it gives",
        "Most drafted tokens are rejected.",
        "Drafted against accepted tokens.",
        "Heavy requests.",
        "Record with --engine URL.",
        "Draft fewer tokens or turn speculation off above some batch size.",
    ),
    Cause(
        "adapter.thrash",
        "adapters are swapped at every batch",
        "More adapters are in use than fit.",
        "Bursts of host-to-device copies at each batch.",
        "Weight offloading.",
        "Record with --engine URL.",
        "Raise the number of adapter slots or route by adapter.",
    ),
)
