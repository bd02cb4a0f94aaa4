from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.probes.recorded.traces import kernel, launch, write_trace

_IMPORT_AND_ANALYZE = """
import sys
from click.testing import CliRunner
from tracer.cli import main
from tracer.commands import analyze, import_
done = CliRunner().invoke(import_.command, [sys.argv[1], "-o", sys.argv[2]])
assert done.exit_code == 0, done.output
done = CliRunner().invoke(analyze.command, [sys.argv[2]])
assert done.exit_code == 0, done.output
print("pandas" in sys.modules)
"""
_FRAME = """
import sys
from tracer.lean_arrow import make_arrow_lean
make_arrow_lean()
import pyarrow as pa
rows = pa.table({"value": pa.array([1, None])})
assert "pandas" not in sys.modules
import pandas
print(rows.to_pandas()["value"].isna().sum(), pa.array(pandas.Series([7])).to_pylist())
"""


_CLOUDS = """
import sys
from tracer.lean_arrow import make_arrow_lean
make_arrow_lean()
import pyarrow.parquet, pyarrow.fs
print("pyarrow._s3fs" in sys.modules, pyarrow.fs.LocalFileSystem().type_name)
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_importing_and_analyzing_a_trace_loads_no_pandas(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.json", [launch(1, 10), kernel(1, 20), kernel(2, 90)])
    assert run(_IMPORT_AND_ANALYZE, str(trace), str(tmp_path / "s.tracer")) == "False"


def test_what_needs_pandas_still_finds_it() -> None:
    assert run(_FRAME) == "1 [7]"


def test_the_file_systems_of_clouds_are_not_loaded() -> None:
    assert run(_CLOUDS) == "False local"
