"""The one-way flow of the packages, read from the syntax trees."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Modules that only one file may import, at any depth (a door each).
DOORS = {
    "bcc": ("probes/compiler.py",),
    "pynvml": ("probes/gpu/nvml_child.py",),
}
#: What analysis must never need: it opens sessions on a laptop.
NEVER_IN_ANALYSIS = {"bcc", "pynvml", "click", "psutil", "prometheus_client"}


def imports_of(source: str) -> set[str]:
    """Names of all modules imported anywhere in a source text, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def violations(path: str, source: str) -> list[str]:
    """Sentences that name the two modules of each import against the flow."""
    package = path.split("/", 1)[0]
    found = []
    for module in sorted(imports_of(source)):
        top = module.split(".", 1)[0]
        bad = (
            (package == "analysis" and (top in {"probes", "tracer"} or top in NEVER_IN_ANALYSIS))
            or (package == "probes" and top == "tracer")
            or (
                package == "probes"
                and top == "analysis"
                and module not in {"analysis", "analysis.schema"}
                and not module.startswith("analysis.schema.")
            )
            or (top in DOORS and path not in DOORS[top])
        )
        if bad:
            found.append(f"{path} may not import {module}")
    return found


def sources() -> list[Path]:
    return sorted(
        path
        for package in ("analysis", "probes", "tracer")
        for path in (ROOT / package).rglob("*.py")
    )


def test_there_are_sources_to_check():
    assert len(sources()) > 20


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_flow(path: Path):
    assert violations(str(path.relative_to(ROOT)), path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        (
            "probes/sched.py",
            "from analysis.timeline import X",
            "probes/sched.py may not import analysis.timeline",
        ),
        ("analysis/a.py", "import bcc", "analysis/a.py may not import bcc"),
        ("analysis/a.py", "def f():\n    import probes.x", "analysis/a.py may not import probes.x"),
        ("probes/a.py", "import tracer.cli", "probes/a.py may not import tracer.cli"),
        ("tracer/a.py", "import pynvml", "tracer/a.py may not import pynvml"),
    ],
)
def test_the_check_can_fail(path: str, source: str, expected: str):
    assert expected in violations(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("probes/sched.py", "from analysis.schema import OFFCPU"),
        ("probes/sched.py", "from analysis import schema"),
        ("tracer/a.py", "from analysis import open_session\nimport probes.bpf"),
    ],
)
def test_the_flow_itself_is_allowed(path: str, source: str):
    assert violations(path, source) == []


def test_the_contract_needs_only_the_standard_library():
    code = (
        "import sys; import analysis.schema, analysis.manifest; "
        "print([m for m in ('numpy','pyarrow','pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr
