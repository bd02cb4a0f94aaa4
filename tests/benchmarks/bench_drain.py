"""Reading, pairing, decoding and writing call records, in calls per second of one core.

``drain_to_arrow`` is everything from the rings to record batches of ``cuda_call``: real records of
launches with a driver call inside each, made by a traced program beforehand. ``drain_and_write`` is
that and the closed Parquet segments on disk, against the goal of a million. ``drain_records`` is
the first step alone: a ring's records as Arrow columns, in pieces of the size that the recorder
works on. The baseline of the first and last is bcc's own ring buffer callback on the same kind of
record, which makes a row of its fields, as any column store needs; a call has two records.
``bcc_callback_bare`` does nothing with the record. Each is measured at its second drain, with the
heap set as ``tracer record`` sets it, as a recorder that has been running touches few new pages.
Medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.schema import CUDA_CALL
from probes.compiler import find_bcc, find_headers
from probes.cuda.calls import PIECE_RECORDS, CudaCalls
from probes.probe import Batch
from probes.targets import TargetTree
from tests.probes.traced import build_library, build_program, started
from tracer.lean_arrow import give_memory_back, make_arrow_lean
from tracer.lean_heap import make_heap_lean
from tracer.segment_store import SegmentStore

ROUNDS = 7
LAUNCHES = 40_000
GOAL_WRITTEN = 1e6

_BCC = r"""
import ctypes as ct, os, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, sys.argv[1]); sys.path.append(sys.argv[2])
from probes import compiler
with tempfile.TemporaryDirectory() as folder:
    os.environ["BCC_KERNEL_SOURCE"] = str(
        compiler._merge_headers(Path(folder), compiler.find_headers()))
    import bcc
    module = bcc.BPF(text='''
    struct record { u64 a, b, c, d, e, f, g, h, i; };
    BPF_RINGBUF_OUTPUT(records, 4096);
    int hit(void *ctx) {
        struct record *r = records.ringbuf_reserve(sizeof(*r));
        if (!r) return 0;
        r->a = 1; r->b = 2; r->c = 3; r->d = 4; r->e = 5; r->f = 6; r->g = 7; r->h = 8; r->i = 9;
        bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
        return 0;
    }''', cflags=["-Wno-everything"])
class Record(ct.Structure):
    _fields_ = [(name, ct.c_ulonglong) for name in "abcdefghi"]
pointer = ct.POINTER(Record)
seen = 0
rows = []
table = module["records"]
def bare(ctx, data, size):
    global seen
    seen += 1
def decode(ctx, data, size):
    global seen
    seen += 1
    x = ct.cast(data, pointer).contents  # as bcc's own event() does
    rows.append((x.a, x.b, x.c, x.d, x.e, x.f, x.g, x.h, x.i))
table.open_ring_buffer(bare if sys.argv[5] == "bare" else decode)
module.attach_uprobe(name=sys.argv[3], sym="cudaLaunchKernel", fn_name="hit", pid=int(sys.argv[4]))
print("ready", flush=True)
sys.stdin.readline()
module.ring_buffer_consume()
seen = 0
rows.clear()
print("warm", flush=True)
sys.stdin.readline()
start = time.thread_time_ns()
module.ring_buffer_consume()
spent = time.thread_time_ns() - start
good = rows.count((1, 2, 3, 4, 5, 6, 7, 8, 9)) if sys.argv[5] == "row" else seen
print(good, spent, flush=True)
os._exit(0)
"""


def drain_rate(program: Path, folder: Path | None = None) -> float:
    """Calls per second of CPU time from rings to rows of ``cuda_call``.

    Args:
        program: The traced program.
        folder: Where the rows are written too; None to leave that out.
    """
    with started(program) as target:
        calls = CudaCalls(TargetTree([target.pid]))
        calls.start()
        store = None if folder is None else SegmentStore(folder, dict, None)
        target.run()
        _drain(calls, store)
        target.run()
        start = time.thread_time_ns()
        batches = _drain(calls, store)
        spent = time.thread_time_ns() - start
        n = sum(batch.rows.num_rows for batch in batches)
        calls.stop()
        calls.wait_detached(30)
    if n != 2 * LAUNCHES:
        raise SystemExit(f"{n} calls of {2 * LAUNCHES}")
    return n / spent * 1e9


def _drain(calls: CudaCalls, store: SegmentStore | None) -> list[Batch]:
    """Everything in the rings as batches of ``cuda_call``, written where there is a store."""
    drained = calls.drain(time.monotonic_ns())
    batches = [batch for batch in drained if batch.table is CUDA_CALL]
    if store is not None:
        store.write(CUDA_CALL, [batch.rows for batch in batches])
    return batches


def record_rate(program: Path) -> float:
    """Records per second of CPU time from a ring to Arrow columns."""
    with started(program) as target:
        calls = CudaCalls(TargetTree([target.pid]))
        calls.start()
        assert calls.tracing is not None
        ring = calls.tracing.entries
        target.run()
        while ring.n_waiting:
            _columns(ring.drain(PIECE_RECORDS))
        calls.tracing.returns.drain()
        target.run()
        start = time.thread_time_ns()
        batches = []
        while ring.n_waiting:
            batches.append(_columns(ring.drain(PIECE_RECORDS)))
        spent = time.thread_time_ns() - start
        n = sum(batch.num_rows for batch in batches)
        calls.stop()
        calls.wait_detached(30)
    if n != 2 * LAUNCHES:
        raise SystemExit(f"{n} records of {2 * LAUNCHES}")
    return n / spent * 1e9


def _columns(records: npt.NDArray[np.void]) -> pa.RecordBatch:
    """Entry records as Arrow columns."""
    names = ("time_ns", "pid_tgid", "function", "depth", "sequence")
    columns = {name: pa.array(np.ascontiguousarray(records[name])) for name in names}
    words = np.ascontiguousarray(records["words"].T)
    columns.update((f"word_{index}", pa.array(word)) for index, word in enumerate(words))
    return pa.RecordBatch.from_pydict(columns)


def callback_rate(program: Path, library: Path, how: str) -> float:
    """Records per second of CPU time through bcc's callback."""
    with started(program) as target:
        process = subprocess.Popen(
            [
                os.environ.get("BCC_PYTHON", "/usr/bin/python3"),
                "-c",
                _BCC,
                str(Path(__file__).parents[2]),
                str(find_bcc()),
                str(library),
                str(target.pid),
                how,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None and process.stdin is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("bcc's own reader could not be started")
        for _ in range(2):
            target.run()
            process.stdin.write("\n")
            process.stdin.flush()
            line = process.stdout.readline()
        seen, spent = (int(word) for word in line.split())
        process.wait()
    if seen != LAUNCHES:
        raise SystemExit(f"bcc read {seen} records of {LAUNCHES}")
    return seen / spent * 1e9


def main() -> None:
    if not find_headers():
        raise SystemExit("no kernel headers")
    make_heap_lean()
    make_arrow_lean()
    give_memory_back()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build_library(folder)
        loop = (
            f"for (int i = 0; i < {LAUNCHES}; i++) cudaLaunchKernel(A(16 + i % 99), g, b, 0, 0, 0);"
        )
        body = f'{loop} puts("done"); fflush(stdout); getchar(); {loop}'
        program = build_program(folder, library, body)
        calls = statistics.median(drain_rate(program) for _ in range(ROUNDS))
        written = []
        for index in range(ROUNDS):
            place = folder / f"session{index}"
            place.mkdir()
            written.append(drain_rate(program, place))
        records = statistics.median(record_rate(program) for _ in range(ROUNDS))
        row = statistics.median(callback_rate(program, library, "row") for _ in range(3))
        bare = statistics.median(callback_rate(program, library, "bare") for _ in range(3))
    print(f"drain_to_arrow {calls:.0f} calls/s {row / 2:.0f} {calls / (row / 2):.1f}")
    rate = statistics.median(written)
    print(f"drain_and_write {rate:.0f} calls/s {GOAL_WRITTEN:.0f} {rate / GOAL_WRITTEN:.2f}")
    print(f"drain_records {records:.0f} records/s {row:.0f} {records / row:.1f}")
    print(f"bcc_callback_bare {bare:.0f} records/s {row:.0f} {bare / row:.1f}")


if __name__ == "__main__":
    main()
