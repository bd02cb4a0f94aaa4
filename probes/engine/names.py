"""One vocabulary for the metrics of inference engines, and each engine's names for it.

The vocabulary (:data:`VOCABULARY`) is what analyzers read; :data:`ALIASES` declares which exposed
name of which engine means it. Raw names are kept beside it in every row.

Meaning of labels in ``engine_sample.labels``: ``engine`` (data-parallel instance or model: series
of different engines add up), ``dp_rank`` (the same), ``reason``, ``stage``, ``server`` (the kind of
engine, where one page has metrics of several kinds). Series that differ
only in tensor- or pipeline-parallel rank are replicas of one number: only the lowest rank is kept,
save for metrics that are ``per_rank``, which keep ``tp_rank``, ``pp_rank`` and ``moe_ep_rank``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Metric:
    """One word of the vocabulary: its unit, kind (gauge, counter or histogram) and meaning.

    ``merge`` says how series merge that differ only in labels that are not kept: ``sum``, ``max``
    or ``latest`` (largest value of an information series wins).
    """

    name: str
    unit: str
    kind: str
    doc: str
    merge: str = "sum"
    per_rank: bool = False


#: The vocabulary. Seconds are seconds, shares lie in 0..1, tokens and requests are counts.
VOCABULARY: tuple[Metric, ...] = (
    Metric("requests_running", "requests", "gauge", "Requests in the running batch."),
    Metric("requests_waiting", "requests", "gauge", "Requests waiting for a place in the batch."),
    Metric(
        "requests_waiting_by_reason",
        "requests",
        "gauge",
        "The same by reason (capacity, deferred).",
    ),
    Metric("requests_swapped", "requests", "gauge", "Requests swapped out, paused or retracted."),
    Metric("requests_prefill", "requests", "gauge", "Requests of the batch in their prefill."),
    Metric("requests_decode", "requests", "gauge", "Requests of the batch in their decode."),
    Metric("requests_max", "requests", "gauge", "Most requests that may run at once.", "max"),
    Metric("requests_finished", "requests", "counter", "Requests finished, by reason."),
    Metric("requests_failed", "requests", "counter", "Requests that ended in an error."),
    Metric("requests_rejected", "requests", "counter", "Requests refused at admission, by reason."),
    Metric("requests_received", "requests", "counter", "Requests that arrived."),
    Metric("kv_usage", "share", "gauge", "Share of the KV cache in use.", "max"),
    Metric("kv_used_tokens", "tokens", "gauge", "Tokens held in the KV cache."),
    Metric("kv_pool_tokens", "tokens", "gauge", "Tokens that the KV cache can hold."),
    Metric("kv_pool_blocks", "blocks", "gauge", "Blocks of the KV cache."),
    Metric("kv_block_tokens", "tokens", "gauge", "Tokens in one block of the KV cache.", "max"),
    Metric("kv_evicted_tokens", "tokens", "counter", "Tokens evicted from the KV cache."),
    Metric("preemptions", "requests", "counter", "Requests preempted (retracted) for lack of KV."),
    Metric("prefix_queries", "tokens", "counter", "Tokens looked up in the prefix cache."),
    Metric("prefix_hits", "tokens", "counter", "Tokens found in the prefix cache."),
    Metric("prompt_tokens", "tokens", "counter", "Prompt tokens processed."),
    Metric("prompt_tokens_cached", "tokens", "counter", "Prompt tokens taken from a cache."),
    Metric("generation_tokens", "tokens", "counter", "Tokens generated."),
    Metric("generation_tokens_per_s", "tokens/s", "gauge", "Rate as the engine itself tells it."),
    Metric("prefill_computed_tokens", "tokens", "histogram", "Prompt tokens really computed."),
    Metric("request_prompt_tokens", "tokens", "histogram", "Prompt length of a request."),
    Metric("request_generation_tokens", "tokens", "histogram", "Output length of a request."),
    Metric("request_max_tokens", "tokens", "histogram", "Output length that was asked for."),
    Metric("request_n", "completions", "histogram", "Completions asked for per request (n)."),
    Metric("iteration_tokens", "tokens", "histogram", "Tokens of one engine step; count is steps."),
    Metric("iterations", "steps", "counter", "Engine steps."),
    Metric("iteration_seconds", "s", "histogram", "Length of one engine step."),
    Metric("ttft_seconds", "s", "histogram", "Time to first token, queue included."),
    Metric("inter_token_seconds", "s", "histogram", "Time between two tokens of a request."),
    Metric(
        "time_per_output_token_seconds", "s", "histogram", "Mean time per token of one request."
    ),
    Metric("queue_seconds", "s", "histogram", "From arrival to the first step."),
    Metric("prefill_seconds", "s", "histogram", "From the first step to the first token."),
    Metric("decode_seconds", "s", "histogram", "From the first to the last token."),
    Metric("inference_seconds", "s", "histogram", "From the first step to the last token."),
    Metric("e2e_seconds", "s", "histogram", "From arrival to the last token."),
    Metric("drafts", "drafts", "counter", "Rounds of speculation."),
    Metric("drafted_tokens", "tokens", "counter", "Tokens proposed by speculation."),
    Metric("accepted_tokens", "tokens", "counter", "Proposed tokens that were accepted."),
    Metric("accept_length", "tokens", "gauge", "Mean tokens accepted per round.", "max"),
    Metric("adapters_running", "adapters", "gauge", "Adapters used by running requests.", "latest"),
    Metric("adapters_waiting", "adapters", "gauge", "Adapters waited for by requests.", "latest"),
    Metric("engine_awake", "bool", "gauge", "1 awake, 0 asleep.", "max"),
    Metric("engine_healthy", "bool", "gauge", "1 healthy, 0 not.", "max"),
    Metric("engine_start", "s since epoch", "gauge", "When the serving process started.", "max"),
    Metric("forward_occupancy", "share", "gauge", "Share of time in a forward pass.", "max", True),
    Metric("forward_seconds", "s", "counter", "Time spent in forward passes.", "sum", True),
    Metric("scheduler_stage_seconds", "s", "counter", "Scheduler's time by stage.", "sum", True),
    Metric("scheduler_cpu_seconds", "s", "counter", "CPU time of the scheduler.", "sum", True),
    Metric("scheduler_idle_seconds", "s", "counter", "Time the scheduler idled.", "sum", True),
    Metric("gpu_memory_used_bytes", "bytes", "gauge", "Device memory as the engine tells it."),
)

_BY_NAME = {metric.name: metric for metric in VOCABULARY}


def metric(name: str) -> Metric:
    """Return one word of the vocabulary.

    Raises:
        KeyError: it is not in the vocabulary.
    """
    return _BY_NAME[name]


class Moves(Enum):
    """When a metric of an engine moves; what moves only at the end lags by a whole request."""

    STEP = "at every step"
    TOKEN = "at every token"
    FIRST_TOKEN = "when a request's first token is emitted"
    FINISH = "only when a request finishes"


@dataclass(frozen=True)
class Alias:
    """One exposed name of one engine and the word it means.

    Attributes:
        engine: Engine that exposes it.
        raw: Exposed name of the family (histograms without ``_bucket``, ``_sum``, ``_count``).
        metric: Word of the vocabulary.
        moves: When it moves.
        kind: Kind of row it makes if not the metric's own: ``sum`` or ``count`` feed a histogram
            of the vocabulary from a plain counter.
        scale: What the value is multiplied by to get the vocabulary's unit.
        where: Labels that the series must have.
        keep: Exposed labels that are kept, each with the name it gets.
        product_of: Labels of an information series whose product is the value.
        count_of: Label of an information series that lists names: their number is the value.
    """

    engine: str
    raw: str
    metric: str
    moves: Moves = Moves.STEP
    kind: str | None = None
    scale: float = 1.0
    where: tuple[tuple[str, str], ...] = ()
    keep: tuple[tuple[str, str], ...] = ()
    product_of: tuple[str, ...] = ()
    count_of: str | None = None


_FINISH, _FIRST, _TOKEN = Moves.FINISH, Moves.FIRST_TOKEN, Moves.TOKEN


def _vllm(raw: str, word: str, moves: Moves = Moves.STEP, **more: object) -> Alias:
    return Alias("vllm", f"vllm:{raw}", word, moves, **more)  # type: ignore[arg-type]


def _sglang(raw: str, word: str, moves: Moves = Moves.STEP, **more: object) -> Alias:
    return Alias("sglang", f"sglang:{raw}", word, moves, **more)  # type: ignore[arg-type]


def _tgi(raw: str, word: str, moves: Moves = Moves.STEP, **more: object) -> Alias:
    return Alias("tgi", f"tgi_{raw}", word, moves, **more)  # type: ignore[arg-type]


def _trtllm(raw: str, word: str, moves: Moves = Moves.STEP, **more: object) -> Alias:
    return Alias("tensorrt_llm", f"trtllm_{raw}", word, moves, **more)  # type: ignore[arg-type]


def _triton(raw: str, word: str, moves: Moves = Moves.STEP, **more: object) -> Alias:
    more.setdefault("keep", (("model", "engine"),))
    return Alias("triton", f"nv_{raw}", word, moves, **more)  # type: ignore[arg-type]


def _llama(raw: str, word: str, moves: Moves = Moves.STEP, **more: object) -> Alias:
    return Alias("llama_cpp", f"llamacpp:{raw}", word, moves, **more)  # type: ignore[arg-type]


_REASON = (("finished_reason", "reason"),)

#: Every alias. Of two raw names on one page that mean the same word, the earlier one here is used.
ALIASES: tuple[Alias, ...] = (
    # vLLM V1, then what only older versions expose.
    _vllm("num_requests_running", "requests_running"),
    _vllm("num_requests_waiting", "requests_waiting"),
    _vllm(
        "num_requests_waiting_by_reason", "requests_waiting_by_reason", keep=(("reason", "reason"),)
    ),
    _vllm("num_requests_swapped", "requests_swapped"),
    _vllm("kv_cache_usage_perc", "kv_usage"),
    _vllm("gpu_cache_usage_perc", "kv_usage"),
    _vllm("cache_config_info", "kv_pool_tokens", product_of=("block_size", "num_gpu_blocks")),
    _vllm("cache_config_info", "kv_block_tokens", product_of=("block_size",)),
    _vllm("cache_config_info", "kv_pool_blocks", product_of=("num_gpu_blocks",)),
    _vllm("num_preemptions_total", "preemptions"),
    _vllm("prefix_cache_queries_total", "prefix_queries"),
    _vllm("gpu_prefix_cache_queries_total", "prefix_queries"),
    _vllm("prefix_cache_hits_total", "prefix_hits"),
    _vllm("gpu_prefix_cache_hits_total", "prefix_hits"),
    _vllm("prompt_tokens_total", "prompt_tokens", _FIRST),
    _vllm("prompt_tokens_cached_total", "prompt_tokens_cached", _FIRST),
    _vllm("generation_tokens_total", "generation_tokens", _TOKEN),
    _vllm("avg_generation_throughput_toks_per_s", "generation_tokens_per_s"),
    _vllm("iteration_tokens_total", "iteration_tokens"),
    _vllm("time_to_first_token_seconds", "ttft_seconds", _FIRST),
    _vllm("inter_token_latency_seconds", "inter_token_seconds", _TOKEN),
    _vllm("time_per_output_token_seconds", "inter_token_seconds", _TOKEN),
    _vllm("request_time_per_output_token_seconds", "time_per_output_token_seconds", _FINISH),
    _vllm("request_queue_time_seconds", "queue_seconds", _FINISH),
    _vllm("request_prefill_time_seconds", "prefill_seconds", _FINISH),
    _vllm("request_decode_time_seconds", "decode_seconds", _FINISH),
    _vllm("request_inference_time_seconds", "inference_seconds", _FINISH),
    _vllm("e2e_request_latency_seconds", "e2e_seconds", _FINISH),
    _vllm("request_prefill_kv_computed_tokens", "prefill_computed_tokens", _FINISH),
    _vllm("request_prompt_tokens", "request_prompt_tokens", _FINISH),
    _vllm("request_generation_tokens", "request_generation_tokens", _FINISH),
    _vllm("request_params_max_tokens", "request_max_tokens", _FINISH),
    _vllm("request_params_n", "request_n", _FINISH),
    _vllm("request_success_total", "requests_finished", _FINISH, keep=_REASON),
    _vllm("admission_rejections_total", "requests_rejected", keep=(("reason", "reason"),)),
    _vllm("spec_decode_num_drafts_total", "drafts"),
    _vllm("spec_decode_num_draft_tokens_total", "drafted_tokens"),
    _vllm("spec_decode_num_accepted_tokens_total", "accepted_tokens"),
    _vllm("lora_requests_info", "adapters_running", count_of="running_lora_adapters"),
    _vllm("lora_requests_info", "adapters_waiting", count_of="waiting_lora_adapters"),
    _vllm("engine_sleep_state", "engine_awake", where=(("sleep_state", "awake"),)),
    _vllm("engine_healthy", "engine_healthy"),
    # SGLang.
    _sglang("num_running_reqs", "requests_running"),
    _sglang("num_queue_reqs", "requests_waiting"),
    _sglang("num_retracted_reqs", "requests_swapped"),
    _sglang("token_usage", "kv_usage"),
    _sglang("kv_used_tokens", "kv_used_tokens"),
    _sglang("num_used_tokens", "kv_used_tokens"),
    _sglang("max_total_num_tokens", "kv_pool_tokens"),
    _sglang("num_pages", "kv_pool_blocks"),
    _sglang("page_size", "kv_block_tokens"),
    _sglang("cache_config_info", "kv_pool_tokens", product_of=("page_size", "num_pages")),
    _sglang("evicted_tokens_total", "kv_evicted_tokens"),
    _sglang("num_retracted_requests_total", "preemptions"),
    _sglang("prompt_tokens_total", "prompt_tokens", _FINISH),
    _sglang("generation_tokens_total", "generation_tokens", _FINISH),
    _sglang("cached_tokens_total", "prompt_tokens_cached", _FINISH),
    _sglang("gen_throughput", "generation_tokens_per_s"),
    _sglang(
        "realtime_tokens_total",
        "prefill_computed_tokens",
        kind="sum",
        where=(("mode", "prefill_compute"),),
    ),
    _sglang("prompt_tokens_histogram", "request_prompt_tokens", _FINISH),
    _sglang("generation_tokens_histogram", "request_generation_tokens", _FINISH),
    _sglang("time_to_first_token_seconds", "ttft_seconds", _FIRST),
    _sglang("inter_token_latency_seconds", "inter_token_seconds", _TOKEN),
    _sglang("time_per_output_token_seconds", "inter_token_seconds", _TOKEN),
    _sglang("request_time_per_output_token_seconds", "time_per_output_token_seconds", _FINISH),
    _sglang("queue_time_seconds", "queue_seconds"),
    _sglang(
        "per_stage_req_latency_seconds",
        "prefill_seconds",
        _FIRST,
        where=(("stage", "prefill_forward"),),
    ),
    _sglang("e2e_request_latency_seconds", "e2e_seconds", _FINISH),
    _sglang("num_requests_total", "requests_finished", _FINISH),
    _sglang("num_aborted_requests_total", "requests_failed"),
    _sglang("spec_verify_calls_total", "drafts"),
    _sglang("spec_accept_length", "accept_length"),
    _sglang("fwd_occupancy", "forward_occupancy", scale=0.01),
    _sglang("forward_execution_seconds_total", "forward_seconds", keep=(("category", "stage"),)),
    _sglang(
        "scheduler_stage_seconds_total", "scheduler_stage_seconds", keep=(("category", "stage"),)
    ),
    _sglang("scheduler_process_cpu_seconds_total", "scheduler_cpu_seconds"),
    _sglang("scheduler_idle_seconds_total", "scheduler_idle_seconds"),
    # Text Generation Inference.
    _tgi("batch_current_size", "requests_running"),
    _tgi("queue_size", "requests_waiting"),
    _tgi("request_count", "requests_received"),
    _tgi("request_success", "requests_finished", _FINISH),
    _tgi("request_failure", "requests_failed", keep=(("err", "reason"),)),
    _tgi("request_generated_tokens_sum", "generation_tokens", _FINISH, kind="counter"),
    _tgi("request_input_length_sum", "prompt_tokens", kind="counter"),
    _tgi("request_input_length", "request_prompt_tokens"),
    _tgi("request_generated_tokens", "request_generation_tokens", _FINISH),
    _tgi("request_max_new_tokens", "request_max_tokens"),
    _tgi("request_queue_duration", "queue_seconds", _FINISH),
    _tgi("request_mean_time_per_token_duration", "time_per_output_token_seconds", _FINISH),
    _tgi("request_inference_duration", "inference_seconds", _FINISH),
    _tgi("request_duration", "e2e_seconds", _FINISH),
    _tgi("batch_forward_duration", "prefill_seconds", where=(("method", "prefill"),)),
    _tgi("batch_forward_duration", "iteration_seconds", where=(("method", "decode"),)),
    # TensorRT-LLM's own server.
    _trtllm("num_requests_running", "requests_running"),
    _trtllm("num_requests_waiting", "requests_waiting"),
    _trtllm("num_context_requests", "requests_prefill"),
    _trtllm("num_generation_requests", "requests_decode"),
    _trtllm("num_paused_requests", "requests_swapped"),
    _trtllm("kv_cache_utilization", "kv_usage"),
    _trtllm("kv_cache_max_blocks", "kv_pool_blocks"),
    _trtllm("kv_cache_tokens_per_block", "kv_block_tokens"),
    _trtllm("prompt_tokens_total", "prompt_tokens", _FINISH),
    _trtllm("generation_tokens_total", "generation_tokens", _FINISH),
    _trtllm("iteration_latency_seconds", "iteration_seconds"),
    _trtllm("time_to_first_token_seconds", "ttft_seconds", _FINISH),
    _trtllm("time_per_output_token_seconds", "time_per_output_token_seconds", _FINISH),
    _trtllm("request_queue_time_seconds", "queue_seconds", _FINISH),
    _trtllm("request_prefill_time_seconds", "prefill_seconds", _FINISH),
    _trtllm("request_decode_time_seconds", "decode_seconds", _FINISH),
    _trtllm("request_inference_time_seconds", "inference_seconds", _FINISH),
    _trtllm("e2e_request_latency_seconds", "e2e_seconds", _FINISH),
    _trtllm("request_success_total", "requests_finished", _FINISH, keep=_REASON),
    _trtllm("request_error_total", "requests_failed", _FINISH),
    _trtllm("spec_decode_num_draft_tokens_total", "drafted_tokens"),
    _trtllm("spec_decode_num_accepted_tokens_total", "accepted_tokens"),
    _trtllm("gpu_memory_usage_bytes", "gpu_memory_used_bytes"),
    # Triton with the TensorRT-LLM backend, then Triton itself.
    _triton("trt_llm_request_metrics", "requests_running", where=(("request_type", "scheduled"),)),
    _triton("trt_llm_request_metrics", "requests_waiting", where=(("request_type", "waiting"),)),
    _triton("trt_llm_request_metrics", "requests_prefill", where=(("request_type", "context"),)),
    _triton("trt_llm_request_metrics", "requests_max", where=(("request_type", "max"),)),
    _triton(
        "trt_llm_inflight_batcher_metrics",
        "requests_decode",
        where=(("inflight_batcher_specific_metric", "generation_requests"),),
    ),
    _triton(
        "trt_llm_inflight_batcher_metrics",
        "requests_swapped",
        where=(("inflight_batcher_specific_metric", "paused_requests"),),
    ),
    _triton(
        "trt_llm_kv_cache_block_metrics", "kv_usage", where=(("kv_cache_block_type", "fraction"),)
    ),
    _triton(
        "trt_llm_kv_cache_block_metrics",
        "kv_pool_blocks",
        where=(("kv_cache_block_type", "max"),),
    ),
    _triton(
        "trt_llm_kv_cache_block_metrics",
        "kv_block_tokens",
        where=(("kv_cache_block_type", "tokens_per"),),
    ),
    _triton(
        "trt_llm_general_metrics",
        "iterations",
        kind="counter",
        where=(("general_type", "iteration_counter"),),
    ),
    _triton(
        "trt_llm_runtime_memory_metrics", "gpu_memory_used_bytes", where=(("memory_type", "gpu"),)
    ),
    _triton("inference_pending_request_count", "requests_waiting"),
    _triton("inference_request_success", "requests_finished", _FINISH),
    _triton("inference_request_failure", "requests_failed", _FINISH, keep=(("model", "engine"),)),
    _triton("inference_queue_duration_us", "queue_seconds", _FINISH, kind="sum", scale=1e-6),
    _triton("inference_request_success", "queue_seconds", _FINISH, kind="count"),
    _triton(
        "inference_compute_infer_duration_us", "inference_seconds", _FINISH, kind="sum", scale=1e-6
    ),
    _triton("inference_request_success", "inference_seconds", _FINISH, kind="count"),
    _triton("inference_request_duration_us", "e2e_seconds", _FINISH, kind="sum", scale=1e-6),
    _triton("inference_request_success", "e2e_seconds", _FINISH, kind="count"),
    _triton("inference_first_response_histogram_ms", "ttft_seconds", _FIRST, scale=1e-3),
    # llama.cpp's server.
    _llama("requests_processing", "requests_running"),
    _llama("requests_deferred", "requests_waiting"),
    _llama("kv_cache_usage_ratio", "kv_usage"),
    _llama("kv_cache_tokens", "kv_used_tokens"),
    _llama("prompt_tokens_total", "prompt_tokens", _FIRST),
    _llama("prompt_tokens_cached_total", "prompt_tokens_cached", _FIRST),
    _llama("tokens_predicted_total", "generation_tokens", _FINISH),
    _llama("predicted_tokens_seconds", "generation_tokens_per_s"),
    _llama("prompt_seconds_total", "prefill_seconds", _FIRST, kind="sum"),
    _llama("tokens_predicted_seconds_total", "decode_seconds", _FINISH, kind="sum"),
    _llama("n_decode_total", "iterations"),
    _llama("spec_decode_num_draft_tokens_total", "drafted_tokens"),
    _llama("spec_decode_num_accepted_tokens_total", "accepted_tokens"),
    # Any server in Python.
    Alias("", "process_start_time_seconds", "engine_start"),
)

_LAGGING = {(alias.engine, alias.metric) for alias in ALIASES if alias.moves is Moves.FINISH}


def lags_until_finish(word: str, engine: str) -> bool:
    """Return whether an engine's metric moves only when a request finishes.

    Such a metric says nothing of requests under way: during an incident it lags by a request.

    Args:
        word: Name in the vocabulary.
        engine: As in ``engine_sample.engine``.

    Raises:
        KeyError: the word is not in the vocabulary.
    """
    return (engine, metric(word).name) in _LAGGING
