"""Every table and column that is ever recorded, and every record that the kernel sends.

This module is the contract between recorder and reader. A :class:`Table` is declared once here;
its Arrow schema, its documentation and the checks of a session are generated from the
declaration. A :class:`Record` is the fixed-size record of a BPF program; its C struct and its
NumPy dtype are generated from the declaration.

Standard library only: importing it loads neither NumPy nor Arrow (they are imported inside the
methods that need them).

Conventions: a row of table ``X`` is one X; times are ``int64`` nanoseconds of CLOCK_MONOTONIC;
unknown is null, never 0 or -1; a column that has a unit ends in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

#: Raised by one when a reader of the old format would misread a new session.
FORMAT_VERSION = 1

#: Units a column may have, and what its name must end in.
UNITS = {
    "ns": "_ns",
    "bytes": "_bytes",
    "bytes/s": "_bytes_per_s",
    "%": "_pct",
    "mW": "_mw",
    "mJ": "_mj",
    "MHz": "_mhz",
    "degC": "_celsius",
}

#: Logical column types: Arrow type name, whether Parquet should use a dictionary.
_ARROW_TYPES = {
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u64": "uint64",
    "f64": "float64",
    "bool": "bool_",
    "str": "string",
}


class SchemaError(ValueError):
    """A declaration in this module contradicts itself."""


@dataclass(frozen=True)
class Column:
    """One column: its name, type, unit, whether it may be null, and what it means.

    Raises:
        SchemaError: the name does not end in its unit, or ends in a unit that it does not have.
    """

    name: str
    type: str
    doc: str
    unit: str | None = None
    nullable: bool = False

    def __post_init__(self) -> None:
        if self.type not in _ARROW_TYPES:
            raise SchemaError(f"column '{self.name}' has unknown type '{self.type}'")
        if self.unit is not None:
            suffix = UNITS.get(self.unit)
            if suffix is None:
                raise SchemaError(f"column '{self.name}' has unknown unit '{self.unit}'")
            if not self.name.endswith(suffix):
                raise SchemaError(
                    f"column '{self.name}' is in {self.unit}: its name must end in '{suffix}'"
                )
        else:
            for unit, suffix in UNITS.items():
                if self.name.endswith(suffix):
                    raise SchemaError(
                        f"column '{self.name}' ends in '{suffix}' but is not declared in {unit}"
                    )

    @property
    def is_time(self) -> bool:
        """Whether the column holds int64 nanoseconds (delta-encoded on disk)."""
        return self.unit == "ns" and self.type == "i64"

    @property
    def is_dictionary(self) -> bool:
        """Whether Parquet stores the column with a dictionary (strings and small ids)."""
        return self.type in ("str", "i8", "i16", "i32", "bool")


@dataclass(frozen=True)
class Table:
    """One table: what a row is, its columns, and the columns it is sorted by on disk."""

    name: str
    row: str
    columns: tuple[Column, ...]
    order: str
    command: str = "tracer record --pid PID"

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise SchemaError(f"table '{self.name}' declares a column twice")
        if self.order not in names:
            raise SchemaError(f"table '{self.name}' is ordered by a column it has not")

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return the declaration of one column.

        Raises:
            KeyError: the table has no such column.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name} has no column {name}")

    @cached_property
    def arrow_types(self) -> tuple[pa.DataType, ...]:
        """Arrow type of each column."""
        return tuple(self.arrow_schema().types)

    def arrow_schema(self) -> pa.Schema:
        """Arrow schema; unit and meaning of each column are its field metadata."""
        return self._arrow_schema

    @cached_property
    def _arrow_schema(self) -> pa.Schema:
        """The schema, made once: a batch of a few rows costs less than its schema."""
        import pyarrow as pa

        fields = [
            pa.field(
                column.name,
                getattr(pa, _ARROW_TYPES[column.type])(),
                nullable=column.nullable,
                metadata={"unit": column.unit or "", "doc": column.doc},
            )
            for column in self.columns
        ]
        return pa.schema(fields, metadata={"table": self.name, "format": str(FORMAT_VERSION)})


def _time(name: str, doc: str, nullable: bool = False) -> Column:
    return Column(name, "i64", doc, unit="ns", nullable=nullable)


def _text(name: str, doc: str, nullable: bool = False) -> Column:
    return Column(name, "str", doc, nullable=nullable)


def _int(name: str, doc: str, nullable: bool = False, type: str = "i32") -> Column:
    return Column(name, type, doc, nullable=nullable)


def _bytes(name: str, doc: str, nullable: bool = True) -> Column:
    return Column(name, "i64", doc, unit="bytes", nullable=nullable)


def _pct(name: str, doc: str) -> Column:
    return Column(name, "f64", doc + " [0, 100]", unit="%", nullable=True)


_PID = _int("pid", "Process (thread group) id in the host's PID namespace.")
_TID = _int("tid", "Thread id in the host's PID namespace.")
_RANK = _int("rank", "Rank in the job, where the source tells it.", nullable=True)
_START = _time("start_ns", "Begin, CLOCK_MONOTONIC.")
_DURATION = _time("duration_ns", "Length.")
_TIME = _time("time_ns", "When it was observed, CLOCK_MONOTONIC.")
_CONTAINER_NAME = _text(
    "container_name",
    "Its name where the node tells it: NAMESPACE/POD/CONTAINER, Docker's name, or pod UID.",
    True,
)
_DEVICE = _int("device", "Index of the GPU in the manifest's list.")
_FUNCTION = _text("function", "Name of the CUDA function as exported, e.g. cudaLaunchKernel_ptsz.")
_LAYER = _text("layer", "runtime, driver or nccl.")
_KIND = _text(
    "kind",
    "launch, graph_launch, graph, capture, sync, query, wait, copy, set, memory, module, stream, "
    "event, device, collective or other.",
)
_STREAM = Column("stream", "u64", "Stream handle; 0 is the default stream.", nullable=True)
_KERNEL = Column(
    "kernel",
    "u64",
    "Kernel function handle or host address as passed (graph for graph launches).",
    nullable=True,
)

CUDA_CALL = Table(
    "cuda_call",
    "one completed CUDA runtime, driver or NCCL call",
    (
        _START,
        _time("duration_ns", "Length; null when the return was not seen.", nullable=True),
        _PID,
        _TID,
        _FUNCTION,
        _LAYER,
        _KIND,
        _int("call_id", "Unique in the session; larger is later entered.", type="i64"),
        _int("parent_call_id", "Call of the same thread that this one ran inside.", True, "i64"),
        _int("depth", "0 outermost, 1 inside another call, ...", type="i16"),
        _int("device", "GPU index; null when not known (late attach).", nullable=True),
        _STREAM,
        _KERNEL,
        _int("grid_x", "Blocks in x.", True),
        _int("grid_y", "Blocks in y.", True),
        _int("grid_z", "Blocks in z.", True),
        _int("block_x", "Threads per block in x.", True),
        _int("block_y", "Threads per block in y.", True),
        _int("block_z", "Threads per block in z.", True),
        _bytes("shared_memory_bytes", "Dynamic shared memory of a launch."),
        _bytes("size_bytes", "Bytes copied, set, allocated or exchanged."),
        _text(
            "copy_kind", "h2d, d2h, d2d, h2h, p2p, default or a pageable form h2d_pageable.", True
        ),
        _int("return_code", "cudaError_t, CUresult or ncclResult_t.", True),
        Column(
            "is_first_use",
            "bool",
            "First use of this kernel by this process. Null when the process's start, the "
            "kernel's registration or its module load was not seen.",
            nullable=True,
        ),
        Column(
            "is_first_seen",
            "bool",
            "First time this recording saw this kernel in this process; proves nothing by itself.",
            nullable=True,
        ),
        Column(
            "is_capture", "bool", "Recorded into a graph under capture, not executed.", None, True
        ),
        Column("correlation_id", "i64", "Correlation id of an imported trace.", None, True),
        _RANK,
    ),
    "start_ns",
)

OPEN_CALL = Table(
    "open_call",
    "one call entered and not returned at the time of a snapshot: the proof of a hang",
    (
        _time("time_ns", "Time of the snapshot."),
        _time("start_ns", "When the call was entered."),
        _PID,
        _TID,
        _FUNCTION,
        _LAYER,
        _KIND,
        _int("call_id", "As in cuda_call.", type="i64"),
        _int("depth", "0 outermost, 1 inside another call, ...", type="i16"),
        _STREAM,
        _KERNEL,
        Column(
            "is_doubtful",
            "bool",
            "Records of this thread were lost, so the return may have been missed: no proof.",
        ),
        _text("thread_state", "State letter from /proc at the snapshot (R, S, D, T, Z).", True),
    ),
    "time_ns",
)

KERNEL_FUNCTION = Table(
    "kernel_function",
    "one kernel function handle or address of one process and its name",
    (
        _time("time_ns", "When it was resolved."),
        _PID,
        Column("kernel", "u64", "Handle or address as in cuda_call.kernel."),
        _text("name", "Demangled name, or the name as given.", True),
        _text("module", "File or module that holds it.", True),
        _text("build_id", "GNU build id of that file.", True),
        _text("source", "registration, elf, module_lookup, capture or import."),
    ),
    "time_ns",
)

MPS_CLIENT = Table(
    "mps_client",
    "one process with a context on one GPU at one audit of MPS",
    (
        _time("time_ns", "When the driver's lists were read, CLOCK_MONOTONIC."),
        _DEVICE,
        _PID,
        _text("name", "Process name from /proc.", True),
        _text("container", "Container id from its cgroup.", True),
        Column("is_target", "bool", "Whether it belongs to the recorded tree."),
        _text("role", "client (in MPS), outside, server (of MPS itself) or unknown."),
        _text(
            "reason",
            "Why it is outside, the first that holds of: no_daemon, daemon_not_visible, "
            "environment, not_visible, other_inode, other_uid, other_ipc_namespace, "
            "started_before, unexplained.",
            True,
        ),
        _text("other_reasons", "Further reasons that hold, with commas between them.", True),
        _int("daemon_pid", "Control daemon it was compared with.", True),
        _int("server_pid", "Server of that daemon.", True),
        _int("uid", "Its user as this host sees it.", True),
        _int("server_uid", "User whom that server (or daemon) serves.", True),
        Column("is_multiuser", "bool", "The server accepts several users.", None, True),
        Column("has_pipe_variable", "bool", "CUDA_MPS_PIPE_DIRECTORY was set.", None, True),
        Column(
            "is_control_visible",
            "bool",
            "There is a control pipe where it looks for one.",
            None,
            True,
        ),
        Column("is_same_control", "bool", "That pipe is the daemon's own.", None, True),
        Column("is_same_ipc", "bool", "It shares the daemon's IPC namespace.", None, True),
        Column("is_started_before", "bool", "It started before the daemon.", None, True),
        _text("detail", "One sentence for the reader.", True),
        _text("mend", "What brings it into MPS.", True),
    ),
    "time_ns",
)

OFFCPU = Table(
    "offcpu",
    "one interval that a launching thread spent off the CPU",
    (
        _START,
        _DURATION,
        _PID,
        _TID,
        _time("runnable_ns", "Part of it ready to run but waiting for a CPU.", nullable=True),
        _text(
            "state",
            "State on leaving: running (preempted), sleeping, uninterruptible, other.",
            True,
        ),
        _int("cpu_from", "CPU it left.", True),
        _int("cpu_to", "CPU it came back on.", True),
        _int("taker_pid", "Process of the task that got the CPU when it left.", True),
        _int("taker_tid", "Task that got the CPU when it left (0 is idle).", True),
        _text("taker_name", "Name of that task.", True),
        _int("occupant_pid", "Process of the task that held the CPU until it came back.", True),
        _int("occupant_tid", "Task that held the CPU until it came back (0 is idle).", True),
        _text("occupant_name", "Name of that task.", True),
        _int("waker_pid", "Process of the task that woke it.", True),
        _int("waker_tid", "Task that woke it.", True),
        _text("waker_name", "Name of that task.", True),
        _text(
            "lock",
            "What it slept on, where that was a lock (futex) of its process: interpreter (Python's "
            "own lock) or other; null for other sleeps and where it is not known.",
            True,
        ),
        _int("call_id", "Innermost CUDA call it happened inside.", True, "i64"),
        _text("function", "Function of that call.", True),
    ),
    "start_ns",
)

THREAD_SECOND = Table(
    "thread_second",
    "one thread of a target over one sampling interval (a second)",
    (
        _START,
        _time("duration_ns", "Length of the interval really covered."),
        _PID,
        _TID,
        _text("name", "Thread name.", True),
        _time("running_ns", "Time on a CPU."),
        _time("waiting_ns", "Time ready to run but waiting for a CPU."),
        _time("sleeping_ns", "The rest."),
        _int(
            "n_voluntary_switches",
            "Times it gave up the CPU since its last row that tells them.",
            True,
            "i64",
        ),
        _int("n_involuntary_switches", "Times it was preempted, likewise.", True, "i64"),
        _int("n_migrations", "Moves between CPUs.", True, "i64"),
        _text("state", "State letter from /proc at the end of the interval.", True),
        Column("is_launcher", "bool", "Whether it made CUDA calls in this recording.", None, True),
    ),
    "start_ns",
)

GPU_ACTIVITY = Table(
    "gpu_activity",
    "one activity of a GPU with device times (CUPTI or an imported trace)",
    (
        _START,
        _DURATION,
        _DEVICE,
        _int("pid", "Process that submitted it.", True),
        _int("tid", "Thread of the call that submitted it, where the source tells it.", True),
        _STREAM,
        _text("kind", "kernel, copy, set or graph."),
        _text("name", "Kernel name (demangled where possible) or kind of copy.", True),
        _text("copy_kind", "h2d, d2h, d2d, h2h, p2p.", True),
        _bytes("size_bytes", "Bytes of a copy or set."),
        Column("is_pageable", "bool", "The host side of a copy was pageable.", None, True),
        Column(
            "correlation_id",
            "i64",
            "Joins the call that submitted it (same pid, rank).",
            None,
            True,
        ),
        _time(
            "call_start_ns",
            "Entry of the call that submitted it, where the source tells it.",
            nullable=True,
        ),
        _time("call_duration_ns", "Length of that call, likewise.", nullable=True),
        _int("grid_x", "Blocks in x.", True),
        _int("grid_y", "Blocks in y.", True),
        _int("grid_z", "Blocks in z.", True),
        _int("block_x", "Threads per block in x.", True),
        _int("block_y", "Threads per block in y.", True),
        _int("block_z", "Threads per block in z.", True),
        Column("graph_id", "i64", "Graph it ran in.", None, True),
        Column(
            "external_id",
            "i64",
            "Number that the program gave to what it did then (CUPTI's external correlation, e.g. "
            "PyTorch's operator).",
            None,
            True,
        ),
        Column("is_collective", "bool", "Known to be a collective or send/receive.", None, True),
        _RANK,
    ),
    "start_ns",
    command="tracer record --cupti -- COMMAND, or tracer import TRACE",
)

ANNOTATION = Table(
    "annotation",
    "one range that the program or an importer named: step, operator, Python or OS call",
    (
        _START,
        _DURATION,
        _int("pid", "Process.", True),
        _int("tid", "Thread.", True),
        _text(
            "category",
            "step, user, operator, python, os, overhead, sync, counter or stack (innermost frame "
            "first).",
        ),
        _text("name", "Text of the range (prompts are never kept)."),
        _RANK,
    ),
    "start_ns",
    command="tracer record --cupti -- COMMAND, or tracer import TRACE",
)

MEMORY_OPERATION = Table(
    "memory_operation",
    "one allocation or release of memory by CUDA, with its address, as CUPTI tells",
    (
        _TIME,
        _int("pid", "Process."),
        _int("device", "Index of the GPU in the manifest's list; null for host memory.", True),
        _STREAM,
        _text("kind", "allocation or release."),
        _text(
            "memory_kind",
            "device, managed, pinned, pageable, array, device_static or managed_static.",
            True,
        ),
        Column("address", "u64", "Where it lies."),
        _bytes("size_bytes", "Its length; null where a release does not tell."),
        Column("is_async", "bool", "In the order of the stream, from a pool."),
        _bytes("pool_used_bytes", "What its pool had given out then."),
        Column("correlation_id", "i64", "Joins its call (same pid).", None, True),
    ),
    "time_ns",
    command="tracer record --cupti -- COMMAND",
)

GPU_SAMPLE = Table(
    "gpu_sample",
    "one sample of one GPU by one source",
    (
        _TIME,
        _DEVICE,
        _text(
            "source",
            "nvml, nvml_buffer (the driver's own samples at its own times), gpm, dcgm or the name "
            "of an imported trace's format.",
        ),
        _time("sample_ns", "The driver's own time of the sample.", nullable=True),
        _time("period_ns", "Window that the utilisation averages over.", nullable=True),
        _time("query_ns", "Time this sample kept the driver busy (our own cost).", nullable=True),
        Column("is_repeated", "bool", "The source repeated a cached sample.", None, True),
        _pct("util_pct", "Share of the window with at least one kernel running."),
        _pct("memory_util_pct", "Share of the window with memory traffic."),
        Column("power_mw", "i64", "Power, averaged by the driver (1 s on most).", "mW", True),
        Column("power_instant_mw", "i64", "Power at the instant.", "mW", True),
        Column("energy_mj", "i64", "Energy since the driver was loaded.", "mJ", True),
        Column("power_limit_mw", "i64", "Limit being enforced.", "mW", True),
        Column("power_limit_default_mw", "i64", "Limit by default.", "mW", True),
        Column("power_limit_requested_mw", "i64", "Limit that was asked for.", "mW", True),
        Column("sm_clock_mhz", "i64", "SM clock.", "MHz", True),
        Column("memory_clock_mhz", "i64", "Memory clock, about once a second.", "MHz", True),
        Column("sm_clock_max_mhz", "i64", "Highest SM clock of this GPU.", "MHz", True),
        Column("clock_reasons", "i64", "Bit mask of clock-event (throttle) reasons.", None, True),
        Column("temperature_celsius", "i64", "Temperature, about once a second.", "degC", True),
        _bytes("memory_used_bytes", "Device memory in use, about once a second."),
        _bytes("memory_total_bytes", "Device memory in all, about once a second."),
        Column("pcie_tx_bytes_per_s", "f64", "PCIe, device to host.", "bytes/s", True),
        Column("pcie_rx_bytes_per_s", "f64", "PCIe, host to device.", "bytes/s", True),
        Column("nvlink_tx_bytes_per_s", "f64", "NVLink sent.", "bytes/s", True),
        Column("nvlink_rx_bytes_per_s", "f64", "NVLink received.", "bytes/s", True),
        _int("pcie_link_gen", "PCIe generation at this moment.", True),
        _int("pcie_link_width", "PCIe lanes at this moment.", True),
        _pct("engine_active_pct", "Share of time with any engine activity."),
        _pct("sm_active_pct", "Share of SM-time with at least one warp."),
        _pct("sm_occupancy_pct", "Resident warps against the most possible."),
        _pct("tensor_active_pct", "Share of time the tensor pipes were active."),
        _pct("dram_active_pct", "Share of time the memory interface was active."),
        Column("n_context_switches", "i64", "Context-switch requests in the window.", None, True),
        _pct("context_switch_active_pct", "Share of time spent with switching active."),
    ),
    "time_ns",
)

GPU_INSTANCE_SAMPLE = Table(
    "gpu_instance_sample",
    "one sample of one MIG instance of a GPU by one source",
    (
        _TIME,
        _DEVICE,
        _text("source", "nvml, gpm or dcgm."),
        _int("gpu_instance", "Number of the GPU instance.", True),
        _text("instance_uuid", "UUID of the MIG device.", True),
        _time("period_ns", "Window that shares average over.", nullable=True),
        _bytes("memory_used_bytes", "Memory of the instance in use."),
        _bytes("memory_total_bytes", "Memory of the instance in all."),
        _pct("engine_active_pct", "Share of time with any engine activity."),
        _pct("sm_active_pct", "Share of the instance's SM-time with at least one warp."),
        _pct("sm_occupancy_pct", "Resident warps against the most possible."),
        _pct("tensor_active_pct", "Share of time the tensor pipes were active."),
        _pct("dram_active_pct", "Share of time the memory interface was active."),
    ),
    "time_ns",
)

GPU_PROCESS = Table(
    "gpu_process",
    "one process with a context on one GPU at one sample",
    (
        _TIME,
        _DEVICE,
        _PID,
        _text("type", "C compute, M+C compute through MPS, G graphics.", True),
        _bytes("memory_bytes", "Device memory of the process."),
        _pct("sm_util_pct", "SM share that the driver ascribes to the process."),
        _pct("memory_util_pct", "Memory share that the driver ascribes to the process."),
        _text("name", "Process name from /proc.", True),
        _text("container", "Container id from its cgroup.", True),
        _CONTAINER_NAME,
        Column("is_target", "bool", "Whether it belongs to the recorded tree."),
    ),
    "time_ns",
)

PROCESS_SAMPLE = Table(
    "process_sample",
    "one target process at one sample",
    (
        _TIME,
        _PID,
        _text("name", "Process name.", True),
        _bytes("rss_bytes", "Resident memory."),
        _bytes("rss_anon_bytes", "Resident anonymous memory."),
        _bytes("rss_file_bytes", "Resident file pages."),
        _bytes("rss_shmem_bytes", "Resident shared memory."),
        _bytes("swap_bytes", "Swapped out."),
        _time("cpu_user_ns", "User CPU time since its start.", nullable=True),
        _time("cpu_system_ns", "System CPU time since its start.", nullable=True),
        _int("n_threads", "Threads.", True),
        _int("n_minor_faults", "Minor faults since its start.", True, "i64"),
        _int("n_major_faults", "Major faults since its start.", True, "i64"),
        _int("n_fds", "Open files.", True),
        _bytes("read_bytes", "Bytes read from storage since its start."),
        _bytes("write_bytes", "Bytes written to storage since its start."),
        _int("n_cpus_allowed", "CPUs in its affinity mask.", True),
        _text("cpus_allowed", "The mask as a list, e.g. 0-3,8.", True),
        _int("numa_node", "NUMA node of the CPU that its main thread ran on last.", True),
        _text("container", "Container id from its cgroup.", True),
        _CONTAINER_NAME,
    ),
    "time_ns",
)

HOST_SAMPLE = Table(
    "host_sample",
    "the host, or one cgroup, at one sample",
    (
        _TIME,
        _text("scope", "'host', or the path of a cgroup."),
        _int("n_cpus", "CPUs online.", True),
        _time(
            "cpu_busy_ns", "CPU time used since boot (host) or creation (cgroup).", nullable=True
        ),
        _time("cpu_idle_ns", "CPU time idle since boot.", nullable=True),
        _time("cpu_iowait_ns", "CPU time in iowait since boot.", nullable=True),
        _time("cpu_steal_ns", "CPU time stolen by the hypervisor since boot.", nullable=True),
        _time(
            "cpu_deep_idle_ns",
            "CPU time since boot in idle states that take 50 µs or longer to wake from.",
            nullable=True,
        ),
        _int("n_deep_idles", "Times that a CPU entered such a state since boot.", True, "i64"),
        Column("load1", "f64", "Load average over a minute.", None, True),
        _int("n_runnable", "Runnable tasks.", True),
        _time("cpu_some_ns", "PSI: some task waited for a CPU, cumulative.", nullable=True),
        _time("memory_some_ns", "PSI: some task waited for memory, cumulative.", nullable=True),
        _time("memory_full_ns", "PSI: all tasks waited for memory, cumulative.", nullable=True),
        _time("io_some_ns", "PSI: some task waited for I/O, cumulative.", nullable=True),
        _time("io_full_ns", "PSI: all tasks waited for I/O, cumulative.", nullable=True),
        _bytes("memory_available_bytes", "Memory available without swapping."),
        _bytes("memory_total_bytes", "Memory in all, or the limit of the cgroup."),
        _bytes("memory_used_bytes", "Memory used by the cgroup."),
        _bytes("swap_used_bytes", "Swap in use."),
        _int("n_swap_in_pages", "Pages swapped in since boot.", True, "i64"),
        _int("n_swap_out_pages", "Pages swapped out since boot.", True, "i64"),
        _int("n_major_faults", "Major faults since boot or creation.", True, "i64"),
        _time("cpu_quota_ns", "CFS quota per period; null without a quota.", nullable=True),
        _time("cpu_period_ns", "CFS period.", nullable=True),
        _int("n_cpu_periods", "CFS periods elapsed, cumulative.", True, "i64"),
        _int("n_cpu_throttled", "CFS periods throttled, cumulative.", True, "i64"),
        _time("cpu_throttled_ns", "Time throttled, cumulative.", nullable=True),
    ),
    "time_ns",
)

ENGINE_SAMPLE = Table(
    "engine_sample",
    "one metric of an inference engine at one scrape",
    (
        _time("time_ns", "Middle of the scrape."),
        _text("endpoint", "URL scraped."),
        _text("engine", "vllm, sglang, tgi, tensorrt_llm, triton, llama_cpp or unknown."),
        _text("metric", "Name in the common vocabulary (probes/engine/names.py)."),
        _text("raw_name", "Name as exposed."),
        _text("labels", "Labels kept, as sorted JSON; includes the rank where exposed.", True),
        _text("kind", "gauge, counter, sum, count or bucket."),
        Column("upper_bound", "f64", "Upper bound of a histogram bucket.", None, True),
        Column("value", "f64", "Value; counters and buckets are cumulative.", None, True),
        _time("scrape_ns", "Time the scrape took.", nullable=True),
        Column(
            "is_lagging",
            "bool",
            "Moves only when a request finishes, so it lags by a whole request.",
            nullable=True,
        ),
    ),
    "time_ns",
)

REQUEST = Table(
    "request",
    "one request seen from the client (canary) or read from a serving log",
    (
        _START,
        _time("duration_ns", "Until the last token or the error.", nullable=True),
        _text(
            "source",
            "canary, canary_control (the endpoint it is compared with) or the imported log's "
            "format.",
        ),
        _text("endpoint", "Where it was sent.", True),
        _time("queue_ns", "Waiting before the first step.", nullable=True),
        _time("ttft_ns", "Time to first token.", nullable=True),
        _time("inter_token_ns", "Mean time between tokens after the first.", nullable=True),
        _int("n_prompt_tokens", "Tokens of the prompt.", True),
        _int("n_output_tokens", "Tokens produced.", True),
        _text("end", "stop, length, abort, error or timeout.", True),
    ),
    "start_ns",
)

EVENT = Table(
    "event",
    "one thing that happened: fork, exec, exit, library, module load, Xid, mark, source lost",
    (
        _TIME,
        _text(
            "kind",
            "device_times (complete for this process over this length), "
            "fork, exec, exit, restart, library, xid, gc, mark, trigger, source_lost, "
            "source_recovered, suspend, clock_step, coverage, shed or other.",
        ),
        _int("pid", "Process it concerns.", True),
        _int("tid", "Thread it concerns.", True),
        _int("parent_pid", "Parent process of a fork.", True),
        _time("duration_ns", "Length, for events that have one.", nullable=True),
        _text("name", "Process name, library path, source or mark."),
        _text("detail", "One sentence for the reader.", True),
    ),
    "time_ns",
)

LOSS = Table(
    "loss",
    "records dropped by one source over one interval",
    (
        _time("time_ns", "When the loss was counted."),
        _time("start_ns", "Begin of the interval it happened in.", nullable=True),
        _text("source", "Probe that lost them."),
        _text("reason", "ring_full, map_full, return_missed, fork_gap, bad_record, ..."),
        _int("n_lost", "Records lost.", type="i64"),
        _int("pid", "Process concerned.", True),
        _int("tid", "Thread concerned.", True),
        _text("function", "Function concerned.", True),
        _text("detail", "What it means for the verdict.", True),
    ),
    "time_ns",
)

CLOCK_ANCHOR = Table(
    "clock_anchor",
    "one simultaneous reading of the clocks",
    (
        _time("time_ns", "CLOCK_MONOTONIC."),
        _time("realtime_ns", "CLOCK_REALTIME."),
        _time("boottime_ns", "CLOCK_BOOTTIME."),
        _time("error_ns", "Bound on how far apart the readings were."),
    ),
    "time_ns",
)

OPERATION = Table(
    "operation",
    "one operation of one worker in one step of a training job, from its operation log",
    (
        _time("start_ns", "Begin; steps of a log without absolute times are laid end to end."),
        _DURATION,
        _int("rank", "Global rank of the worker."),
        _int("dp_rank", "Data-parallel rank.", True),
        _int("stage", "Pipeline stage.", True),
        _int("tp_rank", "Tensor-parallel rank.", True),
        _int("step", "Training step as numbered by the job.", type="i64"),
        _text("name", "Kind of operation as logged, e.g. forward-compute or grads-reduce-scatter."),
        _int("microbatch", "Microbatch it belongs to.", True),
        _int("model_chunk", "Chunk of the model on this stage (interleaved pipeline).", True),
        _int("sequence", "Position among the operations of its kind, rank and step.", True),
        Column("is_compute", "bool", "Computes; neither this nor communication: e.g. gc."),
        Column("is_communication", "bool", "Exchanges data with other ranks."),
    ),
    "start_ns",
    command="tracer import TRACE.parquet",
)

CALL_SECOND = Table(
    "call_second",
    "the calls of one function by one thread that began in one second; rows of the same second, "
    "thread and function add up",
    (
        _time("start_ns", "Begin of the second, CLOCK_MONOTONIC."),
        _DURATION,
        _PID,
        _TID,
        _FUNCTION,
        _LAYER,
        _KIND,
        _int("depth", "As in cuda_call.", type="i16"),
        _int("n_calls", "Calls, exact.", type="i64"),
        _int("n_returned", "Those whose return was seen.", type="i64"),
        _time("total_ns", "Sum of their lengths.", nullable=True),
        _time("max_ns", "Longest of them.", nullable=True),
        _bytes("size_bytes", "Sum of bytes copied, set, allocated or exchanged."),
    ),
    "start_ns",
    command="tracer record --pid PID --keep 15m",
)

CALL_HISTOGRAM = Table(
    "call_histogram",
    "the outermost calls of one function by one process that began in one span of ten seconds and "
    "whose lengths lie in one range; rows of the same span, function and range add up",
    (
        _time("start_ns", "Begin of the span, CLOCK_MONOTONIC."),
        _DURATION,
        _PID,
        _FUNCTION,
        _KIND,
        _time("lower_ns", "Shortest length in the range."),
        _time("upper_ns", "The range ends before this length; at most 10 % above the shortest."),
        _int("n_calls", "Calls, exact.", type="i64"),
    ),
    "start_ns",
    command="tracer record --pid PID --keep 15m",
)

OFFCPU_SECOND = Table(
    "offcpu_second",
    "the intervals off the CPU of one launching thread that began in one second and left in one "
    "state; rows of the same second, thread and state add up",
    (
        _time("start_ns", "Begin of the second, CLOCK_MONOTONIC."),
        _DURATION,
        _PID,
        _TID,
        _text("state", "As in offcpu.", True),
        _int("n_intervals", "Intervals, exact.", type="i64"),
        _time("total_ns", "Sum of their lengths."),
        _time("runnable_ns", "Part of it ready to run but waiting for a CPU.", nullable=True),
        _time("max_ns", "Longest of them."),
    ),
    "start_ns",
    command="tracer record --pid PID --keep 15m",
)

#: Every table, sorted by name. Keep this list sorted.
TABLES: tuple[Table, ...] = (
    ANNOTATION,
    CALL_HISTOGRAM,
    CALL_SECOND,
    CLOCK_ANCHOR,
    CUDA_CALL,
    ENGINE_SAMPLE,
    EVENT,
    GPU_ACTIVITY,
    GPU_INSTANCE_SAMPLE,
    GPU_PROCESS,
    GPU_SAMPLE,
    HOST_SAMPLE,
    KERNEL_FUNCTION,
    LOSS,
    MEMORY_OPERATION,
    MPS_CLIENT,
    OFFCPU,
    OFFCPU_SECOND,
    OPEN_CALL,
    OPERATION,
    PROCESS_SAMPLE,
    REQUEST,
    THREAD_SECOND,
)


def table(name: str) -> Table:
    """Return the declaration of one table.

    Raises:
        KeyError: there is no such table.
    """
    for declared in TABLES:
        if declared.name == name:
            return declared
    raise KeyError(f"no table {name}")


#: C type and NumPy code of a record's field.
_RECORD_TYPES = {
    "u8": ("unsigned char", "u1", 1),
    "u16": ("unsigned short", "u2", 2),
    "u32": ("unsigned int", "u4", 4),
    "i32": ("int", "i4", 4),
    "u64": ("unsigned long long", "u8", 8),
    "i64": ("long long", "i8", 8),
}


@dataclass(frozen=True)
class RecordField:
    """One field of a kernel record; ``count`` > 1 makes an array, ``char16`` a task name."""

    name: str
    type: str
    doc: str
    count: int = 1


@dataclass(frozen=True)
class Record:
    """One fixed-size record of a BPF program: C struct and NumPy dtype from one declaration.

    Raises:
        SchemaError: a field is not aligned to its size, or the size is no multiple of 8.
    """

    name: str
    doc: str
    fields: tuple[RecordField, ...]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        offset = 0
        for item in self.fields:
            width = 1 if item.type == "char" else _RECORD_TYPES[item.type][2]
            if offset % width:
                raise SchemaError(f"field {self.name}.{item.name} is not aligned to {width} bytes")
            offset += width * item.count
        if offset % 8:
            raise SchemaError(f"record {self.name} is {offset} bytes: not a multiple of 8")
        object.__setattr__(self, "size", offset)

    def c_struct(self) -> str:
        """C declaration of the struct, with its size asserted."""
        lines = [f"struct {self.name} {{"]
        for item in self.fields:
            c_type = "char" if item.type == "char" else _RECORD_TYPES[item.type][0]
            suffix = f"[{item.count}]" if item.count > 1 else ""
            lines.append(f"    {c_type} {item.name}{suffix}; /* {item.doc} */")
        lines.append("};")
        lines.append(
            f'_Static_assert(sizeof(struct {self.name}) == {self.size}, "{self.name} size");'
        )
        return "\n".join(lines)

    def numpy_dtype(self) -> np.dtype[np.void]:
        """NumPy structured dtype with the same layout."""
        import numpy as np

        spec: list[tuple[str, str] | tuple[str, str, tuple[int, ...]]] = []
        for item in self.fields:
            if item.type == "char":
                spec.append((item.name, f"S{item.count}"))
                continue
            code = _RECORD_TYPES[item.type][1]
            if item.count > 1:
                spec.append((item.name, code, (item.count,)))
            else:
                spec.append((item.name, code))
        dtype = np.dtype(spec)
        if dtype.itemsize != self.size:
            raise SchemaError(f"record {self.name}: NumPy size {dtype.itemsize} != {self.size}")
        return dtype


#: Words of arguments in an entry record; what each means is declared per function.
N_CALL_WORDS = 6

CALL_ENTRY = Record(
    "call_entry",
    "A traced function was entered.",
    (
        RecordField("time_ns", "u64", "CLOCK_MONOTONIC"),
        RecordField("pid_tgid", "u64", "tgid << 32 | tid, host namespace"),
        RecordField("function", "u16", "index of the exported symbol (attach cookie)"),
        RecordField("depth", "u16", "enclosing traced calls; see probes/cuda/program.py for flags"),
        RecordField("sequence", "u32", "per-thread sequence number over entries and returns"),
        RecordField("words", "u64", "argument words of the function's shape", N_CALL_WORDS),
    ),
)

CALL_RETURN = Record(
    "call_return",
    "A traced function returned.",
    (
        RecordField("time_ns", "u64", "CLOCK_MONOTONIC"),
        RecordField("pid_tgid", "u64", "tgid << 32 | tid, host namespace"),
        RecordField("function", "u16", "index of the exported symbol (attach cookie)"),
        RecordField("depth", "u16", "enclosing traced calls; see probes/cuda/program.py for flags"),
        RecordField("sequence", "u32", "per-thread sequence number over entries and returns"),
        RecordField("result", "i64", "return value"),
    ),
)

COLLECTION_RECORD = Record(
    "collection_record",
    "An interpreter ended a garbage collection.",
    (
        RecordField("start_ns", "u64", "when it began"),
        RecordField("end_ns", "u64", "when it ended"),
        RecordField("pid_tgid", "u64", "tgid << 32 | tid of the thread that collected"),
    ),
)

OFFCPU_RECORD = Record(
    "offcpu_record",
    "A launching thread came back on a CPU.",
    (
        RecordField("start_ns", "u64", "when it left the CPU"),
        RecordField("end_ns", "u64", "when it came back"),
        RecordField("wake_ns", "u64", "when it was woken, 0 if it was not"),
        RecordField("pid_tgid", "u64", "tgid << 32 | tid of the thread"),
        RecordField("state", "u32", "task state bits on leaving"),
        RecordField("cpu_from", "u32", "CPU it left"),
        RecordField("cpu_to", "u32", "CPU it came back on"),
        RecordField("taker_tid", "u32", "task that got the CPU when it left"),
        RecordField("occupant_pid_tgid", "u64", "task that held the CPU until it came back"),
        RecordField("waker_pid_tgid", "u64", "task that woke it, 0 if none"),
        RecordField("futex", "u64", "address of the futex it slept on, 0 if none"),
        RecordField("taker_name", "char", "name of the taker", 16),
        RecordField("occupant_name", "char", "name of the occupant", 16),
        RecordField("waker_name", "char", "name of the waker", 16),
    ),
)

PROCESS_RECORD = Record(
    "process_record",
    "A target process forked, called exec or ended.",
    (
        RecordField("time_ns", "u64", "CLOCK_MONOTONIC"),
        RecordField("pid_tgid", "u64", "task that caused it"),
        RecordField("kind", "u32", "1 fork, 2 exec, 3 exit"),
        RecordField("child_pid", "u32", "process created by a fork"),
        RecordField("name", "char", "task name", 16),
    ),
)

#: Every record a BPF program may send, sorted by name. Keep this list sorted.
RECORDS: tuple[Record, ...] = (
    *(CALL_ENTRY, CALL_RETURN, COLLECTION_RECORD),
    *(OFFCPU_RECORD, PROCESS_RECORD),
)
