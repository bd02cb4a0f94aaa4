"""What ``--json`` prints is what its schema says, field by field."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from analysis import attribute
from analysis.compare import compare
from analysis.json_schema import attribution_schema, comparison_schema, rounds_schema
from analysis.rounds import rounds_of
from analysis.rounds import to_json as rounds_json
from tests.analysis.builder import MS, S, Service


def sessions() -> dict[str, Service]:
    """Services with findings of several statuses."""
    played = {}
    for name in ("healthy", "delayed", "blind"):
        service = Service(seed=len(name), has_engine=name != "blind", has_nvml=name != "blind")
        while service.now < service.start + 12 * S:
            if name == "delayed":
                service.preempt(20 * MS)
            service.decode_step()
        played[name] = service
    return played


@pytest.mark.parametrize("schema", [attribution_schema(), rounds_schema(), comparison_schema()])
def test_the_schema_is_one_and_every_field_has_a_meaning(schema: dict):
    jsonschema.Draft202012Validator.check_schema(schema)
    for item in (schema, *schema["$defs"].values()):
        assert item["description"]
        for name, field in item["properties"].items():
            assert len(field["description"]) >= 4, name


def test_real_output_of_analyze_is_valid(tmp_path: Path):
    validator = jsonschema.Draft202012Validator(attribution_schema(is_strict=True))
    statuses = set()
    for name, service in sessions().items():
        printed = json.dumps(attribute(service.session(tmp_path / name)).to_json(), allow_nan=False)
        data = json.loads(printed)
        validator.validate(data)
        statuses |= {item["status"] for item in (*data["findings"], *data["checked"])}
    assert statuses >= {"found", "not_found", "not_applicable"}


def test_real_output_of_diff_is_valid(tmp_path: Path):
    services = sessions()
    before = services["healthy"].session(tmp_path / "before")
    after = services["delayed"].session(tmp_path / "after")
    data = json.loads(json.dumps(compare(before, after).to_json(), allow_nan=False))
    jsonschema.Draft202012Validator(comparison_schema(is_strict=True)).validate(data)
    assert any(item["is_beyond_noise"] for item in data["changes"])


def test_real_output_by_mark_is_valid(tmp_path: Path):
    service = sessions()["healthy"]
    marks = [
        {"time_ns": service.start + i * 4 * S, "kind": "mark", "name": f"round {i}"}
        for i in range(3)
    ]
    session = service.builder(tmp_path / "s").add("event", marks).write()
    data = json.loads(json.dumps(rounds_json(rounds_of(session)), allow_nan=False))
    jsonschema.Draft202012Validator(rounds_schema(is_strict=True)).validate(data)
    assert [item["name"] for item in data["rounds"]] == ["round 0", "round 1", "round 2"]


def test_a_field_that_is_not_declared_is_noticed(tmp_path: Path):
    service = Service(seed=1)
    service.decode_until(service.start + 2 * S)
    data = json.loads(json.dumps(attribute(service.session(tmp_path / "s")).to_json()))
    data["verdict"]["extra"] = 1
    with pytest.raises(jsonschema.ValidationError, match="extra"):
        jsonschema.validate(data, attribution_schema(is_strict=True))
    jsonschema.validate(data, attribution_schema())
