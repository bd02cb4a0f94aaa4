"""What can be recorded on this machine, what is lost where something is missing, and the remedy."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from probes import bpf, syscalls
from probes.attach import has_uprobe_multi, returns_survive_seccomp
from probes.compiler import find_bcc
from probes.gpu.nvml import NvmlProbe
from probes.host.cgroup import find_mounts
from probes.probe import ProbeError, Requirement

_NO_CALLS = "no CUDA calls and no off-CPU intervals"


def machine_requirements(root: Path = Path("/")) -> list[Requirement]:
    """Return every requirement of every probe on this machine, met or not.

    Args:
        root: Where ``proc`` and ``sys`` are; the kernel itself is tested by doing.
    """
    return [
        _kernel(),
        *bpf.requirements(),
        _bcc_version(),
        _bpf(),
        _uprobe_multi(),
        _seccomp_returns(),
        _compiling(),
        _btf(root),
        _tracefs(root),
        _perf_paranoid(root),
        _memory_lock(),
        _c_compiler(),
        _nvml(),
        _schedstat(root),
        _cgroup(root / "proc"),
        _pressure(root),
    ]


def can_record(requirements: list[Requirement]) -> dict[str, bool]:
    """Return which groups of sources can be recorded, by name."""
    missing = {item.name for item in requirements if not item.is_met}
    ebpf = {"rights", "lockdown", "bcc", "kernel headers", "uprobes", "bpf"}
    return {
        "cuda_calls_and_offcpu": not missing & (ebpf | {"compiling"}),
        "gpu": "nvml" not in missing,
        "threads": "schedstat" not in missing,
        "processes_and_host": True,
        "engine": True,
    }


def _kernel() -> Requirement:
    return Requirement("kernel", True, f"{platform.system()} {platform.release()}")


def _bcc_version() -> Requirement:
    place = find_bcc()
    version = None
    if place is not None:
        text = _text(place / "bcc" / "version.py") or ""
        match = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
        version = match.group(1) if match else None
    return Requirement(
        "bcc version",
        version is not None,
        f"bcc {version}" if version else "the version of bcc cannot be read",
        _NO_CALLS,
        "" if version else "apt-get install python3-bpfcc",
    )


def _compiling() -> Requirement:
    """Whether bcc, headers and kernel work together: a program and a ring buffer are made."""
    source = "BPF_RINGBUF_OUTPUT(tracer_ring, 1); int tracer_test(void *context) { return 0; }"
    try:
        program = bpf.ProgramRequest("tracer_test", "kprobe")
        bpf.load(source, [program], ["tracer_ring"], []).close()
    except ProbeError as error:
        return Requirement(
            "compiling", False, str(error), _NO_CALLS, "mend the lines above, then repeat"
        )
    return Requirement(
        "compiling", True, "a BPF program with a ring buffer was compiled and loaded", _NO_CALLS
    )


def _bpf() -> Requirement:
    reason = ""
    try:
        os.close(syscalls.load_empty_program(0))
    except OSError as error:
        reason = error.strerror or str(error)
    return Requirement(
        "bpf",
        not reason,
        f"the kernel refuses BPF programs ({reason})" if reason else "BPF programs can be loaded",
        _NO_CALLS,
        "run with sudo; in a container with --privileged" if reason else "",
    )


def _uprobe_multi() -> Requirement:
    is_met = has_uprobe_multi()
    return Requirement(
        "uprobe_multi",
        is_met,
        "many uprobes attach by one link" if is_met else "the kernel has no uprobe_multi links",
        "probes are detached one by one, which takes up to 0.13 s each",
        "" if is_met else "boot a kernel that has them (6.6 or later); recording works without",
    )


def _seccomp_returns() -> Requirement:
    """Tried on a child: on some kernels a return probe kills a process with a seccomp filter."""
    try:
        is_met = returns_survive_seccomp()
    except ProbeError as error:
        return Requirement(
            "return probes", False, str(error), _NO_CALLS, "mend the lines above, then repeat"
        )
    return Requirement(
        "return probes",
        is_met,
        "a process with a seccomp filter survived a return probe"
        if is_met
        else "a process with a seccomp filter did not survive a return probe",
        "no return codes and durations of containers' CUDA calls",
        "" if is_met else "boot a kernel whose seccomp lets the uretprobe call pass",
    )


def _btf(root: Path) -> Requirement:
    is_met = _is_there(root / "sys/kernel/btf/vmlinux")
    return Requirement(
        "btf",
        is_met,
        "the kernel describes its types" if is_met else "the kernel has no BTF",
        "nothing: the programs use only stable interfaces",
    )


def _tracefs(root: Path) -> Requirement:
    for place in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        if _is_there(root / place / "events/sched/sched_switch"):
            return Requirement("tracepoints", True, f"found in /{place}")
    is_there = "tracefs" in (_text(root / "proc/filesystems") or "")
    return Requirement(
        "tracepoints",
        is_there,
        "tracefs is not mounted; the recorder mounts it for itself"
        if is_there
        else "the kernel has no tracefs",
        "no off-CPU intervals",
        "" if is_there else "boot a kernel with CONFIG_FTRACE=y",
    )


def _perf_paranoid(root: Path) -> Requirement:
    text = (_text(root / "proc/sys/kernel/perf_event_paranoid") or "").strip()
    is_root = os.geteuid() == 0
    is_low = text.lstrip("-").isdigit() and int(text) <= -1
    is_met = is_root or is_low
    return Requirement(
        "perf events",
        is_met,
        f"perf_event_paranoid is {text or 'unknown'}, " + ("root may anyway" if is_root else ""),
        _NO_CALLS,
        "" if is_met else "run with sudo",
    )


def _memory_lock() -> Requirement:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_met = soft == resource.RLIM_INFINITY or soft >= 1 << 26 or os.geteuid() == 0
    size = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    return Requirement(
        "memory lock",
        is_met,
        f"{size} may be locked",
        "ring buffers may be refused",
        "" if is_met else "ulimit -l unlimited",
    )


def _c_compiler() -> Requirement:
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    return Requirement(
        "c compiler",
        found is not None,
        f"{found} is there" if found else "no C compiler is installed",
        "only 'tracer demo' needs it, to build the simulated device",
        "" if found else "apt-get install gcc libc6-dev",
    )


def _nvml() -> Requirement:
    probe = NvmlProbe()
    loss = "no utilisation, power, clocks, memory and processes of the GPUs"
    try:
        probe.start()
    except ProbeError as error:
        fact, _, remedy = str(error).partition("; ")
        return Requirement("nvml", False, fact, loss, remedy or "install the NVIDIA driver")
    found = probe.inventory()
    for _ in probe.stop():
        continue
    if found.driver_version is None:
        text = "NVML does not answer: the driver hangs"
        return Requirement("nvml", False, text, loss, "look at: dmesg | grep -i nvrm")
    names = ", ".join(str(gpu.get("name")) for gpu in found.gpus) or "no GPU"
    return Requirement(
        "nvml",
        bool(found.gpus),
        f"driver {found.driver_version}: {names}",
        loss,
        "" if found.gpus else "check that nvidia-smi lists a GPU",
    )


def _schedstat(root: Path) -> Requirement:
    is_met = bool((_text(root / "proc/self/schedstat") or "").split())
    return Requirement(
        "schedstat",
        is_met,
        "run and wait times of threads can be read" if is_met else "the kernel has no schedstat",
        "no time on CPU and waiting for a CPU per thread and second",
        "" if is_met else "boot a kernel with CONFIG_SCHED_INFO=y",
    )


def _cgroup(proc: Path) -> Requirement:
    mounts = find_mounts(proc)
    unified = any(not mount.controllers for mount in mounts)
    kind = "version 2" if unified and len(mounts) == 1 else "version 1" if mounts else "none"
    return Requirement(
        "cgroup",
        bool(mounts),
        f"control groups: {kind}",
        "no CPU quota and throttling of containers",
        "" if mounts else "mount -t cgroup2 none /sys/fs/cgroup",
    )


def _pressure(root: Path) -> Requirement:
    is_met = _is_there(root / "proc/pressure/cpu")
    return Requirement(
        "pressure",
        is_met,
        "pressure stall times can be read"
        if is_met
        else "the kernel gives no pressure stall times",
        "no pressure of CPU, memory and I/O",
        "" if is_met else "boot with psi=1",
    )


def _is_there(path: Path) -> bool:
    """Whether a path exists and may be seen; others than root may not look into some folders."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def report_lines(requirements: list[Requirement]) -> Iterator[str]:
    """Yield the table of requirements as lines of text."""
    width = max((len(item.name) for item in requirements), default=0)
    indent = " " * (width + 6)
    for item in requirements:
        yield f"{'yes' if item.is_met else 'NO':3}   {item.name:{width}}  {item.detail}"
        if not item.is_met:
            if item.loss:
                yield f"{indent}  lost: {item.loss}"
            if item.remedy:
                yield f"{indent}  mend: {item.remedy}"
