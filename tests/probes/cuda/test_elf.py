"""The ELF reader against readelf, and against damaged files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.cuda.elf import ElfError, ElfFile

SOURCE = """
int visible(int x) { return x + 1; }
static __attribute__((noinline, used)) int hidden(int x) { return x * 3; }
extern int getpid(void);
int caller(void) { return getpid() + hidden(2); }
"""


def readelf_functions(path: Path, table: str = "--dyn-syms") -> dict[str, int]:
    text = subprocess.run(
        ["readelf", "-W", table, path], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[3] == "FUNC" and words[6] != "UND":
            found[words[7].split("@")[0]] = int(words[1], 16)
    return found


@pytest.fixture(scope="module")
def small_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    (folder / "small.c").write_text(SOURCE)
    path = folder / "libsmall.so.3"
    subprocess.run(
        [
            "gcc",
            "-O1",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libsmall.so.3",
            "-Wl,--build-id=sha1",
            "-o",
            path,
            folder / "small.c",
        ],
        check=True,
        timeout=60,
    )
    return path


def test_symbols_and_names_equal_readelf(small_library: Path) -> None:
    with ElfFile(small_library) as elf:
        exported = readelf_functions(small_library)
        assert {s.name: s.address for s in elf.functions(exported)} == exported
        assert [s.name for s in elf.functions(["visible", "hidden"])] == ["visible"]
        everything = readelf_functions(small_library, "--syms")
        found = {s.name: s.address for s in elf.functions(["hidden", "visible"], "symtab")}
        assert found == {name: everything[name] for name in ("hidden", "visible")}
        assert elf.soname == "libsmall.so.3"
        assert elf.needed == ["libc.so.6"]
        assert elf.has_symtab
        assert elf.imports(["getpid", "visible", "printf"]) == ["getpid"]
        assert elf.imports_containing(b"getp") == ["getpid"]
        assert [s.name for s in elf.symbols_containing(b"hidde")] == ["hidden"]
        notes = subprocess.run(
            ["readelf", "-n", small_library], capture_output=True, text=True, check=True
        ).stdout
        match = re.search(r"Build ID: (\w+)", notes)
        assert match and elf.build_id == match[1]
        places = np.array([everything["hidden"], 3, everything["visible"]], np.uint64)
        assert elf.functions_at(places) == ["hidden", None, "visible"]


def test_real_libraries_equal_readelf(cuda_wheels: dict[str, Path]) -> None:
    for major, path in cuda_wheels.items():
        exported = readelf_functions(path)
        with ElfFile(path) as elf:
            symbols = elf.functions(exported)
            assert {s.name: s.address for s in symbols} == exported
            assert {s.version for s in symbols} == {f"libcudart.so.{major}"}


def test_file_without_section_headers_is_read_like_the_loader_does(
    small_library: Path, tmp_path: Path
) -> None:
    data = bytearray(small_library.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[60:64] = bytes(4)  # e_shnum, e_shstrndx
    bare = tmp_path / "bare.so"
    bare.write_bytes(data)
    exported = readelf_functions(small_library)
    with ElfFile(bare) as elf:
        assert {s.name: s.address for s in elf.functions(exported)} == exported
        assert elf.imports(["getpid"]) == ["getpid"]
        assert not elf.has_symtab


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "is not an ELF file"),
        (b"#!/bin/sh\n", "is not an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(100), "is not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x02\x02" + bytes(100), "is not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x02\x01" + bytes(50) + b"\x07\x00\x05\x00" + bytes(40), "is damaged"),
    ],
)
def test_other_files_give_a_sentence(tmp_path: Path, content: bytes, fact: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ElfError, match=fact):
        ElfFile(path)


def test_missing_file_gives_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ElfError, match="cannot be opened"):
        ElfFile(tmp_path / "none")


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_damaged_files_raise_only_elf_errors(
    small_library: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(small_library.read_bytes())
    n_headers = 64 + 56 * 12
    for _ in range(data.draw(st.integers(1, 12))):
        where = data.draw(st.sampled_from(["header", "sections", "anywhere"]))
        first, last = {
            "header": (16, n_headers),
            "sections": (max(len(content) - 64 * 30, 0), len(content) - 1),
            "anywhere": (0, len(content) - 1),
        }[where]
        content[data.draw(st.integers(first, last))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(64, len(content) - 1)) :]
    path = tmp_path / "damaged"
    path.write_bytes(content)
    try:
        with ElfFile(path) as elf:
            for table in ("dynsym", "symtab"):
                for symbol in elf.functions(["visible", "hidden", "caller"], table):
                    elf.file_offset(symbol.address)
            elf.imports(["getpid"])
            elf.imports_containing(b"get")
            elf.symbols_containing(b"hid")
            elf.functions_at(np.array([0, 4096, 1 << 63], np.uint64))
            elf.section(".rodata")
            elf.load_bias(0x7F0000001000, 0x1000)
            assert isinstance(elf.needed, list)
            assert elf.soname is None or isinstance(elf.soname, str)
            assert elf.build_id is None or isinstance(elf.build_id, str)
    except ElfError as error:
        assert str(path) in str(error)


def test_file_of_half_a_gigabyte_is_not_read_whole(small_library: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.so"
    large.write_bytes(small_library.read_bytes())
    os.truncate(large, 500 << 20)
    code = (
        "import resource, sys; from probes.cuda.elf import ElfFile; e = ElfFile(sys.argv[1]);"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "assert e.functions(['visible']) and e.functions(['hidden'], 'symtab');"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, large], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) < 32 * 1024
