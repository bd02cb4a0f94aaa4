"""What ``tracer analyze --json``, the same with ``--by-mark``, and ``tracer diff --json`` print,
as JSON Schema.

Fields of findings come from their dataclasses: type hints give the types, the ``Attributes:`` of
the docstrings the meaning. What has no class of its own is declared here. Within one
``schema_version`` fields are only added; a reader passes over those that it does not know.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from analysis import attribution, compare, rounds
from analysis.budget import REASONS, STATES
from analysis.conclusion import Verdict
from analysis.finding import Evidence, Exclusion, Finding, Where
from analysis.rounds import Round

Schema = dict[str, Any]

_PLAIN: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
}
#: Classes that other objects refer to, by the name of their definition.
_CLASSES: dict[type, str] = {
    Evidence: "evidence",
    Exclusion: "exclusion",
    Where: "where",
    Finding: "finding",
    Verdict: "verdict",
}


def attribution_schema(*, is_strict: bool = False) -> Schema:
    """Return the JSON Schema of ``tracer analyze --json``.

    Args:
        is_strict: Refuse fields that are not declared, as the tests do.
    """
    top = _object(
        "The answer about one session.",
        schema_version=_constant(attribution.SCHEMA_VERSION),
        session=_field("string", "Name of the session's directory."),
        is_simulated=_field("boolean", "It came from the simulated device."),
        start_ns=_field("integer", "Begin of the recording, CLOCK_MONOTONIC."),
        end_ns=_field("integer", "End of it."),
        verdict=_refer("verdict", "The answer in one word, and how sure it is."),
        findings=_array(
            _refer("finding"),
            "Found and undecided causes, the most important first; empty when healthy.",
        ),
        checked=_array(
            _refer("finding"), "The other analyzers' answers: ruled out, or not applicable and why."
        ),
        budget=_array(
            _refer("window"), "Where each window of each device went; shares of a window sum to 1."
        ),
        budget_totals=_array(
            _refer("totals"), "Share of the whole recording by state, one entry a device."
        ),
        latency=_array(
            _refer("latency"), "Latencies of launches and syncs by function and block of time."
        ),
        notes=_array(
            _field("string", ""), "Sentences about losses, missing sources, skipped analyzers."
        ),
    )
    definitions = {**_finding_definitions(), **_budget_definitions()}
    return _whole("tracer analyze --json", top, definitions, is_strict)


def comparison_schema(*, is_strict: bool = False) -> Schema:
    """Return the JSON Schema of ``tracer diff --json``."""
    top = _object(
        "What differs between two recordings.",
        schema_version=_constant(compare.SCHEMA_VERSION),
        before=_refer("side", "The first recording."),
        after=_refer("side", "The second."),
        regression=_refer("finding", "Whether the same load is served slower."),
        deciding_level=_field(
            "number", "Confidence of the interval that decides: 0.95 over all figures together."
        ),
        changes=_array(_refer("change"), "Every figure that both have."),
        not_compared=_array(_field("string", ""), "Figures that only one has, or too few samples."),
        notes=_array(_field("string", ""), "Sentences about losses and gaps of either."),
    )
    definitions = {**_finding_definitions(), **_comparison_definitions()}
    del definitions["verdict"]
    return _whole("tracer diff --json", top, definitions, is_strict)


def rounds_schema(*, is_strict: bool = False) -> Schema:
    """Return the JSON Schema of ``tracer analyze --by-mark --json``."""
    rate = {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "By finding, in how many rounds it was seen, and the bounds of that rate.",
    }
    top = _object(
        "A recording told by its marks.",
        schema_version=_constant(rounds.SCHEMA_VERSION),
        rounds=_array(_refer("round"), "One entry a round, in order."),
        rates=rate,
    )
    definitions = {"round": _of_class(Round, leave_out=())}
    return _whole("tracer analyze --by-mark --json", top, definitions, is_strict)


def _whole(title: str, top: Schema, definitions: dict[str, Schema], is_strict: bool) -> Schema:
    result = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **top,
        "$defs": definitions,
    }
    if is_strict:
        for item in (result, *definitions.values()):
            item["additionalProperties"] = False
    return result


def _finding_definitions() -> dict[str, Schema]:
    found = {}
    for kind, name in _CLASSES.items():
        found[name] = _of_class(kind, leave_out=("spans",))
    return found


def _budget_definitions() -> dict[str, Schema]:
    share = _field("number", "Share of the window or recording in [0, 1].")
    device = _field(["integer", "null"], "GPU index; null where the recording does not tell.")
    part = _object(
        "A part of a window.",
        state={"enum": list(STATES), "description": "What the device was doing."},
        reason={"enum": list(REASONS), "description": "Why, by what the launching thread did."},
        ns=_field("integer", "Length; the parts of a window add up to it."),
        share=share,
    )
    return {
        "part": part,
        "window": _object(
            "One window of one device.",
            device=device,
            start_ns=_field("integer", "Begin of the window."),
            end_ns=_field("integer", "End of it."),
            shares=_array(_refer("part"), "Its parts."),
        ),
        "totals": _object(
            "The recording of one device.",
            device=device,
            is_timed=_field("boolean", "It rests on device times, not on the host's calls."),
            **dict.fromkeys(STATES, share),
        ),
        "latency": _object(
            "One function over one block of time; percentiles by nearest rank.",
            function=_field("string", "Name as exported."),
            start_ns=_field("integer", "Begin of the block."),
            end_ns=_field("integer", "End of it."),
            n=_field("integer", "Calls."),
            p50_ns=_field("integer", "Median."),
            p99_ns=_field("integer", "99th percentile; the maximum where n is too small for one."),
            p99_is_max=_field("boolean", "Whether it is that maximum."),
            max_ns=_field("integer", "Longest call."),
        ),
    }


def _comparison_definitions() -> dict[str, Schema]:
    return {
        "side": _object(
            "One of the two recordings.",
            session=_field("string", "Name of the session's directory."),
            start_ns=_field("integer", "Begin of what was compared, CLOCK_MONOTONIC."),
            end_ns=_field("integer", "End of it."),
            n_blocks=_field("integer", "Blocks that noise was told from."),
            is_simulated=_field("boolean", "It came from the simulated device."),
            cause=_field("string", "Its own verdict."),
            confidence=_field("number", "How sure that is, in [0, 1]."),
        ),
        "change": _object(
            "One figure and how it differs.",
            group=_field(
                "string", "load, service, launches, scheduling, device, process or budget."
            ),
            name=_field("string", "What is measured."),
            unit=_field("string", "Unit of before and after; empty for counts."),
            device=_field(["integer", "null"], "GPU index; null where it is about no device."),
            better=_field(["string", "null"], "higher or lower; null where neither is."),
            before=_field("number", "Value in the first recording."),
            after=_field("number", "Value in the second."),
            n_before=_field("integer", "Samples behind it in the first."),
            n_after=_field("integer", "Samples in the second."),
            is_relative=_field(
                "boolean", "The difference is a share of before (0.1 is 10 % more), else in units."
            ),
            difference=_field("number", "After less before."),
            low=_field("number", "Lower end of the 95 % interval of the difference."),
            high=_field("number", "Upper end."),
            deciding_low=_field(
                "number", "Lower end of the interval that decides, of the deciding_level."
            ),
            deciding_high=_field("number", "Upper end of it."),
            is_beyond_noise=_field(
                "boolean",
                "It is a change: the interval that decides leaves 0 out, and it is not a tiny one.",
            ),
            is_worse=_field(["boolean", "null"], "It is one for the worse; null where none is."),
        ),
    }


def _of_class(kind: type, leave_out: tuple[str, ...]) -> Schema:
    """The schema of a dataclass."""
    hints, meaning = get_type_hints(kind), _attributes(kind)
    properties = {
        item.name: {**_of_type(hints[item.name]), "description": meaning.get(item.name, "")}
        for item in dataclasses.fields(kind)
        if item.name not in leave_out
    }
    text = (inspect.getdoc(kind) or "").split("\n\n")[0]
    return _object(" ".join(text.split()), **properties)


def _of_type(hint: Any) -> Schema:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if hint in _CLASSES:
        return {"$ref": f"#/$defs/{_CLASSES[hint]}"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [item.value for item in hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (list, tuple):
        return {"type": "array", "items": _of_type(arguments[0])}
    if origin in (Union, types.UnionType):
        parts = [_of_type(argument) for argument in arguments]
        if all(set(part) == {"type"} for part in parts):
            return {"type": [part["type"] for part in parts]}
        return {"anyOf": parts}
    raise TypeError(f"{hint} has no form in JSON")


def _attributes(kind: type) -> dict[str, str]:
    """Meaning of each field, from the ``Attributes:`` of a docstring."""
    text = inspect.getdoc(kind) or ""
    _before, _word, section = text.partition("\nAttributes:\n")
    found: dict[str, str] = {}
    for match in re.finditer(r"^    (\w+): (.*(?:\n      .*)*)", section, re.MULTILINE):
        found[match[1]] = " ".join(match[2].split())
    return found


def _object(description: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(properties),
    }


def _field(kind: str | list[str], description: str) -> Schema:
    return {"type": kind, "description": description}


def _constant(version: int) -> Schema:
    text = "Raised when a reader of the old one would misread the new."
    return {"const": version, "description": text}


def _refer(name: str, description: str = "") -> Schema:
    found: Schema = {"$ref": f"#/$defs/{name}"}
    return {**found, "description": description} if description else found


def _array(items: Schema, description: str) -> Schema:
    return {"type": "array", "items": items, "description": description}
