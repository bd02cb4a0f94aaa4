"""Loading BPF programs through the compiling child, for real."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from probes import bpf, compiler, syscalls
from probes.probe import ProbeError

FORMAT = """name: example
ID: 7
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:__data_loc char[] file;\toffset:28;\tsize:4;\tsigned:0;
\tfield:bool group_dead;\toffset:32;\tsize:1;\tsigned:0;
"""


def test_a_tracepoint_becomes_a_struct_with_the_kernels_offsets():
    text = compiler.tracepoint_struct("example", FORMAT)
    assert "unsigned short common_type;" in text
    assert "char padding_3[1];" in text
    assert "char comm[16];" in text
    assert "signed int pid;" in text
    assert "unsigned int file;" in text
    assert "#define example_HAS_group_dead 1" in text
    assert "packed" in text


def test_halves_of_headers_become_one_tree(tmp_path: Path):
    common, half = tmp_path / "common", tmp_path / "amd64"
    (common / "include" / "linux").mkdir(parents=True)
    (common / "include" / "linux" / "kconfig.h").touch()
    (half / "include" / "generated").mkdir(parents=True)
    (half / "include" / "generated" / "autoconf.h").touch()
    (half / "Makefile").touch()
    out = tmp_path / "out"
    out.mkdir()
    merged = compiler._merge_headers(out, (common, half))
    assert (merged / "include" / "linux" / "kconfig.h").is_file()
    assert (merged / "include" / "generated" / "autoconf.h").is_file()
    assert (merged / "Makefile").is_file()
    assert sorted(path.name for path in (common / "include").iterdir()) == ["linux"]


@pytest.mark.root
def test_programs_and_maps_come_back_and_work():
    source = """
    BPF_ARRAY(numbers, u64, 4);
    int nothing(struct pt_regs *ctx) { u32 key = 1; numbers.lookup(&key); return 0; }
    """
    before = len(list(Path("/proc/self/fd").iterdir()))
    module = bpf.load(source, [bpf.ProgramRequest("nothing", "kprobe")], ["numbers"], [])
    assert set(module.programs) == {"nothing"} and set(module.maps) == {"numbers"}
    key = struct.pack("<I", 1)
    syscalls.map_update(module.maps["numbers"], key, struct.pack("<Q", 42))
    assert syscalls.map_lookup(module.maps["numbers"], key, 8) == struct.pack("<Q", 42)
    assert syscalls.map_lookup(module.maps["numbers"], struct.pack("<I", 9), 8) is None
    assert len(syscalls.map_keys(module.maps["numbers"], 4)) == 4
    module.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.root
def test_a_source_that_does_not_compile_is_an_error_with_a_remedy():
    with pytest.raises(ProbeError, match=r"(?s)cannot be loaded.*tracer doctor"):
        bpf.load("int broken(", [bpf.ProgramRequest("broken", "kprobe")], [], [])


@pytest.mark.root
def test_nothing_is_mounted_for_the_tracepoints():
    before = Path("/proc/self/mounts").read_text()
    module = bpf.load(
        "int nothing(struct sched_switch_arguments *a) { return a->next_pid == 1; }",
        [bpf.ProgramRequest("nothing", "tracepoint")],
        [],
        ["sched/sched_switch"],
    )
    assert module.tracepoints["sched/sched_switch"] > 0
    module.close()
    assert Path("/proc/self/mounts").read_text() == before


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bpf, "find_bcc", lambda: None)
    missing = {one.name: one for one in bpf.requirements() if not one.is_met}
    assert "python3-bpfcc" in missing["bcc"].remedy and missing["bcc"].loss
