"""The vocabulary is complete and declared once; analyzers need only declared tables."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from analysis import attribute, schema
from analysis.causes import CAUSES, Needs, cause
from analysis.causes.first_use import hypergeometric_tail
from analysis.facts import Facts
from analysis.finding import Status
from tests.analysis.builder import S, Service


def test_slugs_are_unique_sorted_and_fully_declared() -> None:
    slugs = [item.slug for item in CAUSES]
    assert slugs == sorted(set(slugs))
    for item in CAUSES:
        texts = (
            item.title,
            item.meaning,
            item.proof,
            item.confused_with,
            item.settles,
            item.advice,
        )
        assert all(texts), item.slug
        assert item.is_implemented == (item.needs is not None)
        assert item.is_implemented or item.stated_by, f"nothing states {item.slug}"
        if item.needs is not None:
            for name in item.needs.tables:
                schema.table(name)


def test_every_cause_of_the_vocabulary_is_declared(shared_data: Path) -> None:
    text = (shared_data.parent / "causes.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    named = {slug for row in rows for slug in re.findall(r"`([a-z_.]+)`", row)}
    assert named == {item.slug for item in CAUSES}


def test_what_is_missing_is_named_with_its_command(tmp_path: Path) -> None:
    service = Service(has_engine=False, has_nvml=False)
    facts = Facts(service.session(tmp_path / "s", sources=[]))
    assert "no cuda_call table" in cause("launch.cpu_delay").check(facts).undecided_because
    text = Needs(any_of=(("gpu_activity", "gpu_sample"),)).missing(facts)
    assert "gpu_activity, gpu_sample" in text
    assert "tracer import" in text
    with pytest.raises(ValueError, match="no analyzer"):
        cause("healthy").check(facts)


def test_an_analyzer_that_fails_is_skipped_and_said(tmp_path: Path) -> None:
    def fail(facts: Facts) -> None:
        raise KeyError("odd input")

    service = Service()
    service.decode_until(service.start + 5 * S)
    broken = replace(cause("launch.first_use"), analyze=fail)
    rest = [item for item in CAUSES if item.slug != "launch.first_use"]
    attribution = attribute(service.session(tmp_path / "s"), causes=[broken, *rest])
    assert attribution.verdict.cause == "healthy"
    assert attribution.verdict.confidence == 0.6
    assert "Not looked for, because its analyzer failed: launch.first_use." in (
        attribution.verdict.text
    )
    assert any("launch.first_use failed" in note for note in attribution.notes)


def test_losses_lower_confidence_and_are_said(tmp_path: Path) -> None:
    confidences = []
    for n_lost in (0, 2_000):
        service = Service()
        while service.now < service.start + 8 * S:
            service.preempt(6_000_000)
            service.decode_step()
        builder = service.builder(tmp_path / str(n_lost))
        builder.manifest.sources[0].n_rows = 2_000
        if n_lost:
            row = {"time_ns": service.now, "source": "cuda", "reason": "ring_full"}
            builder.add("loss", [{**row, "n_lost": n_lost}])
        attribution = attribute(builder.write())
        assert attribution.verdict.cause == "launch.cpu_delay"
        confidences.append(attribution.verdict.confidence)
        assert any("lost 2000 records" in note for note in attribution.notes) == bool(n_lost)
    assert confidences[1] < 0.7 * confidences[0]


def test_hypergeometric_tail_against_counting() -> None:
    # 4 of 10 are marked; drawing 3, at least 2 marked: (6 * 6 + 4) / 120.
    assert hypergeometric_tail(10, 4, 3, 2) == pytest.approx(40 / 120)
    assert hypergeometric_tail(10, 4, 3, 0) == pytest.approx(1)
    assert hypergeometric_tail(5, 5, 3, 3) == pytest.approx(1)


def test_statuses_are_the_documented_words() -> None:
    assert [status.value for status in Status] == [
        "found",
        "not_found",
        "undecided",
        "not_applicable",
    ]
