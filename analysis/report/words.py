"""The words of every report: states and reasons of the budget, lengths of time, and text that a
stranger wrote, made fit to be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from analysis.finding import Evidence, Finding

#: What each state of a device is called.
STATE_TEXT = {
    "hung": "hung",
    "other_process": "another process",
    "compute": "compute",
    "collective": "collective",
    "copy": "copy",
    "idle": "idle",
    "unknown": "idle or busy, not known",
}
#: What each reason of the budget is called.
REASON_TEXT = {
    "hung": "a kernel that does not end",
    "other_process": "another process had the device",
    "no_demand": "no demand",
    "throttled": "CPU quota",
    "cpu_delay": "launching thread waited for a CPU",
    "first_use": "first use of kernels",
    "prefill": "prefill",
    "other_rank": "another rank was late",
    "work": "work",
    "sync": "host had waited for the device",
    "input": "loading of input",
    "late_launch": "launches came too late",
    "interpreter": "waiting for the Python interpreter",
    "collector": "Python collecting garbage",
    "asleep": "launching thread asleep",
    "launching": "inside launches",
    "calling": "inside other CUDA calls",
    "host": "host computing between calls",
    "unknown": "for a reason not known",
}
#: What a budget rests on, by the table that tells it.
_BASIS_TEXT = {
    "gpu_activity": "device times",
    "cuda_call": "host's calls",
    "gpu_sample": "utilisation",
}

#: Control characters, bytes that were no text, and marks that turn the direction of writing.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def shown(text: object, limit: int = 300) -> str:
    """Return text that a stranger may have written as one readable line.

    Characters that would steer a terminal, a browser or the direction of writing are written as
    their code; a text longer than ``limit`` loses its middle, and says how much.
    """
    plain = str(text)
    if len(plain) > limit:
        head, tail = limit * 3 // 4, limit // 4
        n_left_out = len(plain) - head - tail
        plain = f"{plain[:head]} … {n_left_out:,} characters … {plain[-tail:]}"
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", plain)


def duration_unit(ns: float) -> tuple[float, str]:
    """Return the unit in which a person reads a length in ns: how many ns it has, and its name."""
    for limit, divisor, unit in ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if abs(ns) < limit:
            return divisor, unit
    return 1e9, "s"


def duration_text(ns: float) -> str:
    """Return a length in ns in a unit that a person reads."""
    divisor, unit = duration_unit(ns)
    return f"{ns / divisor:.4g} {unit}"


def basis_text(tables: Sequence[str]) -> str:
    """Return what a budget rests on, from the tables of its ``basis``."""
    if not tables:
        return "with nothing recorded that tells when it worked"
    *former, last = [_BASIS_TEXT[table] for table in tables]
    return f"from {', '.join(former)} and {last}" if former else f"from {last}"


def length_text(ns: float, decimals: int = 1) -> str:
    """Return a length in ns: in seconds to so many decimals, one under a second in its unit."""
    return f"{ns / 1e9:.{decimals}f} s" if ns >= 1e9 else duration_text(ns)


def evidence_text(item: Evidence) -> str:
    """Return one number of a finding with its unit, sample count and source."""
    value = item.value
    if isinstance(value, str):
        text = value
    elif item.unit == "ns":
        text = duration_text(float(value))
    else:
        text = f"{value:g} {item.unit}".rstrip()
    n = f" (n = {item.n})" if item.n is not None else ""
    source = f" [{item.source}]" if item.source else ""
    return f"{item.name.replace('_', ' ')}: {text}{n}{source}"


def place_text(finding: Finding) -> str:
    """Return where a finding applies; empty where that is not one place."""
    where = finding.where
    parts = []
    if where.pid is not None:
        name = f" ({where.process})" if where.process else ""
        parts.append(f"process {where.pid}{name}")
    if where.tid is not None:
        parts.append(f"thread {where.tid}")
    if where.device is not None:
        parts.append(f"device {where.device}")
    if where.rank is not None:
        parts.append(f"rank {where.rank}")
    if where.stage is not None:
        parts.append(f"pipeline stage {where.stage}")
    return ", ".join(parts)
