"""Events that are read by their layout, against what a parser reads of each."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.recorded import layouts
from probes.recorded.kineto import KinetoRecording
from probes.recorded.kineto_fields import CALL, DEVICE, RANGE
from probes.recorded.layouts import Layouts, learn
from probes.recorded.words import Words

KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 1712195495.734,
    "dur": 3.92,
    "args": {"device": 0, "stream": 7, "correlation": 12, "grid": [1, 2, 3], "x": True},
}


def _read(events, group, spaces=None):
    """What the layouts say of some events, by event; None where they leave it to a parser."""
    pieces = [json.dumps(event, indent=spaces, ensure_ascii=False).encode() for event in events]
    starts = np.cumsum([0, *(len(piece) + 1 for piece in pieces)])[:-1]
    text = Words(b",".join(pieces))
    starts = starts + text.begin
    ends = starts + [len(piece) for piece in pieces]
    found, left = Layouts().read(text, starts, ends, group)
    rows = [None] * len(events)
    for fields in found:
        for place, row in enumerate(fields.rows.tolist()):
            assert rows[row] is None
            integers = {name: int(values[place]) for name, values in fields.integers.items()}
            rows[row] = (fields.names[fields.name[place]], integers, fields.flags)
    assert [row for row, read in enumerate(rows) if read is None] == left.tolist()
    return rows


def _kernel(**changes):
    args = {**KERNEL["args"], **changes.pop("args", {})}
    return {**KERNEL, **changes, "args": args}


@pytest.mark.parametrize("spaces", [None, 1, 4])
def test_the_fields_of_a_kernel(spaces):
    events = [_kernel(), _kernel(name="other", args={"stream": 123456789012, "grid": [9, 8, 70]})]
    first, second = _read(events, DEVICE, spaces)
    assert first == (
        "gemm",
        {
            **{"ts": 1712195495734, "dur": 3920, "device": 0, "stream": 7},
            **{"correlation": 12, "grid.0": 1, "grid.1": 2, "grid.2": 3},
        },
        frozenset(),
    )
    assert (second[0], second[1]["stream"], second[1]["grid.2"]) == ("other", 123456789012, 70)


@pytest.mark.parametrize(
    "odd",
    [
        _kernel(name='a "quoted" name'),
        _kernel(name="line\nfeed"),
        _kernel(ts="12"),
        _kernel(dur=None),
        _kernel(dur=-1),
        _kernel(ph="B"),
        _kernel(name=None),
        _kernel(args={"stream": 1.5}),
        _kernel(args={"stream": "7"}),
        _kernel(args={"grid": [1, 2]}),
        _kernel(args={"grid": [1, 2, 3, 4]}),
        _kernel(args={"grid": [1, 2, None]}),
        _kernel(args={"device": 1 << 70}),
        {**_kernel(), "args": None, "dur": "x"},
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_odd_event_is_left_to_a_parser(odd, is_first):
    events = [odd, _kernel(), _kernel()] if is_first else [_kernel(), odd, _kernel()]
    rows = _read(events, DEVICE)
    assert [row is None for row in rows] == [event is odd for event in events]


def test_a_field_of_the_same_name_elsewhere_is_not_taken():
    event = _kernel(
        args={"nested": {"device": 5, "ts": 1}, "pid": 9, "ts": 3, "list": [{"stream": 4}]}
    )
    ((_, integers, _),) = _read([event], DEVICE)
    assert integers["device"] == 0 and integers["stream"] == 7
    assert integers["ts"] == 1712195495734 and "pid" not in integers


def test_a_field_twice_is_left_to_a_parser():
    event = json.dumps(KERNEL).replace('"stream": 7', '"stream": 7, "stream": 8').encode()
    assert learn(event, DEVICE) is None


def test_a_range_is_read_without_its_arguments():
    events = [
        {**KERNEL, "cat": "cpu_op", "args": {"dims": [[index]] * index}} for index in range(5)
    ]
    events[3]["name"] = "añb"
    rows = _read(events, RANGE)
    assert [row[0] for row in rows] == ["gemm", "gemm", "gemm", "añb", "gemm"]
    assert rows[4][1] == {"ts": 1712195495734, "dur": 3920, "pid": 0, "tid": 7}


def test_a_collective_is_told_by_its_argument():
    events = [_kernel(args={"Collective name": "allreduce"}), _kernel(), _kernel()]
    events[2]["args"]["Collective name"] = None
    rows = _read(events, DEVICE)
    assert [row[2] for row in rows] == [frozenset({"Collective name"}), frozenset(), frozenset()]


def test_a_call_without_a_thread_is_left_to_a_parser():
    event = {name: value for name, value in KERNEL.items() if name != "tid"}
    assert _read([event, {**KERNEL, "tid": "main"}], CALL) == [None, None]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(-5, 1 << 40), max_size=4),
)
KEYS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args"])
ARGUMENTS = st.sampled_from(["device", "stream", "correlation", "bytes", "grid", "Collective name"])


@given(
    st.lists(
        st.tuples(st.dictionaries(KEYS, VALUES, max_size=2), st.dictionaries(ARGUMENTS, VALUES)),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_read_is_what_json_says(changes):
    events = [{**_kernel(args=args), **others} for others, args in changes]
    for event, row in zip(events, _read(events, DEVICE), strict=True):
        if row is None:
            continue
        name, integers, flags = row
        assert (event["ph"], event["name"]) == ("X", name)
        args = event["args"] if isinstance(event["args"], dict) else {}
        known = {key: value for key, value in args.items() if key in ARGUMENTS.elements}
        grid = known.pop("grid", None)
        is_triple = isinstance(grid, list) and len(grid) == 3
        expected = {f"grid.{axis}": n for axis, n in enumerate(grid)} if is_triple else {}
        assert (known.pop("Collective name", None) is not None) == bool(flags)
        expected |= {key: value for key, value in known.items() if value is not None}
        assert {
            key: value for key, value in integers.items() if key not in ("ts", "dur")
        } == expected
        assert abs(integers["dur"] - event["dur"] * 1000) <= 0.5 + 1e-6


def test_layouts_and_parser_agree_on_real_traces(shared_data, monkeypatch):
    for name in ("b200__eager_trace.json.gz", "nccl_parser_config__nccl_data.json.gz"):
        by_layout = KinetoRecording(shared_data / "kineto" / name)
        rows = list(by_layout.batches())
        monkeypatch.setattr(layouts, "MAX_LAYOUTS", 0)
        parsed = KinetoRecording(shared_data / "kineto" / name)
        again = list(parsed.batches())
        monkeypatch.undo()
        assert [batch.table.name for batch in rows] == [batch.table.name for batch in again]
        for one, other in zip(rows, again, strict=True):
            # The numbers of kernels are given in the order in which their names are met.
            columns = [column for column in one.rows.schema.names if column != "kernel"]
            assert one.rows.select(columns).to_pydict() == other.rows.select(columns).to_pydict()
        assert list(by_layout.problems) == list(parsed.problems)
        assert by_layout.manifest_facts() == parsed.manifest_facts()
