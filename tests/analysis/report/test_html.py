"""The report's page: what it says, what it escapes, how large it is - without a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from analysis import attribute, open_session
from analysis.kept import Kept
from analysis.manifest import Source
from analysis.report.files import OutputError
from analysis.report.html import page, write_report
from analysis.report.terminal import render
from tests.analysis.builder import S, Service, SessionBuilder
from tests.analysis.report.sessions import hostile, story, traced

PANELS = ("device", "calls", "threads", "service", "neighbours")


class Reader(HTMLParser):
    """Elements, their ids, and the visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.handlers: list[str] = []
        self.text: list[str] = []
        self._hidden = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _value in attrs if name.startswith("on")]
        self.ids.update(value for name, value in attrs if name == "id" and value)
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def data_of(text: str) -> dict[str, Any]:
    packed = re.search(r'id="data">([A-Za-z0-9+/=]+)</script>', text)
    assert packed
    result: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return result


@pytest.fixture(scope="module")
def contended(tmp_path_factory: pytest.TempPathFactory) -> str:
    session = story(tmp_path_factory.mktemp("report") / "s.tracer", "launch.cpu_delay")
    return page.render(session, attribute(session, page.window_ns(session)))


def test_the_verdict_comes_first_and_every_part_is_there(contended: str) -> None:
    found = Reader(contended)
    words = found.words
    assert words.index("launch.cpu_delay") < words.index("Where the device's time went")
    assert "stress-ng" in words
    assert {"budget", "findings", "slow", "mps", "recording", *PANELS} <= found.ids
    assert "http://" not in contended.split('id="plotly"')[0].replace("http://127.0.0.1", "")
    data = data_of(contended)
    assert [chart["title"] for chart in data["panels"]["device"]] == ["Utilisation", "Power"]
    marks = data["budgets"][0]["marks"]
    assert marks[0]["name"] == "launch.cpu_delay" and marks[0]["is_proven"]
    assert 0 <= marks[0]["spans"][0][0] < marks[0]["spans"][-1][1] <= data["seconds"]


def test_the_layers_of_the_budget_add_up(contended: str) -> None:
    budget = data_of(contended)["budgets"][0]
    for index in range(len(budget["x"]) - 1):
        assert sum(layer["y"][index] for layer in budget["layers"]) == pytest.approx(100, abs=0.1)
    keys = [layer["key"] for layer in budget["layers"]]
    assert "cpu_delay" in keys and "compute" in keys
    patterned = [layer["pattern"] for layer in budget["layers"] if layer["key"] != "no_demand"]
    assert patterned.count("") <= 1


def test_a_slow_call_is_explained_where_the_session_allows(tmp_path: Path) -> None:
    service = Service(seed=1)
    service.decode_until(service.start + 3 * S)
    begin = service.now
    service.call("cudaLaunchKernel", "launch", 40_000_000, kernel=1)
    held = {"taker_pid": 9, "taker_tid": 9, "taker_name": "hog"}
    held |= {"occupant_pid": 9, "occupant_tid": 9, "occupant_name": "hog"}
    service.absent(begin + 1_000_000, begin + 39_000_000, "running", 38_000_000, **held)
    service.decode_until(service.start + 6 * S)
    session = service.session(tmp_path / "s.tracer")
    words = Reader(page.render(session, attribute(session))).words
    assert "hog (9) had the CPU" in words
    assert "Ready to run but waiting for a CPU for 38 ms (95 %)" in words


def test_nothing_strange_becomes_a_part_of_the_page(tmp_path: Path) -> None:
    plain = page.render(
        session := story(tmp_path / "p.tracer", "launch.cpu_delay"), attribute(session)
    )
    session = hostile(tmp_path / "<img src=x onerror=alert(1)>.tracer")
    text = page.render(session, attribute(session))
    found = Reader(text)
    assert "img" not in found.tags and found.handlers == []
    assert found.tags.count("script") == Reader(plain).tags.count("script")
    assert "<script>problems.push('ran')</script>" in found.words
    assert "{{7*7}}" in found.words
    assert "\u202e" not in text and "\x1b" not in text
    assert "\\u202eevil" in found.words
    assert "characters …" in found.words
    assert len(text) < 5_000_000


def test_what_is_missing_is_named_with_the_way_to_record_it(tmp_path: Path) -> None:
    service = Service(has_engine=False, has_nvml=False)
    service.decode_until(service.start + 2 * S)
    session = service.session(tmp_path / "s.tracer")
    words = Reader(page.render(session, attribute(session))).words
    assert "gpu_sample was not recorded. Record it with: tracer record --pid PID" in words
    assert "engine_sample was not recorded" in words
    assert "thread_second was not recorded" in words


def test_a_source_that_failed_is_not_asked_for_by_the_same_command(tmp_path: Path) -> None:
    service = Service(has_nvml=False)
    service.decode_until(service.start + 2 * S)
    tables = ["gpu_sample", "gpu_process"]
    failed = Source("nvml", "unavailable", tables=tables, note="NVML is not installed")
    session = service.session(tmp_path / "s.tracer", sources=[Source("cuda", "ok"), failed])
    words = Reader(page.render(session, attribute(session))).words
    for table in tables:
        assert (
            f"{table} was not recorded: NVML is not installed. It needs an NVIDIA driver and the "
            "Python package nvidia-ml-py. What is missing here is told by: tracer doctor"
        ) in words


def test_an_empty_session_still_has_a_report(tmp_path: Path) -> None:
    session = SessionBuilder(tmp_path / "s.tracer").write()
    found = Reader(page.render(session, attribute(session)))
    assert set(PANELS) <= found.ids
    assert "The session has no length" in found.words


def test_the_simulated_device_is_labelled(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 2 * S)
    for is_simulated in (False, True):
        session = service.session(tmp_path / f"s{is_simulated}.tracer", is_simulated=is_simulated)
        words = Reader(page.render(session, attribute(session))).words
        assert ("simulated device" in words) is is_simulated


def test_a_part_that_fails_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = story(tmp_path / "s.tracer", "healthy")

    def fail(facts: object, scale: object) -> None:
        raise KeyError("odd")

    fail.__name__ = "device_panel"
    monkeypatch.setattr(page, "PANELS", (fail, *page.PANELS[1:]))
    found = Reader(page.render(session, attribute(session)))
    assert "A part of this report failed on this session" in found.words
    assert {"device", "calls"} <= found.ids


def test_an_hour_is_small(tmp_path: Path) -> None:
    """Samples of an hour and of eight GPUs; a spike of one sample must survive the thinning."""
    start, hour = 1000 * S, 3600
    samples = [
        {
            **{"time_ns": start + second * S, "device": device, "source": "nvml"},
            **{"util_pct": float((second * 7 + device) % 60), "power_mw": 300_000 + second},
            **{"sm_clock_mhz": 1000 + second % 400, "dram_active_pct": float(second % 30)},
        }
        for device in range(8)
        for second in range(hour)
    ]
    samples[1234]["util_pct"] = 99.0
    session = (
        SessionBuilder(tmp_path / "s.tracer", start_ns=start, end_ns=start + hour * S)
        .add("gpu_sample", samples)
        .write()
    )
    assert write_report(session, tmp_path / "r.html") < 5_000_000
    data = data_of((tmp_path / "r.html").read_text())
    first = data["panels"]["device"][0]["lines"][0]
    assert max(first["y"]) == 99.0 and min(first["y"]) == 0.0
    assert len(first["x"]) <= 1200


def test_a_report_replaces_only_when_asked(tmp_path: Path) -> None:
    session = SessionBuilder(tmp_path / "s.tracer").write()
    (tmp_path / "r.html").write_text("mine")
    with pytest.raises(OutputError, match="--force"):
        write_report(session, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "mine"
    write_report(open_session(tmp_path / "s.tracer"), tmp_path / "r.html", force=True)
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["r.html", "s.tracer"]


def test_device_times_are_drawn_where_there_are_some(tmp_path: Path) -> None:
    session, _counts = traced(tmp_path / "s.tracer")
    charts = data_of(page.render(session, attribute(session)))["panels"]["device"]
    assert charts[0]["title"] == "Busy, by device times"
    busy = [value for value in charts[0]["lines"][0]["y"] if value]
    # Three overlapping kernels of 30 us, 20 us apart, in a window of a millisecond.
    assert busy and max(busy) == pytest.approx(7.0, rel=0.05)


def test_a_long_recording_is_drawn_from_its_exact_counts(tmp_path: Path) -> None:
    """Single calls of the last minute only; an hour of counts, with a pause in its middle."""
    start, hour = 1000 * S, 3600
    call = {"pid": 1, "tid": 1, "function": "cudaLaunchKernel", "kind": "launch"}
    seconds = [second for second in range(hour) if not 1800 <= second < 2000]
    session = (
        SessionBuilder(tmp_path / "s.tracer", start_ns=start, end_ns=start + hour * S)
        .add(
            "call_second",
            [
                {
                    **{**call, "layer": "runtime", "depth": 0, "duration_ns": S},
                    **{"start_ns": start + second * S, "n_calls": 500, "n_returned": 500},
                }
                for second in seconds
            ],
        )
        .add(
            "call_histogram",
            [
                {
                    **{"pid": 1, "function": "cudaLaunchKernel", "kind": "launch"},
                    **{"start_ns": start + second * S, "duration_ns": 10 * S, "n_calls": 5000},
                    **{"lower_ns": 9_500, "upper_ns": 10_000},
                }
                for second in seconds[::10]
            ],
        )
        .write()
    )
    text = page.render(session, attribute(session, page.window_ns(session)))
    charts = {chart["title"]: chart["lines"] for chart in data_of(text)["panels"]["calls"]}
    launches = charts["Launches"][0]
    assert launches["y"][0] == pytest.approx(500, rel=0.01)
    at = min(range(len(launches["x"])), key=lambda index: abs(launches["x"][index] - 1900))
    assert launches["y"][at] == 0
    assert charts["Launch latency"][0]["y"][0] == 10.0
    assert "kept for parts of this recording only" in Reader(text).words


def test_the_windows_fit_what_holds_full_detail(tmp_path: Path) -> None:
    session = SessionBuilder(tmp_path / "s.tracer", start_ns=0, end_ns=4 * 3600 * S).write()
    assert page.window_ns(session) == 18 * S
    kept = Kept(detail_from_ns=4 * 3600 * S - 400 * S)
    (session.path / "kept.json").write_text(kept.to_json())
    assert page.window_ns(session) == S // 2


def test_the_begin_is_told_by_the_wall_clock_unless_it_is_damaged(tmp_path: Path) -> None:
    for name, at, is_told in (("a", 1_700_000_000 * S, True), ("b", 1 << 62, False)):
        session = SessionBuilder(
            tmp_path / name, start_ns=0, end_ns=S, start_realtime_ns=at
        ).write()
        words = Reader(page.render(session, attribute(session))).words
        assert ("2023-11-14 22:13:20 UTC" in words) is is_told


def test_marks_are_on_the_timeline(tmp_path: Path) -> None:
    service = Service()
    service.decode_until(service.start + 4 * S)
    builder = service.builder(tmp_path / "s.tracer")
    name = "round 1 <b>"
    builder.add("event", [{"time_ns": service.start + S, "kind": "mark", "name": name}])
    session = builder.write()
    assert data_of(page.render(session, attribute(session)))["noted"] == [{"x": 1.0, "name": name}]


@pytest.mark.parametrize("is_long", [False, True], ids=["calls", "counts"])
def test_threads_in_syncs_that_did_not_return_stay_inside_until_the_end(
    tmp_path: Path, is_long: bool
) -> None:
    service = Service(seed=2)
    service.decode_until(service.start + 4 * S)
    begin, end = service.now, service.now + 2 * S
    build = service.builder(tmp_path / "s.tracer", end)
    opened = {"function": "cudaStreamSynchronize", "layer": "runtime", "kind": "sync", "depth": 0}
    opened |= {"pid": service.pid, "start_ns": begin, "time_ns": end - S // 10, "call_id": 1 << 40}
    for tid, is_doubtful in ((service.pid, False), (service.pid + 1, True)):
        build.add("open_call", [{**opened, "tid": tid, "is_doubtful": is_doubtful}])
    if is_long:
        count = {"pid": service.pid, "tid": service.pid, "kind": "launch", "depth": 0}
        count |= {"function": "cudaLaunchKernel", "duration_ns": S, "n_calls": 9, "total_ns": S}
        count |= {"layer": "runtime", "n_returned": 9}
        build.add("call_second", [{**count, "start_ns": service.start}])
    session = build.write()
    charts = data_of(page.render(session, attribute(session)))["panels"]["calls"]
    [line] = next(chart for chart in charts if chart["title"] == "Threads inside a sync")["lines"]
    last = [y for x, y in zip(line["x"], line["y"], strict=True) if x > (begin - service.start) / S]
    assert last[1:] == [1.0] * len(last[1:]) and len(last) > 1


def test_a_slow_call_that_began_before_the_recording_is_said_to(tmp_path: Path) -> None:
    service = Service(seed=2)
    service.now -= 36_000_000
    service.call("cudaStreamSynchronize", "sync", 50_000_000)
    service.decode_until(service.start + 2 * S)
    session = service.session(tmp_path / "s.tracer")
    words = Reader(page.render(session, attribute(session))).words
    assert "before the start 50 ms cudaStreamSynchronize" in words
    assert "-0.0" not in words


def test_the_count_of_calls_says_what_it_counts(tmp_path: Path) -> None:
    session, counts = traced(tmp_path / "s.tracer")
    words = Reader(page.render(session, attribute(session))).words
    outermost = counts["cuda_call"] // 2
    assert f"CUDA calls {outermost} (outermost; driver calls inside them are not counted)" in words


@pytest.mark.parametrize("has_nvml", [False, True])
def test_a_budget_claims_no_source_that_was_not_recorded(tmp_path: Path, has_nvml: bool) -> None:
    service = Service(has_nvml=has_nvml)
    service.decode_until(service.start + 2 * S)
    session = service.session(tmp_path / "s.tracer")
    attribution = attribute(session)
    expected = "from host's calls and utilisation" if has_nvml else "from host's calls"
    assert f"GPU 0 {expected}" in Reader(page.render(session, attribution)).words
    assert f", {expected}:" in render(attribution)
