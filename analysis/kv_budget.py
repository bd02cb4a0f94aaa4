"""What a pool of KV cache holds, and what a change of one setting would do to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.kv import KvError, KvLayout, type_bits

#: Step of ``gpu-memory-utilization`` that is tried, and the most that is.
UTILIZATION_STEP = 0.05
MOST_UTILIZATION = 0.98
#: Type that halves a cache of 16 bits.
SMALLER_TYPE = "fp8"


@dataclass(frozen=True)
class KvSettings:
    """What an engine is told, per card; None is not known.

    Attributes:
        max_model_len: Longest sequence, in tokens.
        tensor_parallel: Cards that share the heads.
        kv_type: Type of the cache; None for the model's own.
        pool_tokens: Tokens the pool holds, by the engine's own word.
        gpu_memory_bytes: Memory of one card.
        utilization: Share of it that the engine may use.
        weights_bytes: Weights on one card.
        overhead_bytes: What activations and graphs take of that share.
        max_num_seqs: Most sequences that run at once.
    """

    max_model_len: int | None = None
    tensor_parallel: int = 1
    kv_type: str | None = None
    pool_tokens: int | None = None
    gpu_memory_bytes: int | None = None
    utilization: float = 0.9
    weights_bytes: int | None = None
    overhead_bytes: int = 0
    max_num_seqs: int | None = None


@dataclass(frozen=True)
class KvBudget:
    """What fits, per card; None is not known.

    Attributes:
        token_bytes: Bytes one token takes.
        sequence_bytes: Bytes a sequence of ``max_model_len`` tokens takes.
        pool_bytes: Size of the pool.
        pool_tokens: Tokens it holds (of sequences shorter than any window).
        n_sequences: Sequences of full length it holds.
    """

    token_bytes: int | None
    sequence_bytes: int | None
    pool_bytes: int | None
    pool_tokens: int | None
    n_sequences: float | None


@dataclass(frozen=True)
class KvChange:
    """One setting changed, and what would fit then."""

    setting: str
    budget: KvBudget
    note: str = ""


def budget(layout: KvLayout | None, settings: KvSettings) -> KvBudget:
    """Return what fits.

    Args:
        layout: Of the model's cache; None where only the pool in tokens is known.
        settings: Of the engine.

    Raises:
        KvError: the numbers contradict each other.
    """
    length = settings.max_model_len
    if layout is None:
        tokens = settings.pool_tokens
        fit = tokens / length if tokens is not None and length is not None else None
        return KvBudget(None, None, None, tokens, fit)
    token = layout.token_bytes(settings.tensor_parallel, settings.kv_type)
    sequence = None
    if length is not None:
        sequence = layout.sequence_bytes(length, settings.tensor_parallel, settings.kv_type)
    if settings.pool_tokens is not None:
        pool: int | None = settings.pool_tokens * token
    else:
        pool = _pool_bytes(settings)
    return KvBudget(
        token_bytes=token,
        sequence_bytes=sequence,
        pool_bytes=pool,
        pool_tokens=None if pool is None else pool // token,
        n_sequences=None if pool is None or sequence is None else pool / sequence,
    )


def _pool_bytes(settings: KvSettings) -> int | None:
    """The pool by what is left of the memory; None where memory or weights are not known.

    Raises:
        KvError: nothing is left.
    """
    if settings.gpu_memory_bytes is None or settings.weights_bytes is None:
        return None
    if not 0 < settings.utilization <= 1:
        raise KvError(
            f"gpu-memory-utilization {settings.utilization:g} cannot be; give more than 0 and at "
            "most 1"
        )
    # 0.95 of 80 GiB are 76 GiB, whatever the nearest binary fraction of 0.95 is.
    allowed = round(settings.gpu_memory_bytes * settings.utilization)
    left = allowed - settings.weights_bytes - settings.overhead_bytes
    if left <= 0:
        raise KvError(
            f"weights and overhead ({(settings.weights_bytes + settings.overhead_bytes) >> 20} "
            f"MiB) leave nothing of the {allowed >> 20} MiB allowed; use more cards "
            "(--tensor-parallel) or a smaller model"
        )
    return left


def changes(layout: KvLayout | None, settings: KvSettings) -> list[KvChange]:
    """Return what a change of each setting would do, those that can be told."""
    now = budget(layout, settings)
    found: list[KvChange] = []
    if now.pool_tokens is not None and settings.max_model_len is not None:
        found += _lengths(layout, settings)
    if now.pool_tokens is None or layout is None:
        return found
    assert now.token_bytes is not None
    if type_bits(settings.kv_type or layout.type) > type_bits(SMALLER_TYPE):
        smaller = replace(settings, kv_type=SMALLER_TYPE)
        found.append(KvChange(f"KV type {SMALLER_TYPE}", _with_pool(layout, smaller, now)))
    if settings.gpu_memory_bytes is not None:
        more = round(min(settings.utilization + UTILIZATION_STEP, MOST_UTILIZATION), 4)
        if more > settings.utilization:
            extra = int(settings.gpu_memory_bytes * (more - settings.utilization))
            larger = replace(now, pool_bytes=(now.pool_bytes or 0) + extra)
            found.append(
                KvChange(f"gpu-memory-utilization {more:g}", _with_pool(layout, settings, larger))
            )
    return found


def _lengths(layout: KvLayout | None, settings: KvSettings) -> list[KvChange]:
    """Half the length, and what ``max-num-seqs`` sequences may have each."""
    assert settings.max_model_len is not None
    now = budget(layout, settings)
    half = max(settings.max_model_len // 2, 1)
    found = [
        KvChange(f"max-model-len {half:,}", budget(layout, replace(settings, max_model_len=half)))
    ]
    if settings.max_num_seqs is not None:
        length = longest_for(layout, settings, settings.max_num_seqs)
        if length < settings.max_model_len:
            shorter = budget(layout, replace(settings, max_model_len=max(length, 1)))
            note = f"so that {settings.max_num_seqs:,} sequences of full length fit"
            found.append(KvChange(f"max-model-len {length:,}", shorter, note))
            most = int(now.n_sequences or 0)
            if most:
                note = "so that none of full length is preempted"
                found.append(KvChange(f"max-num-seqs {most:,}", now, note))
    return found


def longest_for(layout: KvLayout | None, settings: KvSettings, n_sequences: int) -> int:
    """Return the most tokens that each of so many sequences can have, 0 when the pool is unknown.

    Raises:
        KvError: so many sequences cannot be.
    """
    if n_sequences < 1:
        raise KvError(f"{n_sequences} sequences cannot be; give --max-num-seqs 1 or more")
    now = budget(layout, settings)
    if now.pool_tokens is None:
        return 0
    share = now.pool_tokens // n_sequences
    if layout is None or layout.window_tokens is None or share <= layout.window_tokens:
        return share
    if layout.n_full_layers == 0:
        return 1 << 40
    cell = layout.layer_bytes(settings.tensor_parallel, settings.kv_type)
    cells = int((now.pool_bytes or 0) / cell) // n_sequences
    return (cells - layout.n_window_layers * layout.window_tokens) // layout.n_full_layers


def _with_pool(layout: KvLayout, settings: KvSettings, pool: KvBudget) -> KvBudget:
    """The budget of other settings in a pool of given bytes."""
    token = layout.token_bytes(settings.tensor_parallel, settings.kv_type)
    assert pool.pool_bytes is not None
    return budget(layout, replace(settings, pool_tokens=pool.pool_bytes // token))


def needed(settings: KvSettings, layout: KvLayout | None) -> Sequence[str]:
    """Return the options that would tell what is not known yet."""
    missing = []
    if settings.pool_tokens is None:
        if layout is None:
            missing.append("--pool-tokens")
        elif settings.gpu_memory_bytes is None:
            missing.append("--pool-tokens, or --gpu-memory and --weights")
        elif settings.weights_bytes is None:
            missing.append("--weights")
    if settings.max_model_len is None:
        missing.append("--max-model-len")
    return missing
