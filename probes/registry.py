"""Every probe, in the order in which a recording starts them.

A new probe is one function and one line in :data:`PROBES`. The modules are imported when a probe is
built, so that a recording loads only what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from probes.clocks import ClockAnchors
from probes.gpu.contexts import ContextBoard
from probes.probe import Probe
from probes.targets import TargetTree

if TYPE_CHECKING:
    from probes.cuda.calls import CudaCalls
    from probes.cuda.loading import ModuleLoading
    from probes.cupti.probe import CuptiOptions


#: What names NVIDIA's command as the source of DCGM's values, beside the URL of an exporter.
DCGMI = "dcgmi"


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
        dcgm: ``dcgmi``, or the URL of a dcgm-exporter; None to leave DCGM alone.
        cupti: When to collect device times, and how; None to collect none.
        loading: The BPF module, if its compilation was begun already.
        budget_share: CPU time that probing calls may add, as a share of the CPU time of the
            launching threads; None for no budget.
    """

    tree: TargetTree
    anchors: ClockAnchors
    engine_urls: tuple[str, ...] = ()
    contexts: ContextBoard = field(default_factory=ContextBoard)
    canary: CanaryOptions | None = None
    dcgm: str | None = None
    cupti: CuptiOptions | None = None
    loading: ModuleLoading | None = None
    budget_share: float | None = None

    @cached_property
    def calls(self) -> CudaCalls:
        """The probe of CUDA calls of this recording, which others look at."""
        from probes.cuda.calls import CudaCalls

        return CudaCalls(self.tree, loading=self.loading, budget_share=self.budget_share)


def _canary(options: ProbeOptions) -> Probe | None:
    if options.canary is None:
        return None
    from probes.engine.canary import CanaryProbe

    return CanaryProbe(options.canary.url, options.canary.model, options.canary.against)


def _cuda(options: ProbeOptions) -> Probe:
    return options.calls


def _dcgm(options: ProbeOptions) -> Probe | None:
    if options.dcgm is None:
        return None
    from probes.gpu.dcgm import DcgmProbe

    return DcgmProbe(None if options.dcgm == DCGMI else options.dcgm)


def _cupti(options: ProbeOptions) -> Probe | None:
    if options.cupti is None:
        return None
    from probes.cupti.probe import CuptiProbe

    return CuptiProbe(options.tree, options.cupti)


def _engine(options: ProbeOptions) -> Probe:
    from probes.engine.scrape import EngineProbe

    return EngineProbe(options.tree, options.engine_urls)


def _host(options: ProbeOptions) -> Probe:
    from probes.host.host import HostProbe

    return HostProbe(options.tree)


def _interpreter(options: ProbeOptions) -> Probe:
    from probes.scheduler.collector import GarbageCollections

    return GarbageCollections(options.calls, options.tree)


def _kernel_log(_: ProbeOptions) -> Probe:
    from probes.host.kernel_log import KernelLogProbe

    return KernelLogProbe()


def _mps(options: ProbeOptions) -> Probe:
    from probes.mps.probe import MpsProbe

    return MpsProbe(options.contexts, options.tree)


def _nvml(options: ProbeOptions) -> Probe:
    from probes.gpu.nvml import NvmlProbe

    return NvmlProbe(
        options.tree, to_monotonic=options.anchors.map_received, contexts=options.contexts
    )


def _offcpu(options: ProbeOptions) -> Probe:
    from probes.scheduler.offcpu import OffCpu

    return OffCpu(options.calls)


def _process(options: ProbeOptions) -> Probe:
    from probes.host.process import ProcessProbe

    return ProcessProbe(options.tree)


def _thread(options: ProbeOptions) -> Probe:
    from probes.host.threads import ThreadProbe

    return ThreadProbe(options.tree, is_launcher=options.calls.is_launcher)


#: Name and builder of every probe; None is built where nothing asks for it. Keep it sorted.
PROBES: tuple[tuple[str, Callable[[ProbeOptions], Probe | None]], ...] = (
    ("canary", _canary),
    ("cuda", _cuda),
    ("cupti", _cupti),
    ("dcgm", _dcgm),
    ("engine", _engine),
    ("host", _host),
    ("interpreter", _interpreter),
    ("kernel_log", _kernel_log),
    ("mps", _mps),
    ("nvml", _nvml),
    ("offcpu", _offcpu),
    ("process", _process),
    ("thread", _thread),
)


#: Probes that run only beside another one.
_BESIDE = {"interpreter": "cuda", "offcpu": "cuda", "mps": "nvml"}
#: Probes that tell on the side why a launching thread did not launch, wherever another runs.
_ALONG = {"offcpu": "interpreter"}
#: Tables that most probes deliver on the side; wanting them turns on nothing.
_ASIDE = frozenset({"event", "loss"})


def build_probes(options: ProbeOptions, tables: Collection[str] | None = None) -> list[Probe]:
    """Return the probes of a recording, not yet started.

    Args:
        options: What they need to know.
        tables: Only those that deliver at least one of these tables; None for all.
    """
    built = {name: build(options) for name, build in PROBES}
    wanted = set(built) if tables is None else _wanted(built, tables)
    return [probe for name, probe in built.items() if probe is not None and name in wanted]


def _wanted(built: Mapping[str, Probe | None], tables: Collection[str]) -> set[str]:
    """Names of the probes that deliver some tables, and of those that they run beside."""
    wanted = {
        name
        for name, probe in built.items()
        if probe is not None
        and any(table.name in tables and table.name not in _ASIDE for table in probe.tables)
    }
    wanted |= {_ALONG[name] for name in wanted if name in _ALONG}
    return wanted | {_BESIDE[name] for name in wanted if name in _BESIDE}
