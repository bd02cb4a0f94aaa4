"""Marks: they reach every recording of the user, and nothing else does."""

from __future__ import annotations

import json
import socket
import stat
import threading
from pathlib import Path

import pytest

from tracer.cli import run
from tracer.control import Control, send_mark


@pytest.fixture
def folder(tmp_path_factory, monkeypatch) -> Path:
    path = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("TRACER_RUNTIME_DIR", str(path / "r"))
    return path / "r"


def texts(control: Control) -> list[str]:
    return [text for batch in control.look(None) for text in batch.rows.column("name").to_pylist()]


def test_a_mark_reaches_the_recording(tmp_path, folder):
    control = Control(tmp_path / "s")
    control.start()
    assert control.problem == ""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert send_mark("round 17, 30 users") == [str(tmp_path / "s")]
    assert send_mark("a\x1b[2Jb\n" + "x" * 500, tmp_path / "s") == [str(tmp_path / "s")]
    assert send_mark("other", tmp_path / "other") == []
    first, second = texts(control)
    assert first == "round 17, 30 users"
    assert len(second) == 200 and "\x1b" not in second and "\n" not in second
    send_mark("late")
    [row] = control.close()
    assert row.rows.column("name").to_pylist() == ["late"]
    assert send_mark("x") == [] and not list(folder.glob("*.sock"))


def ask(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(path))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return client.recv(1000)


def test_nonsense_is_answered_or_dropped_and_the_next_mark_comes_through(tmp_path, folder):
    control = Control(tmp_path / "s")
    control.start()
    [path] = folder.glob("*.sock")
    odd = (b"\n", b"{\n", b"[1]\n", b'{"mark": 3}\n', b'{"mark": " "}\n', b"\xff\n")
    deep = (b"[" * 3500 + b"\n", b'{"a":' * 800 + b"\n", b"9" * 4090 + b"\n")
    for data in (b"", *odd, *deep, b"x" * 10_000):
        try:
            answer = ask(path, data)
        except ConnectionError:
            continue
        assert not answer or "error" in json.loads(answer)
    assert send_mark("good") == [str(tmp_path / "s")]
    assert texts(control) == ["good"]
    control.close()


def test_an_answer_that_is_nested_without_end_is_none(tmp_path, folder):
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "1.sock"))
        listener.listen(1)

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(b"[" * 3500 + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert send_mark("x") == []
        thread.join()


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path, folder):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    control = Control(tmp_path / "s")
    control.start()
    assert "open to others" in control.problem
    assert control.close() == [] and send_mark("x") == []


def test_the_socket_of_a_killed_recorder_is_removed(tmp_path, folder):
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "1.sock"))
    assert send_mark("x") == [] and not list(folder.iterdir())


def test_the_command(tmp_path, folder, capsys):
    assert run(["mark", "round 1"]) == 5
    assert "no recording of this user runs" in capsys.readouterr().err
    assert run(["mark", " "]) == 2
    control = Control(tmp_path / "s")
    control.start()
    assert run(["mark", "round 1"]) == 0
    assert capsys.readouterr().out == f"Marked in {tmp_path / 's'}.\n"
    assert texts(control) == ["round 1"]
    control.close()
