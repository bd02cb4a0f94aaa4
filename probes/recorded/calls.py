"""Rows of ``cuda_call`` from the bare calls of a recording: ids, nesting, first uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.schema import CUDA_CALL
from probes.probe import Batch, make_batch
from probes.recorded.call_names import call_kind, call_layer
from probes.recorded.nesting import nest

_Ints = npt.NDArray[np.int64]

#: Calls that stay open over a batch boundary at most; more are not real.
_MAX_OPEN_CALLS = 10_000
#: Kernels remembered per recording at most; beyond, first sight is unknown.
_MAX_KERNELS = 1_000_000


def nullable(values: npt.NDArray[Any], is_null: npt.NDArray[np.bool_]) -> pa.Array:
    """Return an Arrow array of ``values`` with null where ``is_null``."""
    return pa.array(values, mask=is_null)


def texts(codes: npt.NDArray[Any], names: Sequence[str | None]) -> pa.DictionaryArray:
    """Return the coded Arrow text ``names[code]`` for each code."""
    known = list(dict.fromkeys(name for name in names if name is not None))
    place = {name: index for index, name in enumerate(known)}
    places = np.array([-1 if name is None else place[name] for name in names], np.int32)
    indices = places[codes]
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, mask=indices < 0), pa.array(known or [""], pa.string())
    )


def same(value: int | None, n: int) -> pa.Array:
    """Return an Arrow array of a number, or of null, ``n`` times."""
    return pa.nulls(n, pa.int64()) if value is None else pa.array(np.full(n, value))


class CallAssembler:
    """Turns bare calls, given batch by batch in order of their start, into ``cuda_call`` rows.

    Args:
        process_starts_ns: Process id to when its start was seen in the recording. Only for these
            processes is the first sight of a kernel known to be its first use.
        complete_until_ns: Time after which calls are missing from the recording; first uses
            after it are unknown. None when nothing is missing.
    """

    def __init__(
        self,
        process_starts_ns: Mapping[int, int] | None = None,
        complete_until_ns: int | None = None,
    ) -> None:
        self._starts = dict(process_starts_ns or {})
        self._complete_until_ns = complete_until_ns
        self._next_id = 0
        self._open = np.empty((0, 5), np.int64)
        self._seen: set[tuple[int, int]] = set()

    def add(
        self,
        start_ns: _Ints,
        duration_ns: _Ints,
        pid: _Ints,
        tid: _Ints,
        function: tuple[npt.NDArray[Any], Sequence[str]],
        others: Mapping[str, Any],
        kernel: tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]] | None = None,
    ) -> Batch:
        """Return the batch of these calls.

        Args:
            start_ns: When each call was entered, ascending.
            duration_ns: Length of each call, not negative.
            pid: Process of each call.
            tid: Thread of each call.
            function: Code of each call's function, and the names that the codes index.
            others: Further columns of the table, passed on as they are.
            kernel: Handle of the kernel of each call, and where there is none.
        """
        codes, names = function
        call_id = np.arange(self._next_id, self._next_id + len(start_ns), dtype=np.int64)
        self._next_id += len(start_ns)
        parent, has_parent, depth = self._nest(start_ns, start_ns + duration_ns, pid, tid, call_id)
        columns: dict[str, Any] = {
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            "pid": pid,
            "tid": tid,
            "function": texts(codes, names),
            "layer": texts(codes, [call_layer(name) for name in names]),
            "kind": texts(codes, [call_kind(name) for name in names]),
            "call_id": call_id,
            "parent_call_id": nullable(parent, ~has_parent),
            "depth": depth,
            **others,
        }
        if kernel is not None:
            handle, is_null = kernel
            columns["kernel"] = nullable(handle, is_null)
            columns.update(self._first_sights(start_ns, pid, handle, is_null))
        return make_batch(CUDA_CALL, columns)

    def _nest(
        self, start: _Ints, end: _Ints, pid: _Ints, tid: _Ints, call_id: _Ints
    ) -> tuple[_Ints, npt.NDArray[np.bool_], _Ints]:
        """Nest the calls among themselves and the ones left open by earlier batches."""
        rows = np.concatenate([self._open, np.column_stack([start, end, pid, tid, call_id])])
        n_open = len(self._open)
        thread = np.unique(rows[:, 2] << 32 | rows[:, 3] & 0xFFFFFFFF, return_inverse=True)[1]
        parent, depth = nest(rows[:, 0], rows[:, 1], thread.astype(np.int64))
        if len(start):
            is_open = rows[:, 1] > start[-1]
            self._open = rows[is_open][-_MAX_OPEN_CALLS:]
        parent = parent[n_open:]
        return rows[parent, 4], parent >= 0, depth[n_open:]

    def _first_sights(
        self,
        start_ns: _Ints,
        pid: _Ints,
        handle: npt.NDArray[np.uint64],
        is_null: npt.NDArray[np.bool_],
    ) -> dict[str, pa.Array]:
        rows = np.flatnonzero(~is_null)
        is_first = np.zeros(len(pid), bool)
        is_unknown = is_null.copy()
        order = rows[np.lexsort((rows, handle[rows], pid[rows]))]
        if len(order):
            new = np.r_[
                True,
                (handle[order][1:] != handle[order][:-1]) | (pid[order][1:] != pid[order][:-1]),
            ]
            for row in order[new].tolist():
                key = (int(pid[row]), int(handle[row]))
                if key in self._seen:
                    continue
                if len(self._seen) < _MAX_KERNELS:
                    self._seen.add(key)
                    is_first[row] = True
                else:
                    is_unknown |= (pid == pid[row]) & (handle == handle[row])
        is_use_unknown = is_unknown.copy()
        for process in np.unique(pid).tolist():
            began_ns = self._starts.get(process)
            mine = pid == process
            if began_ns is None or (mine & (start_ns < began_ns)).any():
                is_use_unknown |= mine
        if self._complete_until_ns is not None:
            is_use_unknown |= start_ns > self._complete_until_ns
        return {
            "is_first_seen": nullable(is_first, is_unknown),
            "is_first_use": nullable(is_first, is_use_unknown),
        }
