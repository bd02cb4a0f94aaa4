"""The recorded scrapes of a real vLLM, replayed over HTTP, give the numbers known of each phase."""

from __future__ import annotations

import gzip
import json
import socket
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from probes.engine.exposition import ExpositionParser
from probes.engine.fetch import Fetcher
from probes.engine.reading import PageReader
from tests.probes.engine.serving import page, serving


@pytest.fixture(scope="module")
def replayed(shared_data: Path) -> pd.DataFrame:
    """Rows of every recorded scrape, fetched from a local server; ``t`` is the recorded time."""
    folder = shared_data / "metrics" / "vllm-0.32.0-cpu-recorded"
    with gzip.open(folder / "scrapes.jsonl.gz", "rt") as stream:
        scrapes = [json.loads(line) for line in stream]
    answers = iter([page(scrape["text"]) for scrape in scrapes])

    def answer(connection: socket.socket) -> None:
        next(answers)(connection)

    batches = []
    with serving(answer) as server:
        fetcher, parser, reader = Fetcher(server.url), ExpositionParser(), PageReader(server.url)
        for scrape in scrapes:
            fetched = fetcher.get()
            batch = reader.read(parser.parse(fetched.text), int(scrape["t"] * 1e9), 1)
            assert batch is not None
            batches.append(batch.rows)
    frame = pa.Table.from_batches(batches).to_pandas()
    frame["t"] = frame["time_ns"] / 1e9
    return frame


@pytest.fixture(scope="module")
def phases(shared_data: Path) -> dict[str, tuple[float, float]]:
    path = shared_data / "metrics" / "vllm-0.32.0-cpu-recorded" / "phases.json"
    marks = json.loads(path.read_text())
    return {name: (begin, following[0]) for (begin, name), following in pairwise(marks)}


class Phase:
    """Common metrics of one phase, but for its first and last second: the load changes in them."""

    def __init__(self, frame: pd.DataFrame, begin: float, end: float) -> None:
        self.frame = frame[(frame.t >= begin + 1) & (frame.t < end - 1.5)]

    def gauge(self, word: str) -> pd.Series:
        rows = self.frame[(self.frame.metric == word) & (self.frame.kind == "gauge")]
        return rows.set_index("t").value

    def change(self, word: str, kind: str = "counter") -> float:
        rows = self.frame[(self.frame.metric == word) & (self.frame.kind == kind)]
        sums = rows.groupby("t").value.sum()
        return float(sums.iloc[-1] - sums.iloc[0])

    def rate(self, word: str) -> float:
        times = self.frame.t
        return self.change(word) / float(times.max() - times.min())

    def mean(self, word: str) -> float:
        return self.change(word, "sum") / self.change(word, "count")


@pytest.fixture(scope="module")
def phase(replayed: pd.DataFrame, phases: dict[str, tuple[float, float]]) -> dict[str, Phase]:
    return {name: Phase(replayed, *interval) for name, interval in phases.items()}


def test_idle(phase: dict[str, Phase]) -> None:
    idle = phase["idle"]
    assert idle.gauge("requests_running").max() == 0
    assert idle.rate("generation_tokens") == 0


def test_steady_decode(phase: dict[str, Phase]) -> None:
    steady = phase["steady_decode_4"]
    assert steady.gauge("requests_running").median() == 4
    assert steady.rate("generation_tokens") == pytest.approx(480, rel=0.1)
    assert steady.mean("inter_token_seconds") == pytest.approx(0.008, rel=0.1)
    assert steady.mean("ttft_seconds") == pytest.approx(0.066, rel=0.1)


def test_prefill_hog(phase: dict[str, Phase]) -> None:
    hog = phase["prefill_hog"]
    assert hog.rate("prompt_tokens") == pytest.approx(1400, rel=0.15)
    assert hog.rate("generation_tokens") == pytest.approx(36, rel=0.25)
    assert hog.mean("inter_token_seconds") == pytest.approx(0.085, rel=0.25)
    assert hog.gauge("requests_waiting").median() == 0
    assert hog.gauge("kv_usage").max() == pytest.approx(0.47, abs=0.15)


def test_overload(phase: dict[str, Phase]) -> None:
    overload = phase["overload_preempt"]
    running = overload.gauge("requests_running")
    assert 8 <= running.median() <= 12
    assert 16 <= overload.gauge("requests_waiting").iloc[:45].median() <= 20
    assert 0.85 <= overload.gauge("kv_usage").iloc[:45].median() <= 1.0
    assert overload.gauge("preemptions").empty
    assert overload.change("preemptions") == pytest.approx(63, abs=5)
    assert 10 <= overload.mean("ttft_seconds") <= 24
    assert 10 <= overload.mean("queue_seconds") <= 18


def test_every_scrape_has_every_row(replayed: pd.DataFrame) -> None:
    counts = replayed.groupby("time_ns").size()
    assert len(counts) > 140
    assert counts.min() >= 280
    assert not replayed.value.isna().any()
    assert not replayed.raw_name.str.endswith("_created").any()
