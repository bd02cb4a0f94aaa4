"""The ``/metrics`` page of the simulated server, with vLLM's own metric names and buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

_REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
_STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")

_GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
_COUNTERS = {
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
}
_HISTOGRAMS = {
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _STEP_TOKENS),
    "time_to_first_token_seconds": (
        "Histogram of time to first token in seconds.",
        _FIRST_TOKEN_SECONDS,
    ),
    "inter_token_latency_seconds": (
        "Histogram of inter-token latency in seconds.",
        _TOKEN_SECONDS,
    ),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _TOKEN_SECONDS,
    ),
    "e2e_request_latency_seconds": (
        "Histogram of e2e request latency in seconds.",
        _REQUEST_SECONDS,
    ),
    "request_queue_time_seconds": (
        "Histogram of time spent in WAITING phase for request.",
        _REQUEST_SECONDS,
    ),
    "request_inference_time_seconds": (
        "Histogram of time spent in RUNNING phase for request.",
        _REQUEST_SECONDS,
    ),
    "request_prefill_time_seconds": (
        "Histogram of time spent in PREFILL phase for request.",
        _REQUEST_SECONDS,
    ),
    "request_decode_time_seconds": (
        "Histogram of time spent in DECODE phase for request.",
        _REQUEST_SECONDS,
    ),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        _TOKENS,
    ),
    "request_params_n": ("Histogram of the n request parameter.", (1.0, 2.0, 5.0, 10.0, 20.0)),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", _TOKENS),
    "request_num_preemptions": (
        "Histogram of the number of times a request was preempted.",
        (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    ),
}


@dataclass(slots=True)
class Progress:
    """Where one request is, in seconds of CLOCK_MONOTONIC (None: not yet).

    The API process notes when a request came and when it got its tokens; the engine notes when it
    queued the request, first scheduled it and computed its tokens. The phases are the engine's, as
    in vLLM: what happens before and after it is in none of them.
    """

    prompt_tokens: int
    max_tokens: int
    n_samples: int
    arrival: float
    queued: float | None = None
    scheduled: float | None = None
    first_computed: float | None = None
    last_computed: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    n_output: int = 0


class MetricsPage:
    """The metrics of one engine, kept as vLLM keeps them in its API process.

    Args:
        model_name: Value of the label ``model_name``.
        n_blocks: Blocks of the KV pool.
        block_tokens: Tokens per block.
    """

    def __init__(self, model_name: str, n_blocks: int, block_tokens: int) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        labels = {"engine": "0", "model_name": model_name}
        names = tuple(labels)
        self._gauge = {
            name: Gauge(f"vllm:{name}", doc, names, registry=self.registry).labels(**labels)
            for name, doc in _GAUGES.items()
        }
        self._counter = {
            name: Counter(f"vllm:{name}", doc, names, registry=self.registry).labels(**labels)
            for name, doc in _COUNTERS.items()
        }
        self._histogram = {
            name: Histogram(
                f"vllm:{name}", doc, names, buckets=buckets, registry=self.registry
            ).labels(**labels)
            for name, (doc, buckets) in _HISTOGRAMS.items()
        }
        success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            (*names, "finished_reason"),
            registry=self.registry,
        )
        self._success = {
            reason: success.labels(**labels, finished_reason=reason) for reason in _FINISHED_REASONS
        }
        info = {"block_size": str(block_tokens), "num_gpu_blocks": str(n_blocks), "engine": "0"}
        Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            tuple(info),
            registry=self.registry,
        ).labels(**info).set(1)

    def text(self) -> bytes:
        """Return the page in the Prometheus text format."""
        return generate_latest(self.registry)

    def set_engine(self, n_running: int, n_waiting: int, kv_usage: float) -> None:
        """Set the gauges of the engine after a step."""
        self._gauge["num_requests_running"].set(n_running)
        self._gauge["num_requests_waiting"].set(n_waiting)
        self._gauge["kv_cache_usage_perc"].set(kv_usage)

    def count_preemptions(self, n: int) -> None:
        """Count requests that were evicted in a step."""
        self._counter["num_preemptions"].inc(n)

    def observe_step(self, n_prompt_tokens: int, n_generated: int) -> None:
        """Count the tokens of a step; prompts count when their first token comes out."""
        self._counter["prompt_tokens"].inc(n_prompt_tokens)
        self._counter["prefix_cache_queries"].inc(n_prompt_tokens)
        self._counter["generation_tokens"].inc(n_generated)
        self._histogram["iteration_tokens_total"].observe(n_prompt_tokens + n_generated)

    def observe_token(self, progress: Progress, computed: float, now: float) -> None:
        """Note a token of a request: its time to first token, or since the last one.

        Args:
            progress: The request.
            computed: When the step that computed the token ended, s.
            now: When the API process got it, s.
        """
        if progress.first_token is None:
            progress.first_token, progress.first_computed = now, computed
            self._histogram["time_to_first_token_seconds"].observe(now - progress.arrival)
        else:
            last = progress.last_token if progress.last_token is not None else now
            self._histogram["inter_token_latency_seconds"].observe(now - last)
        progress.last_token, progress.last_computed = now, computed
        progress.n_output += 1

    def observe_end(self, progress: Progress, reason: str, n_preempted: int, now: float) -> None:
        """Note the end of a request; the request histograms move only here."""
        self._success[reason].inc()
        observations: dict[str, Any] = {
            "e2e_request_latency_seconds": now - progress.arrival,
            "request_prompt_tokens": progress.prompt_tokens,
            "request_generation_tokens": progress.n_output,
            "request_params_n": progress.n_samples,
            "request_params_max_tokens": progress.max_tokens,
            "request_num_preemptions": n_preempted,
        }
        scheduled, first, last = progress.scheduled, progress.first_computed, progress.last_computed
        if progress.queued is not None and scheduled is not None:
            observations["request_queue_time_seconds"] = scheduled - progress.queued
        if scheduled is not None and first is not None and last is not None:
            observations["request_inference_time_seconds"] = last - scheduled
            observations["request_prefill_time_seconds"] = first - scheduled
            observations["request_decode_time_seconds"] = last - first
            observations["request_prefill_kv_computed_tokens"] = progress.prompt_tokens
            if progress.n_output > 1:
                observations["request_time_per_output_token_seconds"] = (last - first) / (
                    progress.n_output - 1
                )
        for name, value in observations.items():
            self._histogram[name].observe(value)
