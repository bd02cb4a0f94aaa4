"""``tracer describe`` prints what is declared."""

from __future__ import annotations

from analysis import schema
from tracer import cli


def test_every_table_and_column(capsys):
    assert cli.run(["describe"]) == 0
    text = capsys.readouterr().out
    assert all(table.name in text for table in schema.TABLES)
    for table in schema.TABLES:
        assert cli.run(["describe", table.name]) == 0
        text = capsys.readouterr().out
        assert all(f"\n{column.name} " in text for column in table)
        assert max(map(len, text.splitlines())) <= 100


def test_a_session_is_not_a_table(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text("{}")
    assert cli.run(["describe", str(tmp_path)]) == 2
    assert f"tracer analyze {tmp_path}" in capsys.readouterr().err


def test_a_wrong_name_gets_a_close_one(capsys):
    assert cli.run(["describe", "cuda_cal"]) == 2
    assert "did you mean cuda_call?" in capsys.readouterr().err
