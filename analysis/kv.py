"""How much KV cache a token of a model takes, and how many sequences a pool of it holds.

Arithmetic only: a model's ``config.json`` as a dict goes in, numbers come out. Bytes are per card.
A sliding window caps what a sequence keeps in its layers; MLA keeps one compressed vector that
every card holds whole; layers without attention keep nothing per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

#: Bits of one element by name of the type, as engines and configurations write it.
TYPE_BITS: Mapping[str, int] = {
    "float32": 32,
    "fp32": 32,
    "float": 32,
    "bfloat16": 16,
    "bf16": 16,
    "float16": 16,
    "fp16": 16,
    "half": 16,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "fp8_inc": 8,
    "int8": 8,
    "nvfp4": 4,
    "int4": 4,
}
#: Type where the configuration names none.
DEFAULT_TYPE = "bfloat16"

_MOST_LAYERS = 10_000
_MOST_WIDTH = 1 << 20
_MOST_TOKENS = 1 << 40
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LENGTH = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
_NESTED = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
#: Layers that keep every token, that keep a window of tokens, and that keep none.
_FULL = {"full_attention", "attention", "hybrid", "full"}
_WINDOW = {"sliding_attention", "chunked_attention", "sliding_window", "local_attention"}


class KvError(ValueError):
    """The numbers do not make a KV cache; the text says which and what to give instead."""


@dataclass(frozen=True)
class KvLayout:
    """What one token of a model keeps in its KV cache.

    Attributes:
        n_full_layers: Layers that keep every token.
        n_window_layers: Layers that keep the last ``window_tokens`` only.
        window_tokens: Length of that window; None without one.
        n_kv_heads: Key/value heads a layer, shared out among the cards; 1 for MLA.
        head_elements: Elements of K and V together of one such head and token.
        is_mla: One compressed vector a layer, which each card keeps whole.
        type: Type of the elements as the configuration names it.
        max_tokens: Longest sequence the model was made for; None where it does not say.
        notes: What was assumed or left out, one sentence each.
        n_heads: Heads a layer, which the cards share evenly; None where it does not say.
    """

    n_full_layers: int
    n_window_layers: int
    window_tokens: int | None
    n_kv_heads: int
    head_elements: int
    is_mla: bool
    type: str
    max_tokens: int | None
    notes: tuple[str, ...] = ()
    n_heads: int | None = None

    def layer_bytes(self, tensor_parallel: int = 1, kv_type: str | None = None) -> Fraction:
        """Return the bytes that one token takes in one layer on each card.

        Raises:
            KvError: the type or the number of cards cannot be.
        """
        if tensor_parallel < 1:
            raise KvError(f"{tensor_parallel} cards cannot be; give --tensor-parallel 1 or more")
        if self.n_heads is not None and self.n_heads % tensor_parallel:
            raise KvError(
                f"{self.n_heads} heads cannot be shared evenly among {tensor_parallel} cards; "
                "give --tensor-parallel a number that divides them"
            )
        heads = 1 if self.is_mla else -(-self.n_kv_heads // tensor_parallel)
        return Fraction(heads * self.head_elements * type_bits(kv_type or self.type), 8)

    def token_bytes(self, tensor_parallel: int = 1, kv_type: str | None = None) -> int:
        """Return the bytes that one token takes on each card, all its layers together."""
        n_layers = self.n_full_layers + self.n_window_layers
        return _ceil(n_layers * self.layer_bytes(tensor_parallel, kv_type))

    def sequence_bytes(
        self, n_tokens: int, tensor_parallel: int = 1, kv_type: str | None = None
    ) -> int:
        """Return the bytes that a sequence of so many tokens takes on each card."""
        kept = n_tokens if self.window_tokens is None else min(n_tokens, self.window_tokens)
        cells = self.n_full_layers * n_tokens + self.n_window_layers * kept
        return _ceil(cells * self.layer_bytes(tensor_parallel, kv_type))


def type_bits(name: str) -> int:
    """Return the bits of one element of a type.

    Raises:
        KvError: there is no such type.
    """
    bits = TYPE_BITS.get(name.lower().removeprefix("torch."))
    if bits is None:
        raise KvError(f"there is no KV type '{name[:40]}'; use one of {', '.join(TYPE_BITS)}")
    return bits


def read_layout(config: object) -> KvLayout:
    """Return the layout of a model's KV cache from its configuration (``config.json``).

    Raises:
        KvError: the configuration is not of a model with attention, or a number in it cannot be.
    """
    if not isinstance(config, Mapping):
        raise KvError("the configuration is not a JSON object; give the model's own config.json")
    text = _text_part(config)
    n_layers = _whole(text, _LAYERS, _MOST_LAYERS)
    if n_layers is None:
        raise KvError(
            "the configuration has no num_hidden_layers; give the config.json of a language model"
        )
    notes: list[str] = []
    n_full, n_window, window = _layers(text, n_layers, notes)
    rank = _whole(text, ("kv_lora_rank",), _MOST_WIDTH)
    if rank is not None:
        heads, elements = 1, rank + (_whole(text, ("qk_rope_head_dim",), _MOST_WIDTH) or 0)
    else:
        heads, elements = _heads(text)
    if text.get("index_head_dim") is not None:
        notes.append("The indexer of sparse attention keeps a little more, which is not counted.")
    return KvLayout(
        n_full_layers=n_full,
        n_window_layers=n_window,
        window_tokens=window,
        n_kv_heads=heads,
        head_elements=elements,
        is_mla=rank is not None,
        type=_type(text, config, notes),
        max_tokens=_whole(text, _LENGTH, _MOST_TOKENS),
        notes=tuple(notes),
        n_heads=_whole(text, _HEADS, _MOST_WIDTH),
    )


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the language model, of a configuration that describes several."""
    text = config
    for _ in range(3):
        if any(name in text for name in _LAYERS):
            return text
        nested = [text[name] for name in _NESTED if isinstance(text.get(name), Mapping)]
        if not nested:
            return text
        text = nested[0]
    return text


def _heads(text: Mapping[str, Any]) -> tuple[int, int]:
    """Key/value heads a layer, and elements of K and V of one of them."""
    n_heads = _whole(text, _HEADS, _MOST_WIDTH)
    n_kv = _whole(text, _KV_HEADS, _MOST_WIDTH)
    if n_kv is None:
        is_single = text.get("multi_query") is True and not text.get("new_decoder_architecture")
        n_kv = 1 if is_single else n_heads
    size = _whole(text, ("head_dim", "kv_channels", "attention_head_dim"), _MOST_WIDTH)
    if size is None:
        hidden = _whole(text, _HIDDEN, _MOST_WIDTH)
        if hidden is not None and n_heads is not None:
            if hidden % n_heads:
                raise KvError(
                    f"hidden_size {hidden} is no multiple of {n_heads} heads, and there is no "
                    "head_dim; check the configuration"
                )
            size = hidden // n_heads
    if n_kv is None or size is None:
        raise KvError(
            "the configuration does not tell heads and their size (num_attention_heads and "
            "hidden_size or head_dim); give the config.json of a language model"
        )
    if n_heads is not None and n_kv > n_heads:
        raise KvError(
            f"the configuration has more key/value heads ({n_kv}) than heads ({n_heads}); check it"
        )
    return n_kv, size + (_whole(text, ("v_head_dim",), _MOST_WIDTH) or size)


def _layers(
    text: Mapping[str, Any], n_layers: int, notes: list[str]
) -> tuple[int, int, int | None]:
    """Layers that keep all, layers that keep a window, and the window."""
    window = _whole(
        text, ("sliding_window", "sliding_window_size", "attention_chunk_size"), _MOST_TOKENS
    )
    if text.get("use_sliding_window") is False:
        window = None
    kinds = _kinds(text, n_layers, window)
    shared = _whole(text, ("num_kv_shared_layers",), _MOST_LAYERS) or 0
    if shared:
        kinds = kinds[: max(n_layers - shared, 0)]
        notes.append(f"{shared} layers use the cache of others.")
    n_full = sum(kind in _FULL for kind in kinds)
    n_window = sum(kind in _WINDOW for kind in kinds)
    n_none = len(kinds) - n_full - n_window
    if n_none:
        notes.append(f"{n_none} layers keep a state of fixed size, which is not counted.")
    if n_full + n_window == 0:
        raise KvError("no layer of the configuration has attention: there is no KV cache")
    if n_window and window is None:
        return n_full + n_window, 0, None
    return n_full, n_window, window if n_window else None


def _kinds(text: Mapping[str, Any], n_layers: int, window: int | None) -> Sequence[str]:
    """The kind of each layer."""
    for name in ("layer_types", "layers_block_type"):
        listed = text.get(name)
        if isinstance(listed, list):
            if len(listed) != n_layers or not all(isinstance(kind, str) for kind in listed):
                raise KvError(
                    f"{name} does not name a kind for each of {n_layers} layers; check it"
                )
            return listed
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return ["full_attention" if letter == "*" else "none" for letter in pattern[:n_layers]]
    interval = _whole(text, ("full_attention_interval",), _MOST_LAYERS)
    if interval is not None:
        return [
            "full_attention" if (layer + 1) % interval == 0 else "none" for layer in range(n_layers)
        ]
    if window is None:
        return ["full_attention"] * n_layers
    every = _whole(text, ("sliding_window_pattern",), _MOST_LAYERS)
    if every is None and text.get("model_type") in ("gemma2", "gemma2_text"):
        every = 2
    first = _whole(text, ("max_window_layers",), _MOST_LAYERS)
    if first is not None and text.get("use_sliding_window") is True:
        return [
            "full_attention" if layer < first else "sliding_attention" for layer in range(n_layers)
        ]
    return [
        "full_attention" if every is not None and (layer + 1) % every == 0 else "sliding_attention"
        for layer in range(n_layers)
    ]


def _type(text: Mapping[str, Any], config: Mapping[str, Any], notes: list[str]) -> str:
    """Type of the model's elements, which the cache has unless told otherwise."""
    for part in (text, config):
        for name in ("torch_dtype", "dtype"):
            value = part.get(name)
            if isinstance(value, str):
                type_bits(value)
                return value.lower().removeprefix("torch.")
    notes.append(f"The configuration names no type; {DEFAULT_TYPE} is assumed.")
    return DEFAULT_TYPE


def _whole(part: Mapping[str, Any], names: Sequence[str], most: int) -> int | None:
    """The first number of these names that is there; None without one.

    Raises:
        KvError: it is not a whole number from 1 to ``most``.
    """
    for name in names:
        value = part.get(name)
        if value is None or (value == 0 and not isinstance(value, bool)):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            shown = repr(value)[:40]
            raise KvError(f"{name} is {shown}, not a whole number from 1 to {most}; check it")
        return value
    return None


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
