from __future__ import annotations

import json
from pathlib import Path

import pytest

from probes.engine.exposition import ExpositionParser, parse_exposition
from probes.engine.names import ALIASES, VOCABULARY, Moves, lags_until_finish, metric
from probes.engine.reading import PageReader


def read(text: str) -> list[dict[str, object]]:
    batch = PageReader("http://h/metrics").read(parse_exposition(text), 5, 2)
    return [] if batch is None else batch.rows.to_pylist()


def by_word(text: str) -> dict[tuple[str, str], float | None]:
    """Values by metric and kind; rows that differ only in labels are added up."""
    values: dict[tuple[str, str], float | None] = {}
    for row in read(text):
        if row["kind"] == "bucket":
            continue
        key = (str(row["metric"]), str(row["kind"]))
        old = values.get(key)
        value = row["value"]
        assert value is None or isinstance(value, float)
        values[key] = value if old is None or value is None else old + value
    return values


GOLDEN: list[tuple[str, str, int, dict[tuple[str, str], float]]] = [
    (
        "vllm-0.32.0-cpu-recorded/metrics_idle.txt",
        "vllm",
        292,
        {
            ("requests_running", "gauge"): 0,
            ("kv_pool_tokens", "gauge"): 6144,
            ("kv_block_tokens", "gauge"): 128,
            ("engine_start", "gauge"): 1795963184.86,
        },
    ),
    (
        "vllm-0.32.0-cpu-recorded/metrics_steady_decode.txt",
        "vllm",
        292,
        {
            ("requests_running", "gauge"): 4,
            ("requests_waiting", "gauge"): 0,
            ("kv_usage", "gauge"): 0.17021276595744683,
            ("prompt_tokens", "counter"): 3360,
            ("generation_tokens", "counter"): 9881,
            ("iteration_tokens", "count"): 2489,
            ("iteration_tokens", "sum"): 13241,
            ("ttft_seconds", "count"): 53,
            ("inter_token_seconds", "sum"): 76.42884182499893,
            ("requests_finished", "counter"): 49,
            ("prefill_computed_tokens", "sum"): 3104,
        },
    ),
    (
        "vllm-0.32.0-cpu-recorded/metrics_worker_hung.txt",
        "vllm",
        292,
        {("requests_running", "gauge"): 4, ("preemptions", "counter"): 63},
    ),
    (
        "names/vllm_V0_0.5_datadog_trimmed.txt",
        "vllm",
        60,
        {
            ("kv_usage", "gauge"): 0,
            ("requests_swapped", "gauge"): 0,
            ("inter_token_seconds", "count"): 6,
            ("ttft_seconds", "sum"): 0.31326723098754883,
            ("kv_pool_tokens", "gauge"): 16 * 7281,
        },
    ),
    (
        "sglang/sglang-0.5.23_exposition_synthetic_values.txt",
        "sglang",
        96,
        {
            ("requests_running", "gauge"): 162,
            ("requests_waiting", "gauge"): 2826,
            ("kv_usage", "gauge"): 0.28,
            ("queue_seconds", "sum"): 13.9042,
            ("prefill_seconds", "count"): 2,
            ("prefill_seconds", "sum"): 0.83,
            ("forward_occupancy", "gauge"): 0.975,
        },
    ),
    (
        "sglang/sglang_0.4_docs_overloaded.txt",
        "sglang",
        69,
        {
            ("requests_waiting", "gauge"): 2826,
            ("prompt_tokens", "counter"): 8128902,
            ("inter_token_seconds", "count"): 7400757,
            ("e2e_seconds", "sum"): 3116093.850019932,
        },
    ),
    (
        "triton/tensorrtllm_backend_readme_metrics.txt",
        "triton",
        19,
        {
            ("requests_running", "gauge"): 1,
            ("requests_waiting", "gauge"): 1,
            ("requests_max", "gauge"): 512,
            ("kv_usage", "gauge"): 0.4875,
            ("kv_pool_tokens", "gauge"): 6239 * 64,
            ("queue_seconds", "sum"): 0,
        },
    ),
    (
        "triton/vllm_backend_readme_metrics.txt",
        "vllm",
        26,
        {
            ("prompt_tokens", "counter"): 10,
            ("inter_token_seconds", "count"): 15,
            ("inter_token_seconds", "sum"): 0.04501533508300781,
        },
    ),
]


@pytest.mark.parametrize(("name", "engine", "n_rows", "expected"), GOLDEN)
def test_golden(
    shared_data: Path,
    name: str,
    engine: str,
    n_rows: int,
    expected: dict[tuple[str, str], float],
) -> None:
    text = (shared_data / "metrics" / name).read_text()
    rows = read(text)
    assert len(rows) == n_rows
    assert {row["engine"] for row in rows} == {engine}
    assert {row["endpoint"] for row in rows} == {"http://h/metrics"}
    values = by_word(text)
    for key, value in expected.items():
        assert values[key] == pytest.approx(value), key


@pytest.mark.parametrize(
    "name", ["dcgm/dcgm-exporter_a100_empty.prom", "dcgm/dcgm-exporter_t4x2_525.60.13_k8s.prom"]
)
def test_a_page_of_no_engine_gives_nothing(shared_data: Path, name: str) -> None:
    assert read((shared_data / "metrics" / name).read_text()) == []
    assert read("process_start_time_seconds 1\n") == []


def test_every_vllm_family_that_matters_is_known(shared_data: Path) -> None:
    text = (shared_data / "metrics/names/inference-perf_vllm-cpu_v0.26.0_families.txt").read_text()
    exposed = [line.split()[0] for line in text.splitlines() if not line.startswith("#")]
    known = {alias.raw for alias in ALIASES}
    unknown = {name for name in exposed if name not in known}
    assert unknown == {
        "vllm:estimated_flops_per_gpu_total",
        "vllm:estimated_read_bytes_per_gpu_total",
        "vllm:estimated_write_bytes_per_gpu_total",
        "vllm:external_prefix_cache_hits_total",
        "vllm:external_prefix_cache_queries_total",
        "vllm:mm_cache_hits_total",
        "vllm:mm_cache_queries_total",
        "vllm:prompt_tokens_by_source_total",
        "vllm:request_max_num_generation_tokens",
    }


def test_unknown_values_are_null() -> None:
    rows = read(
        "sglang:fwd_occupancy NaN\nsglang:num_running_reqs 9223372036854775794\n"
        "sglang:num_queue_reqs +Inf\nsglang:token_usage 0.5\n"
    )
    assert {row["metric"]: row["value"] for row in rows} == {
        "forward_occupancy": None,
        "requests_running": None,
        "requests_waiting": None,
        "kv_usage": 0.5,
    }


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm_", "ray_vllm:"])
def test_relabelled_names(prefix: str) -> None:
    [row] = read(f'{prefix}num_requests_running{{engine="0",WorkerId="w",model_name="m"}} 3\n')
    assert row["metric"] == "requests_running"
    assert row["raw_name"] == f"{prefix}num_requests_running"
    assert row["labels"] == '{"engine":"0"}'


def test_of_two_names_for_one_thing_the_newer_is_used() -> None:
    text = (
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.4\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
        "vllm:time_per_output_token_seconds_count 7\nvllm:inter_token_latency_seconds_count 8\n"
    )
    assert by_word(text) == {("kv_usage", "gauge"): 0.5, ("inter_token_seconds", "count"): 8.0}


def test_only_engine_rank_and_reason_labels_are_kept() -> None:
    text = (
        'vllm:request_success_total{engine="1",finished_reason="stop",model_name="secret"} 2\n'
        'vllm:num_requests_running{engine="1",model_name="secret",user="alice"} 2\n'
    )
    kept = [json.loads(str(row["labels"])) for row in read(text)]
    assert kept == [{"engine": "1", "reason": "stop"}, {"engine": "1"}]


def test_series_that_differ_in_other_labels_merge() -> None:
    values = by_word(
        'vllm:generation_tokens_total{model_name="a"} 2\n'
        'vllm:generation_tokens_total{model_name="b"} 3\n'
        'vllm:kv_cache_usage_perc{model_name="a"} 0.25\n'
        'vllm:kv_cache_usage_perc{model_name="b"} 0.75\n'
    )
    assert values == {("generation_tokens", "counter"): 5.0, ("kv_usage", "gauge"): 0.75}


def test_ranks_are_replicas_unless_the_metric_is_per_rank() -> None:
    text = "".join(
        f'sglang:num_running_reqs{{tp_rank="{rank}",pp_rank="0"}} {10 + rank}\n'
        f'sglang:scheduler_cpu_seconds_total{{tp_rank="{rank}"}} {rank}\n'
        f'sglang:scheduler_process_cpu_seconds_total{{tp_rank="{rank}"}} {rank + 1}\n'
        for rank in (10, 2, 1)
    )
    rows = read(text)
    assert [row["value"] for row in rows if row["metric"] == "requests_running"] == [11.0]
    cpu = {
        json.loads(str(row["labels"]))["tp_rank"]: row["value"]
        for row in rows
        if row["metric"] == "scheduler_cpu_seconds"
    }
    assert cpu == {"1": 2.0, "2": 3.0, "10": 11.0}


def test_engines_of_a_data_parallel_server_stay_apart() -> None:
    rows = read(
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\n'
    )
    assert [(row["labels"], row["value"]) for row in rows] == [
        ('{"engine":"0"}', 1.0),
        ('{"engine":"1"}', 2.0),
    ]


def test_engines_of_several_kinds_on_one_page_are_told_apart_by_their_labels() -> None:
    """A collector's page; readers take rows of one endpoint and label for one series."""
    text = (
        'vllm:num_requests_running{engine="0"} 3\nsglang:num_running_reqs{dp_rank="1"} 5\n'
        "tgi_batch_current_size 7\nprocess_start_time_seconds 9\n"
    )
    batch = PageReader("http://x").read(parse_exposition(text), 1, 1)
    assert batch is not None
    rows = batch.rows.select(["engine", "metric", "labels", "value"]).to_pylist()
    told = {row["labels"]: row["value"] for row in rows if row["metric"] == "requests_running"}
    assert told == {
        '{"engine":"0","server":"vllm"}': 3.0,
        '{"dp_rank":"1","server":"sglang"}': 5.0,
        '{"server":"tgi"}': 7.0,
    }


def test_pool_is_unknown_before_profiling() -> None:
    values = by_word('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n')
    assert values[("kv_pool_tokens", "gauge")] is None
    assert values[("kv_block_tokens", "gauge")] == 16


def test_adapters_are_counted_not_named_and_the_newest_series_wins() -> None:
    rows = read(
        'vllm:lora_requests_info{running_lora_adapters="a,b",waiting_lora_adapters=""} 100\n'
        'vllm:lora_requests_info{running_lora_adapters="c",waiting_lora_adapters="d,e,f"} 200\n'
    )
    assert {row["metric"]: row["value"] for row in rows} == {
        "adapters_running": 1.0,
        "adapters_waiting": 3.0,
    }
    assert all(row["labels"] is None for row in rows)


def test_tgi() -> None:
    text = (
        "# TYPE tgi_queue_size gauge\ntgi_queue_size 3\ntgi_batch_current_size 5\n"
        "tgi_request_count 9\ntgi_request_success 7\n"
        'tgi_batch_forward_duration_sum{method="prefill"} 1.5\n'
        'tgi_batch_forward_duration_count{method="prefill"} 3\n'
        'tgi_batch_forward_duration_sum{method="decode"} 9\n'
        "tgi_request_generated_tokens_sum 700\ntgi_request_generated_tokens_count 7\n"
        'tgi_request_queue_duration_bucket{le="0.00015"} 1\n'
    )
    assert by_word(text) == {
        ("requests_waiting", "gauge"): 3.0,
        ("requests_running", "gauge"): 5.0,
        ("requests_received", "counter"): 9.0,
        ("requests_finished", "counter"): 7.0,
        ("prefill_seconds", "sum"): 1.5,
        ("prefill_seconds", "count"): 3.0,
        ("iteration_seconds", "sum"): 9.0,
        ("generation_tokens", "counter"): 700.0,
        ("request_generation_tokens", "sum"): 700.0,
        ("request_generation_tokens", "count"): 7.0,
    }
    assert lags_until_finish("generation_tokens", "tgi")


def test_trtllm_and_triton_units() -> None:
    values = by_word(
        "trtllm_num_requests_running 4\ntrtllm_kv_cache_utilization 0.5\n"
        "trtllm_kv_cache_max_blocks 100\ntrtllm_kv_cache_tokens_per_block 32\n"
    )
    assert values[("kv_pool_tokens", "gauge")] == 3200
    rows = read(
        'nv_inference_queue_duration_us{model="m"} 2500000\n'
        'nv_inference_request_success{model="m"} 5\n'
        'nv_inference_first_response_histogram_ms_bucket{model="m",le="100"} 4\n'
    )
    found = {(row["metric"], row["kind"]): (row["value"], row["upper_bound"]) for row in rows}
    assert found[("queue_seconds", "sum")] == (pytest.approx(2.5), None)
    assert found[("queue_seconds", "count")] == (5.0, None)
    assert found[("ttft_seconds", "bucket")] == (4.0, pytest.approx(0.1))


def test_llama_cpp() -> None:
    values = by_word(
        "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
        "llamacpp:prompt_tokens_total 100\nllamacpp:tokens_predicted_total 50\n"
        "llamacpp:prompt_seconds_total 0.5\nllamacpp:kv_cache_usage_ratio 0.1\n"
        "llamacpp:n_decode_total 25\n"
    )
    assert values == {
        ("requests_running", "gauge"): 2.0,
        ("requests_waiting", "gauge"): 1.0,
        ("prompt_tokens", "counter"): 100.0,
        ("generation_tokens", "counter"): 50.0,
        ("prefill_seconds", "sum"): 0.5,
        ("kv_usage", "gauge"): 0.1,
        ("iterations", "counter"): 25.0,
    }


def test_a_page_that_changes_is_planned_anew() -> None:
    reader, parser = PageReader("u"), ExpositionParser()
    first = reader.read(parser.parse("vllm:num_requests_running 1\n"), 1, 1)
    second = reader.read(
        parser.parse("vllm:num_requests_waiting 2\nvllm:num_requests_running 3\n"), 2, 1
    )
    assert first is not None and second is not None
    assert second.rows.column("metric").to_pylist() == ["requests_waiting", "requests_running"]
    assert second.rows.column("value").to_pylist() == [2.0, 3.0]
    assert second.rows.column("time_ns").to_pylist() == [2, 2]


def test_vocabulary_is_consistent() -> None:
    names = [item.name for item in VOCABULARY]
    assert len(set(names)) == len(names)
    for item in VOCABULARY:
        assert item.kind in ("gauge", "counter", "histogram")
        assert item.merge in ("sum", "max", "latest")
    for alias in ALIASES:
        assert metric(alias.metric)
        assert not alias.kind or alias.kind in ("sum", "count", "counter")


def test_what_lags_until_finish() -> None:
    assert lags_until_finish("queue_seconds", "vllm")
    assert lags_until_finish("prefill_seconds", "vllm")
    assert not lags_until_finish("queue_seconds", "sglang")
    assert not lags_until_finish("ttft_seconds", "vllm")
    assert not lags_until_finish("generation_tokens", "vllm")
    with pytest.raises(KeyError):
        lags_until_finish("no_such_metric", "vllm")
    lagging = {row["metric"] for row in read("vllm:request_queue_time_seconds_sum 1\n")}
    assert lagging == {"queue_seconds"}
    [row] = read("vllm:request_queue_time_seconds_sum 1\n")
    assert row["is_lagging"] is True
    assert all(isinstance(alias.moves, Moves) for alias in ALIASES)
