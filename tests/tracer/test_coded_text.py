"""Coded text is the same text: to those who look at rows, and on disk."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.schema import CUDA_CALL, Table
from probes.probe import Batch, make_batch
from tracer.coded_text import which_are
from tracer.encoding import encode_segment, joined_rows

KINDS = ["sync", "launch", "sync", "copy"]


def batch(start_ns: int, kinds: pa.Array, copy_kind: pa.Array | None = None) -> Batch:
    n = len(kinds)
    columns = {
        "start_ns": np.arange(start_ns, start_ns - n, -1),
        "duration_ns": np.ones(n, np.int64),
        "pid": np.ones(n, np.int32),
        "tid": np.ones(n, np.int32),
        "function": ["f"] * n,
        "layer": ["runtime"] * n,
        "kind": kinds,
        "call_id": np.arange(n),
        "depth": np.zeros(n, np.int16),
    }
    return make_batch(CUDA_CALL, columns | ({} if copy_kind is None else {"copy_kind": copy_kind}))


def coded(texts: list[str | None], dictionary: list[str]) -> pa.Array:
    indices = pa.array([None if text is None else dictionary.index(text) for text in texts])
    return pa.DictionaryArray.from_arrays(indices.cast(pa.int8()), pa.array(dictionary))


CODED = coded(KINDS, ["launch", "unused", "copy", "sync"])


def read(table: Table, batches: list[pa.RecordBatch]) -> pa.Table:
    return pq.read_table(io.BytesIO(encode_segment(table, batches, {})))


@pytest.mark.parametrize("column", [pa.array(KINDS), CODED], ids=["plain", "coded"])
def test_rows_with_some_values_are_found(column):
    assert which_are(column, {"sync"}).tolist() == [True, False, True, False]
    assert which_are(column, {"copy", "nothing"}).tolist() == [False, False, False, True]
    assert which_are(column.slice(1), {"sync"}).tolist() == [False, True, False]
    assert which_are(column.slice(0, 0), {"sync"}).tolist() == []


def test_a_batch_keeps_its_text_coded_and_every_other_column_as_declared():
    rows = batch(9, CODED).rows
    assert rows.column("kind").equals(CODED)
    for field in CUDA_CALL.arrow_schema():
        assert field.name == "kind" or rows.schema.field(field.name).equals(field)


def test_coded_text_is_sorted_and_plain_on_disk_without_what_does_not_occur():
    copies = coded(["h2d", None, "h2d", None], ["d2h", "h2d"])
    found = read(CUDA_CALL, [batch(9, CODED, copies).rows, batch(19, CODED, copies).rows])
    assert found["kind"].type == pa.string()
    assert found["start_ns"].to_pylist() == [6, 7, 8, 9, 16, 17, 18, 19]
    assert found["kind"].to_pylist() == KINDS[::-1] * 2
    assert found["copy_kind"].to_pylist() == [None, "h2d"] * 4
    assert found["function"].to_pylist() == ["f"] * 8
    raw = bytes(encode_segment(CUDA_CALL, [batch(9, CODED).rows], {}))
    assert b"sync" in raw and b"unused" not in raw


def test_nothing_but_nulls_and_no_rows_can_be_written():
    nulls = coded([None] * 4, ["h2d"])
    assert read(CUDA_CALL, [batch(9, CODED, nulls).rows])["copy_kind"].to_pylist() == [None] * 4
    empty = batch(9, CODED.slice(0, 0)).rows
    assert read(CUDA_CALL, [empty]).num_rows == 0


def test_coded_and_plain_batches_of_one_table_go_together():
    batches = [batch(9, CODED).rows, batch(19, pa.array(KINDS)).rows]
    assert joined_rows(CUDA_CALL, batches).schema == CUDA_CALL.arrow_schema()
    assert read(CUDA_CALL, batches)["kind"].to_pylist() == KINDS[::-1] * 2
