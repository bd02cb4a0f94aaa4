import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from probes.recorded import RecordingError, open_recording
from tests.probes.recorded.tables import read_all


def compute_median(table, key):
    rows = table.filter(table["is_compute"]).to_pandas()
    rows = rows[rows["name"] == "forward-compute"]
    return rows.groupby(key)["duration_ns"].median()


def test_the_slow_worker_stands_out(shared_data):
    recording, tables = read_all(shared_data / "straggler/trace-AR.parquet")
    operation = tables["operation"]
    assert operation.num_rows == 117_216
    medians = compute_median(operation, "rank")
    assert medians.idxmax() == 0 and medians.max() > 1.5 * medians.median()
    details = recording.manifest_facts()["sources"][0]["details"]
    assert (details["world_size"], details["tp_size"]) == (64, 4)
    assert not recording.problems


def test_the_slow_stage_stands_out(shared_data):
    _, tables = read_all(shared_data / "straggler/trace-ST.parquet")
    medians = compute_median(tables["operation"], "stage")
    assert medians.idxmax() == 3 and medians.max() > 1.3 * medians.median()


def test_steps_lie_end_to_end_and_keep_their_length(shared_data):
    recording, tables = read_all(shared_data / "straggler/trace-ST.parquet")
    rows = tables["operation"].to_pandas()
    rows["end_ns"] = rows["start_ns"] + rows["duration_ns"]
    extent = rows.groupby("step").agg(first=("start_ns", "min"), last=("end_ns", "max"))
    assert (extent["first"].to_numpy()[1:] >= extent["last"].to_numpy()[:-1]).all()
    assert recording.manifest_facts()["end_ns"] == extent["last"].max()
    lengths = (extent["last"] - np.r_[0, extent["last"].to_numpy()[:-1]]) / 1e9
    assert lengths[23] == pytest.approx(2.38, abs=0.02)


def test_kinds_are_compute_communication_or_neither(shared_data):
    _, tables = read_all(shared_data / "straggler/trace-ST.parquet")
    rows = tables["operation"].to_pandas()
    kinds = rows.groupby("name")[["is_compute", "is_communication"]].first()
    assert set(kinds.index[kinds["is_compute"]]) == {
        "forward-compute",
        "backward-compute",
        "optimizer",
    }
    assert not kinds.loc["gc"].any()
    assert kinds["is_communication"].sum() == 8


def log(path, **columns):
    n_rows = len(next(iter(columns.values())))
    base = {
        "rank": [0] * n_rows,
        "step": [1] * n_rows,
        "optype": ["forward-compute"] * n_rows,
        "start_ts": [0.5] * n_rows,
        "duration": [0.25] * n_rows,
    }
    pq.write_table(pa.table({**base, **columns}), path)
    return path


def test_impossible_values_are_counted(tmp_path):
    path = log(
        tmp_path / "x",
        start_ts=[1.0, float("nan"), -1.0, 1e300, 2.0],
        duration=[1.0, 1.0, 1.0, 1.0, float("inf")],
        mb_id=[0, 1, 2, 3, -1],
    )
    recording, tables = read_all(path)
    assert tables["operation"]["start_ns"].to_pylist() == [1_000_000_000]
    assert [problem.n_rows for problem in recording.problems] == [4]


def test_columns_of_wrong_types_are_counted(tmp_path):
    recording, tables = read_all(log(tmp_path / "x", start_ts=["a", "b"], rank=["0", "1"]))
    assert tables["operation"].num_rows == 0
    assert sum(problem.n_rows for problem in recording.problems) == 2


def test_other_parquet_and_damaged_files_are_refused(shared_data, tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other")
    whole = (shared_data / "straggler/trace-ST.parquet").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    for name in ("other", "cut"):
        with pytest.raises(RecordingError, match="none of the known recordings"):
            open_recording(tmp_path / name)
