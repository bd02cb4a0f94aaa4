"""Attaching for real: both kinds of links, refused places, and the trial of seccomp."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from probes import attach, syscalls
from probes.cuda.elf import ElfFile
from probes.probe import ProbeError
from tests.probes.traced import build_library

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("attach"))


def offsets(library: Path, *names: str) -> list[int]:
    with ElfFile(str(library)) as elf:
        return [elf.file_offset(symbol.address) or 0 for symbol in elf.functions(frozenset(names))]


@pytest.fixture(params=[True, False], ids=["uprobe_multi", "perf_event"])
def attacher(request: pytest.FixtureRequest):
    kind = syscalls.ATTACH_UPROBE_MULTI if request.param else 0
    if request.param and not attach.has_uprobe_multi():
        pytest.skip("this kernel has no uprobe_multi")
    program = syscalls.load_empty_program(kind)
    yield attach.Attacher({"entry": program, "return": program}, "return", request.param)
    os.close(program)


def test_places_are_attached_and_detached(attacher, library):
    places = [
        attach.Place(offset, index, "entry", index != 0)
        for index, offset in enumerate(offsets(library, "cudaMalloc", "cudaSetDevice"))
    ]
    before = len(list(Path("/proc/self/fd").iterdir()))
    attachment = attacher.attach(str(library), places)
    assert attachment.entries and not attachment.n_failed
    attachment.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_refused_place_does_not_take_the_others_with_it(attacher, library):
    (good,) = offsets(library, "cudaMalloc")
    places = [attach.Place(good, 1, "entry"), attach.Place(1 << 40, 2, "entry")]
    attachment = attacher.attach(str(library), places)
    assert attachment.entries
    assert sum(attachment.n_failed.values()) == 2
    attachment.close()


def test_a_file_without_any_place_is_an_error(attacher, library):
    with pytest.raises(ProbeError, match=r"no function of .* can be probed"):
        attacher.attach(str(library), [attach.Place(1 << 40, 1, "entry")])
    with pytest.raises(ProbeError):
        attacher.attach("/nonexistent", [attach.Place(0, 1, "entry")])


def test_a_kernel_without_the_link_is_told_from_one_with_it(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EINVAL, "unknown")

    attach.has_uprobe_multi.cache_clear()
    monkeypatch.setattr(syscalls, "link_uprobe_multi", refuse)
    assert attach.has_uprobe_multi() is False
    attach.has_uprobe_multi.cache_clear()


def test_the_trial_of_seccomp_gives_an_answer_here():
    # Kernels from 6.11 on know the system call in question; some of them kill.
    assert attach.returns_survive_seccomp() in (True, False)
