"""A verdict about a part of a session that is still being recorded, in a process of its own.

``python -m tracer.live SESSION BEGIN_NS END_NS [CAUSE ...]`` prints one JSON object. It runs at the
lowest priority, so that it takes nothing from the service.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 120.0
#: Verdicts that are no finding.
QUIET = frozenset({"healthy", "no_demand", "unknown"})


def command(path: Path, start_ns: int, end_ns: int, causes: Sequence[str] = ()) -> list[str]:
    """Return the command line that analyses a part of a session."""
    return [sys.executable, "-m", "tracer.live", str(path), str(start_ns), str(end_ns), *causes]


def start(
    path: Path, start_ns: int, end_ns: int, causes: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the analysis of a part of a session.

    Raises:
        OSError: no process could be started.
    """
    return subprocess.Popen(
        command(path, start_ns, end_ns, causes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def result(child: subprocess.Popen[bytes], timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """Return what an analysis found, None where it failed or took too long."""
    try:
        output, _ = child.communicate(timeout=timeout_s)
        found = json.loads(output)
    except subprocess.TimeoutExpired:
        kill_group(child)
        child.communicate()
        return None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, and all that it started there."""
    if child.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)


def lowest_priority() -> None:
    """Give this process the lowest priority for CPU that still goes on beside a busy service."""
    with contextlib.suppress(OSError):
        os.nice(19)


def main(arguments: Sequence[str]) -> int:
    """Analyse and print."""
    lowest_priority()
    from analysis import attribute, open_session
    from analysis.causes import CAUSES

    path, start_ns, end_ns, *slugs = arguments
    whole = open_session(path)
    # A running recording has no end yet; finding the last row would read all of it.
    whole.manifest.end_ns = whole.manifest.end_ns or int(end_ns)
    session = whole.between(int(start_ns), int(end_ns))
    causes = [cause for cause in CAUSES if not slugs or cause.slug in slugs]
    found = attribute(session, causes=causes).to_json()
    kept = ("schema_version", "session", "is_simulated", "start_ns", "end_ns", "verdict")
    print(json.dumps({key: found[key] for key in (*kept, "findings", "notes")}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
