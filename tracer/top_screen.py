"""What ``tracer top`` shows: a screen on a terminal, one line a second in a pipe."""

from __future__ import annotations

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from analysis.causes import cause as declaration
from analysis.finding import Status
from analysis.live import BudgetLook, Look, Neighbour, ServiceLook
from analysis.report.terminal import BLOCKS
from analysis.report.words import STATE_TEXT, duration_text
from tracer.plain_text import plain_line

#: Colour of each state; the letters say the same without.
_COLOURS = {
    "hung": "red",
    "other_process": "magenta",
    "compute": "green",
    "collective": "cyan",
    "copy": "blue",
    "idle": "yellow",
    "unknown": "white",
}


def screen(look: Look | None, title: str, now_ns: int) -> Panel:
    """Return the screen; ``look`` is None while there is too little to say."""
    if look is None:
        return Panel(Text("Recording the first seconds ..."), title=_line(title))
    parts = (_verdict(look), _budgets(look), _figures(look), _neighbours(look.neighbours))
    age = (now_ns - look.end_ns) / 1e9
    span = (look.end_ns - look.start_ns) / 1e9
    foot = f"last {span:.0f} s, as of {age:.0f} s ago; Ctrl-C ends it"
    if look.n_lost:
        foot = f"{look.n_lost:,} records lost; {foot}"
    notes = [_line(f"without {item.name}: {item.note}", "dim") for item in look.missing]
    return Panel(Group(*parts, *notes), title=_line(title), subtitle=_line(foot))


def line(look: Look | None, elapsed_ns: int) -> str:
    """Return one look as one line."""
    clock = f"{elapsed_ns // 60_000_000_000:02d}:{elapsed_ns // 1_000_000_000 % 60:02d}"
    if look is None:
        return f"{clock} recording the first seconds"
    parts = [f"{clock} {_sure(look)}"]
    for budget in look.budgets:
        name = "" if budget.device is None else f"GPU {budget.device} "
        parts.append(name + _shares(budget))
    parts += [_launches(look), *_devices(look)]
    if look.service is not None:
        parts.append(_service(look.service))
    parts += [_neighbour(item) for item in look.neighbours[:2]]
    if look.n_lost:
        parts.append(f"lost {look.n_lost:,}")
    if look.is_simulated:
        parts.append("simulated device")
    return plain_line(" | ".join(part for part in parts if part))


def _line(text: str, style: str = "") -> Text:
    """One line of text that may hold what a stranger wrote."""
    return Text(plain_line(text), style=style)


def _sure(look: Look) -> str:
    verdict = look.verdict
    return f"{verdict.cause} ({100 * verdict.confidence:.0f} % sure)"


def _verdict(look: Look) -> Group:
    verdict = look.verdict
    is_fine = verdict.cause in ("healthy", "no_demand")
    colour = "green" if is_fine else "red" if verdict.status is Status.FOUND else "yellow"
    label = "  [simulated device]" if look.is_simulated else ""
    head = f"{verdict.cause.upper()}: {declaration(verdict.cause).title} "
    sure = f"({100 * verdict.confidence:.0f} % sure){label}"
    return Group(_line(head + sure, f"bold {colour}"), _line(verdict.text), Text(""))


def _budgets(look: Look) -> Table:
    table = Table.grid(padding=(0, 2))
    for budget in look.budgets:
        name = "device" if budget.device is None else f"GPU {budget.device}"
        bar = Text("|")
        for state in budget.leading:
            bar.append(BLOCKS[state], style=_COLOURS[state])
        bar.append("|")
        table.add_row(Text(name), bar, _line(_shares(budget)))
    return table


def _shares(budget: BudgetLook) -> str:
    shares = sorted(budget.shares.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{100 * share:.0f} % {STATE_TEXT[state]}" for state, share in shares if share >= 0.005
    )


def _figures(look: Look) -> Table:
    table = Table.grid(padding=(0, 2))
    rows = {
        "launches": _launches(look),
        "devices": "; ".join(_devices(look)),
        "service": "" if look.service is None else _service(look.service),
    }
    for name, text in rows.items():
        if text:
            table.add_row(Text(name, style="bold"), _line(text))
    return table


def _launches(look: Look) -> str:
    launches = look.launches
    if launches is None:
        if any(item.name == "cuda" for item in look.missing):
            return "calls are not recorded"
        return "no call seen yet, probes may still be attaching"
    text = f"{launches.per_s:,.0f} launches/s"
    if launches.median is None or launches.tail is None or launches.longest_ns is None:
        return text
    tail = "" if launches.tail.is_maximum else f", p99 {duration_text(launches.tail.value)}"
    return (
        f"{text}, p50 {duration_text(launches.median.value)}{tail}, "
        f"max {duration_text(launches.longest_ns)} (n = {launches.median.n:,})"
    )


def _devices(look: Look) -> list[str]:
    found = []
    for device in look.devices:
        parts = []
        if device.util_pct is not None:
            parts.append(f"{device.util_pct:.0f} % utilised")
        if device.power_mw is not None:
            parts.append(f"{device.power_mw / 1000:.0f} W")
        if device.sm_clock_mhz is not None:
            parts.append(f"{device.sm_clock_mhz} MHz")
        if device.memory_used_bytes is not None:
            parts.append(f"{device.memory_used_bytes / (1 << 30):.1f} GiB")
        if parts:
            found.append(f"GPU {device.index} {', '.join(parts)}")
    return found


def _service(service: ServiceLook) -> str:
    parts = []
    if service.running is not None:
        parts.append(f"{service.running:.0f} running")
    if service.waiting is not None:
        parts.append(f"{service.waiting:.0f} waiting")
    if service.tokens_per_s is not None:
        parts.append(f"{service.tokens_per_s:,.0f} tokens/s")
    if service.ttft_s is not None:
        parts.append(f"first token {duration_text(1e9 * service.ttft_s)}")
    if service.inter_token_s is not None:
        parts.append(f"between tokens {duration_text(1e9 * service.inter_token_s)}")
    if service.kv_usage is not None:
        parts.append(f"KV {100 * service.kv_usage:.0f} %")
    return ", ".join(parts)


def _neighbours(neighbours: list[Neighbour]) -> Table:
    table = Table.grid(padding=(0, 2))
    for index, item in enumerate(neighbours):
        table.add_row(Text("" if index else "neighbours", style="bold"), _line(_neighbour(item)))
    return table


def _neighbour(item: Neighbour) -> str:
    more = f" and {item.n_more} more of that name" if item.n_more else ""
    pid = "" if item.pid is None else f" (pid {item.pid}{more})"
    if item.what == "CPU":
        return f"{item.name}{pid} held the launching thread's CPU {100 * (item.share or 0):.0f} %"
    share = "" if item.share is None else f", {100 * item.share:.0f} % of its SMs"
    return f"{item.name}{pid} on {item.what}{share}"
