"""The call probe where the system gives no further thread: detaching waits for the files."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

from probes.cuda.calls import CudaCalls
from probes.targets import TargetTree


def test_probes_are_removed_by_the_wait_where_no_thread_can_be_had(monkeypatch):
    done: list[str] = []
    calls = CudaCalls(TargetTree([os.getpid()]))
    calls._tracing = SimpleNamespace(close=lambda: done.append("closed"))
    calls._watcher = SimpleNamespace(
        stop=lambda: done.append("stopped"), detach=lambda: done.append("detached")
    )
    monkeypatch.setattr(calls, "_drain_rings", lambda *_: [])
    monkeypatch.setattr(calls, "_each_second", lambda *_: [])

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert calls.stop() == []
    assert done == [], "the files are closed first"
    assert calls.wait_detached(1.0)
    assert done == ["stopped", "detached", "closed"]
    assert calls.wait_detached(1.0) and len(done) == 3
