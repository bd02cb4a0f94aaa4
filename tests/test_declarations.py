"""What is declared once is complete: units, documentation, registries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from analysis import schema


@pytest.mark.parametrize("table", schema.TABLES, ids=lambda t: t.name)
def test_every_column_is_documented(table: schema.Table):
    assert table.row and all(len(column.doc) >= 4 for column in table.columns)


@pytest.mark.parametrize("declared", [schema.TABLES, schema.RECORDS])
def test_lists_are_sorted(declared: tuple):
    names = [item.name for item in declared]
    assert names == sorted(names)


def test_a_unit_must_be_in_the_name():
    with pytest.raises(schema.SchemaError, match="its name must end in '_ns'"):
        schema.Column("duration", "i64", "Length.", unit="ns")
    with pytest.raises(schema.SchemaError, match="is not declared in ns"):
        schema.Column("duration_ns", "i64", "Length.")


def test_arrow_schema_carries_unit_and_meaning():
    field = schema.CUDA_CALL.arrow_schema().field("duration_ns")
    assert field.metadata[b"unit"] == b"ns"
    assert field.metadata[b"doc"] == schema.CUDA_CALL.column("duration_ns").doc.encode()
    assert field.nullable


@pytest.mark.parametrize("record", schema.RECORDS, ids=lambda r: r.name)
def test_c_struct_and_dtype_have_the_same_layout(record: schema.Record, tmp_path: Path):
    """The C compiler itself prints every offset."""
    prints = "".join(
        f'printf("{f.name} %zu\\n", offsetof(struct {record.name}, {f.name}));'
        for f in record.fields
    )
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <stddef.h>\n"
        + record.c_struct()
        + f"\nint main(void) {{ {prints} return 0; }}\n"
    )
    binary = tmp_path / "layout"
    subprocess.run(["cc", "-o", binary, source], check=True)
    out = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    from_c = {name: int(offset) for name, offset in (line.split() for line in out.splitlines())}
    dtype = record.numpy_dtype()
    assert from_c == {name: dtype.fields[name][1] for name in dtype.names}


def test_a_changed_width_is_refused_by_the_compiler(tmp_path: Path):
    text = schema.CALL_RETURN.c_struct().replace("long long result", "long long result[2]")
    source = tmp_path / "bad.c"
    source.write_text(text)
    done = subprocess.run(["cc", "-c", "-o", tmp_path / "x.o", source], capture_output=True)
    assert done.returncode != 0
    assert b"call_return size" in done.stderr
