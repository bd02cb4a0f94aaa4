"""``tracer kv-budget``: what a KV cache holds, and what each setting would change."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracer.errors import InputError, UsageError

if TYPE_CHECKING:
    from analysis.kv import KvLayout
    from analysis.kv_budget import KvBudget, KvSettings
    from probes.engine.settings import EngineSettings

SCHEMA_VERSION = 1
#: Most bytes of a configuration; a real one has a few kB.
MAX_CONFIG_BYTES = 16 << 20
_INDEX = "model.safetensors.index.json"
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[kKMGT]B|[KMGT]iB)")
_SIZES = {
    "B": 1,
    **{f"{letter}B": 1000**n for n, letter in ((1, "k"), (1, "K"), (2, "M"), (3, "G"), (4, "T"))},
    **{f"{letter}iB": 1024**n for n, letter in ((1, "K"), (2, "M"), (3, "G"), (4, "T"))},
}
_MOST = 1 << 50


def parse_count(text: str) -> int:
    """Return a number of tokens like 131072, 128K (1024 each) or 2.42m (1000 each), as vLLM does.

    Raises:
        click.BadParameter: it is not one.
    """
    match = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    value = round(float(match[1]) * _COUNTS[match[2]]) if match and len(text) < 40 else 0
    if not 0 < value < _MOST:
        raise click.BadParameter(f"'{text[:40]}' is no number; write for example 131072 or 128K")
    return value


def parse_size(text: str) -> int:
    """Return bytes of a size like 80GiB or 141GB.

    Raises:
        click.BadParameter: it is not one.
    """
    match = _SIZE.fullmatch(text.strip())
    value = round(float(match[1]) * _SIZES[match[2]]) if match and len(text) < 40 else -1
    if not 0 <= value < _MOST:
        raise click.BadParameter(f"'{text[:40]}' is no size; write for example 80GiB or 141GB")
    return value


@click.command("kv-budget")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--engine", metavar="URL", help="Read pool and settings from this running engine.")
@click.option("--tensor-parallel", default=1, show_default=True, metavar="N", help="Cards.")
@click.option("--kv-type", metavar="TYPE", help="Type of the cache; by default the model's.")
@click.option(
    "--max-model-len",
    type=parse_count,
    metavar="TOKENS",
    help="Longest sequence, e.g. 131072, 128K (1024 each) or 1m (1000 each).",
)
@click.option(
    "--pool-tokens", type=parse_count, metavar="TOKENS", help="Pool as the engine logs it."
)
@click.option("--gpu-memory", type=parse_size, metavar="SIZE", help="Memory of a card, e.g. 80GiB.")
@click.option(
    "--gpu-memory-utilization", type=float, metavar="SHARE", help="Share used; by default 0.9."
)
@click.option(
    "--weights",
    type=parse_size,
    metavar="SIZE",
    help=f"Weights on a card; by default from {_INDEX} beside CONFIG.",
)
@click.option(
    "--overhead",
    type=parse_size,
    default="0B",
    metavar="SIZE",
    help="What activations and graphs take of a card.",
)
@click.option("--max-num-seqs", type=int, metavar="N", help="Most sequences at once.")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def command(
    config: Path | None,
    engine: str | None,
    tensor_parallel: int,
    kv_type: str | None,
    max_model_len: int | None,
    pool_tokens: int | None,
    gpu_memory: int | None,
    gpu_memory_utilization: float | None,
    weights: int | None,
    overhead: int,
    max_num_seqs: int | None,
    is_json: bool,
) -> None:
    """Say how many full-length sequences the KV cache of a model holds, and what would change it.

    CONFIG is the model's config.json; the pool comes from --pool-tokens, from --engine, or from
    memory and weights.

    Example:
      tracer kv-budget config.json --tensor-parallel 8 --pool-tokens 2.42m --max-model-len 1M
    """
    from analysis.kv import read_layout
    from analysis.kv_budget import KvSettings

    if config is None and engine is None:
        raise UsageError(
            "there is nothing to compute from; give a model's config.json or --engine URL"
        )
    layout = None if config is None else read_layout(_load(config))
    told = None if engine is None else _ask(engine)
    length = max_model_len or (told.max_model_len if told else None)
    settings = KvSettings(
        max_model_len=length or (layout.max_tokens if layout else None),
        tensor_parallel=tensor_parallel,
        kv_type=kv_type or _known_type(told),
        pool_tokens=pool_tokens or (told.pool_tokens if told else None),
        gpu_memory_bytes=gpu_memory,
        utilization=gpu_memory_utilization or (told.utilization if told else None) or 0.9,
        weights_bytes=weights if weights is not None else _weights(config, tensor_parallel),
        overhead_bytes=overhead,
        max_num_seqs=max_num_seqs,
    )
    if is_json:
        click.echo(json.dumps(_as_json(layout, settings, told), indent=1))
        return
    for line in _lines(layout, settings, told):
        click.echo(line)


def _load(path: Path) -> object:
    """The configuration as it was parsed.

    Raises:
        InputError: it cannot be read or is not JSON.
    """
    try:
        path = path / "config.json" if path.is_dir() else path
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check the path") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise InputError(f"{path} has over {MAX_CONFIG_BYTES >> 20} MiB; give the config.json")
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; give the model's own config.json") from None
    return parsed


def _weights(config: Path | None, tensor_parallel: int) -> int | None:
    """Weights on a card by the index of the files beside the configuration; None without."""
    if config is None or tensor_parallel < 1:
        return None
    folder = config if config.is_dir() else config.parent
    try:
        with (folder / _INDEX).open("rb") as file:
            index = json.loads(file.read(MAX_CONFIG_BYTES))
        size = index["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return int(size) // tensor_parallel if isinstance(size, int | float) and size > 0 else None


def _ask(url: str) -> EngineSettings:
    from probes.engine.settings import read_settings

    return read_settings(url)


def _known_type(told: EngineSettings | None) -> str | None:
    """The engine's KV type, unless it is one that only the engine knows."""
    from analysis.kv import TYPE_BITS

    name = told.kv_type.lower().removeprefix("torch.") if told and told.kv_type else None
    return name if name in TYPE_BITS else None


def _as_json(
    layout: KvLayout | None, settings: KvSettings, told: EngineSettings | None
) -> dict[str, Any]:
    from analysis.kv_budget import budget, changes, needed

    return {
        "schema_version": SCHEMA_VERSION,
        "layout": None if layout is None else asdict(layout),
        "engine": None if told is None else asdict(told),
        "settings": asdict(settings),
        "budget": asdict(budget(layout, settings)),
        "changes": [asdict(change) for change in changes(layout, settings)],
        "needed": list(needed(settings, layout)),
    }


def _lines(layout: KvLayout | None, settings: KvSettings, told: EngineSettings | None) -> list[str]:
    """The report as text."""
    from analysis.kv_budget import budget, changes, needed

    now = budget(layout, settings)
    lines = _layout_lines(layout, settings, now) if layout is not None else []
    if told is not None and told.n_pools > 1:
        lines.append(f"The engine has {told.n_pools} pools (ranks); this is about the smallest.")
    if now.pool_tokens is not None:
        size = f" ({_size(now.pool_bytes)} a card)" if now.pool_bytes is not None else ""
        lines.append(f"Pool: {now.pool_tokens:,} tokens{size}")
    if settings.max_model_len is not None:
        size = f" ({_size(now.sequence_bytes)} a card)" if now.sequence_bytes is not None else ""
        fit = f": {now.n_sequences:.2f} fit" if now.n_sequences is not None else ""
        lines.append(f"A full sequence: {settings.max_model_len:,} tokens{size}{fit}")
    if settings.max_num_seqs is not None and now.pool_tokens is not None:
        share = now.pool_tokens // max(settings.max_num_seqs, 1)
        lines.append(
            f"With {settings.max_num_seqs:,} sequences at once, each has {share:,} tokens on "
            "average before any is preempted"
        )
    found = changes(layout, settings)
    if found:
        lines.append("What would change it:")
    for change in found:
        n_fit = change.budget.n_sequences
        text = f"{n_fit:.2f} full sequences" if n_fit is not None else "sequences: not known"
        note = f" ({change.note})" if change.note else ""
        lines.append(f"  {change.setting}: {text}, pool {change.budget.pool_tokens:,} tokens{note}")
    lines.extend(f"Not known yet; give {option}" for option in needed(settings, layout))
    return lines


def _layout_lines(layout: KvLayout, settings: KvSettings, now: KvBudget) -> list[str]:
    """What one token takes, and how that comes about."""
    assert now.token_bytes is not None
    kind = settings.kv_type or layout.type
    n_layers = layout.n_full_layers + layout.n_window_layers
    heads = -(-layout.n_kv_heads // settings.tensor_parallel)
    cells = (
        f"{layout.head_elements} elements of compressed K and V (MLA, whole on each card)"
        if layout.is_mla
        else f"{heads} KV heads x {layout.head_elements} elements of K and V"
    )
    lines = [
        f"A token: {now.token_bytes:,} bytes ({now.token_bytes / 1024:.1f} KiB) a card",
        f"  {n_layers} layers x {cells}, {kind}, tensor parallel {settings.tensor_parallel}",
    ]
    if layout.window_tokens is not None:
        lines.append(
            f"  {layout.n_window_layers} of the layers keep the last {layout.window_tokens:,} "
            "tokens only; the pool in tokens is for shorter sequences"
        )
    lines.extend(f"  {note}" for note in layout.notes)
    return lines


def _size(n_bytes: int | None) -> str:
    return "not known" if n_bytes is None else f"{n_bytes / (1 << 30):.1f} GiB"
