"""What was compiled once is loaded again without a compiler, and only if it is our own."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from probes import bpf, program_store, syscalls

SOURCE = """
BPF_ARRAY(numbers, u64, 4);
BPF_HASH(inner, u32, u64, 7);
int counted(struct sched_switch_arguments *a) {
    u32 key = 1;
    u64 *value = numbers.lookup(&key);
    if (value && !inner.lookup(&key)) __sync_fetch_and_add(value, 1);
    return 0;
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "programs"
    load, keep = program_store.load, program_store.keep
    monkeypatch.setattr(program_store, "load", lambda key: load(key, place))
    monkeypatch.setattr(program_store, "keep", lambda key, kept: keep(key, kept, place))
    return place


def load(source: str = SOURCE) -> bpf.Module:
    request = [bpf.ProgramRequest("counted", "tracepoint")]
    return bpf.Loading(source, request, ["numbers"], ["sched/sched_switch"], is_kept=True).result()


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the compiler was started")

    monkeypatch.setattr(bpf.subprocess, "Popen", refuse)


@pytest.mark.root
def test_the_second_load_needs_no_compiler_and_runs_the_same_program(folder, monkeypatch):
    first = load()
    first.close()
    without_compiler(monkeypatch)
    n_before = len(list(Path("/proc/self/fd").iterdir()))
    module = load()
    event = syscalls.attach_tracepoint(
        module.programs["counted"], module.tracepoints["sched/sched_switch"]
    )
    for _ in range(3):
        os.sched_yield()
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, b"x")
            os._exit(0)
        os.read(read, 1)
        os.wait()
        os.close(read)
        os.close(write)
    os.close(event)
    (count,) = struct.unpack(
        "<Q", syscalls.map_lookup(module.maps["numbers"], struct.pack("<I", 1), 8) or b""
    )
    assert count > 0
    assert len(syscalls.map_keys(module.maps["numbers"], 4)) == 4
    module.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == n_before


@pytest.mark.root
def test_another_source_is_compiled_and_what_is_damaged_is_as_good_as_not_there(
    folder, monkeypatch
):
    load().close()
    (kept,) = folder.glob("*.json")
    whole = kept.read_text()
    content = json.loads(whole.partition("\n")[2])
    # Instructions that the kernel would take, and that are not those that were compiled.
    other = whole.replace('"code": "', '"code": "b700000000000000', 1)
    n_before = len(list(Path("/proc/self/fd").iterdir()))
    for text in ("", "{}", "[1]", "[" * 100_000, whole[:-9], other):
        kept.write_text(text)
        assert program_store.load(kept.stem) is None
    kept.unlink()
    os.mkfifo(kept, 0o600)
    assert program_store.load(kept.stem) is None
    refused = [{**content["programs"][0], "code": "ff" * 16}]
    program_store.keep(kept.stem, {**content, "programs": refused})
    assert program_store.load(kept.stem) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == n_before
    load().close()
    assert json.loads(kept.read_text().partition("\n")[2]) == content
    without_compiler(monkeypatch)
    with pytest.raises(AssertionError, match="compiler was started"):
        load(SOURCE.replace("numbers, u64, 4", "numbers, u64, 5"))


@pytest.mark.root
@pytest.mark.parametrize("what", ["folder", "file", "owner", "link"])
def test_what_others_could_have_written_is_not_read(folder, what):
    load().close()
    (kept,) = folder.glob("*.json")
    if what == "folder":
        folder.chmod(0o777)
    elif what == "file":
        kept.chmod(0o622)
    elif what == "owner":
        os.chown(kept, 65534, -1)
    else:
        kept.rename(folder / "elsewhere")
        kept.symlink_to(folder / "elsewhere")
    assert program_store.load(kept.stem) is None


def test_a_folder_that_cannot_be_made_costs_nothing(tmp_path: Path):
    (tmp_path / "file").touch()
    program_store.keep("key", {"programs": []}, tmp_path / "file" / "folder")
    program_store.keep("key", {"programs": []}, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_the_newest_are_kept(tmp_path: Path):
    place = tmp_path / "programs"
    for index in range(program_store.MAX_FILES + 3):
        program_store.keep(f"key{index}", {"programs": []}, place)
        os.utime(place / f"key{index}.json", (index, index))
    assert len(list(place.iterdir())) == program_store.MAX_FILES
    assert not (place / "key0.json").exists()
    program_store.forget(place)
    assert not list(place.iterdir())


def test_the_key_stands_for_request_and_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    key = program_store.key_of(b"request")
    assert key != program_store.key_of(b"another") and key == program_store.key_of(b"request")
    other = tmp_path / "boot_id"
    other.write_text("another-boot\n")
    monkeypatch.setattr(program_store, "_BOOT_ID", other)
    assert program_store.key_of(b"request") != key
    monkeypatch.setattr(program_store, "_BOOT_ID", tmp_path / "none")
    assert program_store.key_of(b"request") is None
