"""Each launch and each sync of CUDA 12 and 13 on its own, and the symbols of the real libraries."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from probes.cuda.elf import ElfFile
from probes.cuda.functions import FUNCTIONS, by_symbol
from probes.cuda.libraries import JUMPS, LibraryFile, read_library
from tests.probes.cuda.test_calls import GOLDEN
from tests.probes.cuda.test_elf import readelf_functions
from tests.probes.traced import TYPES, build_program, recording, started
from tests.real_libraries import library
from tracer.simulated import build as simulated

pytestmark = pytest.mark.root

LAUNCHES_AND_SYNCS = ("launch", "graph_launch", "sync")
#: Each symbol is called in a child of its own: a stub may not like its made-up arguments.
CALLER = r"""
#include <dlfcn.h>
#include <string.h>
typedef long (*Any)(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);
MAIN
void *handle = dlopen(getenv("LIBRARY"), RTLD_NOW);
char *names = strdup(getenv("SYMBOLS"));
static char room[4096];
for (char *name = strtok(names, ","); name; name = strtok(0, ",")) {
    Any call = (Any)dlsym(handle, name);
    int child = call ? fork() : 0;
    if (!child && call) {
        alarm(3);
        call(room, room, (void *)1, (void *)1, (void *)1, (void *)1, 0, 0, 0, 0);
        _exit(0);
    }
    wait(0);
}
"""


def exported_of(file_name: str) -> set[str]:
    return set(simulated.exported_names(file_name))


def wanted(file_name: str) -> list[str]:
    """Declared launches and syncs that a simulated library exports."""
    exported = exported_of(file_name)
    return sorted(
        symbol
        for function in FUNCTIONS
        if function.kind in LAUNCHES_AND_SYNCS
        for symbol in function.symbols
        if symbol in exported
    )


FILES = ("libcudart.so.12", "libcudart.so.13", "libcuda.so.1")
CASES = [(file_name, symbol) for file_name in FILES for symbol in wanted(file_name)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, list[Any]]]:
    """Outermost calls by simulated library and function, of children that called each once."""
    folder = tmp_path_factory.mktemp("every")
    # Files of our own, which no other process maps: children are recorded from their first call.
    root = folder / "simulated"
    shutil.copytree(simulated.build().root, root, symlinks=True)
    path_of = {"libcuda.so.1": "driver", "libcudart.so.12": "cuda12", "libcudart.so.13": "cuda13"}
    program = folder / "caller"
    before, _, main = CALLER.partition("MAIN")
    (folder / "caller.c").write_text(
        f"{TYPES}\n{before}\nint main(void) {{ getchar();\n{main}\n"
        'puts("done"); fflush(stdout); getchar(); return 0; }'
    )
    subprocess.run(
        ["gcc", "-O0", "-w", "-o", program, folder / "caller.c", "-ldl"], check=True, timeout=60
    )
    found: dict[str, dict[str, list[Any]]] = {}
    for file_name in FILES:
        path = root / path_of[file_name] / file_name
        env = {
            "LIBRARY": str(path),
            "SYMBOLS": ",".join(wanted(file_name)),
            "LD_LIBRARY_PATH": ":".join(str(root / name) for name in path_of.values()),
            "LD_PRELOAD": str(path),
        }
        with started(program, **env) as target, recording(target.pid) as record:
            target.run()
        rows: dict[str, list[Any]] = defaultdict(list)
        for row in record.rows("cuda_call"):
            if row["depth"] == 0 and row["pid"] != target.pid:
                rows[row["function"]].append(row)
        found[file_name] = rows
    return found


@pytest.mark.parametrize(("file_name", "symbol"), CASES)
def test_a_launch_or_sync_is_recorded_once(seen, file_name, symbol):
    (row,) = seen[file_name][symbol]
    assert row["kind"] == by_symbol[symbol].kind
    assert row["layer"] == by_symbol[symbol].layer


#: Major version to the wheel and file of the real runtime.
RUNTIMES = {
    "11": ("nvidia-cuda-runtime-cu11", "libcudart.so.11.0"),
    "12": ("nvidia-cuda-runtime-cu12", "libcudart.so.12"),
    "13": ("nvidia-cuda-runtime", "libcudart.so.13"),
}
RUNTIME_SYMBOLS = sorted(
    symbol
    for symbol, function in by_symbol.items()
    if function.kind in LAUNCHES_AND_SYNCS and function.layer == "runtime"
)


@pytest.fixture(scope="module")
def real() -> Mapping[str, tuple[dict[str, int], LibraryFile, Any]]:
    """By major version: what readelf finds in the real runtime, and what we do."""
    found = {}
    for major, names in RUNTIMES.items():
        path = library(*names)
        with ElfFile(str(path)) as elf:
            addresses = readelf_functions(path)
            offsets = {name: elf.file_offset(address) for name, address in addresses.items()}
            found[major] = (offsets, read_library(elf), path)
    return found


@pytest.mark.parametrize("major", RUNTIMES)
@pytest.mark.parametrize("symbol", RUNTIME_SYMBOLS)
def test_a_launch_or_sync_of_the_real_runtime_is_probed_where_it_is(real, major, symbol):
    offsets, ours, _ = real[major]
    name = ours.aliases.get(symbol, symbol)
    assert ours.functions.get(name) == offsets.get(symbol)
    if symbol in offsets:
        assert ours.costs[name] == "emulated"


@pytest.mark.parametrize("major", RUNTIMES)
def test_no_launch_or_sync_of_the_real_runtime_is_undeclared(real, major):
    offsets, _, _ = real[major]
    parts = ("LaunchKernel", "LaunchCooperative", "GraphLaunch", "Synchronize")
    alike = {name for name in offsets if any(part in name for part in parts)}
    assert alike - set(by_symbol) - set(JUMPS) == set()
    assert "cudaLaunchKernel" in alike


def test_every_declared_function_of_the_runtime_is_in_a_real_one(real):
    declared = {name for name, function in by_symbol.items() if function.layer == "runtime"}
    exported = set().union(*(offsets for offsets, _, _ in real.values()))
    assert declared - exported == set()


RUNTIME_GOLDEN = {
    body: expected for body, expected in GOLDEN.items() if expected[0].startswith("cuda")
}


@pytest.mark.parametrize("major", RUNTIMES)
def test_arguments_are_exact_with_the_real_runtime_of_each_major(real, tmp_path, major):
    """There is no driver: every call fails, after it was entered with its arguments."""
    path = real[major][2]
    program = build_program(tmp_path, path, "\n".join(RUNTIME_GOLDEN))
    env = {"LD_LIBRARY_PATH": str(path.parent)}
    with started(program, **env) as target, recording(target.pid) as found:
        target.run()
    for function, expected in RUNTIME_GOLDEN.values():
        (row,) = (row for row in found.named(function) if row["depth"] == 0)
        assert {name: row[name] for name in expected} == expected, function
        assert row["return_code"] != 0 and row["duration_ns"] > 0
