"""Import plus analysis of recorded traces, side by side with HolisticTraceAnalysis.

Ours is the whole path of the product: the trace becomes a session on disk and is attributed.
Theirs is ``TraceAnalysis`` with its temporal breakdown, idle time, queue length, launch statistics
and overlap. Each runs in a fresh process per file and turn, turns alternate, the median of the
times counts and the largest memory; loading the libraries is left out of both times. A call of
theirs that fails counts until it failed and is told on stderr. Memory is the most that a process
and its children had at once (theirs loads ranks in several): the kernel's figure for the first
(``VmHWM``; what ``getrusage`` tells would begin with the size of this process, which starts it), or
the sum of their proportional shares, looked at every 50 ms, whichever is larger.

HolisticTraceAnalysis is installed from PyPI into a temporary environment; with
``TRACER_HTA_PYTHON`` the interpreter named there is used, which must have it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import psutil

from tests.conftest import DATA_VARIABLE

PYTHON_VARIABLE = "TRACER_HTA_PYTHON"
PACKAGE = "HolisticTraceAnalysis==0.5.0"
TURNS = 3
LOOK_S = 0.05
FILES = (
    "h100__google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "trace_diff__test__test.json.gz",
    "dlrm_8rank",
)
#: Large traces, run once each: a trace of the list above, and how many copies of it.
LARGE = ((FILES[1], 12), (FILES[0], 4))

_OURS = """
import json, sys, tempfile, time
from pathlib import Path
from click.testing import CliRunner
from tracer.cli import main
from tracer.lean_arrow import make_arrow_lean
make_arrow_lean()
import pyarrow.parquet, probes.recorded, tracer.session
from analysis import attribute, open_session
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
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps({"s": ended - began, "cpu_s": cpu_s, "import_s": imported - began, "mib": peak}))
"""

_THEIRS = """
import json, logging, os, sys, time, warnings
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
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps({"s": ended - began, "cpu_s": cpu_s, "mib": peak, "failed": failed}))
"""


def run(python: str, program: str, argument: Path) -> dict[str, object]:
    """Return what a program of its own process measured."""
    root = Path(__file__).resolve().parents[2]
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [python, "-c", program, str(argument)], stdout=output, stderr=errors, cwd=root
        ) as child,
    ):
        most = 0.0
        while child.poll() is None:
            most = max(most, tree_mib(child.pid))
            time.sleep(LOOK_S)
        output.seek(0)
        errors.seek(0)
        if child.returncode:
            raise RuntimeError(errors.read().strip().splitlines()[-1])
        figures: dict[str, object] = json.loads(output.read().splitlines()[-1])
    figures["mib"] = max(most, float(str(figures["mib"])))
    return figures


def tree_mib(pid: int) -> float:
    """Proportional share of memory of a process and all below it, in MiB."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                total += int(text.split("\nPss:")[1].split()[0]) / 1024
    return total


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
        totals = {key: [0.0, 0.0] for key in ("s", "cpu_s")}
        for name, copies in (*((name, 1) for name in FILES), *LARGE):
            source = data / name
            label = name.split(".")[0].split("__")[0]
            if copies > 1:
                label = f"{label}_x{copies}"
                source = Path(temporary) / f"{label}.json"
                enlarge(data / name, source, copies)
            folder = Path(temporary) / "trace"
            if source.is_dir():
                shutil.copytree(source, folder)
            else:
                folder.mkdir()
                shutil.copy(source, folder)
            ours, theirs = [], []
            for _ in range(TURNS if copies == 1 else 1):
                ours.append(run(sys.executable, _OURS, source))
                if python is not None:
                    theirs.append(run(python, _THEIRS, folder))
            shutil.rmtree(folder)
            if copies > 1:
                source.unlink()
            for problem in theirs[0]["failed"] if theirs else []:
                print(f"{label}: {problem}", file=sys.stderr)
            for key, unit in (("s", "s"), ("cpu_s", "s"), ("mib", "MiB")):
                pick = max if key == "mib" else statistics.median
                value = float(pick([float(run[key]) for run in ours]))
                base = float(pick([float(run[key]) for run in theirs])) if theirs else None
                figure(f"import.{label}.{key}", value, unit, base)
                if base is not None and key in totals:
                    totals[key][0] += value
                    totals[key][1] += base
            imported = statistics.median([float(run["import_s"]) for run in ours])
            figure(f"import.{label}.import_only", imported, "s", None)
        for key, (value, base) in totals.items():
            if value:
                figure(f"import.all.{key}", value, "s", base)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
