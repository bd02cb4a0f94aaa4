from __future__ import annotations

import os

import pytest

from analysis.schema import EVENT
from probes.clocks import ClockAnchors
from probes.gpu.dcgm import DcgmProbe
from probes.probe import make_batch
from probes.registry import PROBES, ProbeOptions, build_probes
from probes.targets import TargetTree


def options(**more):
    return ProbeOptions(TargetTree([os.getpid()]), ClockAnchors(), **more)


def test_the_list_is_sorted_and_each_probe_has_the_name_it_is_listed_under():
    names = [name for name, _ in PROBES]
    assert names == sorted(names)
    built = [probe.name for probe in build_probes(options(dcgm="dcgmi"))]
    assert built == [name for name in names if name in built]
    assert {"cuda", "dcgm", "host", "nvml", "process", "thread"} <= set(built)


def test_dcgm_is_asked_only_where_it_was_wanted():
    assert not any(isinstance(probe, DcgmProbe) for probe in build_probes(options()))


@pytest.mark.parametrize(
    ("dcgm", "source"),
    [("dcgmi", "dcgmi dmon"), ("http://127.0.0.1:9400/metrics", "http://127.0.0.1:9400/metrics")],
)
def test_dcgm_comes_from_the_command_or_from_an_exporter(dcgm, source):
    [probe] = [
        probe
        for probe in build_probes(options(dcgm=dcgm), {"gpu_sample"})
        if isinstance(probe, DcgmProbe)
    ]
    assert probe.report().details["source"] == source


def test_only_the_probes_of_the_wanted_tables_are_built_and_what_they_run_beside():
    offcpu = [probe.name for probe in build_probes(options(), {"offcpu"})]
    assert offcpu == ["cuda", "interpreter", "offcpu"]
    assert [probe.name for probe in build_probes(options(), {"event"})] == []


def test_what_is_no_text_in_a_name_is_stored_as_its_code() -> None:
    """Paths of files may hold any bytes; one of them must not end a source."""
    columns = {
        "time_ns": [1, 2, 3],
        "kind": ["other"] * 3,
        "name": ["a"] * 3,
        "detail": ["/a\udcff", "", None],
    }
    batch = make_batch(EVENT, columns)
    assert batch.rows["detail"].to_pylist() == ["/a\\udcff", "", None]
