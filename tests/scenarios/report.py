"""The scoreboard as text for a terminal and as a page of the docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.scenarios.case import all_cases
from tests.scenarios.score import CONFIDENT, OUTCOMES, SURE, Result, Summary, summarise

KINDS = ("built", "live", "recorded")
#: Draw whose built cases are the short form, which CI repeats.
SHORT_SEED = 1


def plain(results: Sequence[Result]) -> list[Result]:
    """Results with every source."""
    return [row for row in results if not row.ablation]


def failures(results: Iterable[Result]) -> list[Result]:
    """Results that are not right, the worst first."""
    rank = {name: -index for index, name in enumerate(OUTCOMES)}
    wrong = [row for row in results if row.outcome != "right"]
    return sorted(wrong, key=lambda row: (rank[row.outcome], row.kind, row.name, row.seed))


def figures(summary: Summary) -> Iterator[tuple[str, str]]:
    """The figures of a summary: name, value."""
    n = max(summary.n, 1)
    yield "sessions", str(summary.n)
    yield "right root cause first", f"{summary.n_first} ({summary.n_first / n:.0%})"
    yield "among the first three", f"{summary.n_three} ({summary.n_three / n:.0%})"
    yield (
        f"wrong cause stated with confidence (>= {CONFIDENT:.0%})",
        f"{summary.n_confident_wrong} ({summary.n_confident_wrong / n:.1%})",
    )
    yield (
        f"called healthy with confidence (>= {CONFIDENT:.0%}), though something is wrong",
        f"{summary.n_confident_missed} ({summary.n_confident_missed / n:.1%})",
    )
    yield "honest unknown", str(summary.outcomes["unknown"])
    yield "stated as found where the report proves nothing", str(summary.outcomes["overstated"])
    if summary.healthy_hours:
        alarms = summary.n_false_alarms / summary.healthy_hours
        yield (
            "false alarms per healthy hour",
            f"{alarms:.2f} ({summary.n_false_alarms} in {summary.healthy_hours:.2f} h, of which "
            f"{summary.healthy_short_hours:.2f} h in sessions of minutes)",
        )
    for low, high, stated, right in summary.calibration:
        if stated:
            yield (
                f"stated with {low:.0%} to {high:.0%}: right",
                f"{right} of {stated} ({right / stated:.0%})",
            )


def text(results: Sequence[Result], notes: Sequence[str]) -> str:
    """The scoreboard for a terminal."""
    lines = []
    for title, rows in _groups(results):
        lines += [title, *(f"  {name:<72} {value}" for name, value in figures(summarise(rows)))]
        lines.append("")
    lines.append("Not right, and why:")
    lines += [
        f"  {row.outcome:<10} {row.kind:<8} {row.name} (seed {row.seed}): {row.why}"
        for row in failures(plain(results))
    ]
    lines += ["", *notes]
    lines += [f"{row.name}: {note}" for row in results for note in row.failed]
    return "\n".join(lines).rstrip()


def _groups(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    whole = plain(results)
    yield "All", whole
    for kind in KINDS:
        rows = [row for row in whole if row.kind == kind]
        if rows:
            yield kind.capitalize(), rows
    for ablation in dict.fromkeys(row.ablation for row in results if row.ablation):
        yield (
            ablation[0].upper() + ablation[1:],
            [row for row in results if row.ablation == ablation],
        )


def page(
    results: Sequence[Result], notes: Sequence[str], command: str, reused: Sequence[str] = ()
) -> str:
    """The page of the docs; ``reused`` are the kinds whose results an earlier run gave."""
    whole = plain(results)
    lines = [
        "<!-- Written by `make scoreboard-docs`; do not edit. -->",
        "",
        "# Scoreboard",
        "",
        "How often the verdict is right, over sessions whose cause is known. Built sessions are "
        "made from the published numbers of incidents (`tests/scenarios/`), live ones are staged "
        "on a simulated device and recorded with real eBPF (`tracer demo`), recorded ones are "
        "traces of other tools. Built and live sessions are simulated. The figures are those of "
        "one run of",
        "",
        f"    {command}",
        "",
        *(
            [
                f"The {' and '.join(reused)} sessions are of an earlier run, on analyzers of then.",
                "",
            ]
            if reused
            else []
        ),
        f"Every case says what is right; {len(all_cases())} cases are built, and where the report "
        "of an incident cannot prove a cause, only `undecided` or `unknown` is right. The worst "
        f"outcome is a wrong cause stated with {CONFIDENT:.0%} or more.",
        "",
        "The analyzers were mended with built cases and recorded traces at hand, so the figures "
        "flatter them. Of twelve built cases that were written only then "
        "(`contention_while_spinning`, `hang_before_the_recording`, `hogging_by_turns`, "
        "`overload_recorded`, `collections_every_second`, `interpreter_held_for_long`, "
        "`throttled_training`, `late_rank_of_six`, `frontend_recorded`, `healthy_speculation`, "
        "`healthy_checkpoint`, `healthy_two_tenants`), eleven were right at first sight; of "
        "fourteen that were written later (`story_*`, `healthy_one_long_answer`, "
        "`healthy_prompts_now_and_then`, `healthy_rush_hour`, `throttled_decode`, "
        "`contention_in_bursts`, `hang_at_the_first_request`, `overload_at_the_end`, "
        "`cache_on_the_host`, `swapped_out`), eleven.",
        "",
    ]
    columns = list(_groups(whole))
    lines += ["| | " + " | ".join(title for title, _rows in columns) + " |"]
    lines += ["|---|" + "---|" * len(columns)]
    table = [dict(figures(summarise(rows))) for _title, rows in columns]
    names = list(dict.fromkeys(name for column in table for name in column))
    lines += [f"| {n} | " + " | ".join(c.get(n, "") for c in table) + " |" for n in names]
    lines += ["", "## By cause", "", *_causes(summarise(whole)), ""]
    lines += ["![What was right against what was said](scoreboard-confusion.svg)", ""]
    lines += _ablations(results)
    lines += _too_sure(whole)
    lines += _wrong(whole)
    if notes:
        lines += ["## Not counted", "", *(f"* {note}" for note in notes), ""]
    return "\n".join(lines)


def _causes(summary: Summary) -> Iterator[str]:
    yield "Precision: of the sessions in which it was stated first, where it was right. Recall: of"
    yield "the sessions in which it was right, where it came first."
    yield ""
    yield "| cause | sessions | precision | recall |"
    yield "|---|---|---|---|"
    for cause, n in summary.by_cause.items():
        precision = f"{n['stated_right'] / n['stated']:.0%}" if n["stated"] else "never stated"
        if cause == "unknown":
            precision = ""
        recall = f"{n['first'] / n['cases']:.0%}" if n["cases"] else ""
        yield f"| `{cause}` | {n['cases']} | {precision} | {recall} |"


def _too_sure(results: Sequence[Result]) -> list[str]:
    """Statements that were nearly certain and not true, also behind the first."""
    wrong = [
        f"* `{slug}` ({sure:.0%}) of {row.kind} `{_named(row)}`, where {row.cause} is right"
        for row in results
        for slug, sure, is_right in row.stated
        if sure >= SURE and not is_right
    ]
    if not wrong:
        return []
    return [f"## Stated with {SURE:.0%} or more, and not right", "", *sorted(wrong), ""]


def _ablations(results: Sequence[Result]) -> list[str]:
    groups = [(title, rows) for title, rows in _groups(results) if rows and rows[0].ablation]
    if not groups:
        return []
    lines = [
        "## What each source is worth",
        "",
        "Over the sessions that have the source: with it, and with it taken away.",
        "",
        "| | sessions | right first | wrong with confidence | called healthy, wrongly |",
        "|---|---|---|---|---|",
    ]
    for title, rows in groups:
        keys = {(row.kind, row.name, row.seed) for row in rows}
        same = [row for row in plain(results) if (row.kind, row.name, row.seed) in keys]
        with_it, without_it = summarise(same), summarise(rows)
        lines.append(
            f"| {title} | {len(rows)} | {with_it.n_first} → {without_it.n_first} "
            f"| {with_it.n_confident_wrong} → {without_it.n_confident_wrong} "
            f"| {with_it.outcomes['missed']} → {without_it.outcomes['missed']} |"
        )
    return [*lines, ""]


_LIST = "## What is still wrong"
_OTHERS = "Live scenarios, recorded traces and other seeds:"


def _wrong(results: Sequence[Result]) -> list[str]:
    lines = [_LIST, "", *_short_list(results), ""]
    others = [row for row in failures(results) if row not in short(results)]
    if others:
        lines += [_OTHERS, ""]
        lines += [f"* {row.outcome}: {row.kind} `{_named(row)}`: {row.why}" for row in others]
        lines.append("")
    return lines


def _short_list(results: Sequence[Result]) -> list[str]:
    rows = short(results)
    return [
        f"Of the {len(rows)} built cases with seed {SHORT_SEED}; CI repeats them and compares this "
        "list. `unknown` is honest and no help; a cause that no analyzer states yet "
        "([causes.md](causes.md)) can only be that.",
        "",
        *(f"* {row.outcome}: `{row.name}`: {row.why}" for row in failures(rows)),
    ]


def relisted(page_text: str, results: Sequence[Result]) -> str:
    """The page with the list of the short form anew; the figures of the long one stay."""
    head, rest = page_text.split(f"{_LIST}\n", 1)
    for mark in (f"{_OTHERS}\n", "## "):
        if mark in rest:
            tail = mark + rest.split(mark, 1)[1]
            break
    else:
        tail = ""
    return "\n".join([f"{head}{_LIST}", "", *_short_list(results), "", tail])


def _named(row: Result) -> str:
    return row.name if row.kind == "recorded" else f"{row.name}, seed {row.seed}"


def short(results: Iterable[Result]) -> list[Result]:
    """The results that the short form has too."""
    return [
        row
        for row in results
        if row.kind == "built" and row.seed == SHORT_SEED and not row.ablation
    ]


def listed(page_text: str) -> dict[str, str]:
    """Case to outcome, as the page lists them."""
    part = page_text.split(f"{_LIST}\n", 1)[1].split(_OTHERS)[0].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("* ")]
    return {line.split("`")[1]: line[2 : line.index(":")] for line in lines}
