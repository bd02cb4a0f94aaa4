"""What an engine tells of its own settings: KV pool, KV type, memory share, longest sequence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from probes.engine.exposition import Exposition, ExpositionParser
from probes.engine.fetch import Fetcher, FetchError, public_url
from probes.engine.reading import PageReader
from probes.probe import ProbeError

_DEADLINE_NS = 5_000_000_000


@dataclass(frozen=True)
class EngineSettings:
    """Settings of one engine; None is not told.

    ``pool_tokens`` is of one engine where several ranks (data parallel) have one each: the least.
    """

    engine: str | None
    pool_tokens: int | None
    kv_type: str | None = None
    utilization: float | None = None
    max_model_len: int | None = None
    n_pools: int = 1


def read_settings(url: str, deadline_ns: int = _DEADLINE_NS) -> EngineSettings:
    """Return what the engine behind a URL tells of its settings.

    Args:
        url: Its metrics page, or its address alone.
        deadline_ns: Most time for each of the two pages.

    Raises:
        ProbeError: there is no metrics page of a known engine.
    """
    url = with_path(url)
    try:
        page = Fetcher(url, deadline_ns).get()
    except FetchError as error:
        raise ProbeError(
            f"the metrics at {public_url(url)} cannot be read: {error}; "
            "give --engine http://HOST:PORT/metrics"
        ) from None
    parsed = ExpositionParser().parse(page.text)
    reader = PageReader(url)
    batch = reader.read(parsed, page.start_ns, page.duration_ns)
    if batch is None:
        raise ProbeError(
            f"{public_url(url)} has no metrics of a known engine; "
            "give --engine http://HOST:PORT/metrics"
        )
    rows = batch.rows.select(["metric", "value"]).to_pylist()
    pools = [
        int(row["value"])
        for row in rows
        if row["metric"] == "kv_pool_tokens" and row["value"] is not None and row["value"] > 0
    ]
    labels = _cache_labels(parsed)
    return EngineSettings(
        engine=reader.engine,
        pool_tokens=min(pools, default=None),
        kv_type=labels.get("cache_dtype"),
        utilization=_share(labels.get("gpu_memory_utilization")),
        max_model_len=_longest(url, deadline_ns),
        n_pools=max(len(pools), 1),
    )


def with_path(url: str) -> str:
    """Return a URL with ``/metrics`` when it has only a host; ``http://`` is added if missing."""
    if "://" not in url:
        url = f"http://{url}"
    try:
        path = urlsplit(url).path
    except ValueError:
        return url  # the fetcher says what is wrong with it
    return url.rstrip("/") + "/metrics" if path in ("", "/") else url


def _cache_labels(page: Exposition) -> dict[str, str]:
    """Labels of vLLM's ``cache_config_info``; those that are not set are left out."""
    for series in page.series:
        if series.name.endswith("cache_config_info"):
            return {
                name: value
                for name, value in series.labels.items()
                if value not in ("", "None", "auto")
            }
    return {}


def _share(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def _longest(url: str, deadline_ns: int) -> int | None:
    """The longest sequence by the list of models, which vLLM adds it to; None without."""
    parts = urlsplit(url)
    models = urlunsplit((parts.scheme, parts.netloc, "/v1/models", "", ""))
    try:
        answer = json.loads(Fetcher(models, deadline_ns).get().text)
        value = answer["data"][0]["max_model_len"]
    except (FetchError, ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    return value if type(value) is int and 0 < value < 1 << 40 else None
