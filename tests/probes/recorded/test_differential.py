"""The same trace by layouts, by Arrow and event by event, against what ``json`` says of it."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import pytest

from probes.recorded import json_events, layouts
from probes.recorded.json_events import EventStream
from probes.recorded.kineto_arrow import ArrowParser
from probes.recorded.kineto_fields import ARGUMENTS, TASK, group_of, has_task
from probes.recorded.kineto_rows import BlockParser
from probes.recorded.layouts import Layouts
from probes.recorded.recording import NAME_CHARACTERS, Problems
from probes.recorded.words import MAX_MICROSECONDS
from tests.probes.recorded.traces import kernel

WAYS = ("layouts", "arrow", "one by one")

NAMES = (
    *("gemm", "", "void f<float>(int)", "}, {", "}]", "{", "}", '}, {\\"ph\\":\\"X\\"', "é"),
    *("\\u00e9", "\\ud83d\\ude00", "\\ud800", "a\\\\", 'a\\"b', "\\t", "y" * 5000, "]}", "}], "),
)
NUMBERS = (
    *("0", "7", "12345678", "1234567890123456", "12345678901234567", "9223372036854775808"),
    *("-1", "-0", "1.0", "1.50", "1e3", "1e-3", "1e400", "1e999999999", "null", "true", "NaN"),
    *('"7"', '"x"', '"--3"', '"-3"', '" 4 "', '"1_0"', "[]", "{}", "1" * 30),
)
MICROSECONDS = (
    *("1712195495.734", "1712195495.7345", "1712195495734567.891", "5", "5.1", "0.0005", "0.0015"),
    *("0.00050000001", "1.00000000000000000005", "4000000000000000", "4000000000000001", "1.5e6"),
    *("-1", "-0.0", "null", '"5.5"', '"x"', "NaN", "1e999999999", "1e-999999999", '"1e-999999999"'),
)
NESTED = (
    *('[{"a":1},{"b":2}]', '{"device":3,"ts":1}', '"}, {"', '"[{]"', '[1,{"q":"}]"}]'),
    '[{"ph":"X","cat":"kernel","name":"not one","ts":1,"dur":1}]',
)
ITEMS = ("3", "null", "[1]", '"}, {"', "[{}]", "{}")
CATEGORIES = ("kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "cuda_sync", "Kernel", "odd")


def made_event(chance, is_wild, order):
    def space():
        return chance.choice(("", " ", " ", "\r\n"))

    def number():
        is_odd = is_wild and chance.random() < 0.3
        return chance.choice(NUMBERS) if is_odd else str(chance.randrange(10**9))

    def time():
        is_odd = is_wild and chance.random() < 0.5
        usual = f"{chance.randrange(10**9)}.{chance.randrange(1000):03d}"
        return chance.choice(MICROSECONDS) if is_odd else usual

    def members(items):
        parts = (f'"{key}"{space()}:{space()}{value}' for key, value in items)
        return "{" + space() + f"{space()},{space()}".join(parts) + space() + "}"

    def three(n):
        return "[" + ", ".join(number() for _ in range(n)) + "]"

    args = [(key, number()) for key in ("device", "stream", "correlation", "x")]
    args += [("grid", three(chance.choice((3, 3, 2, 4)) if is_wild else 3))]
    if chance.random() < 0.3:
        args.append(("Dims", chance.choice(NESTED)))
    if is_wild:
        args.append((chance.choice(("cat", "grid", "device", "Collective name")), number()))
        chance.shuffle(args)
    items = [
        *(("ph", '"X"'), ("cat", f'"{chance.choice(CATEGORIES)}"')),
        *(("name", f'"{chance.choice(NAMES if is_wild else NAMES[:3])}"'), ("pid", number())),
        *(("tid", number()), ("ts", time()), ("dur", time())),
        ("args", chance.choice(("null", "[]", "3")) if is_wild and order == 0 else members(args)),
    ]
    if is_wild and chance.random() < 0.2:
        del items[chance.randrange(len(items))]
    if order == 1:
        items.sort()
    elif order == 2:
        chance.shuffle(items)
    return members(items)


def made_trace(chance):
    share, order = chance.choice((0, 0.1, 0.5)), chance.randrange(3)
    events = [
        made_event(chance, chance.random() < share, order) for _ in range(chance.choice((2, 25)))
    ]
    if chance.random() < 0.2:
        events.insert(chance.randrange(len(events)), chance.choice(ITEMS))
    text = chance.choice((",", ", ", ",\r\n", "," + " " * 250)).join(events)
    form = chance.choice(("[%s]", '{"traceEvents": [%s]}\n', '{"traceEvents":[\n%s\n], "a": "}]"}'))
    return form % text


def _integer(value):
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,19}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    is_possible = -(1 << 63) <= value < 1 << 63 and value == int(value)
    return int(value) if is_possible else None


def _nanoseconds(value):
    if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
        return None
    try:
        value = Decimal(value)
    except InvalidOperation:
        return None
    if not value.is_finite() or not -MAX_MICROSECONDS <= value <= MAX_MICROSECONDS:
        return None
    return int(value.quantize(Decimal("0.001"), rounding=ROUND_HALF_EVEN) * 1000)


def _exact(text):
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def rows_by_json(text):
    """What the rules of the import say of a trace, event by event."""
    value = json.loads(text, parse_float=_exact)
    found = Counter()
    for event in value["traceEvents"] if isinstance(value, dict) else value:
        category = event.get("cat") if isinstance(event, dict) else None
        group = group_of(category) if isinstance(category, str) else None
        if group is None or event.get("ph") != "X" or event.get("name") is None:
            continue
        begin, length = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
        if begin is None or length is None or length < 0:
            continue
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        row = [event["name"].encode("utf-8", "replace").decode()[:NAME_CHARACTERS], begin, length]
        row += [_integer(event.get(key)) for key in TASK if has_task(group)]
        wanted = ARGUMENTS[group]
        if wanted is not None:
            row += [_integer(args.get(key)) for key in sorted(wanted.integers)]
            for key in sorted(wanted.triples):
                values = args.get(key) if isinstance(args.get(key), list) else []
                values = tuple(_integer(item) for item in values)
                is_whole = len(values) == 3 and all(
                    item is not None and item >= 0 for item in values
                )
                row.append(values if is_whole else None)
            row += [args.get(key) is not None for key in sorted(wanted.texts)]
        found[(category.lower(), *row)] += 1
    return found


def rows_by(way, path, monkeypatch, block_bytes=None):
    """What the import reads of a trace in one way, and what it counts as skipped."""
    with monkeypatch.context() as patch:
        if block_bytes is not None:
            patch.setattr(json_events, "_BLOCK_BYTES", block_bytes)
        if way != "layouts":
            patch.setattr(layouts, "MAX_LAYOUTS", 0)
        if way == "one by one":
            patch.setattr(ArrowParser, "rows", lambda *_: None)
        problems, found = Problems(), Counter()
        stream, parser = EventStream(path, problems), BlockParser(True, problems, Layouts())
        for block in stream:
            for rows in parser.rows(block, stream.categories):
                columns = [
                    [rows.categories[code] for code in rows.category.tolist()],
                    [rows.names[code] for code in rows.name.tolist()],
                    *(rows.start_ns.tolist(), rows.duration_ns.tolist()),
                ]
                for key in (*TASK, *sorted(rows.integers.keys() - set(TASK))):
                    if key in rows.integers:
                        values, is_null = rows.integers[key]
                        pairs = zip(values.tolist(), is_null.tolist(), strict=True)
                        columns.append([None if null else value for value, null in pairs])
                for key in sorted(rows.triples):
                    values, is_null = rows.triples[key]
                    pairs = zip(values.tolist(), is_null.tolist(), strict=True)
                    columns.append([None if null else tuple(value) for value, null in pairs])
                columns += [rows.flags[key].tolist() for key in sorted(rows.flags)]
                found.update(zip(*columns, strict=True))
        return found, {problem.reason for problem in problems}


@pytest.mark.parametrize("seed", range(60))
def test_made_traces_are_read_alike_in_all_ways(tmp_path, monkeypatch, seed):
    chance = random.Random(seed)
    text = made_trace(chance)
    data, path = text.encode(), tmp_path / "trace.json"
    if seed % 4 == 0:
        half = len(data) // 2
        data = gzip.compress(data[:half]) + gzip.compress(data[half:])
    path.write_bytes(data)
    expected = rows_by_json(text)
    for way in WAYS:
        found, _ = rows_by(way, path, monkeypatch, chance.choice((None, 320, 3200)))
        assert found == expected, way


@pytest.mark.parametrize("odd", ["null", '{"ts": 1e-999999999}', '{"ts": "1e-999999999"}'])
def test_what_ends_the_process_in_arrow_is_not_given_to_it(tmp_path, monkeypatch, odd):
    event = json.dumps(kernel(1, 5)).encode()
    odd = {**kernel(2, 7), **json.loads(odd, parse_float=str)} if odd != "null" else None
    text = json.dumps([odd]).replace('"1e-999999999"', "1e-999999999").encode()[:-1]
    path = tmp_path / "trace.json"
    path.write_bytes(text + b", " + event + b"]")
    for way in WAYS:
        found, _ = rows_by(way, path, monkeypatch)
        assert sum(found.values()) in (1, 2), way
        assert ("kernel", "gemm", 5000, 10000) in {row[:4] for row in found}


@pytest.mark.parametrize(
    ("text", "n_events"),
    [
        ('[{"ph":"X","cat":"cpu_op","name":"a}]","ts":1,"dur":1,"pid":1,"tid":1},%s]', 2),
        ('[%s,{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1}]', 2),
        ('[{"args":{"cat":"kernel"},"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1},%s]', 2),
        ('[{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":1,"args":{},"args":null},%s]', 2),
    ],
)
def test_an_odd_event_takes_no_other_with_it(tmp_path, monkeypatch, text, n_events):
    text = text.replace(",", "," + " " * 300, 1) % json.dumps(kernel(1, 5))
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert sum(rows_by_json(text).values()) == n_events
    for way in WAYS:
        assert rows_by(way, path, monkeypatch)[0] == rows_by_json(text), way


def test_a_gzip_stream_is_read_on_wherever_its_parts_meet_a_block(tmp_path, monkeypatch):
    text = json.dumps([kernel(index, index) for index in range(40)]).encode()
    parts = [gzip.compress(text[at : at + 100]) for at in range(0, len(text), 100)]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"".join(parts))
    for block_bytes in range(320, 480, 32):
        found, reasons = rows_by("layouts", path, monkeypatch, block_bytes)
        assert (sum(found.values()), reasons) == (40, set())
    path.write_bytes(b"".join(parts) + b"xx")
    assert rows_by("layouts", path, monkeypatch)[1] == {"rest of the file: no gzip stream"}
