"""The file of ``record --config``: what it may say, and what reading it again changes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.manifest import Manifest
from probes.targets import TargetTree
from tests.tracer.fake_probes import FakeCalls
from tracer.captures import CaptureOptions
from tracer.errors import InputError, UsageError
from tracer.long_run import LongRun, LongRunOptions
from tracer.recorder import Recorder, stopped_by_signals
from tracer.session import SessionWriter
from tracer.settings_file import Reload, SettingsFile, parse_settings
from tracer.trigger_grammar import parse_trigger

S = 1_000_000_000


def test_what_a_file_says_holds_and_its_triggers_are_added():
    text = """
    # of the service vllm
    trigger = no progress for 10s
    trigger=xid
    keep = 5m
    max-size = 1G
    trigger-before = 30s
    max-captures = 2
    on-finding = page --text=a=b oncall
    """
    base = LongRunOptions(
        keep_ns=60 * S, min_free_bytes=7, triggers=(parse_trigger("xid"),), metrics_port=1
    )
    assert parse_settings(text, base, "f") == LongRunOptions(
        keep_ns=300 * S,
        max_bytes=10**9,
        min_free_bytes=7,
        triggers=(parse_trigger("xid"), parse_trigger("no progress for 10s")),
        captures=CaptureOptions(30 * S, 60 * S, 2, "page --text=a=b oncall"),
        metrics_port=1,
    )
    assert parse_settings("", base, "f") == base


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kepp = 5m", "did you mean keep?"),
        ("follow = vllm", "choose from keep"),
        ("keep", "not NAME = VALUE"),
        ("keep =", "not NAME = VALUE"),
        ("keep = soon", "is not a time"),
        ("keep = 1m\nkeep = 2m", "line 3: keep is there twice"),
        ("max-size = 2 apples", "is not a size"),
        ("max-captures = 0", "not a number from 1 on"),
        ("max-captures = " + "9" * 500, "not a number from 1 on"),
        ("trigger = lunch p99 > 5ms", "did you mean launch p99"),
        ("\x00\x1b[2J = 3", "no option"),
    ],
)
def test_a_line_that_cannot_be_is_told_with_its_number(line, words):
    with pytest.raises(UsageError, match=r"f, line \d") as caught:
        parse_settings(f"# first\n{line}", LongRunOptions(), "f")
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [None, b"#" * 100_000, b"keep = \xff\xfe"])
def test_a_file_that_cannot_be_read_is_told(tmp_path, content):
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"{path} .*; give"):
        SettingsFile(path, LongRunOptions()).read()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_regular_file_does_not_hold_up_the_recording(tmp_path, kind):
    path = tmp_path / "f"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=f"{path} .*; give"):
        SettingsFile(path, LongRunOptions()).read()


def test_reading_again_changes_the_recording_and_a_wrong_file_changes_nothing(tmp_path):
    path = tmp_path / "f"
    path.write_text("trigger = xid\nkeep = 10m\n")
    base = LongRunOptions(triggers=(parse_trigger("rss > 5gb"),))
    file = SettingsFile(path, base)
    changed: list[LongRunOptions] = []
    told: list[str] = []

    def change(options: LongRunOptions) -> list[str]:
        changed.append(options)
        return ["The rest stays."]

    watcher = Reload(file, file.read(), change, told.append)
    moment = type("Now", (), {"now_ns": 5})()
    assert watcher.look(moment) == () and not changed
    path.write_text("trigger = any finding\nkeep = 5m\n")
    assert file.ask()
    [batch] = watcher.look(moment)
    [row] = batch.rows.to_pylist()
    assert (row["kind"], row["name"], row["time_ns"]) == ("other", "reload", 5)
    expected = "trigger 'any finding' added, trigger 'xid' removed, keep changed. The rest stays."
    assert row["detail"] == f"{path} was read again: {expected}"
    assert [item.text for item in changed[0].triggers] == ["rss > 5gb", "any finding"]
    path.write_text("keep = soon\n")
    file.ask()
    [batch] = watcher.look(moment)
    assert "goes on as before" in batch.rows.column("detail")[0].as_py()
    assert len(changed) == 1 and len(told) == 2
    path.write_text("trigger = any finding\nkeep = 5m\n")
    file.ask()
    assert "nothing changed" in watcher.look(moment)[0].rows.column("detail")[0].as_py()


def test_a_hang_up_of_a_service_changes_the_rules_and_loses_no_row(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_RUNTIME_DIR", str(tmp_path / "run"))
    path = tmp_path / "f"
    path.write_text("keep = 10m\n")
    file = SettingsFile(path, LongRunOptions())
    long_run = LongRun(file.read(), tmp_path / "s", lambda text: None, file)
    retention = long_run.retention
    assert retention is not None and retention.keep_ns == 600 * S
    writer = SessionWriter(tmp_path / "s", Manifest(tool_version="0"), retention=retention)
    tree = TargetTree([])
    calls = FakeCalls()
    recorder = Recorder([calls], writer, tree, watchers=long_run.watchers(writer, tree))
    seen = []

    class Asks:
        def observe(self, batch, now_ns): ...

        def look(self, moment):
            seen.append(retention.keep_ns)
            if len(seen) == 1:
                path.write_text("keep = 5m\nmin-free = 1k\ntrigger = xid\n")
                os.kill(os.getpid(), signal.SIGHUP)
            if len(seen) == 3:
                moment.stop("interrupted")
            return ()

        def close(self):
            return ()

    recorder._watchers = [*recorder._watchers, Asks()]
    with stopped_by_signals(recorder, lambda: file.ask() or True):
        recorder.start()
        assert recorder.run() == "interrupted"
        assert recorder.finish()
    assert seen[-1] == 300 * S and (retention.keep_ns, retention.max_bytes) == (300 * S, None)
    assert writer.source().n_lost == 0


def test_a_wish_that_comes_before_the_recording_begins_is_kept(tmp_path):
    before = signal.getsignal(signal.SIGHUP)
    file = SettingsFile(tmp_path / "f", LongRunOptions())
    file.listen()
    try:
        assert not file.take_asked()
        os.kill(os.getpid(), signal.SIGHUP)
        assert file.take_asked() and not file.take_asked()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("is_closed", [True, False])
def test_only_a_terminal_that_was_closed_ends_it(tmp_path, is_closed):
    script = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "from tracer.long_run import LongRunOptions\n"
        "from tracer.settings_file import SettingsFile\n"
        "file = SettingsFile(Path('none'), LongRunOptions())\n"
        "signal.signal(signal.SIGHUP, lambda *_: Path(sys.argv[1]).write_text(str(file.ask())))\n"
        "Path(sys.argv[2]).touch()\n"
        "time.sleep(30)\n"
    )
    answer, ready = tmp_path / "answer", tmp_path / "ready"
    pid, master = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", script, str(answer), str(ready)])
    try:
        wait_for(ready)
        if is_closed:
            os.close(master)
        else:
            os.kill(pid, signal.SIGHUP)
        wait_for(answer)
        assert answer.read_text() == str(not is_closed)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not is_closed:
            os.close(master)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or (path.name == "answer" and not path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_wrong_file_is_told_before_anything_is_recorded(tmp_path):
    path = tmp_path / "f"
    path.write_text("kep = 5m\n")
    what = ["--pid", str(os.getpid()), "--for", "hang.hardware", "-o", str(tmp_path / "s")]
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "record", *what, "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and "did you mean keep?" in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_reload_while_the_recorder_ends_is_not_its_exit_status(tmp_path):
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from tracer.long_run import LongRunOptions\n"
        "from tracer.settings_file import SettingsFile\n"
        "SettingsFile(Path('none'), LongRunOptions()).listen()\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid()):\n"
        "        kill(pid, 1)\n"
        "        print('asked late', flush=True)\n"
        "late = Late()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "asked late\n"), ended.stderr
