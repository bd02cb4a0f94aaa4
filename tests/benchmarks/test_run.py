from tests.benchmarks.run import parse_figure


def test_a_figure_has_five_fields():
    assert parse_figure("pair 1.25 us 1.00 1.25\n") == {
        "name": "pair",
        "value": 1.25,
        "unit": "us",
        "baseline": 1.0,
        "ratio": 1.25,
    }


def test_no_baseline_is_null():
    figure = parse_figure("write 1200000 rows/s - -")
    assert figure is not None and figure["baseline"] is None and figure["ratio"] is None


def test_other_lines_are_not_figures():
    assert parse_figure("running the thing now ok") is None
    assert parse_figure("three fields only") is None
