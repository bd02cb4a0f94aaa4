from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.schema import EVENT, GPU_INSTANCE_SAMPLE, GPU_SAMPLE
from probes.engine.exposition import parse_exposition
from probes.gpu import dcgm_readers
from probes.gpu.dcgm import DcgmProbe
from probes.gpu.dcgm_fields import (
    BY_NUMBER,
    DmonParser,
    columns_of,
    read_exporter,
    read_instances,
    value_of,
)
from probes.probe import ProbeError
from tests.probes.engine.serving import page, raw, serving

Row = dict[str, Any]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.984", 0.984),
        ("0", 0.0),
        ("N/A", None),
        ("<<<NULL>>>", None),
        ("", None),
        ("nan", None),
        ("2147483632", None),
        ("2147483647", None),
        ("9223372036854775794", None),
        ("140737488355328.0", None),
        ("140737488355331", None),
        ("2147483600", 2147483600.0),
    ],
)
def test_blanks_are_null(text: str, value: float | None) -> None:
    assert value_of(text) == value


DMON: list[tuple[str, list[tuple[int, dict[int, float | None]]], list[str]]] = [
    (
        "dcgmi_dmon_3.3.9_h100nvl.txt",
        [(0, {1001: None, 1002: None, 1005: None}), (0, {1001: 0.0, 1002: 0.0, 1005: 0.0})],
        [],
    ),
    (
        "dcgmi_dmon_error.txt",
        [],
        [
            "Error setting watches. Result: The third-party Profiling module returned an "
            "unrecoverable error"
        ],
    ),
    (
        "dcgmi_dmon_rtx6000ada.txt",
        [(gpu, dict.fromkeys((1001, 1002, 1004, 1005), 0.0)) for gpu in (7, 6, 0)],
        [],
    ),
    (
        "dcgmi_dmon_rtx6000ada_active.txt",
        [
            (2, {1001: 0.984, 1002: 0.93, 1004: 0.0, 1005: 0.252}),
            (1, {1001: 1.0, 1002: 0.926, 1004: 0.038, 1005: 0.869}),
            (0, {1001: 1.0, 1002: 0.916, 1004: 0.023, 1005: 0.881}),
        ],
        [],
    ),
    (
        "dcgmi_dmon_xid_gpu1.txt",
        [(gpu, {230: 120.0 if gpu == 1 else 0.0}) for gpu in range(8)],
        [],
    ),
]


@pytest.mark.parametrize(("name", "rows", "errors"), DMON)
def test_dmon_golden(
    shared_data: Path, name: str, rows: list[tuple[int, dict[int, float | None]]], errors: list[str]
) -> None:
    parser = DmonParser()
    lines = (shared_data / "metrics/dcgm" / name).read_text().splitlines()
    read = [row for row in map(parser.feed, lines) if row is not None]
    assert [(row.index, dict(row.values)) for row in read] == rows
    assert {row.entity for row in read} <= {"GPU"}
    assert parser.errors == errors


def test_dmon_headings_that_repeat_change_or_are_unknown() -> None:
    parser = DmonParser([1001, 4711])
    lines = [
        "#Entity   GRACT  WHATSIT",
        "ID                    C",
        "GPU 0     0.5    7",
        "GPU-I 3   0.25   8",
        "GPU 0 LINK 3  0.5  7",
        "GPU 1     0.5",
        "",
        "# Entity  POWER  TMPTR",
        "      Id  W      C",
        "GPU 1     250.5  61",
    ]
    rows = [row for row in map(parser.feed, lines) if row is not None]
    assert [(row.entity, row.index, dict(row.values)) for row in rows] == [
        ("GPU", 0, {1001: 0.5, 4711: 7.0}),
        ("GPU-I", 3, {1001: 0.25, 4711: 8.0}),
        ("GPU", 1, {155: 250.5, 150: 61.0}),
    ]
    assert parser.errors == []
    assert columns_of(rows[2].values) == {"power_mw": 250_500, "temperature_celsius": 61}


EXPORTER: list[tuple[str, dict[int, dict[str, float | None]]]] = [
    (
        "dcgm-exporter_a100_empty.prom",
        {0: {"sm_clock_mhz": 210, "power_mw": 45_999, "util_pct": 0.0, "engine_active_pct": 0.0}},
    ),
    (
        "dcgm-exporter_a100_mig_520.56.06.prom",
        {0: {"sm_clock_mhz": 1410, "temperature_celsius": 35, "energy_mj": 6_890_956}},
    ),
    ("dcgm-exporter_a100_mig_active1g.prom", {0: {"power_mw": 115_294}}),
    (
        "dcgm-exporter_t4x2_525.60.13_k8s.prom",
        {
            0: {"power_mw": 28_722, "memory_used_bytes": 128 << 20, "engine_active_pct": 0.0039},
            1: {"power_mw": 17_035, "pcie_rx_bytes_per_s": 10_888.0},
        },
    ),
]


@pytest.mark.parametrize(("name", "expected"), EXPORTER)
def test_exporter_golden(
    shared_data: Path, name: str, expected: dict[int, dict[str, float | None]]
) -> None:
    text = (shared_data / "metrics/dcgm" / name).read_text()
    devices = read_exporter(parse_exposition(text))
    assert set(devices) == set(expected)
    for device, columns in expected.items():
        found = columns_of(devices[device])
        assert {column: found[column] for column in columns} == pytest.approx(columns)
    if "mig" in name:
        assert "memory_used_bytes" not in columns_of(devices[0])
        assert "engine_active_pct" not in columns_of(devices[0])


def test_every_field_the_exporter_ships_by_default_is_known_or_left_out(shared_data: Path) -> None:
    known = {name for field in BY_NUMBER.values() for name in field.names}
    unknown = set()
    for name in ("default-counters.csv", "dcp-metrics-included.csv"):
        for line in (shared_data / "metrics/dcgm" / name).read_text().splitlines():
            field = line.split(",")[0].strip()
            if field.startswith("DCGM_FI_PROF_") and field not in known:
                unknown.add(field)
    assert unknown == set()


def test_names_of_version_4_6_mean_the_same() -> None:
    old = "DCGM_FI_DEV_GPU_UTIL{gpu='0'} 37\nDCGM_FI_PROF_SM_ACTIVE{gpu='0'} 0.5\n"
    new = "DCGM_FI_DEV_GPU_UTIL_RATIO{gpu='0'} 37\nDCGM_FI_PROF_SM_UTIL_RATIO{gpu='0'} 0.5\n"
    pages = [parse_exposition(text.replace("'", '"')) for text in (old, new)]
    first, second = (read_exporter(parsed) for parsed in pages)
    assert first == second == {0: {203: 37.0, 1002: 0.5}}
    assert columns_of(first[0]) == {"util_pct": 37.0, "sm_active_pct": 50.0}


def test_gpus_of_an_exporter_are_joined_by_uuid() -> None:
    parsed = parse_exposition('DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-b"} 1\n')
    assert read_exporter(parsed, {"GPU-a": 0, "GPU-b": 1}) == {1: {203: 1.0}}


class Recording:
    def __init__(self, probe: DcgmProbe) -> None:
        self.probe = probe
        self.samples: list[Row] = []
        self.instances: list[Row] = []
        self.events: list[Row] = []

    def drain(self) -> None:
        for batch in self.probe.drain(time.monotonic_ns()):
            assert batch.rows.schema.equals(batch.table.arrow_schema())
            place = {
                GPU_SAMPLE: self.samples,
                GPU_INSTANCE_SAMPLE: self.instances,
                EVENT: self.events,
            }
            place[batch.table].extend(batch.rows.to_pylist())

    def until(self, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            self.drain()
            if condition():
                return True
            time.sleep(0.02)
        return False


def n_failures(probe: DcgmProbe) -> int:
    return int((probe.report().details or {})["n_failures"])


def fake_dcgmi(tmp_path: Path, body: str) -> list[str]:
    """Command of a program that stands for dcgmi."""
    script = tmp_path / "dcgmi.py"
    script.write_text(f"import sys, time\nassert sys.argv[1:3] == ['dmon', '-e']\n{body}\n")
    return [sys.executable, str(script)]


def test_rows_of_dcgmi_are_samples(tmp_path: Path) -> None:
    body = """
print("#Entity   GPUTL  POWER  GRACT  XIDER")
print("ID               W                  ")
for i in range(1000):
    print(f"GPU 0     37     250.5  0.98   {79 if i else 0}")
    print("GPU 1     N/A    N/A    N/A    N/A", flush=True)
    time.sleep(0.02)
"""
    probe = DcgmProbe(fields=(203, 155, 1001, 230), command=fake_dcgmi(tmp_path, body))
    rec = Recording(probe)
    probe.start()
    before = time.monotonic_ns()
    assert rec.until(lambda: len(rec.samples) > 5 and bool(rec.events))
    list(probe.stop())
    row = rec.samples[0]
    assert (row["device"], row["source"], row["is_repeated"]) == (0, "dcgm", False)
    assert (row["util_pct"], row["power_mw"], row["engine_active_pct"]) == (37.0, 250_500, 98.0)
    assert row["time_ns"] > before
    assert {row["device"] for row in rec.samples} == {0}
    [event] = rec.events
    assert (event["kind"], event["name"]) == ("xid", "xid 79")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "print('Error setting watches. Result: The third-party Profiling module returned an "
            "unrecoverable error')",
            "dcgmi profile --pause",
        ),
        ("sys.exit(7)", "dcgmi ended with code 7"),
        ("import os; print('GPU 0 0.5', flush=True); os.kill(os.getpid(), 9)", "code -9"),
    ],
)
def test_a_dcgmi_that_ends_is_one_event_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    monkeypatch.setattr(dcgm_readers, "_RESTART_NS", 20_000_000)
    monkeypatch.setattr(dcgm_readers, "_LONGEST_RESTART_NS", 20_000_000)
    probe = DcgmProbe(fields=(1001,), command=fake_dcgmi(tmp_path, body))
    rec = Recording(probe)
    probe.start()
    assert rec.until(lambda: n_failures(probe) >= 2)
    (tmp_path / "dcgmi.py").write_text(
        "import time\nprint('#Entity GRACT\\nGPU 0 0.5', flush=True)\ntime.sleep(30)\n"
    )
    assert rec.until(lambda: bool(rec.samples) and bool(rec.events[-1]["kind"].endswith("ered")))
    list(probe.stop())
    lost = [event for event in rec.events if event["kind"] == "source_lost"]
    kinds = [event["kind"] for event in rec.events]
    assert kinds == ["source_lost", "source_recovered"] * (len(kinds) // 2)
    assert reason in lost[0]["detail"]


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(60)",
        "print('#Entity GRACT\\nGPU 0 0.5', flush=True); time.sleep(60)",
        "while True: print('Warning: busy', flush=True); time.sleep(0.05)",
        "while True: sys.stdout.write('x' * 100_000); time.sleep(0.001)",
        "import subprocess; subprocess.Popen(['sleep', '60']); sys.exit(0)",
    ],
)
def test_a_dcgmi_that_hangs_is_one_event_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(dcgm_readers, "_RESTART_NS", 20_000_000)
    monkeypatch.setattr(dcgm_readers, "_LONGEST_RESTART_NS", 20_000_000)
    monkeypatch.setattr(dcgm_readers, "_SILENCE_NS", 500_000_000)
    command = fake_dcgmi(tmp_path, body)
    probe = DcgmProbe(fields=(1001,), interval_ns=100_000_000, command=command)
    rec = Recording(probe)
    probe.start()
    assert rec.until(lambda: bool(rec.events))
    first = probe._reader._child
    (tmp_path / "dcgmi.py").write_text(
        "import time\nprint('#Entity GRACT\\nGPU 0 0.7', flush=True)\ntime.sleep(0.3)\n"
        "for _ in range(500): print('GPU 0 0.7', flush=True); time.sleep(0.05)\n"
    )
    assert rec.until(lambda: rec.events[-1]["kind"] == "source_recovered")
    list(probe.stop())
    assert first.poll() is not None
    assert "printed no values for 0.5 s" in rec.events[0]["detail"]
    kinds = [event["kind"] for event in rec.events]
    assert kinds == ["source_lost", "source_recovered"] * (len(kinds) // 2)


def test_odd_lines_are_no_rows_and_do_not_heap_up() -> None:
    parser = DmonParser((1001,))
    assert parser.feed(f"GPU {10**30} 0.5") is None
    for _ in range(1000):
        assert parser.feed("Warning " * 1000) is None
    assert sum(map(len, parser.errors)) < 10_000
    row = parser.feed("GPU 7 0.5")
    assert row is not None and row.index == 7
    page_of = parse_exposition(f'DCGM_FI_DEV_GPU_UTIL{{gpu="{10**30}"}} 5\n')
    assert read_exporter(page_of) == {}


def test_without_dcgmi_it_says_what_to_install() -> None:
    with pytest.raises(ProbeError, match="datacenter-gpu-manager"):
        DcgmProbe(command=["no-such-dcgmi"]).start()
    with pytest.raises(ProbeError, match="9400"):
        DcgmProbe("ftp://x").start()


def test_what_a_url_may_hold_besides_the_address_is_not_stored() -> None:
    probe = DcgmProbe("http://u:SECRET1@127.0.0.1:9/metrics?t=SECRET2", interval_ns=20_000_000)
    rec = Recording(probe)
    probe.start()
    assert rec.until(lambda: bool(rec.events))
    list(probe.stop())
    report = probe.report()
    assert report.details["source"] == "http://127.0.0.1:9/metrics"
    assert "SECRET" not in f"{report} {rec.events}"


def test_repeated_samples_of_an_exporter_are_marked(shared_data: Path) -> None:
    text = (shared_data / "metrics/dcgm/dcgm-exporter_t4x2_525.60.13_k8s.prom").read_text() + "\n"
    with serving(page(text)) as server:
        probe = DcgmProbe(server.url, interval_ns=30_000_000)
        rec = Recording(probe)
        probe.start()
        assert rec.until(lambda: len(rec.samples) >= 6)
        server.answer = page(text.replace("28.722", "29.5"))
        assert rec.until(lambda: any(row["power_mw"] == 29_500 for row in rec.samples))
        list(probe.stop())
    first = [row for row in rec.samples if row["device"] == 0]
    marks = [row["is_repeated"] for row in first]
    assert marks[0] is False and marks[1] is True
    changed = next(row for row in first if row["power_mw"] == 29_500)
    assert changed["is_repeated"] is False
    assert not rec.events


def test_instances_of_an_exporter_are_rows_of_their_own(shared_data: Path) -> None:
    name = "metrics/dcgm/dcgm-exporter_a100_mig_active1g.prom"
    text = (shared_data / name).read_text() + "\n"
    [(key, values)] = read_instances(parse_exposition(text)).items()
    assert key == (0, 9)
    assert columns_of(values)["memory_used_bytes"] == 4384 << 20
    with serving(page(text)) as server:
        probe = DcgmProbe(server.url, interval_ns=20_000_000)
        rec = Recording(probe)
        probe.start()
        assert rec.until(lambda: len(rec.samples) > 3)
        list(probe.stop())
    [part] = rec.instances
    assert (part["device"], part["gpu_instance"], part["source"]) == (0, 9, "dcgm")
    assert part["memory_used_bytes"] == 4384 << 20
    assert all(row["memory_used_bytes"] is None for row in rec.samples)


def test_an_exporter_that_fails_is_one_event_and_a_gap(shared_data: Path) -> None:
    text = (shared_data / "metrics/dcgm/dcgm-exporter_a100_empty.prom").read_text()
    with serving(page(text)) as server:
        probe = DcgmProbe(server.url, interval_ns=20_000_000)
        rec = Recording(probe)
        probe.start()
        assert rec.until(lambda: bool(rec.samples))
        server.answer = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + text.encode())
        assert rec.until(lambda: bool(rec.events))
        n_rows = len(rec.samples)
        assert rec.until(lambda: n_failures(probe) > 3)
        assert len(rec.samples) == n_rows
        server.answer = page(text)
        assert rec.until(lambda: len(rec.samples) > n_rows)
        list(probe.stop())
    assert [event["kind"] for event in rec.events] == ["source_lost", "source_recovered"]


def test_a_name_that_is_looked_up_for_ever_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    going_on = threading.Event()

    def never(*_: Any, **__: Any) -> None:
        going_on.wait(20)
        raise OSError("gone")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.setattr(dcgm_readers, "_OVERDUE_NS", 200_000_000)
    probe = DcgmProbe("http://exporter:9400/metrics", interval_ns=20_000_000)
    rec = Recording(probe)
    probe.start()
    assert rec.until(lambda: bool(rec.events))
    going_on.set()
    list(probe.stop())
    assert [event["kind"] for event in rec.events] == ["source_lost"]
    assert "no whole answer in time" in rec.events[0]["detail"]
