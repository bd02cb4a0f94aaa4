"""Speculative decoding that costs more than it gives: most drafted tokens are rejected."""

from __future__ import annotations

import numpy as np

from analysis import engine as words
from analysis import intervals
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import assess

SPECULATION = "speculation.loss"

#: Share of the drafted tokens that must be accepted for drafting to pay: a verified position costs
#: at most what a decoded one does, so below a tenth nearly all of the work is thrown away. Between
#: both it depends on how full the device is.
PAYS = 0.3
WASTE = 0.1
#: Drafted tokens a window needs, and windows that a statement needs.
N_DRAFTED = 20
N_WINDOWS = 3
#: Utilisation in % from which wasted work takes from useful work.
BUSY_PCT = 85.0
_WINDOW_NS = 900_000_000


def find_speculation_loss(facts: Facts) -> Finding:
    """Return whether drafted tokens were rejected while the device was full."""
    engine = facts.engine
    drafted = engine.counter(words.DRAFTED) if engine is not None else None
    accepted = engine.counter(words.ACCEPTED) if engine is not None else None
    if engine is None or drafted is None or accepted is None:
        return Finding(
            SPECULATION,
            Status.NOT_APPLICABLE,
            undecided_because="the engine does not expose drafted and accepted tokens",
        )
    finding = Finding(SPECULATION, Status.NOT_FOUND, confidence=0.85)
    index = (engine.time - engine.time[0]) // _WINDOW_NS
    edges = engine.time[np.flatnonzero(np.diff(index, prepend=-1) > 0)]
    if len(edges) < N_WINDOWS + 1:
        finding.excluded.append(Exclusion(SPECULATION, "too few scrapes to tell"))
        return finding
    n, good = np.nan_to_num(drafted.between(edges)), np.nan_to_num(accepted.between(edges))
    share = np.where(n >= N_DRAFTED, good / np.maximum(n, 1), np.nan)
    is_waste = np.nan_to_num(share, nan=1.0) < PAYS
    spans = intervals.union(intervals.make(edges[:-1][is_waste], edges[1:][is_waste]))
    severity = assess(spans, facts.demand)
    total = float(good.sum()) / max(float(n.sum()), 1.0)
    finding.evidence = [
        Evidence("accepted_share", round(100 * total, 1), "%", round(float(n.sum())), ""),
    ]
    if is_waste.sum() < N_WINDOWS or not severity.is_material:
        finding.excluded.append(
            Exclusion(SPECULATION, f"{100 * total:.0f} % of the drafted tokens were accepted")
        )
        return finding
    during = float(good[is_waste].sum()) / max(float(n[is_waste].sum()), 1.0)
    n_drafted = round(float(n[is_waste].sum()))
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    finding.evidence.append(
        Evidence("accepted_share_meanwhile", round(100 * during, 1), "%", n_drafted, "")
    )
    used = [
        mean
        for device in facts.devices
        if (samples := facts.utilisation(device)) is not None
        and (mean := samples.mean(spans)) is not None
    ]
    top = max(used, default=None)
    if top is not None:
        finding.evidence.append(
            Evidence("utilisation_meanwhile", round(top[0], 1), "%", top[1], "gpu_sample")
        )
    text = f"only {100 * during:.0f} % of {n_drafted} drafted tokens were accepted"
    made = engine.counter(words.GENERATION_TOKENS)
    tokens = float(np.nansum(made.between(edges)[is_waste])) if made is not None else 0.0
    wasted = (n_drafted * (1 - during)) / max(n_drafted + tokens, 1.0)
    finding.lost_share = severity.share * wasted / 2
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    if top is not None and top[0] < BUSY_PCT:
        finding.lost_ns, finding.lost_share = 0, 0.0
        finding.excluded.append(
            Exclusion(
                SPECULATION, f"{text}, but the device is {top[0]:.0f} % utilised: it has room"
            )
        )
        return finding
    if during >= WASTE or top is None:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = f"{text}, but what verifying them costs is not known"
        finding.settled_by = "the same load with speculation turned off"
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.85 * facts.trust("engine")
    finding.summary = (
        f"{text[0].upper()}{text[1:]} while the device was {top[0]:.0f} % utilised: "
        f"{100 * wasted:.0f} % of the positions computed were thrown away."
    )
    return finding


CAUSES = (
    Cause(
        SPECULATION,
        "speculative decoding costs more than it gives",
        "Most drafted tokens are rejected.",
        "Hardly any of the drafted tokens is accepted while the device is full.",
        "Heavy requests, more requests.",
        "Record with --engine URL.",
        "Draft fewer tokens or turn speculation off above some batch size.",
        Needs(("engine_sample",), optional=("gpu_sample",)),
        find_speculation_loss,
    ),
)
