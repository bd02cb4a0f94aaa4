"""A recorder that may open no further file, and one that has very many open."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probes.gpu.dcgm import DcgmProbe
from probes.gpu.nvml import NvmlProbe
from probes.gpu.nvml_process import SamplerProcess
from probes.host.kernel_log import KernelLogProbe
from probes.host.threads import ThreadProbe
from probes.probe import ProbeError, remedy
from probes.targets import TargetTree
from tests.probes.gpu.test_dcgm import fake_dcgmi
from tests.probes.gpu.test_nvml import MS, Recording
from tracer.sources import SourceSlot

SHORTAGE = r"Too many open files.*; raise the limit"


@contextmanager
def many_open(n_files: int) -> Iterator[None]:
    """So many files are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < n_files + 2000:
        pytest.skip("too few files may be open here; raise the limit: ulimit -Hn 4096")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(n_files)]
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def none_left() -> Iterator[None]:
    """No file can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                assert error.errno == errno.EMFILE
                break
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_cannot_be_looked_at_has_not_ended() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        tree = TargetTree([child.pid])
        with none_left():
            assert tree.refresh(1) == []
            assert tree.pids() == {child.pid}
    finally:
        child.kill()
        child.wait()
    with none_left():
        assert [change.kind for change in tree.refresh(2)] == ["exit"]


def test_what_is_said_is_the_shortage_and_how_to_mend_it() -> None:
    class Targets:
        def pids(self) -> set[int]:
            return {os.getpid()}

    for probe in (ThreadProbe(Targets()), KernelLogProbe(Path(os.devnull))):
        with (
            none_left(),
            pytest.raises(ProbeError, match=SHORTAGE),
        ):
            probe.start()
    source = SourceSlot(NvmlProbe())
    with none_left():
        source.start()
    assert "Too many open files" in source.note and "ulimit -n" in source.note
    assert "defect" not in source.note
    assert remedy(OSError(errno.EACCES, "x"), "do this") == "do this"


def test_a_sampler_that_cannot_be_started_again_now_is_started_later(
    mock_nvml: Path,
) -> None:
    probe = NvmlProbe(library_dir=mock_nvml, interval_ns=20 * MS, retry_ns=200 * MS)
    rec = Recording(probe)
    probe.start()
    assert rec.until(lambda: len(rec.samples) > 2)
    [sampler] = probe._samplers
    os.kill(sampler.pid, 9)
    assert rec.until(lambda: not probe._samplers)
    with none_left():
        assert not rec.until(lambda: bool(probe._samplers), timeout_s=0.5)
    assert rec.until(lambda: rec.kinds().count("source_recovered") == 2)
    rec.add(list(probe.stop()))
    assert rec.kinds() == ["source_lost"] * 2 + ["source_recovered"] * 2


def test_children_are_read_where_very_many_files_are_open(
    mock_nvml: Path,
    tmp_path: Path,
) -> None:
    body = "print('#Entity GRACT\\nGPU 0 0.5', flush=True); time.sleep(30)"
    with many_open(1100):
        sampler = SamplerProcess(20 * MS, 100 * MS, library_dir=mock_nvml)
        assert sampler.wait(5000 * MS)
        sampler.finish(1000 * MS)
        probe = DcgmProbe(fields=(1001,), command=fake_dcgmi(tmp_path, body))
        probe.start()
        end = time.monotonic() + 5
        batches = list(probe.drain(time.monotonic_ns()))
        while not batches and time.monotonic() < end:
            time.sleep(0.02)
            batches = list(probe.drain(time.monotonic_ns()))
        list(probe.stop())
    assert [row["device"] for row in batches[0].rows.to_pylist()] == [0]
