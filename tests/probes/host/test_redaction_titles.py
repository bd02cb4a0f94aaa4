"""A process title in the place of the program's name hides as little as separate arguments."""

from __future__ import annotations

import pytest

from probes.host.redaction import redact


@pytest.mark.parametrize(
    "arguments",
    [
        ["./serve --password SECRET --port 1"],
        ["./serve --password SECRET", "--port", "1"],
        ["./serve --password SECRET --prompt SECRET SECRET SECRET", "0", "1"],
        ["./serve -H Authorization: Bearer SECRET", "0"],
        ["curl", "-v", "Bearer SECRET"],
        ["./serve http://u:SECRET@h/ hf_SECRETabcdef", "x"],
    ],
)
def test_no_secret_is_left(arguments: list[str]) -> None:
    line = redact(arguments)
    assert "SECRET" not in line
    assert line.split()[0] == arguments[0].split()[0]
