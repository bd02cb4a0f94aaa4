"""The phases of a request on the simulated metrics page are the engine's own."""

from __future__ import annotations

import pytest

from tracer.simulated.metrics_page import MetricsPage, Progress


def sums(page: MetricsPage) -> dict[str, float]:
    """Sums of the page's histograms that are lengths of time, s."""
    return {
        sample.name.removeprefix("vllm:").removesuffix("_seconds_sum"): sample.value
        for metric in page.registry.collect()
        for sample in metric.samples
        if sample.name.endswith("_seconds_sum")
    }


def test_waiting_before_the_engine_is_in_no_phase():
    page = MetricsPage("m", 100, 16)
    progress = Progress(10, 2, 1, arrival=1.0, queued=1.5, scheduled=2.0)
    page.observe_token(progress, 2.25, 2.5)
    page.observe_token(progress, 2.75, 4.0)
    page.observe_end(progress, "length", 0, 4.0)
    told = sums(page)
    assert told["time_to_first_token"] == pytest.approx(1.5)
    assert told["request_queue_time"] == pytest.approx(0.5)
    assert told["request_prefill_time"] == pytest.approx(0.25)
    assert told["request_decode_time"] == pytest.approx(0.5)
    assert told["request_inference_time"] == pytest.approx(0.75)
    assert told["e2e_request_latency"] == pytest.approx(3.0)


def test_a_request_that_never_ran_has_no_phase():
    page = MetricsPage("m", 100, 16)
    page.observe_end(Progress(10, 2, 1, arrival=1.0), "abort", 0, 3.0)
    told = sums(page)
    assert told["e2e_request_latency"] == pytest.approx(2.0)
    assert told["request_queue_time"] == told["request_inference_time"] == 0
