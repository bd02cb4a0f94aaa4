"""The libraries look to a linker and to a probe as the real ones do."""

from __future__ import annotations

import ctypes
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from probes.cuda.elf import ElfFile
from tests.tracer.simulated.conftest import Machine
from tracer.simulated.build import Libraries, build, exported_names

LIBRARIES = ("libcudart.so.12", "libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1")
PUSH_RBP = 0x55


@pytest.fixture(scope="module")
def built() -> Libraries:
    return build()


def path_of(libraries: Libraries, name: str) -> Path:
    return {
        "libcudart.so.12": libraries.libcudart12,
        "libcudart.so.13": libraries.libcudart13,
        "libcuda.so.1": libraries.libcuda,
        "libnvidia-ml.so.1": libraries.libnvml,
    }[name]


def dynamic_symbols(path: Path) -> dict[str, str]:
    """Defined dynamic functions with their version node, empty without one."""
    text = subprocess.run(
        ["nm", "-D", "--defined-only", "--with-symbol-versions", str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    symbols = {}
    for line in text.splitlines():
        _, kind, name = line.split()
        if kind in "TW":
            plain, _, version = name.partition("@@")
            symbols[plain] = version
    return symbols


def address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(library[name], ctypes.c_void_p).value or 0


@pytest.mark.parametrize("name", LIBRARIES)
def test_exports_are_exactly_the_list(built: Libraries, name: str) -> None:
    symbols = dynamic_symbols(path_of(built, name))
    assert set(symbols) == set(exported_names(name))
    assert set(symbols.values()) == {name if "cudart" in name else ""}


@pytest.mark.parametrize("name", LIBRARIES)
def test_soname(built: Libraries, name: str) -> None:
    text = subprocess.run(
        ["readelf", "-d", str(path_of(built, name))], capture_output=True, text=True, check=True
    ).stdout
    assert f"Library soname: [{name}]" in text


@pytest.mark.parametrize("name", LIBRARIES)
def test_functions_begin_with_push_rbp(built: Libraries, name: str) -> None:
    # From the file: in memory a recording that runs meanwhile would show its breakpoints.
    with ElfFile(str(path_of(built, name))) as elf:
        found = elf.functions(frozenset(exported_names(name)))
        first = {f.name: elf.read(elf.file_offset(f.address) or 0, 1)[0] for f in found}
    assert set(first) == set(exported_names(name))
    assert {n: hex(byte) for n, byte in first.items() if byte != PUSH_RBP} == {}


@pytest.mark.parametrize("name", ["libcudart.so.12", "libcudart.so.13"])
@pytest.mark.parametrize("twin", ["", "_ptsz"])
def test_stub_launch_is_a_tail_jump(built: Libraries, name: str, twin: str) -> None:
    library = ctypes.CDLL(str(path_of(built, name)))
    begin = address(library, f"__cudaLaunchKernel{twin}")
    code = ctypes.string_at(begin, 10)
    assert code[:6] == bytes.fromhex("55 4889e5 5d e9")  # push, mov, pop, jmp
    target = begin + 10 + int.from_bytes(code[6:], "little", signed=True)
    assert target == address(library, f"cudaLaunchKernel{twin}")


def test_twins_are_functions_of_their_own(built: Libraries) -> None:
    for name in LIBRARIES[:3]:
        library = ctypes.CDLL(str(path_of(built, name)))
        names = exported_names(name)
        addresses = {n: address(library, n) for n in names}
        assert len(set(addresses.values())) == len(names)


def test_what_is_not_implemented_refuses_and_names_itself(machine: Machine) -> None:
    code = """
import ctypes
rt, cu = ctypes.CDLL("libcudart.so.12"), ctypes.CDLL("libcuda.so.1")
print(rt.cudaMallocArray(0, 0, 0, 0, 0), rt.cudaMallocArray(0, 0, 0, 0, 0), cu.cuArrayCreate(0, 0))
"""
    done = machine.python(code)
    assert done.stdout.split() == ["801", "801", "801"]
    lines = done.stderr.splitlines()
    assert sum("cudaMallocArray" in line for line in lines) == 1
    assert sum("cuArrayCreate" in line for line in lines) == 1


def test_get_proc_address_chooses_as_the_header_does(machine: Machine) -> None:
    code = """
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
def get(name, flags, version=12000):
    p = ctypes.c_void_p()
    rc = cu.cuGetProcAddress_v2(name.encode(), ctypes.byref(p), version, ctypes.c_uint64(flags), 0)
    return rc, p.value
def at(name):
    return ctypes.cast(cu[name], ctypes.c_void_p).value
for name, flags, version, chosen in (
    ("cuLaunchKernel", 1, 7000, "cuLaunchKernel"),
    ("cuLaunchKernel", 2, 7000, "cuLaunchKernel_ptsz"),
    ("cuMemAlloc", 1, 4000, "cuMemAlloc_v2"),
    ("cuMemcpyHtoD", 2, 12000, "cuMemcpyHtoD_v2_ptds"),
    ("cuCtxSynchronize", 1, 13000, "cuCtxSynchronize"),
    ("cuStreamGetCaptureInfo", 1, 12030, "cuStreamGetCaptureInfo_v3"),
    ("cuStreamGetCaptureInfo", 1, 12020, "cuStreamGetCaptureInfo_v2"),
):
    assert get(name, flags, version) == (0, at(chosen)), (name, chosen)
assert get("cuNoSuchThing", 1) == (500, None)
print("good")
"""
    done = machine.python(code)
    assert done.stdout.strip() == "good", done.stderr


def _built_root(cache: str, queue: multiprocessing.Queue[str]) -> None:
    import os

    os.environ["TRACER_CACHE"] = cache
    queue.put(str(build().root))


def test_two_processes_build_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[str] = context.Queue()
    builders = [context.Process(target=_built_root, args=(str(tmp_path), queue)) for _ in range(2)]
    for builder in builders:
        builder.start()
    roots = {queue.get(timeout=60) for _ in builders}
    for builder in builders:
        builder.join(30)
        assert builder.exitcode == 0
    assert len(roots) == 1
    assert [p.name for p in tmp_path.glob("simulated*") if p.is_dir()] == [Path(roots.pop()).name]


def test_no_compiler_is_said_with_the_remedy(tmp_path: Path) -> None:
    code = "from tracer.simulated.build import build, BuildError\n" + (
        "try:\n    build()\nexcept BuildError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"TRACER_CACHE": str(tmp_path), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no C compiler" in done.stdout and "apt-get install gcc" in done.stdout
