"""Everything that is scored: built cases, recorded traces, live scenarios."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from analysis import open_session
from analysis.causes import CAUSES
from analysis.timeline import Session
from tests.conftest import DATA_VARIABLE
from tests.e2e import acceptance
from tests.e2e.test_labels import FORBIDDEN
from tests.e2e.test_labels_scrapes import EXPECTED, FOLDER
from tests.scenarios.build import build
from tests.scenarios.case import Case, all_cases
from tests.scenarios.score import SHORT_S, Truth
from tracer.simulated.scenarios.registry import SCENARIOS
from tracer.simulated.scenarios.scenario import Scenario

_SLUGS = {cause.slug for cause in CAUSES}
_IMPORT_TIMEOUT_S = 300


@dataclass(frozen=True)
class Sample:
    """One session and what is right about it."""

    kind: str
    name: str
    seed: int
    truth: Truth
    session: Session


def truth_of(case: Case) -> Truth:
    """What is right about a built case."""
    return Truth(case.cause, case.status, case.or_causes, case.also, case.must_not)


def built(seed: int, folder: Path, cases: tuple[Case, ...] | None = None) -> Iterator[Sample]:
    """Every built case, drawn with one seed."""
    for case in all_cases() if cases is None else cases:
        session = build(case, seed, folder / f"{case.name}-{seed}")
        yield Sample("built", case.name, seed, truth_of(case), session)


def healthy(seed: int, folder: Path, hours: float) -> Iterator[Sample]:
    """Cases in which nothing is wrong, drawn with one seed after another: sessions of hours until
    they last ``hours``, those of minutes until they last a tenth of that.
    """
    calm = [case for case in all_cases() if case.is_calm]
    for is_long, wanted in ((True, hours), (False, hours / 10)):
        cases = tuple(case for case in calm if (case.seconds > SHORT_S) == is_long)
        played, draw = 0.0, seed
        while played < 3600 * wanted:
            yield from built(draw, folder, cases)
            played += sum(case.seconds for case in cases)
            draw += 1


def data_folder() -> Path | None:
    """The folder of recorded traces, if there is one."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get(DATA_VARIABLE, default))
    return folder if (folder / "labels.json").is_file() else None


def recorded(data: Path, folder: Path) -> Iterator[Sample]:
    """Every labelled recording, imported."""
    labels = json.loads((data / "labels.json").read_text(encoding="utf-8"))["traces"]
    for index, label in enumerate(labels):
        if label["cause"] not in _SLUGS:
            continue  # scrapes of several phases, below
        status = ("found", "undecided") if label["basis"] == "derived" else ("found",)
        words = (word.split(":")[0] for word in label.get("must_not", ()))
        slugs = (FORBIDDEN.get(word, word) for word in words)
        must_not = tuple(slug for slug in slugs if slug in _SLUGS and slug != label["cause"])
        truth = Truth(label["cause"], status, must_not=must_not)
        session = _imported(data / label["path"], folder / f"recorded-{index}")
        yield Sample("recorded", label["path"], 0, truth, session)
    yield from _phases(data / FOLDER, folder)


def _phases(data: Path, folder: Path) -> Iterator[Sample]:
    """A recorded engine, one session per phase."""
    phases = json.loads((data / "phases.json").read_text(encoding="utf-8"))
    with gzip.open(data / "scrapes.jsonl.gz", "rt", encoding="utf-8") as file:
        scrapes = [(json.loads(line)["t"], line) for line in file]
    ends = [begin for begin, _name in phases[1:]] + [float("inf")]
    for (begin, name), end in zip(phases, ends, strict=True):
        lines = [line for time, line in scrapes if begin <= time < end]
        # The last phase begins while the last requests finish.
        lines = lines[1:] if name == "idle_end" else lines
        path = folder / f"scrapes-{name}.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
        cause, also = EXPECTED[name]
        truth = Truth(cause, ("found",), also=tuple(also), must_not=("hang.kernel",))
        yield Sample("recorded", f"{FOLDER}: {name}", 0, truth, _imported(path, folder / name))


def _imported(path: Path, session: Path) -> Session:
    command = [sys.executable, "-m", "tracer", "import", str(path), "-o", str(session)]
    subprocess.run(command, check=True, capture_output=True, timeout=_IMPORT_TIMEOUT_S)
    return open_session(session)


def live(
    seed: int,
    folder: Path,
    duration: str,
    n_retries: int = acceptance.RETRIES,
    scenarios: tuple[Scenario, ...] = SCENARIOS,
) -> Iterator[Sample | str]:
    """Every live scenario, recorded with real eBPF; a sentence where one could not be recorded.

    A run that something disturbed which was not staged, and whose verdict was wrong, is repeated.
    """
    for scenario in scenarios:
        if scenario.missing is not None and (reason := scenario.missing()):
            yield f"{scenario.name} was not staged: {reason}"
            continue
        for _attempt in range(n_retries + 1):
            before = set(folder.iterdir())
            result = acceptance.run_once(scenario.name, seed, duration, folder)
            if result["is_right"] or not result.get("is_disturbed"):
                break
        made = sorted(set(folder.iterdir()) - before)
        if result["cause"] == "error" or not made:
            yield f"{scenario.name} could not be recorded: {result['judgement']}"
            continue
        if result.get("is_disturbed") and not result["is_right"]:
            yield f"{scenario.name} was disturbed by other load in every attempt: not counted"
            continue
        expected = scenario.expected
        truth = Truth(expected.cause, expected.statuses, expected.or_causes)
        yield Sample("live", scenario.name, seed, truth, open_session(made[-1]))
