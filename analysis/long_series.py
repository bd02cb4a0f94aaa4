"""Series over the whole of a long recording, of its summaries: submissions each second, lengths of
launches, percentiles of an engine's histograms, memory. Read in parts; memory does not grow with
the number of calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import quantiles
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SECOND_NS = 1_000_000_000
#: Memory must be sampled for so long before its growth is told per hour: what a process takes in
#: its first seconds, times a thousand, is no growth.
SHORTEST_SLOPE_NS = 240 * SECOND_NS
#: Kinds of calls that hand work to a device.
SUBMISSIONS = ("launch", "graph_launch", "copy", "set", "collective")
LAUNCHES = ("launch", "graph_launch")


def submissions(session: Session) -> tuple[int, Ints] | None:
    """Return the first second (ns) and the submissions that began in each second from there on,
    None where calls were not recorded. Calls inside others are not counted.
    """
    has_summary = session.has("call_second")
    name = "call_second" if has_summary else "cuda_call"
    if not session.has(name):
        return None
    first_ns = session.start_ns - session.start_ns % SECOND_NS
    n_seconds = (session.end_ns - first_ns) // SECOND_NS + 1
    total = np.zeros(n_seconds, dtype=np.int64)
    columns = ["start_ns", "kind", "depth", *(["n_calls"] if has_summary else [])]

    def add(part: pa.Table) -> None:
        is_wanted = pc.and_(
            pc.is_in(part["kind"], value_set=pa.array(SUBMISSIONS)), pc.equal(part["depth"], 0)
        )
        rows = part.filter(is_wanted)
        at = (rows["start_ns"].to_numpy() - first_ns) // SECOND_NS
        weights = rows["n_calls"].to_numpy() if has_summary else np.ones(len(at), dtype=np.int64)
        is_in = (at >= 0) & (at < n_seconds)
        np.add.at(total, at[is_in], weights[is_in])

    session.collect(name, columns, add, start_over=lambda: total.fill(0))
    return first_ns, total


@dataclass(frozen=True)
class Lengths:
    """Lengths of calls by window: ``counts[window, range]`` of ``upper[range]``, ns.

    A range's upper end is at most 10 % above the lengths in it; exact where calls are at hand.
    """

    upper: Ints
    counts: Ints

    def quantile(self, window: int, q: float) -> tuple[int, int] | None:
        """Return a percentile (nearest rank) of a window in ns, and of how many calls it is."""
        total = np.cumsum(self.counts[window])
        if len(total) == 0 or total[-1] == 0:
            return None
        at = int(np.searchsorted(total, quantiles.rank(int(total[-1]), q) + 1))
        return int(self.upper[at]), int(total[-1])


def launch_lengths(session: Session, edges: Ints) -> Lengths | None:
    """Return the lengths of launches between edges (ns), None where calls were not recorded.

    A span of the histogram belongs to the window that its middle lies in.
    """
    is_summary = session.has("call_histogram")
    name = "call_histogram" if is_summary else "cuda_call"
    if not session.has(name):
        return None
    found: dict[tuple[int, int], int] = {}
    columns = ["start_ns", "duration_ns", "kind"]
    columns += ["upper_ns", "n_calls"] if is_summary else ["depth"]

    def add(part: pa.Table) -> None:
        mask = pc.is_in(part["kind"], value_set=pa.array(LAUNCHES))
        if not is_summary:
            mask = pc.and_(mask, pc.equal(part["depth"], 0))
            mask = pc.and_(mask, pc.is_valid(part["duration_ns"]))
        rows = part.filter(mask)
        time = rows["start_ns"].to_numpy()
        length = rows["duration_ns"].to_numpy()
        if is_summary:
            time = time + length // 2
        upper = rows["upper_ns"].to_numpy() if is_summary else _rounded(length)
        window = np.searchsorted(edges, time, side="right") - 1
        is_in = (window >= 0) & (window < len(edges) - 1)
        weight = rows["n_calls"].to_numpy() if is_summary else np.ones(len(time), dtype=np.int64)
        bounds = pa.array(upper[is_in]).dictionary_encode()
        distinct = bounds.dictionary.to_pylist()
        pairs = window[is_in] * len(distinct) + bounds.indices.to_numpy()
        keys = pa.array(pairs).dictionary_encode()
        sums = np.bincount(keys.indices.to_numpy(), weight[is_in], len(keys.dictionary))
        for key, n in zip(keys.dictionary.to_pylist(), sums.tolist(), strict=True):
            index, at = divmod(key, len(distinct))
            found[index, distinct[at]] = found.get((index, distinct[at]), 0) + round(n)

    session.collect(name, columns, add, start_over=found.clear)
    bounds = sorted({bound for _, bound in found})
    place = {bound: index for index, bound in enumerate(bounds)}
    counts = np.zeros((len(edges) - 1, len(bounds)), dtype=np.int64)
    for (window, bound), n in found.items():
        counts[window, place[bound]] = n
    return Lengths(np.array(bounds, dtype=np.int64), counts)


def _rounded(lengths: Ints) -> Ints:
    """Lengths to three digits, so that there are not as many ranges as calls."""
    digits = np.floor(np.log10(np.maximum(lengths, 1))).astype(np.int64)
    step = 10 ** np.maximum(digits - 2, 0)
    result: Ints = -(-lengths // step) * step
    return result


@dataclass(frozen=True)
class Counter:
    """A cumulative metric of one engine: its value at each scrape, resets taken out."""

    time: Ints
    total: Floats

    def between(self, edges: Ints) -> Floats:
        """Return the increase within each window."""
        return np.diff(np.interp(edges, self.time, self.total))


def engine_counters(
    session: Session, metrics: tuple[str, ...], kind: str
) -> dict[tuple[str, float | None], list[Counter]]:
    """Return cumulative metrics by name and bucket, one counter for each engine's series.

    Args:
        session: The session.
        metrics: Names in the common vocabulary.
        kind: counter, sum, count or bucket.
    """
    if not session.has("engine_sample"):
        return {}
    columns = ["time_ns", "endpoint", "labels", "metric", "kind", "upper_bound", "value"]

    def chosen(part: pa.Table) -> pa.Table:
        mask = pc.is_in(part["metric"].cast(pa.string()), value_set=pa.array(metrics))
        mask = pc.and_(mask, pc.equal(part["kind"].cast(pa.string()), kind))
        rows = part.filter(pc.and_(mask, pc.is_valid(part["value"])))
        texts = ("endpoint", "labels", "metric", "kind")
        for name in texts:
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, name, rows[name].cast(pa.string()))
        return rows

    parts = session.collect("engine_sample", columns, chosen, keep_dictionaries=True)
    if not parts:
        return {}
    frame = pa.concat_tables(parts).sort_by("time_ns").to_pandas()
    result: dict[tuple[str, float | None], list[Counter]] = {}
    keys = ["metric", "upper_bound", "endpoint", "labels"]
    for (metric, bound, _, _), rows in frame.groupby(keys, dropna=False, sort=False):
        time = rows["time_ns"].to_numpy(dtype=np.int64)
        step = np.diff(rows["value"].to_numpy(dtype=float), prepend=np.nan)
        step[0] = 0.0
        total = np.cumsum(np.where(step > 0, step, 0.0))
        key = (str(metric), None if np.isnan(bound) else float(bound))
        result.setdefault(key, []).append(Counter(time, total))
    return result


def increases(
    counters: dict[tuple[str, float | None], list[Counter]], metric: str, edges: Ints
) -> Floats | None:
    """Return how much a counter grew within each window, all engines together; None without it."""
    own = counters.get((metric, None))
    if not own:
        return None
    total: Floats = np.sum([counter.between(edges) for counter in own], axis=0)
    return total


def bucket_quantile(
    counters: dict[tuple[str, float | None], list[Counter]],
    metric: str,
    q: float,
    edges: Ints,
) -> list[tuple[float, int] | None]:
    """Return a percentile of a histogram in each window: the upper bound of its bucket in the
    metric's unit, and of how many samples it is; None without samples or beyond the last bound.
    """
    bounds = sorted(bound for name, bound in counters if name == metric and bound is not None)
    if not bounds:
        return [None] * (len(edges) - 1)
    grown = np.stack(
        [
            np.sum([item.between(edges) for item in counters[metric, bound]], axis=0)
            for bound in bounds
        ]
    )
    result: list[tuple[float, int] | None] = []
    for column in grown.T:
        n = round(float(column[-1]))
        if n < 1:
            result.append(None)
            continue
        at = int(np.searchsorted(column, min(quantiles.rank(n, q) + 1, column[-1]) - 1e-6))
        result.append((bounds[at], n) if np.isfinite(bounds[at]) else None)
    return result


def memory_slopes(session: Session, edges: Ints) -> Floats:
    """Return the growth of resident anonymous memory of all processes in each window, in bytes per
    hour by least squares; NaN where it was sampled for less than :data:`SHORTEST_SLOPE_NS`.
    """
    result = np.full(len(edges) - 1, np.nan)
    if not session.has("process_sample"):
        return result
    rows = session.table("process_sample", columns=["time_ns", "rss_anon_bytes", "rss_bytes"])
    memory = pc.coalesce(rows["rss_anon_bytes"], rows["rss_bytes"])
    mask = pc.is_valid(memory).to_numpy(zero_copy_only=False)
    second = rows["time_ns"].to_numpy()[mask] // SECOND_NS
    value = memory.filter(pa.array(mask)).to_numpy().astype(float)
    if len(value) == 0:
        return result
    unique, at = np.unique(second, return_inverse=True)
    total = np.bincount(at.reshape(-1), weights=value)
    time = unique * SECOND_NS
    for index in range(len(edges) - 1):
        low, high = np.searchsorted(time, edges[index : index + 2])
        if high - low >= 3 and time[high - 1] - time[low] >= SHORTEST_SLOPE_NS:
            hours = (time[low:high] - time[low]) / 3.6e12
            result[index] = np.polyfit(hours, total[low:high], 1)[0]
    return result
