"""How a cause is declared: once, with its proof, its confounders and, if any, its analyzer.

From ``needs`` come the check before an analyzer runs, the text of the error, the listing, and what
``record --for CAUSE`` turns on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from analysis import schema
from analysis.facts import Facts
from analysis.finding import Finding, Status

Analyze = Callable[[Facts], Finding]


@dataclass(frozen=True)
class Needs:
    """Tables that an analyzer reads.

    Attributes:
        required: All of these.
        any_of: At least one table of each of these groups.
        optional: Read where present; they make the answer surer.
    """

    required: tuple[str, ...] = ()
    any_of: tuple[tuple[str, ...], ...] = ()
    optional: tuple[str, ...] = ()

    def missing(self, facts: Facts) -> str:
        """Return one sentence naming what is missing and the command that records it; empty if
        nothing is.
        """
        session = facts.session
        for name in self.required:
            if not session.has(name):
                return f"the session has no {name} table; {_how_to_record(facts, name)}"
        for group in self.any_of:
            if not any(session.has(name) for name in group):
                how = _how_to_record(facts, group[0])
                return f"the session has neither of {', '.join(group)}; {how}"
        return ""

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table named, each once."""
        grouped = (name for group in self.any_of for name in group)
        return tuple(dict.fromkeys((*self.required, *grouped, *self.optional)))


def _how_to_record(facts: Facts, name: str) -> str:
    """How to come by a table that a session lacks: what was tried for it, and what to do."""
    tried = [source for source in facts.manifest.sources if name in source.tables]
    failed = next((source for source in tried if source.state != "ok" and source.note), None)
    if failed is not None:
        return f"{failed.name} was tried: {failed.note}"
    if any(source.state == "ok" for source in tried):
        return "no row of it came in all that time: record it again under load"
    return f"record it with: {schema.table(name).command}"


@dataclass(frozen=True)
class Cause:
    """One word of the vocabulary of verdicts.

    Attributes:
        slug: The word, e.g. ``launch.cpu_delay``.
        title: A few words for a heading.
        meaning: What happens, one sentence.
        proof: What proves it, one sentence.
        confused_with: What it must be told apart from, one sentence.
        settles: What to record where the proof is missing, one sentence.
        advice: What to do about it, one sentence.
        needs: Tables that the analyzer reads; None where there is no analyzer.
        analyze: The analyzer; None where there is none.
        stated_by: What states it where no analyzer of one recording does; empty where one does,
            or nothing does yet.
    """

    slug: str
    title: str
    meaning: str
    proof: str
    confused_with: str
    settles: str
    advice: str
    needs: Needs | None = None
    analyze: Analyze | None = None
    stated_by: str = ""

    @property
    def is_implemented(self) -> bool:
        """Whether this cause can be found, rather than only named."""
        return self.analyze is not None

    def check(self, facts: Facts) -> Finding:
        """Return the analyzer's answer; NOT_APPLICABLE where its tables are missing.

        Raises:
            ValueError: the cause has no analyzer.
        """
        if self.analyze is None or self.needs is None:
            raise ValueError(f"{self.slug} has no analyzer")
        missing = self.needs.missing(facts)
        if missing:
            return Finding(self.slug, Status.NOT_APPLICABLE, undecided_because=missing)
        finding = self.analyze(facts)
        if finding.status in (Status.FOUND, Status.UNDECIDED):
            finding.advice = finding.advice or self.advice
            if finding.status is Status.UNDECIDED:
                finding.settled_by = finding.settled_by or self.settles
        return finding
