"""Several engines behind one URL, and what only looks like it."""

from __future__ import annotations

import socket
from itertools import count

import numpy as np
import pytest

from probes.engine.exposition import ExpositionParser
from probes.engine.one_engine import MOST_FALLS, WINDOW, OneEngine
from probes.engine.scrape import EngineProbe
from tests.probes.engine.serving import page, serving
from tests.probes.engine.test_found_again import Drained

COUNTERS = ("generation_tokens_total", "prompt_tokens_total", "ttft_seconds_count", "queue_sum")


class Engine:
    """One engine's page: each counter grows with each request."""

    def __init__(self, n: int, model: str = "m", prefix: str = "vllm:") -> None:
        self.n = n
        self.model = model
        self.prefix = prefix

    def page(self) -> str:
        self.n += 1
        lines = [
            f'{self.prefix}{name}{{model_name="{self.model}"}} {self.n * (factor + 1)}'
            for factor, name in enumerate(COUNTERS)
        ]
        return "\n".join(["vllm:num_requests_running 1", *lines, ""])


class Watch:
    def __init__(self) -> None:
        self._parser = ExpositionParser()
        self.one = OneEngine()

    def sees(self, text: str) -> bool:
        return self.one.is_mixed(self._parser.parse(text))


@pytest.mark.parametrize("stay", [1, 3, 40])
@pytest.mark.parametrize("other", [Engine(5000), Engine(5000, "n"), Engine(9, prefix="sglang:")])
def test_engines_that_answer_in_turn_are_told(stay: int, other: Engine) -> None:
    watch, first = Watch(), Engine(100)
    told = [
        watch.sees((first, other)[turn // stay % 2].page())
        for turn in range(stay * 2 * (MOST_FALLS + 3))
    ]
    assert told[-1]
    assert told.index(True) > 2 * stay


def test_engines_of_which_each_has_more_of_something() -> None:
    watch = Watch()
    pages = ["a_total 10\nb_total 5\nc_total 7\nd_total 1\n"]
    pages.append("a_total 5\nb_total 10\nc_total 3\nd_total 9\n")
    assert any(watch.sees(pages[turn % 2]) for turn in range(10))


def test_a_crash_loop_is_one_engine() -> None:
    """It falls at every start, and its port was closed before."""
    watch = Watch()
    for _ in range(20):
        engine = Engine(0)
        assert not any(watch.sees(engine.page()) for _ in range(5))
        watch.one.gap()


def test_an_engine_that_moves_to_another_name_is_one_engine() -> None:
    """Labels that come and go, as those of adapters do; a metric that falls by itself."""
    watch = Watch()
    for turn in range(100):
        lines = [f'vllm:generation_tokens_total{{adapter="{turn % 7}"}} {turn}']
        lines += [f'vllm:other_total{{adapter="{turn}"}} 1', f"vllm:odd_total {turn % 3}"]
        lines += [f"vllm:{name} {turn}" for name in COUNTERS[1:]]
        assert not watch.sees("\n".join([*lines, ""]))


def test_gauges_that_are_called_like_counters_may_fall() -> None:
    """Of the service around an engine with few counters."""
    watch = Watch()
    for turn in range(100):
        gauges = [f"# TYPE g{i}_count gauge\ng{i}_count {turn * (i + 3) % 7}\n" for i in range(9)]
        assert not watch.sees("".join(gauges) + f"tgi_request_count {turn}\n")


def test_nan_and_pages_without_counters_are_no_falls() -> None:
    watch = Watch()
    for turn in range(30):
        value = "NaN" if turn % 2 else "5"
        assert not watch.sees(f"a_total {value}\nb_total {value}\nc_sum {value}\n")
        assert not Watch().sees("a 1\n") and not Watch().sees("")


def test_it_is_forgotten_when_they_answer_in_turn_no_more() -> None:
    watch, engines = Watch(), (Engine(1), Engine(9000))
    assert any(watch.sees(engines[turn % 2].page()) for turn in range(20))
    told = [watch.sees(engines[1].page()) for _ in range(WINDOW + 1)]
    assert told[0] and not told[-1]


def test_memory_is_bounded_whatever_comes_and_goes() -> None:
    watch = Watch()
    for turn in range(300):
        watch.sees("".join(f'a_total{{a="{turn}-{i}"}} 1\n' for i in range(200)))
    assert len(watch.one._seen) < 25_000
    assert len(watch.one._counters) == 200
    assert np.all(watch.one._last == 1)


def test_the_probe_says_it_once_and_leaves_a_gap() -> None:
    turns = count()
    engines = (Engine(10), Engine(1000))

    def answer(connection: socket.socket) -> None:
        page(engines[next(turns) % 2].page())(connection)

    with serving(answer) as server:
        collected = Drained(EngineProbe(urls=[server.url], interval_ns=50_000_000))
        collected.probe.start()
        assert collected.until("source_lost")
        collected.drain()
        collected.samples.clear()
        collected.add(collected.probe.stop())
    assert collected.kinds() == ["source_lost"]
    assert "several engines answer in turn" in str(collected.events[0]["detail"])
    assert not collected.samples
