"""The status line: rates over the last seconds, unknown stays unknown."""

from __future__ import annotations

from analysis.manifest import Source
from analysis.schema import ENGINE_SAMPLE, GPU_SAMPLE
from probes.probe import make_batch
from tests.tracer.fake_probes import call_batch
from tracer.status import StatusMeter, status_line

S = 1_000_000_000


def tokens(time_ns: int, values: list[float], endpoint: str = "u"):
    n = len(values)
    return make_batch(
        ENGINE_SAMPLE,
        {
            "time_ns": [time_ns] * (n + 1),
            "endpoint": [endpoint] * (n + 1),
            "engine": ["vllm"] * (n + 1),
            "metric": ["generation_tokens"] * n + ["prompt_tokens"],
            "raw_name": ["r"] * (n + 1),
            "kind": ["counter"] * (n + 1),
            "value": [*values, 1e9],
        },
    )


def test_nothing_known_is_none_and_not_shown():
    status = StatusMeter().snapshot(S, 0, [])
    assert (status.calls_per_s, status.launch_p50_ns, status.tokens_per_s) == (None, None, None)
    assert status_line(status) == "00:01 | lost 0"


def test_rates_percentiles_and_losses():
    meter = StatusMeter()
    meter.observe(call_batch(0, 100, 10 * S), 10 * S)
    meter.observe(call_batch(100, 100, 15 * S), 15 * S)
    meter.observe(tokens(11 * S, [100.0, 50.0]), 11 * S)
    meter.observe(tokens(13 * S, [140.0, 70.0]), 13 * S)
    meter.observe(
        make_batch(
            GPU_SAMPLE,
            {"time_ns": [S] * 2, "device": [0, 1], "source": ["n"] * 2, "util_pct": [87.4, None]},
        ),
        14 * S,
    )
    sources = [Source("nvml", "unavailable"), Source("calls", "degraded", n_lost=12_345)]
    status = meter.snapshot(15 * S, 0, sources)
    assert status.calls_per_s == 40.0
    assert (status.n_launches, status.launch_p50_ns, status.launch_p99_ns) == (
        200,
        50_000,
        99_000,
    )
    assert status.tokens_per_s == 30.0
    assert status.device_util_pct == {0: 87.4}
    assert status_line(status) == (
        "00:15 | 40 calls/s | launch p50 50 µs p99 99 µs (n=200) | GPU 87% | 30 tokens/s"
        " | lost 12.3k | without nvml"
    )
    later = meter.snapshot(3_661 * S, 0, sources, problem="No space.")
    assert later.calls_per_s == 0 and later.launch_p50_ns is None and not later.device_util_pct
    assert status_line(later).startswith("1:01:01 | 0 calls/s | lost")
    assert status_line(later).endswith("No space.")


def test_a_restarted_engine_does_not_make_a_negative_rate():
    meter = StatusMeter()
    for second, value in enumerate([1000.0, 1100.0, 10.0, 110.0]):
        meter.observe(tokens(second * S, [value]), second * S)
    assert abs(meter.snapshot(3 * S, 0, []).tokens_per_s - 200 / 3) < 1e-9


def test_engines_are_counted_apart_and_added_up():
    meter = StatusMeter()
    for second in range(5):
        meter.observe(tokens(second * S, [10.0 * second]), second * S)
        meter.observe(tokens(second * S + 1, [9000.0 + 100 * second], "v"), second * S + 1)
    assert abs(meter.snapshot(5 * S, 0, []).tokens_per_s - 110) < 1e-6


def test_what_is_older_than_the_window_is_not_kept_though_nobody_asks():
    meter = StatusMeter()
    for second in range(1, 600):
        meter.observe(call_batch(0, 100, second * S), second * S)
        meter.observe(tokens(second * S, [float(second)]), second * S)
    assert 0 < len(meter._calls) < 20 and 0 < len(meter._waiting) < 20
    assert meter.snapshot(599 * S, 0, []).tokens_per_s == 1
