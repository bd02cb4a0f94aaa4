"""Bytes of a token against figures worked out by hand from public configurations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.kv import KvError, KvLayout, read_layout
from analysis.kv_budget import KvSettings, budget, changes, longest_for, needed

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GEMMA3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_hidden_layers": 62,
        "head_dim": 128,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152, "num_attention_heads": 16},
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}
FALCON_7B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "hidden_size": 4544,
    "multi_query": True,
    "torch_dtype": "bfloat16",
}
GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
QWEN3_NEXT = {
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "full_attention_interval": 4,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "tensor_parallel", "kv_type", "expected"),
    [
        (LLAMA_70B, 1, None, 327_680),
        (LLAMA_70B, 8, None, 40_960),
        (LLAMA_70B, 16, None, 40_960),  # fewer heads than cards: each keeps one whole
        (LLAMA_70B, 1, "fp8", 163_840),
        (DEEPSEEK_V3, 1, None, 61 * 576 * 2),
        (DEEPSEEK_V3, 8, None, 61 * 576 * 2),
        (FALCON_7B, 1, None, 32 * 2 * 64 * 2),
        (GPT2, 1, None, 12 * 2 * 768 * 2),
        (GEMMA3_27B, 1, None, 62 * 16 * 256 * 2),
        (QWEN3_NEXT, 1, None, 12 * 2 * 512 * 2),
    ],
)
def test_bytes_of_a_token(
    config: dict[str, Any], tensor_parallel: int, kv_type: str | None, expected: int
):
    assert read_layout(config).token_bytes(tensor_parallel, kv_type) == expected


def test_a_window_caps_what_a_sequence_keeps():
    layout = read_layout(GEMMA3_27B)
    assert (layout.n_full_layers, layout.n_window_layers, layout.window_tokens) == (10, 52, 1024)
    cell = 16 * 256 * 2
    assert layout.sequence_bytes(100_000) == (10 * 100_000 + 52 * 1024) * cell
    assert layout.sequence_bytes(512) == 62 * 512 * cell


@pytest.mark.parametrize(
    ("more", "full", "window"),
    [
        ({"sliding_window": 4096}, 0, 80),
        ({"sliding_window": 4096, "use_sliding_window": False}, 80, 0),
        ({"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 60}, 60, 20),
        ({"sliding_window": None}, 80, 0),
        (
            {
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 40,
            },
            40,
            40,
        ),
        ({"layer_types": ["linear_attention", "full_attention"] * 40}, 40, 0),
        ({"num_kv_shared_layers": 20}, 60, 0),
    ],
)
def test_kinds_of_layers(more: dict[str, Any], full: int, window: int):
    layout = read_layout({**LLAMA_70B, **more})
    assert (layout.n_full_layers, layout.n_window_layers) == (full, window)


@pytest.mark.parametrize("length", [1_048_576, 1_000_000])
def test_the_pool_of_the_declared_case_holds_two_sequences(length: int):
    settings = KvSettings(max_model_len=length, pool_tokens=2_420_000)
    fit = budget(read_layout(LLAMA_70B), settings).n_sequences
    assert fit is not None and fit == pytest.approx(2_420_000 / length)
    assert 2.305 < fit < 2.425
    assert budget(None, settings).n_sequences == pytest.approx(fit)


def test_the_pool_from_memory():
    layout = read_layout(LLAMA_70B)
    settings = KvSettings(
        max_model_len=131_072,
        tensor_parallel=8,
        gpu_memory_bytes=80 << 30,
        weights_bytes=16 << 30,
        overhead_bytes=2 << 30,
        utilization=0.9,
    )
    found = budget(layout, settings)
    assert found.pool_bytes == 72 * (1 << 30) - (18 << 30)
    assert found.pool_tokens == (found.pool_bytes or 0) // 40_960
    by_setting = {change.setting: change.budget for change in changes(layout, settings)}
    smaller = by_setting["KV type fp8"]
    assert smaller.n_sequences == pytest.approx(2 * (found.n_sequences or 0), rel=1e-4)
    more = by_setting["gpu-memory-utilization 0.95"]
    assert (more.pool_bytes or 0) - found.pool_bytes == pytest.approx(4 << 30, rel=1e-4)
    assert by_setting["max-model-len 65,536"].n_sequences == pytest.approx(
        2 * (found.n_sequences or 0)
    )


def test_a_share_of_the_memory_is_not_cut_by_binary_fractions():
    settings = KvSettings(
        max_model_len=4_096, gpu_memory_bytes=80 << 30, weights_bytes=16 << 30, utilization=0.95
    )
    assert budget(read_layout(LLAMA_70B), settings).pool_bytes == 60 << 30


def test_what_fits_for_so_many_sequences_at_once():
    layout = read_layout(LLAMA_70B)
    settings = KvSettings(max_model_len=1_048_576, pool_tokens=2_420_000, max_num_seqs=8)
    assert longest_for(layout, settings, 8) == 302_500
    names = [change.setting for change in changes(layout, settings)]
    assert "max-model-len 302,500" in names and "max-num-seqs 2" in names


def test_what_is_missing_is_named():
    layout = read_layout(LLAMA_70B)
    assert needed(KvSettings(), layout) == [
        "--pool-tokens, or --gpu-memory and --weights",
        "--max-model-len",
    ]
    assert needed(KvSettings(max_model_len=1, pool_tokens=1), layout) == []


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ([], "not a JSON object"),
        ({}, "no num_hidden_layers"),
        ({**LLAMA_70B, "num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({**LLAMA_70B, "num_hidden_layers": True}, "num_hidden_layers is True"),
        ({**LLAMA_70B, "num_hidden_layers": 10**30}, "not a whole number"),
        ({**LLAMA_70B, "num_key_value_heads": "8"}, "num_key_value_heads is '8'"),
        ({**LLAMA_70B, "num_key_value_heads": 128}, "more key/value heads"),
        ({**LLAMA_70B, "torch_dtype": "complex"}, "no KV type 'complex'"),
        ({**LLAMA_70B, "layer_types": ["full_attention"]}, "layer_types does not name"),
        ({**LLAMA_70B, "layer_types": ["mamba"] * 80}, "no layer of the configuration"),
        ({**LLAMA_70B, "head_dim": None, "hidden_size": 8191}, "no multiple"),
        ({"num_hidden_layers": 2}, "does not tell heads"),
        ({"text_config": {"text_config": {"text_config": {"text_config": {}}}}}, "no num_hid"),
    ],
)
def test_a_bad_configuration_is_one_sentence_and_a_remedy(config: object, text: str):
    with pytest.raises(KvError, match=text) as error:
        read_layout(config)
    assert ";" in str(error.value) or ":" in str(error.value)
    assert len(str(error.value)) < 300


def test_memory_that_the_weights_fill_is_told():
    settings = KvSettings(gpu_memory_bytes=80 << 30, weights_bytes=80 << 30)
    with pytest.raises(KvError, match="leave nothing"):
        budget(read_layout(LLAMA_70B), settings)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*LLAMA_70B, *GEMMA3_27B, *DEEPSEEK_V3]), json_values))
def test_any_json_is_a_layout_or_an_error(changed: dict[str, Any]):
    try:
        layout = read_layout({**LLAMA_70B, **changed})
    except KvError:
        return
    assert layout.token_bytes() > 0


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 10_000), st.integers(1, 10**6))
def test_a_longer_sequence_never_takes_less(full: int, window: int, size: int, length: int):
    layout = KvLayout(full, window, size if window else None, 8, 256, False, "bfloat16", None)
    assert layout.sequence_bytes(length) <= layout.sequence_bytes(length + 1)
    assert layout.sequence_bytes(length) <= length * layout.token_bytes()


def test_cards_that_cannot_share_the_heads_evenly_are_refused() -> None:
    layout = read_layout(
        {
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "torch_dtype": "bfloat16",
        }
    )
    assert [layout.token_bytes(n) for n in (1, 8, 16)] == [327_680, 40_960, 40_960]
    for n_cards in (7, 128, 10**20):
        with pytest.raises(KvError, match="64 heads cannot be shared evenly"):
            layout.token_bytes(n_cards)
