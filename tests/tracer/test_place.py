"""A session that is removed or moved while it is recorded: it is said, and the recording ends."""

from __future__ import annotations

import os

import pytest

from analysis.manifest import Manifest
from probes.targets import TargetTree
from tests.tracer.fake_probes import FakeCalls
from tracer.place import Place, PlaceWatch
from tracer.recorder import Recorder
from tracer.session import SessionWriter


def test_a_path_that_leads_elsewhere_is_noticed(tmp_path):
    folder = tmp_path / "a" / "s"
    folder.mkdir(parents=True)
    place = Place(folder)
    place.check()
    (tmp_path / "a").rename(tmp_path / "b")
    assert place.is_kept and not place.look() and not place.is_kept
    (tmp_path / "a").write_text("a file")
    with pytest.raises(FileNotFoundError, match="removed or moved"):
        place.check()
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to(tmp_path / "b")
    place.check()
    place.close()
    place.close()


def test_a_disk_that_does_not_answer_is_no_proof(tmp_path, monkeypatch):
    place = Place(tmp_path)

    def fail(path, **_):
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.stat", fail)
        assert place.look()
    place.close()


def test_the_recording_says_so_and_ends(tmp_path):
    path = tmp_path / "s"
    writer = SessionWriter(path, Manifest(tool_version="1"))
    said: list[str] = []
    tree = TargetTree([os.getpid()])
    watch = PlaceWatch(path, writer.is_in_place, said.append)
    recorder = Recorder([FakeCalls()], writer, tree, duration_ns=20 * 10**9, watchers=[watch])
    recorder.start()
    path.rename(tmp_path / "moved")
    assert recorder.run() == "folder_gone"
    assert said == [f"{path} was removed or moved; the recording ends."]
    assert not recorder.finish()
    assert not path.exists()
