"""Proof of coverage: the launch functions a process can call, against those probed and hit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from probes.cuda.functions import Function, by_symbol
from probes.cuda.libraries import JUMPS, LAUNCH_KINDS, Library

_LAYERS = ("runtime", "driver")


@dataclass(frozen=True)
class LaunchCoverage:
    """Launch functions of one process, for the manifest; all sorted.

    Attributes:
        imported: Imported by its libraries, as the function that a jump ends in.
        probed: Probed in its libraries, with their hits (None when not counted).
        missing: Imported and not probed, or not even declared.
        problems: Sentences for the reader, each a fact and what follows of it.
    """

    imported: tuple[str, ...]
    probed: Mapping[str, int | None]
    missing: tuple[str, ...]
    problems: tuple[str, ...]


def coverage(
    libraries: Iterable[Library],
    hits: Mapping[tuple[str, str], int | None],
    symbols: Mapping[str, Function] = by_symbol,
) -> LaunchCoverage:
    """Return what launches of a process can be seen, and what can not.

    Args:
        libraries: Libraries of the process as scanned.
        hits: Calls counted by (device_inode, symbol) for each function probed; None where hits
            are not counted.
        symbols: Declared functions by exported name.
    """
    libraries = list(libraries)
    problems = [library.problem for library in libraries if library.problem]
    holders = [library for library in libraries if library.file.functions]
    hidden = [library for library in libraries if library.file.has_hidden_runtime]
    imported: set[str] = set()
    unknown: dict[str, str] = {}
    for library in libraries:
        imported |= {
            JUMPS.get(name, name)
            for name in library.file.imports
            if symbols[JUMPS.get(name, name)].kind in LAUNCH_KINDS
        }
        unknown.update(dict.fromkeys(library.file.unknown_launches, library.path))
    counted: dict[str, list[int | None]] = {}
    for library in holders:
        for name in library.file.functions:
            place = (library.device_inode, name)
            if place in hits and symbols[name].kind in LAUNCH_KINDS:
                counted.setdefault(name, []).append(hits[place])
    probed = {name: _sum(counted[name]) for name in sorted(counted)}
    missing = sorted({name for name in imported if name not in probed} | set(unknown))
    if not holders and not hidden:
        problems.append(
            "No libcudart or libcuda is mapped: it is not a CUDA process, or not yet; it is "
            "looked at again while recording."
        )
    problems += [
        f"{path} calls {name}, which this tracer does not know: launches through it are missed."
        for name, path in sorted(unknown.items())
    ]
    if holders and missing:
        gone = [name for name in missing if name not in unknown]
        if gone:
            problems.append(
                f"Imported but not probed: {', '.join(gone)}; launches through "
                f"{'it' if len(gone) == 1 else 'them'} are missed."
            )
    problems += [
        f"The CUDA runtime in {library.path} is static and stripped: of its launches only the "
        "driver calls are seen."
        for library in hidden
    ]
    problems += _contradictions(probed, symbols)
    return LaunchCoverage(tuple(sorted(imported)), probed, tuple(missing), tuple(problems))


def _contradictions(probed: Mapping[str, int | None], symbols: Mapping[str, Function]) -> list[str]:
    """What the hits of the layers say against each other."""
    totals = {
        layer: _sum([n for name, n in probed.items() if symbols[name].layer == layer])
        for layer in _LAYERS
        if any(symbols[name].layer == layer for name in probed)
    }
    runtime, driver = totals.get("runtime"), totals.get("driver")
    if runtime == 0 and driver:
        return [
            f"The driver saw {driver} launches, the runtime none: either all launches go straight "
            "to the driver (Triton, TensorRT), or the runtime in use is one that was not found."
        ]
    if runtime and driver == 0:
        return [
            f"The runtime saw {runtime} launches, the driver none: it reaches the driver through "
            "entry points that are not probed; only runtime calls are seen."
        ]
    if totals and all(total == 0 for total in totals.values()):
        return [
            "No launch was seen: the process is idle, or launches through a function that is not "
            "probed; compare with the GPU's utilisation."
        ]
    return []


def _sum(counts: Iterable[int | None]) -> int | None:
    """Sum of the known counts; None when none is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
