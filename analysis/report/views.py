"""What is asked of a session most, as views of its DuckDB file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """One view.

    Attributes:
        name: Its name.
        row: What a row of it is.
        needs: Tables of the session that it reads; it is left out where one was not recorded.
        query: Its query.
    """

    name: str
    row: str
    needs: tuple[str, ...]
    query: str


#: Every view, sorted by name. ``session``, ``verdict``, ``finding`` and ``budget`` are tables of
#: each file, beside those that were recorded.
VIEWS: tuple[View, ...] = (
    View(
        "budget_state",
        "one state and reason of one device, with its length and share of the whole",
        (),
        "WITH spent AS (SELECT device, state, reason, sum(ns)::BIGINT AS ns FROM budget "
        "GROUP BY device, state, reason) "
        "SELECT *, ns / sum(ns) OVER (PARTITION BY device) AS share FROM spent "
        "ORDER BY device, ns DESC",
    ),
    View(
        "cpu_wait",
        "one task that had the CPU while a launching thread was ready to run, and for how long",
        ("offcpu",),
        "WITH wait AS (SELECT *, occupant_tid IS NULL OR (occupant_tid = 0 AND state = 'running') "
        "AS by_taker FROM offcpu WHERE runnable_ns > 0) "
        "SELECT pid, tid, if(by_taker, taker_name, occupant_name) AS held_by, "
        "if(by_taker, taker_pid, occupant_pid) AS held_by_pid, count(*) AS n, "
        "sum(runnable_ns)::BIGINT AS waited_ns FROM wait "
        "GROUP BY pid, tid, held_by, held_by_pid ORDER BY waited_ns DESC",
    ),
    View(
        "gpu_second",
        "one GPU over one second of the recording, the means of its samples",
        ("gpu_sample",),
        "SELECT (time_ns - origin_ns) // 1000000000 AS second, device, "
        "avg(util_pct) AS util_pct, avg(power_mw) AS power_mw, avg(sm_clock_mhz) AS sm_clock_mhz, "
        "avg(dram_active_pct) AS dram_active_pct "
        "FROM gpu_sample, (SELECT start_ns AS origin_ns FROM session) "
        "GROUP BY second, device ORDER BY second, device",
    ),
    View(
        "launch",
        "one launch of a kernel or graph, calls inside others left out",
        ("cuda_call",),
        "SELECT * FROM cuda_call WHERE kind IN ('launch', 'graph_launch') AND depth = 0",
    ),
    View(
        "launch_second",
        "the launches of one process over one second of the recording: number and lengths",
        ("cuda_call",),
        "SELECT (start_ns - origin_ns) // 1000000000 AS second, pid, "
        "count(*) AS n, quantile_disc(duration_ns, 0.5) AS p50_ns, "
        "quantile_disc(duration_ns, 0.99) AS p99_ns, max(duration_ns) AS max_ns "
        "FROM cuda_call, (SELECT start_ns AS origin_ns FROM session) "
        "WHERE kind IN ('launch', 'graph_launch') AND depth = 0 "
        "GROUP BY second, pid ORDER BY second, pid",
    ),
    View(
        "named_launch",
        "one launch of a kernel with the kernel's name where it is known",
        ("cuda_call", "kernel_function"),
        "SELECT call.*, named.name AS kernel_name FROM cuda_call AS call LEFT JOIN (SELECT pid, "
        "kernel, any_value(name) AS name FROM kernel_function GROUP BY pid, kernel) AS named "
        "USING (pid, kernel) WHERE call.kind = 'launch' AND call.depth = 0",
    ),
)
