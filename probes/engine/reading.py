"""Turns a parsed page of metrics into rows of ``engine_sample`` in the common vocabulary.

What a page's series mean is worked out once (:class:`_Plan`); later pages with the same series are
kept as arrays of values, and several of them cost one grouped reduction.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.schema import ENGINE_SAMPLE
from probes.engine.exposition import Exposition, Series
from probes.engine.names import ALIASES, Alias, Moves, metric
from probes.probe import Batch, make_batch

#: Magnitudes from here on are blanks of a 64-bit field (9223372036854775794 and its kin).
SENTINEL = 9.2e18
#: Longest value of a label that is kept.
MAX_LABEL_LENGTH = 64

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
_ALWAYS_KEPT = (("engine", "engine"), ("dp_rank", "dp_rank"))


@dataclass(frozen=True)
class _Use:
    """One alias as one exposed sample name uses it: which kind of row it makes."""

    order: int
    alias: Alias
    kind: str


def _canonical(name: str) -> str:
    """A name without Ray's prefix and with underscores for colons, as relabelling leaves it."""
    return name.removeprefix("ray_").replace(":", "_")


def _uses() -> dict[str, list[_Use]]:
    """Every exposed sample name (canonical) and what it is used for."""
    uses: dict[str, list[_Use]] = {}
    for order, alias in enumerate(ALIASES):
        kind = alias.kind or metric(alias.metric).kind
        if kind == "histogram":
            for part in ("sum", "count", "bucket"):
                name = _canonical(f"{alias.raw}_{part}")
                uses.setdefault(name, []).append(_Use(order, alias, part))
        else:
            uses.setdefault(_canonical(alias.raw), []).append(_Use(order, alias, kind))
    return uses


_USES = _uses()


@dataclass(frozen=True)
class _Key:
    """What tells one row of a page from another."""

    engine: str
    word: str
    kind: str
    upper_bound: float | None
    labels: str | None


@dataclass
class _Group:
    """The series that make one row: index on the page, and a constant read from labels if any."""

    alias: Alias
    raw_name: str
    members: dict[tuple[tuple[int, str], ...], list[tuple[int, float | None]]] = field(
        default_factory=dict
    )

    def chosen(self) -> list[tuple[int, float | None]]:
        """Members of the lowest rank: those of other ranks are replicas."""
        return self.members[min(self.members)]


class PageReader:
    """Reads the pages of one endpoint; not thread-safe.

    Args:
        endpoint: URL as it is to appear in the rows.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        #: Engine that most rows of the last page belong to; None before one was recognised.
        self.engine: str | None = None
        self._series: Sequence[Series] = ()
        self._plan: _Plan | None = None
        self._held: list[_Held] = []

    def read(self, page: Exposition, time_ns: int, scrape_ns: int) -> Batch | None:
        """Return the rows of a page; None when nothing on it is in the vocabulary.

        Args:
            page: The parsed page.
            time_ns: Middle of the scrape, CLOCK_MONOTONIC.
            scrape_ns: Time the scrape took.
        """
        self.hold(page, time_ns, scrape_ns)
        batches = self.take()
        return batches[-1] if batches else None

    def hold(self, page: Exposition, time_ns: int, scrape_ns: int) -> bool:
        """Keep the rows of a page for :meth:`take`; tells whether there are any."""
        if self._plan is None or (page.series is not self._series and page.series != self._series):
            self._plan = _Plan(page.series, self.endpoint)
        self._series = page.series
        plan = self._plan
        if plan.engine is not None:
            self.engine = plan.engine
        if not plan.n_rows:
            return False
        self._held.append(_Held(plan, page.values, time_ns, scrape_ns))
        return True

    def take(self) -> list[Batch]:
        """Return what is held: a batch for each run of pages with the same series."""
        held, self._held = self._held, []
        runs = groupby(held, key=lambda item: id(item.plan))
        return [self._batch(list(items)) for _, items in runs]

    def _batch(self, held: Sequence[_Held]) -> Batch:
        """Rows of pages with the same series."""
        plan = held[0].plan
        values = plan.values(np.stack([item.values for item in held])).reshape(-1)
        times = np.array([(item.time_ns, item.scrape_ns) for item in held], dtype=np.int64)
        columns = {
            **plan.arrays(len(held)),
            "time_ns": pa.array(np.repeat(times[:, 0], plan.n_rows)),
            "scrape_ns": pa.array(np.repeat(times[:, 1], plan.n_rows)),
            "value": pa.array(values, mask=np.isnan(values)),
        }
        return make_batch(ENGINE_SAMPLE, columns)


@dataclass(frozen=True)
class _Held:
    """Values of the series of one page, and when it was scraped."""

    plan: _Plan
    values: NDArray[np.float64]
    time_ns: int
    scrape_ns: int


class _Plan:
    """Which rows a page with these series makes, and from which of its values."""

    def __init__(self, series: Sequence[Series], endpoint: str) -> None:
        groups = _group(series)
        engines = Counter(key.engine for key in groups if key.engine)
        self.engine: str | None = engines.most_common(1)[0][0] if engines else None
        keys = list(groups) if self.engine is not None else []
        self.n_rows = len(keys)
        index: list[int] = []
        starts: list[int] = []
        self._maxima: list[int] = []
        self._constants: list[tuple[int, list[tuple[int, float | None]]]] = []
        scales: list[float] = []
        for row, key in enumerate(keys):
            group = groups[key]
            members = group.chosen()
            starts.append(len(index))
            index.extend(member[0] for member in members)
            scales.append(1.0 if key.kind in ("bucket", "count") else group.alias.scale)
            if any(member[1] is not None for member in members) or group.alias.product_of:
                self._constants.append((row, members))
            elif metric(key.word).merge == "max" and len(members) > 1:
                self._maxima.append(row)
        self._index = np.array(index, dtype=np.intp)
        self._starts = np.array(starts, dtype=np.intp)
        self._scales = np.array(scales)
        self._static = self._static_columns(keys, groups)
        self._derived = self._derive(keys, groups)
        self._static["endpoint"] = [endpoint] * self.n_rows
        self._arrays = {name: _array(name, values) for name, values in self._static.items()}
        self._repeated: tuple[int, dict[str, pa.Array]] = (1, self._arrays)

    def arrays(self, n_pages: int) -> dict[str, pa.Array]:
        """Columns that depend on the series alone, for so many pages; the last ones are kept."""
        if self._repeated[0] != n_pages:
            arrays = {name: pa.concat_arrays([a] * n_pages) for name, a in self._arrays.items()}
            self._repeated = (n_pages, arrays)
        return self._repeated[1]

    def values(self, pages: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of the rows ``(pages, rows)`` from those of the series ``(pages, series)``; NaN
        where unknown.
        """
        pages = np.where(np.isfinite(pages) & (np.abs(pages) < SENTINEL), pages, np.nan)
        picked = pages[:, self._index]
        result = np.add.reduceat(picked, self._starts, axis=1)
        for row in self._maxima:
            stop = self._starts[row + 1] if row + 1 < len(self._starts) else picked.shape[1]
            result[:, row] = picked[:, self._starts[row] : stop].max(axis=1)
        for row, members in self._constants:
            told = pages[:, [index for index, _ in members]]
            told[np.isnan(told)] = -np.inf
            constants = [np.nan if constant is None else constant for _, constant in members]
            result[:, row] = np.array(constants)[told.argmax(axis=1)]
        result *= self._scales
        if self._derived:
            products = [result[:, left] * result[:, right] for left, right in self._derived]
            result = np.column_stack([result, *products])
        return result

    def _static_columns(
        self, keys: Sequence[_Key], groups: dict[_Key, _Group]
    ) -> dict[str, list[object]]:
        """Values of the columns that depend on the series alone."""
        return {
            "engine": [key.engine or self.engine for key in keys],
            "metric": [key.word for key in keys],
            "raw_name": [groups[key].raw_name for key in keys],
            "labels": [key.labels for key in keys],
            "kind": [key.kind for key in keys],
            "upper_bound": [key.upper_bound for key in keys],
            "is_lagging": [groups[key].alias.moves is Moves.FINISH for key in keys],
        }

    def _derive(self, keys: Sequence[_Key], groups: dict[_Key, _Group]) -> list[tuple[int, int]]:
        """Add rows of ``kv_pool_tokens`` where a page tells only blocks and tokens per block."""
        rows = {(key.engine, key.labels, key.word): row for row, key in enumerate(keys)}
        derived = []
        for (engine, labels, word), row in list(rows.items()):
            other = rows.get((engine, labels, "kv_block_tokens"))
            has_it = (engine, labels, "kv_pool_tokens") in rows
            if word != "kv_pool_blocks" or other is None or has_it:
                continue
            derived.append((row, other))
            names = [groups[keys[item]].raw_name for item in (row, other)]
            for column, value in (
                ("engine", engine),
                ("metric", "kv_pool_tokens"),
                ("raw_name", " * ".join(names)),
                ("labels", labels),
                ("kind", "gauge"),
                ("upper_bound", None),
                ("is_lagging", False),
            ):
                self._static[column].append(value)
            self.n_rows += 1
        return derived


def _array(name: str, values: Sequence[object]) -> pa.Array:
    """A column's values, coded where they are text."""
    array = pa.array(values, ENGINE_SAMPLE.arrow_schema().field(name).type)
    return array.dictionary_encode() if ENGINE_SAMPLE.column(name).type == "str" else array


def _group(series: Sequence[Series]) -> dict[_Key, _Group]:
    """Rows of a page: only the preferred raw name of each word, replicas of ranks apart."""
    found: list[tuple[_Use, _Key, tuple[tuple[int, str], ...], int, float | None, str]] = []
    preferred: dict[tuple[str, str, str], int] = {}
    for position, item in enumerate(series):
        for use in _USES.get(_canonical(item.name), ()):
            alias = use.alias
            if any(item.labels.get(name) != value for name, value in alias.where):
                continue
            bound = _bound(item, alias) if use.kind == "bucket" else None
            if use.kind == "bucket" and bound is None:
                continue
            word = metric(alias.metric)
            kept = _kept(item, alias, word.per_rank)
            key = _Key(alias.engine, word.name, use.kind, bound, kept)
            ranks = () if word.per_rank else _ranks(item)
            found.append((use, key, ranks, position, _constant(item, alias), item.name))
            slot = (alias.engine, word.name, use.kind)
            preferred[slot] = min(preferred.get(slot, use.order), use.order)
    groups: dict[_Key, _Group] = {}
    for use, key, ranks, position, constant, raw_name in found:
        if preferred[key.engine, key.word, key.kind] != use.order:
            continue
        group = groups.setdefault(key, _Group(use.alias, raw_name))
        group.members.setdefault(ranks, []).append((position, constant))
    if len({key.engine for key in groups if key.engine}) > 1:
        return {_of_its_engine(key): group for key, group in groups.items()}
    return groups


def _of_its_engine(key: _Key) -> _Key:
    """A key that also names its engine in the labels, which tell one series from another."""
    if not key.engine:
        return key
    labels = {**json.loads(key.labels or "{}"), "server": key.engine}
    return replace(key, labels=json.dumps(labels, sort_keys=True, separators=(",", ":")))


def _bound(series: Series, alias: Alias) -> float | None:
    """Upper bound of a bucket in the vocabulary's unit; None when it has none."""
    try:
        return float(series.labels["le"]) * alias.scale
    except (KeyError, ValueError):
        return None


def _kept(series: Series, alias: Alias, per_rank: bool) -> str | None:
    """Labels that are kept, as sorted JSON; None without any."""
    names: Iterable[tuple[str, str]] = (*_ALWAYS_KEPT, *alias.keep)
    if per_rank:
        names = (*names, *((rank, rank) for rank in _RANKS))
    kept = {
        new: series.labels[old][:MAX_LABEL_LENGTH] for old, new in names if series.labels.get(old)
    }
    return json.dumps(kept, sort_keys=True, separators=(",", ":")) if kept else None


def _ranks(series: Series) -> tuple[tuple[int, str], ...]:
    """Ranks of a replica, ordered so that the lowest comes first."""
    ranks = [series.labels.get(name, "") for name in _RANKS]
    return tuple((int(rank) if rank.isdecimal() else -1, rank) for rank in ranks)


def _constant(series: Series, alias: Alias) -> float | None:
    """Value that an information series carries in its labels; None where it does not tell."""
    if alias.count_of is not None:
        text = series.labels.get(alias.count_of)
        return None if text is None else float(len([name for name in text.split(",") if name]))
    if not alias.product_of:
        return None
    product = 1.0
    for name in alias.product_of:
        try:
            product *= float(series.labels[name])
        except (KeyError, ValueError):
            return None
    return product
