"""What the tracer's BPF module is made of, and its compilation, begun as early as one likes.

Light to import (no NumPy, no Arrow): a recording begins the compilation before it loads the rest.
"""

from __future__ import annotations

from probes import attach, bpf
from probes.cuda import program

#: Sizes of the rings: at 500,000 calls/s the first two fill in 0.2 s. Each is mapped twice and
#: counts as the recorder's memory from the start.
ENTRY_BYTES = 8 << 20
RETURN_BYTES = 4 << 20
SIDE_BYTES = 1 << 18
WAKE_BYTES = 4096

#: Runs where a program's loader says that it maps or unmaps libraries.
LOADER_PROGRAM = "library_loaded"

#: Runs where an interpreter begins or ends a garbage collection.
COLLECTOR_PROGRAM = "collector_marker"

#: Program to the tracepoint that runs it.
TRACEPOINTS = {
    "process_fork": "task/task_newtask",
    "process_exec": "sched/sched_process_exec",
    "process_exit": "sched/sched_process_exit",
    "scheduler_switch": "sched/sched_switch",
    "scheduler_waking": "sched/sched_waking",
}
PROCESS_PROGRAMS = ("process_fork", "process_exec", "process_exit")
SCHEDULER_PROGRAMS = ("scheduler_switch", "scheduler_waking")

_MAPS = (
    "targets",
    "described",
    "entries",
    "returns",
    "processes",
    "offcpu",
    "collections",
    "wakes",
    "counters",
    "lost_entries",
    "lost_returns",
)


class ModuleLoading:
    """The BPF module of a recording, being compiled.

    Args:
        is_multi: Use ``uprobe_multi`` links; None to use them where the kernel has them.
        entry_bytes: Size of the ring of entries.
        return_bytes: Size of the ring of returns.
        side_bytes: Size of the rings of processes and off-CPU intervals.

    Raises:
        ProbeError: the programs cannot be loaded on this machine.
    """

    def __init__(
        self,
        is_multi: bool | None = None,
        entry_bytes: int = ENTRY_BYTES,
        return_bytes: int = RETURN_BYTES,
        side_bytes: int = SIDE_BYTES,
    ) -> None:
        self.entry_bytes = entry_bytes
        self.return_bytes = return_bytes
        self.side_bytes = side_bytes
        self.is_multi = attach.has_uprobe_multi() if is_multi is None else is_multi
        kind = "uprobe_multi" if self.is_multi else "kprobe"
        names = (
            *(program.ENTRY_PROGRAM, program.RETURN_PROGRAM),
            *(LOADER_PROGRAM, COLLECTOR_PROGRAM),
        )
        requests = [bpf.ProgramRequest(name, kind) for name in names]
        requests += [bpf.ProgramRequest(name, "tracepoint") for name in TRACEPOINTS]
        self._loading = bpf.Loading(
            program.source_text(entry_bytes, return_bytes, side_bytes),
            requests,
            _MAPS,
            sorted(set(TRACEPOINTS.values())),
            is_kept=True,
        )

    def result(self) -> bpf.Module:
        """Return the loaded module, once; waits until it is compiled.

        Raises:
            ProbeError: the programs cannot be compiled, or the kernel refuses them.
        """
        return self._loading.result()
