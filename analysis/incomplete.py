"""What may be said of a session with holes: it proves nothing, as a hole looks like silence.

Holes are what the disk did not take, and segments that cannot be read. What a probe lost is told
by its own counters and only lowers the confidence.
"""

from __future__ import annotations

from analysis.finding import Finding, Status

#: Where more of a table than this is missing, the hole may be the whole of what is seen.
MOST_MISSING = 0.05

#: A shorter live recording is one moment: what it shows may be chance.
SHORTEST_NS = 1_000_000_000

_SETTLED_BY = "a complete recording of the same"


def doubt_moment(findings: list[Finding], length_ns: int, how: str = "") -> None:
    """Make every finding of a recording undecided that is too short to prove anything.

    Args:
        findings: Those of the recording; changed in place.
        length_ns: How much was recorded.
        how: In which way, where other things were recorded for longer.
    """
    for item in findings:
        if item.status is Status.FOUND:
            item.status = Status.UNDECIDED
            item.undecided_because = f"only {length_ns / 1e9:.2f} s were recorded {how}".rstrip()
            item.settled_by = "a recording of ten seconds or more"
            item.confidence = min(item.confidence, 0.5)


def withdraw_exclusions(answers: list[Finding], sliced: float) -> None:
    """Rule out nothing where most calls were left out: what was not seen may have been there.

    Args:
        answers: Those that rest on the calls; changed in place.
        sliced: Share of the recording in which frequent calls were left out, in (0, 1].
    """
    for item in answers:
        if item.status is Status.NOT_FOUND:
            item.status = Status.NOT_APPLICABLE
            item.excluded = []
            item.undecided_because = (
                f"for {100 * sliced:.0f} % of the time frequent calls were left out to keep to the "
                "budget, so that nothing about calls is ruled out"
            )
            item.settled_by = "a short recording without --budget"


def doubt(findings: list[Finding], missing: float) -> Finding:
    """Make every finding undecided and return the ``unknown`` that is the answer instead.

    Args:
        findings: Found and undecided ones; changed in place.
        missing: Share of the session that is missing, in (0, 1].
    """
    because = f"{100 * missing:.0f} % of what was recorded was dropped or cannot be read"
    for item in findings:
        if item.status is Status.FOUND:
            item.status = Status.UNDECIDED
            item.undecided_because = because
            item.settled_by = _SETTLED_BY
        item.confidence = round(item.confidence * (1 - missing), 2)
    return Finding(
        "unknown",
        Status.UNDECIDED,
        confidence=0.5,
        summary=f"{because}: what is left proves nothing.",
        undecided_because=because,
        settled_by=_SETTLED_BY,
        advice="Record again into a place with room.",
    )
