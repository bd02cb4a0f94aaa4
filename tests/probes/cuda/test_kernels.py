"""Names of kernels in real compiled programs with symbols as nvcc makes them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from probes.cuda.demangle import MAX_GROWTH_BYTES, MAX_NAME, _worst_length, kernel_name
from probes.cuda.kernels import RETRIES_NS, KernelNames
from probes.cuda.memory import ProcessMemory

#: Prints the addresses that a launch, a registration and a look-up would carry, then waits.
PROGRAM = r"""
#include <stdio.h>
void host_function(void) __asm__("_Z4kernPfi");
void host_function(void) { __asm__ volatile("nop"); }
void tk(void) __asm__("_Z2tkIdEvPT_");
__attribute__((used)) void tk(void) { __asm__ volatile("nop;nop"); }
static void local(void) __asm__("_ZL4statPi");
__attribute__((used)) static void local(void) { __asm__ volatile("nop;nop;nop"); }
__attribute__((used)) void *handle __asm__("_ZZ24__device_stub__Z4kernPfiPfiE8__handle");
__attribute__((used))
static void *static_handle __asm__("_ZZL23__device_stub__Z4statPiPiE8__handle");
static char device_name[] = "_Z9from_nameIfEvPT_i";
static char driver_name[] = "triton_poi_fused_add_0";
static void *slot = (void *)0x55aa1000;
int main(void)
{
    handle = (void *)0x7f0000001000;
    static_handle = (void *)0x7f0000002000;
    printf("%p %p %p %p %p %p %p\n", (void *)host_function, (void *)tk, (void *)local,
           (void *)&handle, device_name, driver_name, (void *)&slot);
    fflush(stdout);
    getchar();
    return 0;
}
"""


class Running:
    """A program that prints addresses and waits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        assert process.stdout is not None
        words = process.stdout.readline().split()
        (
            self.kern,
            self.tk,
            self.local,
            self.handle,
            self.device_name,
            self.driver_name,
            self.slot,
        ) = (int(word, 16) for word in words)


@contextmanager
def running(folder: Path, *flags: str, is_stripped: bool = False) -> Iterator[Running]:
    source, binary = folder / "stub.c", folder / "stub"
    source.write_text(PROGRAM)
    subprocess.run(["gcc", "-O1", *flags, "-o", binary, source], check=True, timeout=60)
    if is_stripped:
        subprocess.run(["strip", "--strip-all", binary], check=True, timeout=60)
    process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def names_of(batch) -> dict[int, tuple[str | None, str]]:
    rows = batch.rows.to_pylist()
    return {row["kernel"]: (row["name"], row["source"]) for row in rows}


pytestmark = pytest.mark.root


@pytest.mark.parametrize("flags", [("-fPIE", "-pie"), ("-no-pie",)])
def test_host_functions_are_named_by_symbols(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with running(tmp_path, *flags) as program:
        kernels = KernelNames()
        handles = words(program.kern, program.tk, program.local, program.kern, 0)
        batch = kernels.resolve(program.pid, handles, 5)
        assert names_of(batch) == {
            program.kern: ("kern(float*, int)", "elf"),
            program.tk: ("void tk<double>(double*)", "elf"),
            program.local: ("stat(int*)", "elf"),
        }
        row = batch.rows.to_pylist()[0]
        assert row["module"] == str(tmp_path / "stub") and row["time_ns"] == 5
        assert len(row["build_id"]) == 40
        assert kernels.resolve(program.pid, handles, 6).rows.num_rows == 0


def test_cuda13_handles_are_named_by_their_variables(tmp_path: Path) -> None:
    with running(tmp_path) as program:
        batch = KernelNames().resolve(program.pid, words(0x7F0000001000, 0x7F0000002000), 1)
        assert names_of(batch) == {
            0x7F0000001000: ("kern(float*, int)", "elf"),
            0x7F0000002000: ("stat(int*)", "elf"),
        }


def test_stripped_program_has_null_after_the_retries(tmp_path: Path) -> None:
    with running(tmp_path, is_stripped=True) as program:
        kernels = KernelNames()
        handles = words(program.kern, 0x7F0000001000)
        time_ns = 10
        assert kernels.resolve(program.pid, handles, time_ns).rows.num_rows == 0
        for wait in RETRIES_NS[:-1]:
            assert kernels.resolve(program.pid, handles, time_ns + wait - 1).rows.num_rows == 0
            time_ns += wait
            assert kernels.resolve(program.pid, handles, time_ns).rows.num_rows == 0
        time_ns += RETRIES_NS[-1]
        batch = kernels.resolve(program.pid, words(), time_ns)
        assert names_of(batch) == dict.fromkeys(handles.tolist(), (None, "elf"))
        assert kernels.resolve(program.pid, handles, time_ns + 10**10).rows.num_rows == 0
        # A registration that comes later still names it.
        kernels.note_registration(program.pid, words(program.kern), words(program.device_name))
        late = kernels.resolve(program.pid, words(), time_ns + 10**10)
        assert names_of(late) == {
            program.kern: ("void from_name<float>(float*, int)", "registration")
        }


def test_registration_and_get_kernel_name_a_stripped_program(tmp_path: Path) -> None:
    with running(tmp_path, is_stripped=True) as program:
        kernels = KernelNames()
        kernels.note_registration(program.pid, words(program.kern), words(program.device_name))
        kernels.note_handles(program.pid, words(program.handle), words(program.kern))
        batch = kernels.resolve(program.pid, words(0x7F0000001000, program.kern), 1)
        expected = ("void from_name<float>(float*, int)", "registration")
        assert names_of(batch) == {0x7F0000001000: expected, program.kern: expected}


def test_driver_lookup_names_a_handle_and_contradiction_does_not(tmp_path: Path) -> None:
    with running(tmp_path) as program:
        kernels = KernelNames()
        kernels.note_lookup(program.pid, words(program.slot), words(program.driver_name))
        batch = kernels.resolve(program.pid, words(0x55AA1000), 1)
        assert names_of(batch) == {0x55AA1000: ("triton_poi_fused_add_0", "module_lookup")}
        other = KernelNames()
        other.note_lookup(program.pid, words(program.slot), words(program.driver_name))
        other.note_lookup(program.pid, words(program.slot), words(program.device_name))
        assert other.resolve(program.pid, words(0x55AA1000), 1).rows.num_rows == 0


def test_of_several_lookups_into_one_place_the_last_is_believed(tmp_path: Path) -> None:
    with running(tmp_path) as program:
        kernels = KernelNames()
        kernels.note_lookup(
            program.pid,
            words(program.slot, program.slot),
            words(program.device_name, program.driver_name),
        )
        batch = kernels.resolve(program.pid, words(0x55AA1000), 1)
        assert names_of(batch) == {0x55AA1000: ("triton_poi_fused_add_0", "module_lookup")}


def test_ended_process_and_wild_addresses_are_no_error(tmp_path: Path) -> None:
    with running(tmp_path) as program:
        kernels = KernelNames()
        wild = words(1, (1 << 64) - 1, 1 << 63, program.kern + 1)
        kernels.note_registration(program.pid, wild, wild)
        kernels.note_lookup(program.pid, wild, wild)
        assert kernels.resolve(program.pid, wild, 1).rows.num_rows == 0
        pid = program.pid
    assert kernels.resolve(pid, words(5), 2).rows.num_rows == 0
    kernels.note_lookup(pid, words(5), words(5))


def test_memory_reads_words_and_strings(tmp_path: Path) -> None:
    with running(tmp_path) as program, ProcessMemory(program.pid) as memory:
        values, is_read = memory.words(words(program.slot, 8, program.handle))
        assert is_read.tolist() == [True, False, True]
        assert values.tolist() == [0x55AA1000, 0, 0x7F0000001000]
        assert memory.strings(words(program.driver_name, 8)) == {
            program.driver_name: "triton_poi_fused_add_0"
        }


def _bomb(levels: int) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1b1cIS_S_E" + "".join(
        f"S0_IS{digits[level + 1]}_S{digits[level + 1]}_E" for level in range(levels)
    )


def test_hostile_names_stay_bounded() -> None:
    assert len(kernel_name(_bomb(10))) == MAX_NAME
    assert _worst_length(_bomb(30)) > MAX_GROWTH_BYTES
    assert len(kernel_name(_bomb(30))) < 100
    for name in ("_Z", "_Z9", "_Z99999999999999999999x", "_ZN", "\x7f", "_ZN3abc", "x" * 10_000):
        assert len(kernel_name(name)) <= MAX_NAME


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("__device_stub__Z4kernPfi", "kern(float*, int)"),
        ("cname", "cname"),
        ("_ZN36_GLOBAL__N__8c4f17c3_4_a_cu_af78add84anonEPi", "(anonymous namespace)::anon(int*)"),
        ("_ZN7cutlass13device_kernelI" + "1a" * 2000, "cutlass::device_kernel<…>"),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1E"
            "EEEviT0_T1_",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
            "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        ),
    ],
)
def test_names_are_readable(symbol: str, name: str) -> None:
    assert kernel_name(symbol) == name
