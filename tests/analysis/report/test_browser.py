"""The report in a real browser: no error, charts drawn, one time axis, names shown as text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from analysis.report.html import write_report
from tests.analysis.report.browser import ask, chromium, flags
from tests.analysis.report.sessions import hostile, story

STORIES = (
    "launch.cpu_delay",
    "launch.first_use",
    "prefill.hogging",
    "contention.cross_process",
    "hang.kernel",
)
LOOK = """
const charts = [...document.querySelectorAll(".js-plotly-plot")];
const axis = (chart) => chart._fullLayout.xaxis.range.map((end) => end.toFixed(4)).join(" ");
const ranges = () => charts.map(axis);
const drawn = ".trace path, .trace .point, .fills path";
const settle = () => new Promise((resolve) => setTimeout(resolve, 400));
const before = new Set(ranges());
await Plotly.relayout(charts[charts.length - 1], { "xaxis.range[0]": 1, "xaxis.range[1]": 2 });
await settle();
const zoomed = new Set(ranges());
document.querySelector("[data-do=right]").click();
await settle();
const panned = new Set(ranges());
document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "0", bubbles: true }));
await settle();
return {
  n_places: document.querySelectorAll(".chart").length, n_charts: charts.length,
  n_paths: charts.filter((chart) => chart.querySelector(drawn)).length,
  before: [...before], zoomed: [...zoomed], panned: [...panned], after: [...new Set(ranges())],
  panels: [...document.querySelectorAll(".panel")].map((panel) => panel.id),
  kernels: [...document.querySelectorAll(".kernel")].map((place) => place.innerText),
  background: getComputedStyle(document.body).backgroundColor,
  n_images: document.querySelectorAll("img").length,
  is_wide: document.documentElement.scrollWidth > window.innerWidth,
};
"""


@pytest.mark.parametrize("name", STORIES)
def test_a_story_opens_with_linked_charts_and_no_error(name: str, tmp_path: Path) -> None:
    write_report(story(tmp_path / "s.tracer", name), tmp_path / "r.html")
    seen = ask(tmp_path / "r.html", LOOK, tmp_path)
    assert seen["problems"] == [] and seen["ready"] == "charts"
    answer = seen["answer"]
    assert answer["panels"] == ["device", "calls", "threads", "service", "neighbours"]
    assert answer["n_charts"] == answer["n_places"] >= 8
    assert answer["n_paths"] == answer["n_charts"]
    assert len(answer["before"]) == 1
    assert answer["zoomed"] == ["1.0000 2.0000"]
    assert answer["panned"] == ["1.3333 2.3333"]
    assert answer["after"] == answer["before"]
    assert answer["background"] == "rgb(245, 246, 248)"
    assert not answer["is_wide"]


def test_strange_names_are_text_also_on_a_phone_in_the_dark(tmp_path: Path) -> None:
    write_report(hostile(tmp_path / "<img src=x onerror=alert(1)>.tracer"), tmp_path / "r.html")
    dark = "--blink-settings=preferredColorScheme=0"
    seen = ask(tmp_path / "r.html", LOOK, tmp_path, "--window-size=500,900", dark)
    assert seen["answer"]["background"] == "rgb(15, 18, 22)"
    assert seen["problems"] == [] and seen["ready"] == "charts"
    assert seen["answer"]["n_images"] == 0
    assert not seen["answer"]["is_wide"]
    kernels = seen["answer"]["kernels"]
    assert kernels and all(text.startswith("<script>problems.push") for text in kernels)


def test_it_prints(tmp_path: Path) -> None:
    write_report(story(tmp_path / "s.tracer", "prefill.hogging"), tmp_path / "r.html")
    paper = tmp_path / "r.pdf"
    subprocess.run(
        [
            *(chromium(), *flags(tmp_path / "profile"), "--no-pdf-header-footer"),
            *("--virtual-time-budget=60000", f"--print-to-pdf={paper}"),
            (tmp_path / "r.html").as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )
    content = paper.read_bytes()
    assert content.startswith(b"%PDF")
    assert 2 <= content.count(b"/Type /Page\n") <= 16
