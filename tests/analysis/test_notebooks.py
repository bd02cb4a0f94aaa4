"""Every notebook runs from its first cell to its last on sessions that have what it asks for."""

from __future__ import annotations

import os
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.analysis.builder import MS, S, Service

FOLDER = Path(__file__).resolve().parents[2] / "analysis" / "notebooks"


def session(path: Path, seed: int, slower: float = 1.0, is_delayed: bool = False) -> Path:
    service = Service(seed=seed)
    while service.now < service.start + 24 * S:
        if is_delayed:
            service.preempt(20 * MS)
        service.decode_step(slower)
    builder = service.builder(path)
    rows = [
        {"time_ns": service.start + i * S, "pid": service.pid, "rss_anon_bytes": (1 << 30) + i * MS}
        for i in range(24)
    ]
    builder.add("process_sample", rows).write()
    return path


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    session(folder / "before.tracer", 1)
    session(folder / "after.tracer", 2, slower=1.2)
    session(folder / "incident.tracer", 3, is_delayed=True)
    (folder / "broken.tracer").mkdir()
    return folder


def run(name: str, sessions: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a notebook and return everything that it printed or showed as text."""
    root = str(FOLDER.parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(sessions / "ipython"))
    monkeypatch.setenv("TRACER_SESSIONS", str(sessions))
    incident = "incident" if name == "incident" else "after"
    monkeypatch.setenv("TRACER_SESSION", str(sessions / f"{incident}.tracer"))
    monkeypatch.setenv("TRACER_BEFORE", str(sessions / "before.tracer"))
    monkeypatch.setenv("TRACER_AFTER", str(sessions / "after.tracer"))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(sessions))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs
    )


#: What each notebook must have said about those sessions.
EXPECTED = {
    "comparison": ("regression: found", "tokens generated"),
    "fleet": ("3 sessions, 1 cannot be read", "launch.cpu_delay", "cudaGraphLaunch"),
    "incident": ("launch.cpu_delay", "stress-ng", "cudaGraphLaunch"),
    "soak": ("healthy", "mib_per_hour", "NO CHANGE BEYOND NOISE"),
}


def test_every_notebook_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_it_runs_and_says_what_the_sessions_hold(name: str, sessions: Path, monkeypatch):
    shown = run(name, sessions, monkeypatch)
    for text in EXPECTED[name]:
        assert text in shown


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_it_is_kept_without_outputs(name: str):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
