"""Names of copies in an Nsight Systems export: direction, and kind of memory on both sides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from probes.recorded.sqlite_file import Integers

_MEMORY_NAMES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed")
_COPY_NAMES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH"}


def copy_names(rows: Mapping[str, Integers]) -> pa.Array:
    """Return what copies are called, e.g. ``Memcpy HtoD (Pageable -> Device)``.

    Args:
        rows: Columns ``copyKind``, ``srcKind`` and ``dstKind``.
    """
    kind, source, target = (rows[name][0] for name in ("copyKind", "srcKind", "dstKind"))
    has_kinds = ~(rows["srcKind"][1] | rows["dstKind"][1])
    kind, source, target = (np.clip(values, 0, 127) for values in (kind, source, target))
    unique, inverse = np.unique(
        kind << 16 | np.where(has_kinds, source << 8 | target, 0xFFFF), return_inverse=True
    )
    words = []
    for code in unique.tolist():
        word = f"Memcpy {_COPY_NAMES.get(code >> 16, 'of another kind')}"
        ends = (code >> 8 & 0xFF, code & 0xFF)
        if max(ends) < len(_MEMORY_NAMES):
            word += f" ({_MEMORY_NAMES[ends[0]]} -> {_MEMORY_NAMES[ends[1]]})"
        words.append(word)
    return pa.array(words, pa.string()).take(pa.array(inverse))
