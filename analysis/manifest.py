"""The manifest of a session: what was recorded, where, from which sources, and what was lost.

Written by the recorder and the importers, read by the analyzers. Standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import types
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from analysis.schema import FORMAT_VERSION

#: Name of the manifest's file inside a session directory.
FILE_NAME = "manifest.json"
#: A larger file is not read: the manifest of a session with 4,096 targets has 2 MB.
MAX_BYTES = 64 << 20
#: Times and counts beyond this (146 years in ns) are damage, and would overflow when added.
MAX_NUMBER = 1 << 62

_WORDS: dict[Any, str] = {
    int: "a whole number of up to 62 bits",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


class ManifestError(ValueError):
    """The manifest cannot be read; the text says why and what to do."""


@dataclass
class Gpu:
    """One GPU of the host, in the order of the ``device`` columns."""

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    power_limit_mw: int | None = None
    sm_clock_max_mhz: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None


@dataclass
class Target:
    """One process of the recorded tree. The command line is redacted before it gets here."""

    pid: int
    parent_pid: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    name: str | None = None
    command_line: str | None = None
    container: str | None = None
    cgroup: str | None = None


@dataclass
class ProbedFunction:
    """One function of one library file that was probed, and how often it was hit."""

    function: str
    layer: str
    library: str
    device_inode: str
    n_hits: int | None = None
    has_return: bool = True


@dataclass
class Source:
    """One probe or importer: its state, rate, rows, losses and cost.

    ``state`` is one of ok, degraded, unavailable, lost; ``note`` says why and what mends it.
    ``details`` holds JSON-able facts of the source (e.g. ``is_thinned`` of an imported recording).
    """

    name: str
    state: str
    tables: list[str] = field(default_factory=list)
    n_rows: int = 0
    n_lost: int = 0
    period_ns: int | None = None
    cost_ns: int | None = None
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Manifest:
    """Everything about a session that is not a row of a table.

    ``origin`` is ``record`` for live recordings, else the imported format (ingero, kineto, nsys,
    operations). ``is_simulated`` marks anything that came from the simulated device.
    ``end_ns`` is null while recording and after a crash. Times are CLOCK_MONOTONIC.
    """

    tool_version: str
    origin: str = "record"
    format_version: int = FORMAT_VERSION
    is_simulated: bool = False
    start_ns: int | None = None
    end_ns: int | None = None
    start_realtime_ns: int | None = None
    end_reason: str | None = None
    host: dict[str, Any] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    functions: list[ProbedFunction] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)

    def source(self, name: str) -> Source | None:
        """Return the source of that name, or None."""
        return next((source for source in self.sources if source.name == name), None)

    def to_json(self, is_brief: bool = False) -> str:
        """Return the manifest as JSON text.

        Args:
            is_brief: On one line, which costs a tenth: for one that is soon replaced.
        """
        return json.dumps(self, default=vars, indent=None if is_brief else 1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return the manifest of JSON text; unknown keys of newer versions are ignored.

        Raises:
            ManifestError: it is not a manifest, or of a newer format.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"the manifest is not JSON ({error})") from None
        if not isinstance(data, dict) or "tool_version" not in data:
            raise ManifestError("the manifest has no tool_version: this is not a tracer session")
        version = data.get("format_version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ManifestError("the manifest is damaged (format_version is not a version)")
        if version > FORMAT_VERSION:
            raise ManifestError(
                f"the session has format {version}, this tracer reads up to {FORMAT_VERSION}; "
                "install a newer tracer"
            )
        try:
            lists = {
                "gpus": Gpu,
                "targets": Target,
                "functions": ProbedFunction,
                "sources": Source,
            }
            for key, kind in lists.items():
                data[key] = [kind(**_known(kind, item)) for item in data.get(key, [])]
            manifest = cls(**_known(cls, data))
        except (TypeError, AttributeError) as error:
            raise ManifestError(f"the manifest is damaged ({error})") from None
        if None not in (manifest.start_ns, manifest.end_ns) and (
            (manifest.start_ns or 0) > (manifest.end_ns or 0)
        ):
            raise ManifestError("the manifest is damaged (the end is before the start)")
        return manifest

    @classmethod
    def read(cls, session: Path) -> Manifest:
        """Return the manifest of a session directory.

        Raises:
            ManifestError: there is none, or it cannot be read.
        """
        path = session / FILE_NAME
        try:
            text = _read_regular(path).decode("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise ManifestError(
                f"{session} has no {FILE_NAME}: not a session; record one with "
                "'tracer record --pid PID -o DIR'"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path} cannot be read ({error})") from None
        return cls.from_json(text)


def _read_regular(path: Path) -> bytes:
    """Content of a regular file; a pipe or device of that name is not waited for.

    Raises:
        OSError: it is none, is too large, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        if status.st_size > MAX_BYTES:
            raise OSError(f"it has more than {MAX_BYTES >> 20} MiB")
        return file.read(status.st_size)


def _known(kind: type, data: Any) -> dict[str, Any]:
    """Keep the keys that the dataclass declares, each checked against its declared type.

    Raises:
        TypeError: a value is of another type, or a number too large.
    """
    if not isinstance(data, dict):
        raise TypeError(f"an entry of {kind.__name__} is not an object")
    known = {}
    for name, declared in _types(kind).items():
        if name in data:
            if not _fits(data[name], declared):
                raise TypeError(f"{name} of {kind.__name__} is not {_type_name(declared)}")
            known[name] = data[name]
    return known


@cache
def _types(kind: type) -> dict[str, Any]:
    """Declared type of each field."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind)}


def _type_name(declared: Any) -> str:
    """What a value should have been, in words."""
    parts = get_args(declared) if get_origin(declared) is types.UnionType else (declared,)
    return " or ".join(_WORDS.get(get_origin(part) or part, "of its type") for part in parts)


def _fits(value: Any, declared: Any) -> bool:
    """Whether a JSON value is of a declared type; true is no number."""
    if get_origin(declared) is types.UnionType:
        return any(_fits(value, part) for part in get_args(declared))
    if declared is int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and -MAX_NUMBER <= value <= MAX_NUMBER
    origin = get_origin(declared) or declared
    if not isinstance(value, origin):
        return False
    if origin is list and get_args(declared) == (str,):
        return all(isinstance(item, str) for item in value)
    return True
