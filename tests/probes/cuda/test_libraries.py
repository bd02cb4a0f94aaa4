"""Finding CUDA functions in what real processes map."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from probes.cuda.coverage import coverage
from probes.cuda.elf import ElfFile
from probes.cuda.functions import FUNCTIONS, by_symbol
from probes.cuda.libraries import (
    Library,
    LibraryFile,
    LibraryScanner,
    cost_class,
    read_library,
    scan,
)
from tests.probes.cuda.test_elf import readelf_functions
from tests.real_libraries import library

pytestmark = pytest.mark.root

FAKE_RUNTIME = """
int cudaLaunchKernel(void) { return 35; }
int cudaLaunchKernel_ptsz(void) { return 35; }
int cudaStreamSynchronize(void *s) { return 35; }
"""
FAKE_DRIVER = "int cuLaunchKernel(void) { return 100; }"
IMPORTER = """
int cudaLaunchKernel(void);
int cudaLaunchNewKernel(void);
int call(void) { return cudaLaunchKernel() + cudaLaunchNewKernel(); }
"""
#: Maps the libraries that it is given, says so and waits; a line makes it map one more.
MAPPER = """
import ctypes, sys
for path in sys.argv[1:]: ctypes.CDLL(path)
print("ready", flush=True)
for line in sys.stdin: ctypes.CDLL(line.strip()); print("ready", flush=True)
"""


def build(path: Path, source: str, *flags: str) -> Path:
    code = path.with_suffix(".c")
    code.write_text(source)
    subprocess.run(
        ["gcc", "-O0", "-shared", "-fPIC", *flags, "-o", path, code], check=True, timeout=60
    )
    return path


def runtime(folder: Path, name: str = "libcudart.so.12", *flags: str) -> Path:
    folder.mkdir(exist_ok=True)
    return build(folder / name, FAKE_RUNTIME, "-Wl,-soname,libcudart.so.12", *flags)


@contextmanager
def mapping(*paths: Path | str, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*before, sys.executable, "-c", MAPPER, *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def opens_the_mapped_file(found: Library) -> bool:
    assert found.open_path is not None
    status = Path(found.open_path).stat()
    major, minor, inode = map(int, found.device_inode.split(":"))
    return (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino) == (
        major,
        minor,
        inode,
    )


def test_every_copy_is_found_once_by_inode(tmp_path: Path) -> None:
    first, second = runtime(tmp_path / "a"), runtime(tmp_path / "b")
    driver = build(tmp_path / "libcuda.so.1", FAKE_DRIVER, "-Wl,-soname,libcuda.so.1")
    with mapping(first, second, driver) as process:
        found = scan(process.pid)
        assert sorted(item.path for item in found) == sorted(map(str, (first, second, driver)))
        assert len({item.device_inode for item in found}) == 3
        assert all(opens_the_mapped_file(item) for item in found)
        layers = {item.path: item.file.layers for item in found}
        assert layers == {
            str(first): ("runtime",),
            str(second): ("runtime",),
            str(driver): ("driver",),
        }
        item = next(item for item in found if item.path == str(first))
        exported = readelf_functions(first)
        with ElfFile(first) as elf:
            assert item.file.functions == {
                name: elf.file_offset(exported[name])
                for name in ("cudaLaunchKernel", "cudaLaunchKernel_ptsz", "cudaStreamSynchronize")
            }
        assert set(item.file.costs.values()) == {"emulated"}
        assert (item.file.soname, item.file.version) == ("libcudart.so.12", "12")
        assert not item.file.is_static


def test_file_without_a_telling_name_and_late_dlopen(tmp_path: Path) -> None:
    odd = runtime(tmp_path / "a", "plugin.bin")
    scanner = LibraryScanner()
    with mapping() as process:
        assert scanner.scan(process.pid) == []
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{odd}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        (found,) = scanner.scan(process.pid)
        assert found.path == str(odd) and opens_the_mapped_file(found)
        assert scanner.scan(process.pid) == [found]
    assert scanner.scan(process.pid) == []


def test_deleted_and_replaced_file_opens_the_mapped_inode(tmp_path: Path) -> None:
    path = runtime(tmp_path / "a")
    with mapping(path) as process:
        inode = path.stat().st_ino
        path.unlink()
        build(path, "int other(void) { return 1; }")
        (found,) = scan(process.pid)
        assert found.path == f"{path} (deleted)"
        assert opens_the_mapped_file(found)
        assert found.device_inode.endswith(f":{inode}")
        assert "cudaLaunchKernel" in found.file.functions


def test_file_in_memory_is_found(tmp_path: Path) -> None:
    path = runtime(tmp_path / "a")
    program = (
        "import ctypes, os, sys, time; f = os.memfd_create('hidden');"
        "os.write(f, open(sys.argv[1], 'rb').read()); ctypes.CDLL(f'/proc/self/fd/{f}');"
        "print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (found,) = scan(process.pid)
        assert found.path == "/memfd:hidden (deleted)" and opens_the_mapped_file(found)
    finally:
        process.kill()
        process.communicate()


def child_that_maps(parent: int, path: str) -> int:
    """Host pid of the descendant that maps a path."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdecimal() and path in (folder / "maps").read_text():
                    return int(folder.name)
            except OSError:
                continue
        time.sleep(0.05)
    raise AssertionError(f"no process below {parent} maps {path}")


def test_container_with_its_own_mounts_and_pids_and_users(tmp_path: Path) -> None:
    """The path exists only inside; on the host it names another file."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    runtime(inside)
    outside.mkdir()
    build(outside / "libcudart.so.12", "int decoy(void) { return 1; }")
    script = f'mount --bind {inside} {outside} && exec "$@"'
    before = (
        "unshare",
        "--mount",
        "--pid",
        "--user",
        "--map-root-user",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        script,
        "sh",
    )
    with mapping(outside / "libcudart.so.12", before=before) as process:
        pid = child_that_maps(process.pid, str(outside / "libcudart.so.12"))
        try:
            (found,) = scan(pid)
            assert found.path == str(outside / "libcudart.so.12")
            assert opens_the_mapped_file(found)
            inode = (inside / "libcudart.so.12").stat().st_ino
            assert found.device_inode.endswith(f":{inode}")
            assert "cudaLaunchKernel" in found.file.functions
            root_only = LibraryScanner(root=without_map_files(tmp_path, pid))
            (again,) = root_only.scan(pid)
            assert again.open_path is not None and "/root/" in again.open_path
            assert opens_the_mapped_file(again)
        finally:
            os.kill(pid, 9)


def without_map_files(folder: Path, pid: int) -> Path:
    """A /proc where a process has no map_files: as without the right to follow them."""
    root = folder / "proc"
    (root / str(pid)).mkdir(parents=True)
    for name in ("stat", "maps", "root"):
        (root / str(pid) / name).symlink_to(f"/proc/{pid}/{name}")
    return root


def test_another_file_at_the_path_is_not_taken_for_the_mapped_one(tmp_path: Path) -> None:
    path = runtime(tmp_path / "a")
    with mapping(path) as process:
        path.unlink()
        runtime(tmp_path / "a")
        (found,) = LibraryScanner(root=without_map_files(tmp_path, process.pid)).scan(process.pid)
        assert found.open_path is None and not found.file.functions
        assert "cannot be opened" in found.problem
        assert found.problem in coverage([found], {}).problems


def test_static_runtime_of_the_real_wheel(static_runtime: list[Path], tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text(
        "int cudaLaunchKernel(); int cudaDeviceSynchronize(); int main(int n, char **v) "
        "{ return n > 3 ? cudaLaunchKernel() : cudaDeviceSynchronize(); }"
    )
    binary, stripped = tmp_path / "main", tmp_path / "stripped"
    command = ["gcc", "-o", binary, source, *static_runtime, "-ldl", "-lrt", "-lpthread", "-lm"]
    subprocess.run(command, check=True, timeout=60)
    shutil.copy(binary, stripped)
    subprocess.run(["strip", "--strip-all", stripped], check=True, timeout=60)
    all_symbols = readelf_functions(binary, "--syms")
    with ElfFile(binary) as elf:
        held = read_library(elf)
        assert held.is_static and not held.is_stripped and held.layers == ("runtime",)
        for name in ("cudaLaunchKernel", "cudaDeviceSynchronize"):
            assert held.functions[name] == elf.file_offset(all_symbols[name])
        assert not held.has_hidden_runtime
    with ElfFile(stripped) as elf:
        held = read_library(elf)
        assert held.has_hidden_runtime and not held.functions
    item = Library(1, "/app/server", "/proc/1/exe", "1:2:3", held)
    assert any("static and stripped" in text for text in coverage([item], {}).problems)


def test_declared_functions_are_where_the_real_libraries_have_them(
    cuda_wheels: dict[str, Path],
) -> None:
    nowhere = {symbol for symbol in by_symbol if by_symbol[symbol].layer == "runtime"}
    for path in cuda_wheels.values():
        exported = readelf_functions(path)
        with ElfFile(path) as elf:
            held = read_library(elf)
            wanted = {name for name in by_symbol if name in exported}
            assert set(held.functions) | set(held.aliases) == wanted
            for name, offset in held.functions.items():
                assert offset == elf.file_offset(exported[name]), name
                assert elf.read(offset, 1) == b"\x55", name
            assert set(held.costs.values()) == {"emulated"}
            assert held.is_stripped and not held.is_static and not held.has_hidden_runtime
            nowhere -= wanted
    assert not nowhere, f"declared, but in neither runtime: {sorted(nowhere)}"


def test_every_launch_of_the_real_runtimes_is_declared(cuda_wheels: dict[str, Path]) -> None:
    for path in cuda_wheels.values():
        launches = {
            name
            for name in readelf_functions(path)
            if name.startswith(("cudaLaunch", "cudaGraphLaunch"))
            and "HostFunc" not in name  # a callback of the host
        }
        assert launches <= set(by_symbol), sorted(launches - set(by_symbol))


def test_nccl_holds_its_own_static_runtime() -> None:
    path = library("nvidia-nccl-cu12", "libnccl.so.2")
    exported = readelf_functions(path)
    started = time.monotonic()
    with ElfFile(path) as elf:
        held = read_library(elf)
        assert time.monotonic() - started < 5
        assert held.layers == ("nccl", "runtime") and held.is_static
        for name in ("ncclAllReduce", "ncclSend", "ncclRecv", "ncclGroupEnd"):
            assert held.functions[name] == elf.file_offset(exported[name])
    declared = {s for f in FUNCTIONS if f.layer == "nccl" for s in f.symbols}
    assert {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter"} <= declared & set(exported)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("55", "emulated"),
        ("4154", "emulated"),
        ("0f1f440000", "nop5"),
        ("0f1f00", "emulated"),
        ("e900000000", "emulated"),
        ("f30f1efa", "stepped"),
        ("4883ec10", "stepped"),
        ("41", "stepped"),
        ("0f", "stepped"),
        ("", "stepped"),
    ],
)
def test_cost_by_first_instruction(code: str, kind: str) -> None:
    assert cost_class(bytes.fromhex(code)) == kind


def test_endbr64_is_stepped_over_where_that_is_cheaper(tmp_path: Path) -> None:
    path = runtime(tmp_path / "a", "libcudart.so.12", "-fcf-protection=full")
    exported = readelf_functions(path)
    with ElfFile(path) as elf:
        held = read_library(elf)
        begin = elf.file_offset(exported["cudaLaunchKernel"])
        assert begin is not None and elf.read(begin, 4) == b"\xf3\x0f\x1e\xfa"
        assert held.functions["cudaLaunchKernel"] == begin + 4
        assert held.costs["cudaLaunchKernel"] == "emulated"


def test_coverage_tells_what_is_imported_and_not_probed(tmp_path: Path) -> None:
    held = runtime(tmp_path / "a")
    importer = build(tmp_path / "libapp.so", IMPORTER, "-Wl,--unresolved-symbols=ignore-all")
    with ElfFile(importer) as elf:
        app = Library(7, str(importer), None, "8:0:1", read_library(elf))
    with ElfFile(held) as elf:
        provider = Library(7, str(held), None, "8:0:2", read_library(elf))
    assert app.file.imports == ("cudaLaunchKernel",)
    assert app.file.unknown_launches == ("cudaLaunchNewKernel",)
    proof = coverage([app, provider], {("8:0:2", "cudaLaunchKernel"): 5})
    assert proof.imported == ("cudaLaunchKernel",)
    assert proof.probed == {"cudaLaunchKernel": 5}
    assert proof.missing == ("cudaLaunchNewKernel",)
    assert any("cudaLaunchNewKernel" in text for text in proof.problems)
    unprobed = coverage([app, provider], {})
    assert "cudaLaunchKernel" in unprobed.missing
    assert any("Imported but not probed: cudaLaunchKernel" in text for text in unprobed.problems)


def test_coverage_of_a_cuda13_program_counts_the_function_jumped_to() -> None:
    app = Library(7, "/app", None, "8:0:1", LibraryFile(imports=("__cudaLaunchKernel",)))
    provider = Library(
        7, "/libcudart", None, "8:0:2", LibraryFile(functions={"cudaLaunchKernel": 1})
    )
    proof = coverage([app, provider], {("8:0:2", "cudaLaunchKernel"): 3})
    assert proof.imported == ("cudaLaunchKernel",) and proof.missing == ()
    assert proof.problems == ()


@pytest.mark.parametrize(
    ("runtime_hits", "driver_hits", "fact"),
    [
        (0, 9, "The driver saw 9 launches, the runtime none"),
        (9, 0, "The runtime saw 9 launches, the driver none"),
        (0, 0, "No launch was seen"),
        (9, 9, None),
        (None, None, None),
    ],
)
def test_contradicting_layers_are_told(
    runtime_hits: int | None, driver_hits: int | None, fact: str | None
) -> None:
    both = LibraryFile(functions={"cudaLaunchKernel": 1, "cuLaunchKernel": 2})
    hits = {("1:1:1", "cudaLaunchKernel"): runtime_hits, ("1:1:1", "cuLaunchKernel"): driver_hits}
    problems = coverage([Library(1, "/x", None, "1:1:1", both)], hits).problems
    assert len(problems) == (fact is not None)
    assert fact is None or problems[0].startswith(fact)


def test_process_without_cuda_is_said(tmp_path: Path) -> None:
    with mapping() as process:
        problems = coverage(scan(process.pid), {}).problems
    assert len(problems) == 1 and "not a CUDA process, or not yet" in problems[0]


def test_file_changed_in_place_is_read_again(tmp_path: Path) -> None:
    path = runtime(tmp_path / "a")
    scanner = LibraryScanner()
    with mapping(path) as process:
        assert "cudaStreamSynchronize" in scanner.scan(process.pid)[0].file.functions
    source = FAKE_RUNTIME.replace("cudaStreamSynchronize", "cudaDeviceSynchronize")
    other = build(tmp_path / "other.so", source)
    path.write_bytes(other.read_bytes())
    with mapping(path) as process:
        functions = scanner.scan(process.pid)[0].file.functions
        assert "cudaDeviceSynchronize" in functions and "cudaStreamSynchronize" not in functions


def test_version_of_the_file_name_is_kept_when_it_says_more(tmp_path: Path) -> None:
    path = build(tmp_path / "libcuda.so.550.54.15", FAKE_DRIVER, "-Wl,-soname,libcuda.so.1")
    with mapping(path) as process:
        (found,) = scan(process.pid)
        assert found.file.version == "550.54.15"
        assert replace(found.file, version="1").soname == "libcuda.so.1"
