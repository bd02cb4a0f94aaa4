"""Man pages: one a command, and man itself reads them without a complaint."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tracer.cli import COMMANDS
from tracer.errors import EXIT_CODES
from tracer.man_pages import man_pages, write


def test_every_command_has_a_page_with_its_options_and_exit_codes():
    pages = man_pages()
    assert set(pages) == {"tracer.1", *(f"tracer-{name}.1" for name, _ in COMMANDS)}
    for text in pages.values():
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"):
            assert f".SH {section}\n" in text
        for code in EXIT_CODES:
            assert f"\n.B {code}\n" in text
    assert "\\-\\-fail\\-on" in pages["tracer-analyze.1"]
    assert "tracer record \\-\\-pid 4242" in pages["tracer-record.1"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="apt-get install groff")
def test_the_formatter_has_nothing_to_complain(tmp_path: Path):
    paths = write(tmp_path)
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
