"""Import plus analysis of recorded traces, side by side with HolisticTraceAnalysis.

Ours is the whole path of the product: the trace becomes a session on disk and is attributed.
Theirs is ``TraceAnalysis`` with its temporal breakdown, idle time, queue length, launch statistics
and overlap. Each runs in a fresh process per file and turn, turns alternate, the median of the
times counts and the largest memory; loading the libraries is left out of both times. A call of
theirs that fails counts until it failed and is told on stderr.

HolisticTraceAnalysis is installed from PyPI into a temporary environment; with
``TRACER_HTA_PYTHON`` the interpreter named there is used, which must have it.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.conftest import DATA_VARIABLE

PYTHON_VARIABLE = "TRACER_HTA_PYTHON"
PACKAGE = "HolisticTraceAnalysis==0.5.0"
TURNS = 3
#: Copies of one trace that make a large one (about 180 MB), run once.
COPIES = 12
FILES = (
    "h100__google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "trace_diff__test__test.json.gz",
    "dlrm_8rank",
)

_OURS = """
import json, resource, sys, tempfile, time
from pathlib import Path
from analysis import attribute, open_session
from click.testing import CliRunner
from tracer.cli import main
import pandas, pyarrow.parquet, probes.recorded, tracer.session
with tempfile.TemporaryDirectory() as folder:
    began, cpu_began = time.perf_counter(), time.process_time()
    session = folder + "/session"
    from tracer.commands.import_ import command
    done = CliRunner().invoke(command, [sys.argv[1], "-o", session])
    assert done.exit_code == 0, done.output
    imported = time.perf_counter()
    attribute(open_session(session))
    ended = time.perf_counter()
    cpu_s = time.process_time() - cpu_began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"s": ended - began, "cpu_s": cpu_s, "import_s": imported - began, "mib": peak}))
"""

_THEIRS = """
import json, logging, os, resource, sys, time, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
began, cpu_began = time.perf_counter(), sum(os.times()[:4])
failed = []
analysis = TraceAnalysis(trace_dir=sys.argv[1])
for name, options in (
    ("get_temporal_breakdown", {"visualize": False}),
    ("get_idle_time_breakdown", {"visualize": False}),
    ("get_queue_length_summary", {}),
    ("get_cuda_kernel_launch_stats", {"visualize": False}),
    ("get_comm_comp_overlap", {"visualize": False}),
):
    try:
        getattr(analysis, name)(**options)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}")
ended, cpu_s = time.perf_counter(), sum(os.times()[:4]) - cpu_began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for child in (resource.RUSAGE_CHILDREN,):
    peak = max(peak, resource.getrusage(child).ru_maxrss / 1024)
print(json.dumps({"s": ended - began, "cpu_s": cpu_s, "mib": peak, "failed": failed}))
"""


def run(python: str, program: str, argument: Path) -> dict[str, object]:
    """Return what a program of its own process measured."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [python, "-c", program, str(argument)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=root,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    figures: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return figures


def hta_python(folder: Path) -> str | None:
    """Return an interpreter that has HolisticTraceAnalysis, or None after saying why not."""
    given = os.environ.get(PYTHON_VARIABLE)
    if given:
        return given
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", PACKAGE],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        print(f"no baseline: {PACKAGE} could not be installed", file=sys.stderr)
        return None
    return python


def enlarge(source: Path, target: Path, times: int) -> None:
    """Write a trace of ``times`` copies of another, one after the other, as Kineto formats it."""
    with gzip.open(source) as file:
        trace = json.load(file)
    events = [event for event in trace.pop("traceEvents") if "dur" in event]
    begin = min(event["ts"] for event in events)
    length = max(event["ts"] + event["dur"] for event in events) - begin + 1000
    largest = max(event.get("args", {}).get("correlation", 0) for event in events) + 1
    with target.open("w") as file:
        file.write(json.dumps(trace)[:-1] + ', "traceEvents": [\n')
        for turn in range(times):
            for number, event in enumerate(events):
                args = event.get("args", {})
                if "correlation" in args:
                    args = {**args, "correlation": args["correlation"] + turn * largest}
                moved = {**event, "ts": event["ts"] + turn * length, "args": args}
                file.write("  " + json.dumps(moved))
                file.write("\n]}" if turn == times - 1 and number == len(events) - 1 else ",\n")


def figure(name: str, value: float, unit: str, baseline: float | None) -> None:
    """Print one line; the ratio is baseline over value."""
    text = "- -" if baseline is None else f"{baseline:.3f} {baseline / value:.2f}"
    print(f"{name} {value:.3f} {unit} {text}", flush=True)


def main() -> int:
    """Print time and memory of every file."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    data = Path(os.environ.get(DATA_VARIABLE, default)) / "kineto"
    if not data.is_dir():
        print(f"no recordings in {data}; set {DATA_VARIABLE}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        python = hta_python(Path(temporary) / "hta")
        large = Path(temporary) / f"large_{COPIES}_copies.json"
        enlarge(data / FILES[1], large, COPIES)
        for name in (*FILES, large.name):
            source = large if name == large.name else data / name
            folder = Path(temporary) / "trace"
            if source.is_dir():
                shutil.copytree(source, folder)
            else:
                folder.mkdir()
                shutil.copy(source, folder)
            ours, theirs = [], []
            for _ in range(1 if source == large else TURNS):
                ours.append(run(sys.executable, _OURS, source))
                if python is not None:
                    theirs.append(run(python, _THEIRS, folder))
            shutil.rmtree(folder)
            for problem in theirs[0]["failed"] if theirs else []:
                print(f"{name}: {problem}", file=sys.stderr)
            label = name.split(".")[0]
            for key, unit in (("s", "s"), ("cpu_s", "s"), ("mib", "MiB")):
                pick = max if key == "mib" else statistics.median
                value = float(pick([float(run[key]) for run in ours]))
                base = float(pick([float(run[key]) for run in theirs])) if theirs else None
                figure(f"import.{label}.{key}", value, unit, base)
            imported = statistics.median([float(run["import_s"]) for run in ours])
            figure(f"import.{label}.import_only", imported, "s", None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
