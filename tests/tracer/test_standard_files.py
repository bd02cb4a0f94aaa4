"""A command works without standard files, and nothing else takes their numbers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tracer.standard_files import raise_file_limit


def run_closed(code: str, out: Path) -> str:
    """Run code in a Python that has no standard files; return what it wrote to ``out``."""
    shell = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", shell, sys.executable, code, str(out)], timeout=60)
    assert done.returncode == 0
    return out.read_text()


def test_closed_standard_files_are_replaced_before_others_take_their_numbers(
    tmp_path: Path,
) -> None:
    code = (
        "import os, sys\n"
        "from tracer.standard_files import ensure_standard_files\n"
        "ensure_standard_files()\n"
        "file = open(sys.argv[1], 'w')\n"
        "os.write(1, b'warning'); os.write(2, b'warning'); print('x', file=sys.stderr)\n"
        "file.write(f'{file.fileno() > 2} {sys.stderr.isatty()}')\n"
    )
    assert run_closed(code, tmp_path / "out") == "True False"


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("ascii", b"9 us 40 C ?"),
        ("gb2312", b"9 us 40 \xa1\xe3C ?"),
        ("utf-8", "9 µs 40 °C א".encode()),
    ],
)
def test_a_letter_that_the_terminal_lacks_ends_nothing(encoding: str, written: bytes) -> None:
    code = (
        "from tracer.standard_files import write_in_any_encoding\n"
        "write_in_any_encoding()\n"
        "print('9 µs 40 °C א', end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, written)


def test_the_limit_of_open_files_is_raised_to_what_is_granted() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(64, soft), hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_recording_outlives_the_reader_of_its_messages(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "tracer", "record", "-o", str(tmp_path / "s")]
    child = subprocess.Popen(
        [*command, "--", sys.executable, "-S", "-c", "import time; time.sleep(1)"],
        stderr=write_end,
        stdin=subprocess.DEVNULL,
    )
    os.close(write_end)
    os.close(read_end)
    child.wait(timeout=90)
    text = (tmp_path / "s" / "manifest.json").read_text()
    assert '"end_reason": "target_ended"' in text
