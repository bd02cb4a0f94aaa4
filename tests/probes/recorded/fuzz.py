"""Damages recordings of other tools at random and imports them: the long form of the fuzzing.

``python -m tests.probes.recorded.fuzz --minutes 10 --keep DIR`` runs until the time is over and
ends with 1 when an import did anything else than to finish or to refuse in one line: an unforeseen
exception, more memory or time than is bounded. Such files are kept. Every case is a process of its
own, and is repeated by its seed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from probes.recorded import RecordingError, open_recording
from tests.conftest import DATA_VARIABLE

#: One recording of each format, small ones.
SOURCES = (
    "nsys/healthy_1pct.sqlite",
    "nsys/h100_2gpu_1s.sqlite",
    "ingero/sample-gpu-node-01.db",
    "kineto/critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
    "kineto/critical_path__cuda_event_sync__event_sync_trace.json.gz",
    "metrics/vllm-0.32.0-cpu-recorded/scrapes.jsonl.gz",
    "straggler/trace-ST.parquet",
)
#: Seeds that found a defect once, by source.
FOUND = {"nsys/healthy_1pct.sqlite": (1043,), "straggler/trace-ST.parquet": (1796003152,)}
#: Most memory of one import beyond what is there before it, and most time. The limit of addresses
#: is only to protect the machine: allocators reserve more than they use.
MEMORY_BYTES = 1 << 30
ADDRESS_BYTES = 8 << 30
LIMIT_S = 60

_WORDS = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u0000", b"\x00", b"\xff\xfe", b"null"),
    *(b"-1", b"1e309", b"NaN", b"Infinity", b"9" * 30, b"0.1234567891234", b'"traceEvents":['),
    *(b'"cat":"kernel"', b'"ph":"X"', b'"args":', b'"dur":-5', b'"ts":"x"', b"{" * 500),
)
_CELLS = (None, -1, 0, 2**63 - 1, -(2**63), 1.5, 1e300, "", "x" * 5000, b"\x00\xff", "../../x")


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """Return bytes with a cut, changed bytes, or pieces lost, repeated, moved or put in."""
    data = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        if not data:
            break
        at = chance.randrange(len(data))
        size = min(chance.choice((1, 4, 100, 5000)), len(data) - at)
        kind = chance.randrange(7)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at : at + size]
        elif kind == 2:
            data[at:at] = data[at : at + size]
        elif kind == 3:
            other = chance.randrange(len(data))
            data[other : other + size] = data[at : at + size]
        elif kind == 4:
            data[at:at] = chance.choice(_WORDS)
        else:
            for _ in range(chance.choice((1, 10, 200))):
                data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def change_cells(path: Path, chance: random.Random) -> None:
    """Put odd values into tables of an SQLite file, and drop, empty or rename some."""
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        tables = sorted(name for (name,) in rows if not name.startswith("sqlite_"))
        for _ in range(chance.randrange(1, 8)):
            table = chance.choice(tables)
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            if not columns:
                continue
            column, kind = chance.choice(columns), chance.randrange(8)
            try:
                if kind == 0:
                    connection.execute(f'DROP TABLE "{table}"')
                elif kind == 1:
                    connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "odd"')
                elif kind == 2:
                    connection.execute(f'DELETE FROM "{table}"')
                else:
                    connection.execute(
                        f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % ? = 0',
                        (chance.choice(_CELLS), chance.choice((1, 2, 7))),
                    )
            except sqlite3.Error:
                continue
        connection.commit()
    finally:
        connection.close()


def make_case(source: Path, target: Path, seed: int) -> None:
    """Write a damaged copy of a recording; the same one for the same seed."""
    chance = random.Random(seed)
    whole = source.read_bytes()
    if source.suffix == ".gz" and chance.randrange(5):
        whole = gzip.decompress(whole)
    is_table = source.suffix in (".sqlite", ".db")
    target.write_bytes(whole)
    if is_table and chance.randrange(2):
        change_cells(target, chance)
        if chance.randrange(4):
            return
        whole = target.read_bytes()
    target.write_bytes(damaged(whole, chance))


def try_import(path: Path) -> str:
    """Import a file and return ``read`` or ``refused``.

    Raises:
        AssertionError: it was refused in other than one line that names the file, or rows are
            impossible.
    """
    try:
        recording = open_recording(path)
        for batch in recording.batches():
            assert batch.rows.num_rows <= 200_000
            batch.rows.validate(full=True)
        recording.manifest_facts()
    except RecordingError as error:
        assert str(path) in str(error), error
        assert "\n" not in str(error), error
        return "refused"
    return "read"


def apart(work: Callable[[], str]) -> tuple[str, str]:
    """Return what work says, done by a process of its own, or how that ended and its last words."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
            signal.alarm(LIMIT_S)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            result = work()
            taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            assert taken < MEMORY_BYTES, f"it took {taken >> 20} MiB"
            os.write(write, result.encode())
            code = 0
        except BaseException:
            os.write(write, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode("utf-8", "replace")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == 0:
        return said, ""
    if status == -signal.SIGALRM:
        return "slow", f"not done after {LIMIT_S} s"
    return "failed", said or f"ended with {status}"


def main() -> int:
    """Fuzz until the time is over."""
    default = Path(__file__).resolve().parents[4] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, default=Path("fuzzed"), help="folder for bad cases")
    options = parser.parse_args()
    data = Path(os.environ.get(DATA_VARIABLE, default))
    sources = [data / name for name in SOURCES if (data / name).is_file()]
    if not sources:
        print(f"no recordings in {data}; set {DATA_VARIABLE}", file=sys.stderr)
        return 1
    end = time.monotonic() + 60 * options.minutes
    counts: Counter[str] = Counter()
    seed = options.seed
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "case"
        while time.monotonic() < end:
            source = sources[seed % len(sources)]
            make_case(source, target, seed)
            result, words = apart(lambda: try_import(target))
            counts[result] += 1
            if words:
                options.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(target, options.keep / f"{source.name}.{seed}")
                print(f"seed {seed}, {source.name}: {result}\n{words}", flush=True)
            seed += 1
    print(f"seeds {options.seed} to {seed - 1}: {dict(counts)}")
    return 1 if counts["failed"] + counts["slow"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
