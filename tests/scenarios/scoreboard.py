"""How often the verdict is right: ``make scoreboard [SEED=n]``.

Scores built cases, recorded traces and live scenarios, and prints which failed and why. Writes
``scoreboard.json``, the confusion matrix as ``scoreboard-confusion.svg``, and with ``--docs`` the
page of the docs. ``--short`` is what CI does: the built cases of one seed; with ``--docs`` it
renews their list in the page.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from analysis import attribute
from tests.e2e.acceptance import RETRIES
from tests.scenarios import report, sources
from tests.scenarios.ablation import ABLATIONS, without
from tests.scenarios.report import SHORT_SEED
from tests.scenarios.score import Result, grade, summarise
from tests.scenarios.sources import Sample

DOCS = Path(__file__).resolve().parents[2] / "docs"


def results_of(sample: Sample, folder: Path, is_ablated: bool) -> Iterator[Result]:
    """The result of one session, and those without each source."""
    sessions = [("", sample.session)]
    if is_ablated:
        for index, ablation in enumerate(ABLATIONS):
            path = folder / f"ablated-{index}"
            shutil.rmtree(path, ignore_errors=True)
            poorer = without(sample.session, ablation, path)
            if poorer is not None:
                sessions.append((ablation, poorer))
    for ablation, session in sessions:
        yield grade(
            sample.truth,
            attribute(session).to_json(),
            kind=sample.kind,
            name=sample.name,
            seed=sample.seed,
            ablation=ablation,
        )


def score(
    samples: Iterator[Sample | str], folder: Path, is_ablated: bool
) -> tuple[list[Result], list[str]]:
    """Results of all sessions, each removed once it is scored; and what could not be scored.

    Ctrl-C or SIGTERM ends it early: what was scored until then is returned, with a note.
    """
    results: list[Result] = []
    notes: list[str] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for sample in samples:
            if isinstance(sample, str):
                notes.append(sample)
            else:
                results.extend(results_of(sample, folder, is_ablated))
                shutil.rmtree(sample.session.path, ignore_errors=True)
            _tell(f"\r{len(results)} verdicts ")
    except KeyboardInterrupt:
        notes.append("The run was ended before everything was scored.")
    return results, notes


def _tell(line: str) -> None:
    if sys.stderr.isatty():
        print(line, end="", file=sys.stderr, flush=True)


def every_sample(arguments: argparse.Namespace, folder: Path) -> Iterator[Sample | str]:
    """Everything that was asked for."""
    if arguments.healthy_hours:
        yield from sources.healthy(arguments.seed, folder, arguments.healthy_hours)
        return
    if "built" in arguments.kinds:
        for draw in range(1 if arguments.short else arguments.draws):
            yield from sources.built(arguments.seed + draw, folder)
    if arguments.short:
        return
    if "recorded" in arguments.kinds:
        data = sources.data_folder()
        if data is None:
            yield "No recorded traces here: set TRACER_TEST_DATA to their folder."
        else:
            yield from sources.recorded(data, folder)
    if "live" in arguments.kinds:
        if os.geteuid():
            yield "Live scenarios need root."
        else:
            yield from sources.live(arguments.seed, folder, arguments.duration, arguments.retries)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SHORT_SEED)
    parser.add_argument("--draws", type=int, default=2, help="draws of every built case")
    parser.add_argument("--short", action="store_true", help="built cases of one seed, no more")
    parser.add_argument(
        "--kinds", nargs="+", default=report.KINDS, choices=report.KINDS, help="all if not given"
    )
    parser.add_argument(
        "--reuse", type=Path, help="scoreboard.json to take the kinds from that are not run"
    )
    parser.add_argument(
        "--healthy-hours",
        type=float,
        default=0,
        metavar="HOURS",
        help="only built cases in which nothing is wrong, drawn until they last so long (those of "
        "minutes a tenth of it), without ablations",
    )
    parser.add_argument("--no-ablations", action="store_true")
    parser.add_argument("--duration", default="8s", help="length of a live recording")
    parser.add_argument(
        "--retries", type=int, default=RETRIES, help="of a live recording that was disturbed"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path(), help="folder to write to")
    parser.add_argument("--docs", action="store_true", help="write docs/scoreboard.md too")
    arguments = parser.parse_args()
    if arguments.docs and arguments.healthy_hours:
        parser.error("--docs is for a run over all cases: --healthy-hours is not")
    if arguments.docs and arguments.seed != SHORT_SEED:
        parser.error(f"the page of the docs is of seed {SHORT_SEED}, which CI repeats")
    with tempfile.TemporaryDirectory(prefix="tracer-scoreboard-") as temporary:
        folder = Path(temporary)
        is_ablated = not (arguments.short or arguments.no_ablations or arguments.healthy_hours)
        results, notes = score(every_sample(arguments, folder), folder, is_ablated)
    if arguments.reuse:
        kept = json.loads(arguments.reuse.read_text(encoding="utf-8"))
        older = [Result.from_json(row) for row in kept["results"]]
        results += [row for row in older if row.kind not in arguments.kinds]
        notes += [note for note in kept["notes"] if note not in notes]
    _tell("\r")
    print(report.text(results, notes))
    _write(results, notes, arguments)
    return 0


def _write(results: list[Result], notes: list[str], arguments: argparse.Namespace) -> None:
    from tests.scenarios.picture import draw_confusion

    whole = report.plain(results)
    data = {
        "schema_version": 1,
        "seed": arguments.seed,
        "summary": summarise(whole).to_json(),
        "without": {
            ablation: summarise([row for row in results if row.ablation == ablation]).to_json()
            for ablation in dict.fromkeys(row.ablation for row in results if row.ablation)
        },
        "results": [row.to_json() for row in results],
        "notes": notes,
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / "scoreboard.json"
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    draw_confusion(summarise(whole).confusion, arguments.output / "scoreboard-confusion.svg")
    print(f"\nWritten: {file} and scoreboard-confusion.svg beside it.")
    if not arguments.docs:
        return
    page = DOCS / "scoreboard.md"
    if arguments.short:
        page.write_text(report.relisted(page.read_text("utf-8"), results), encoding="utf-8")
        return
    command = f"python -m tests.scenarios.scoreboard --seed {arguments.seed}"
    command += f" --draws {arguments.draws} --retries {arguments.retries}"
    reused: list[str] = []
    if arguments.reuse:
        command += f" --kinds {' '.join(arguments.kinds)} --reuse scoreboard.json"
        reused = [kind for kind in report.KINDS if kind not in arguments.kinds]
    page.write_text(report.page(results, notes, command, reused), encoding="utf-8")
    draw_confusion(summarise(whole).confusion, DOCS / "scoreboard-confusion.svg")


if __name__ == "__main__":
    sys.exit(main())
