from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from probes.engine.exposition import (
    MAX_LINES,
    MAX_REMEMBERED_CHARACTERS,
    ExpositionParser,
    parse_exposition,
)

PAGES = [
    ("vllm-0.32.0-cpu-recorded/metrics_idle.txt", 430),
    ("vllm-0.32.0-cpu-recorded/metrics_overload_preempt.txt", 430),
    ("vllm-0.32.0-cpu-recorded/metrics_prefill_hog.txt", 430),
    ("vllm-0.32.0-cpu-recorded/metrics_steady_decode.txt", 430),
    ("vllm-0.32.0-cpu-recorded/metrics_worker_hung.txt", 430),
    ("names/vllm_V0_0.5_datadog_trimmed.txt", 60),
    ("sglang/sglang-0.5.23_exposition_synthetic_values.txt", 303),
    ("sglang/sglang_0.4_docs_overloaded.txt", 70),
    ("triton/tensorrtllm_backend_readme_metrics.txt", 33),
    ("triton/vllm_backend_readme_metrics.txt", 26),
    ("dcgm/dcgm-exporter_a100_empty.prom", 46),
    ("dcgm/dcgm-exporter_a100_mig_520.56.06.prom", 56),
    ("dcgm/dcgm-exporter_a100_mig_active1g.prom", 14),
    ("dcgm/dcgm-exporter_t4x2_525.60.13_k8s.prom", 38),
]


def _reference(text: str) -> list[tuple[str, dict[str, str], float]]:
    """What prometheus_client reads, family by family."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def _same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


@pytest.mark.parametrize(("name", "n_samples"), PAGES)
def test_agrees_with_prometheus_client_but_for_its_renaming(
    shared_data: Path, name: str, n_samples: int
) -> None:
    text = (shared_data / "metrics" / name).read_text()
    page = parse_exposition(text)
    assert page.n_bad_lines == 0
    assert len(page.samples) == n_samples
    reference = _reference(text)
    assert len(reference) == n_samples

    def key(item: tuple[str, dict[str, str], float]) -> tuple[str, str]:
        return item[0].removesuffix("_total"), str(sorted(item[1].items()))

    mine = [(series.name, dict(series.labels), value) for series, value in page.samples]
    for got, expected in zip(sorted(mine, key=key), sorted(reference, key=key), strict=True):
        assert key(got) == key(expected)
        assert _same(got[2], expected[2])


def test_names_stay_as_exposed() -> None:
    page = parse_exposition(
        "# TYPE nv_inference_count counter\nnv_inference_count 3\n"
        "# TYPE tgi_request_count counter\ntgi_request_count 4\n"
    )
    assert [series.name for series, _ in page.samples] == [
        "nv_inference_count",
        "tgi_request_count",
    ]
    assert page.types["nv_inference_count"] == "counter"


def test_second_page_reuses_the_series_of_the_first() -> None:
    parser = ExpositionParser()
    first = parser.parse('a{x="1"} 1\nb 2\n')
    second = parser.parse('a{x="1"} 5\nb NaN\n')
    assert [series for series, _ in first.samples] == [series for series, _ in second.samples]
    assert second.samples[0][1] == 5
    assert math.isnan(second.samples[1][1])


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ('a{x="1", y="2" , } 3', "a", {"x": "1", "y": "2"}, 3.0),
        ("a 3 1700000000000", "a", {}, 3.0),
        ('a{x="b } c"} 3 1700000000000', "a", {"x": "b } c"}, 3.0),
        (r'a{x="q\"\\\n"} 1', "a", {"x": 'q"\\\n'}, 1.0),
        ("a{} 1e3", "a", {}, 1000.0),
        ("a +Inf", "a", {}, math.inf),
        ("a\t7", "a", {}, 7.0),
        ('vllm:x{e="0"}  2', "vllm:x", {"e": "0"}, 2.0),
        ('a_bucket{le="1"} 5 # {trace_id="t"} 0.3', "a_bucket", {"le": "1"}, 5.0),
        ('a{x="A # B 1"} 5', "a", {"x": "A # B 1"}, 5.0),
    ],
)
def test_line(line: str, name: str, labels: dict[str, str], value: float) -> None:
    parser = ExpositionParser()
    for _ in range(2):
        page = parser.parse(line + "\n")
        assert page.n_bad_lines == 0
        [(series, got)] = page.samples
        assert (series.name, dict(series.labels), got) == (name, labels, value)


@pytest.mark.parametrize(
    "line",
    ["<html>", '{"a": 1}', "a", "a b", 'a{x="1 2', "a{x=1} 2", "1a 2", "a 1 2 3", 'a{x="1"}'],
)
def test_bad_line_is_skipped_and_counted(line: str) -> None:
    page = parse_exposition(f"good 1\n{line}\nalso_good 2\n")
    assert [series.name for series, _ in page.samples] == ["good", "also_good"]
    assert page.n_bad_lines == 1


def test_half_a_page_is_told() -> None:
    assert parse_exposition("a 1\nb 2\n").is_complete
    assert not parse_exposition("a 1\nb 2").is_complete
    assert not parse_exposition("").is_complete


_LABEL_VALUE = st.text(max_size=20)


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,10}", fullmatch=True),
            st.dictionaries(
                st.from_regex(r"[a-z_]{1,8}", fullmatch=True), _LABEL_VALUE, max_size=3
            ),
            st.floats(),
        ),
        max_size=8,
    )
)
def test_any_page_survives_a_round_trip(rows: list[tuple[str, dict[str, str], float]]) -> None:
    lines = []
    for name, labels, value in rows:
        parts = [
            '{}="{}"'.format(
                key, text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
            )
            for key, text in labels.items()
        ]
        lines.append(f"{name}{{{','.join(parts)}}} {value!r}\n")
    parser = ExpositionParser()
    for _ in range(2):
        page = parser.parse("".join(lines))
        assert page.n_bad_lines == 0
        assert len(page.samples) == len(rows)
        for (series, got), (name, labels, value) in zip(page.samples, rows, strict=True):
            assert series.name == name
            assert series.labels == labels
            assert _same(got, value)


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    parse_exposition(text)


_LINES = st.one_of(
    st.sampled_from(["# HELP a one", "# HELP b two", "# HELP", "# TYPE a counter", "", "#"]),
    st.sampled_from(["a 1", "a 2", "a  2", "a 1 99", " a 5", "a 2 # {} 1", "c\t4", "b", "b 3x"]),
    st.sampled_from(["b NaN", "b +Inf", "b 3", 'a{x="1"} 1', 'a{x="1"} 2.5', 'a{x="2"} 1']),
    st.just('a{x="# HELP b"} 7'),
)
_PAGES = st.lists(st.lists(_LINES, max_size=12), min_size=2, max_size=4)


@given(_PAGES, st.integers(0, 11), _LINES)
def test_a_page_after_others_is_read_as_if_it_were_the_first(
    pages: list[list[str]], place: int, line: str
) -> None:
    """Also one that differs from the page before in a single line."""
    parser = ExpositionParser()
    for page in pages:
        for lines in (page, [*page[:place], line, *page[place + 1 :]]):
            text = "\n".join(lines) + "\n"
            got, alone = parser.parse(text), parse_exposition(text)
            assert [(s.name, s.labels) for s in got.series] == [
                (s.name, s.labels) for s in alone.series
            ]
            assert all(map(_same, got.values.tolist(), alone.values.tolist()))
            assert got.n_bad_lines == alone.n_bad_lines


def test_a_page_of_too_many_lines_is_not_read() -> None:
    parser = ExpositionParser()
    good = parser.parse("a 1\n")
    long = parser.parse("".join(f"a{i} 1\n" for i in range(MAX_LINES)))
    assert (long.is_too_long, list(long.series), long.values.size) == (True, [], 0)
    again = parser.parse("a 2\n")
    assert [(s.name, v) for s, v in again.samples] == [("a", 2.0)]
    assert not good.is_too_long and not again.is_too_long
    longest = parser.parse("".join(f"a{i} 1\n" for i in range(MAX_LINES - 1)))
    assert len(longest.series) == MAX_LINES - 1


@pytest.mark.parametrize("line", ['x{a="%s"} 1', "# HELP x %s"])
def test_what_is_remembered_of_labels_that_change_at_each_page_is_bounded(line: str) -> None:
    """Names of hundreds of adapters stand in one label, others at each scrape."""
    parser = ExpositionParser()
    most = 0
    for turn in range(60):
        text = "".join(f"{line % (str(turn * 100 + i) + 'a' * 10_000)}\n" for i in range(100))
        parser.parse(text)
        kept = sum(map(len, parser._remembered)) + sum(map(len, parser._comments))
        most = max(most, kept)
    assert 10_000_000 < most < MAX_REMEMBERED_CHARACTERS + 2 * len(text)
