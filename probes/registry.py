"""Every probe, in the order in which a recording starts them.

A new probe is one function and one line in :data:`PROBES`. The modules are imported when a probe is
built, so that a recording loads only what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from probes.clocks import ClockAnchors
from probes.gpu.contexts import ContextBoard
from probes.probe import Probe
from probes.targets import TargetTree


@dataclass(frozen=True)
class CanaryOptions:
    """Where the canary asks: a service, its model, and an endpoint to compare with (or None)."""

    url: str
    model: str
    against: str | None = None


@dataclass(frozen=True)
class ProbeOptions:
    """What probes need to know about a recording.

    Attributes:
        tree: Processes that are recorded.
        anchors: Maps wall-clock times to monotonic.
        engine_urls: Metrics pages; empty to look for them among the target's ports.
        contexts: Where the probe of NVML leaves its lists for others.
        canary: What the canary asks; None for no canary.
    """

    tree: TargetTree
    anchors: ClockAnchors
    engine_urls: tuple[str, ...] = ()
    contexts: ContextBoard = field(default_factory=ContextBoard)
    canary: CanaryOptions | None = None


def _canary(options: ProbeOptions) -> Probe | None:
    if options.canary is None:
        return None
    from probes.engine.canary import CanaryProbe

    return CanaryProbe(options.canary.url, options.canary.model, options.canary.against)


def _cuda(options: ProbeOptions) -> Probe:
    from probes.cuda.calls import CudaCalls

    return CudaCalls(options.tree)


def _engine(options: ProbeOptions) -> Probe:
    from probes.engine.scrape import EngineProbe

    return EngineProbe(options.tree, options.engine_urls)


def _host(options: ProbeOptions) -> Probe:
    from probes.host.host import HostProbe

    return HostProbe(options.tree)


def _kernel_log(_: ProbeOptions) -> Probe:
    from probes.host.kernel_log import KernelLogProbe

    return KernelLogProbe()


def _mps(options: ProbeOptions) -> Probe:
    from probes.mps.probe import MpsProbe

    return MpsProbe(options.contexts, options.tree)


def _nvml(options: ProbeOptions) -> Probe:
    from probes.gpu.nvml import NvmlProbe

    return NvmlProbe(
        options.tree, to_monotonic=options.anchors.to_monotonic, contexts=options.contexts
    )


def _process(options: ProbeOptions) -> Probe:
    from probes.host.process import ProcessProbe

    return ProcessProbe(options.tree)


def _thread(options: ProbeOptions) -> Probe:
    from probes.host.threads import ThreadProbe

    return ThreadProbe(options.tree)


#: Name and builder of every probe; None is built where nothing asks for it. Keep it sorted.
PROBES: tuple[tuple[str, Callable[[ProbeOptions], Probe | None]], ...] = (
    ("canary", _canary),
    ("cuda", _cuda),
    ("engine", _engine),
    ("host", _host),
    ("kernel_log", _kernel_log),
    ("mps", _mps),
    ("nvml", _nvml),
    ("process", _process),
    ("thread", _thread),
)


def build_probes(options: ProbeOptions, tables: Collection[str] | None = None) -> list[Probe]:
    """Return the probes of a recording, not yet started.

    Args:
        options: What they need to know.
        tables: Only those that deliver at least one of these tables; None for all.
    """
    built = [build(options) for _, build in PROBES]
    probes = [probe for probe in built if probe is not None]
    if tables is None:
        return probes
    return [probe for probe in probes if {table.name for table in probe.tables} & set(tables)]
