"""Columns of text, coded or not, asked for some values: by code, not letter by letter."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def which_are(column: pa.Array, values: Set[str]) -> NDArray[np.bool_]:
    """Return which rows of a column of text hold one of some values.

    Args:
        column: Plain or coded text, without nulls.
        values: What is looked for.
    """
    coded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    is_wanted = np.array([text in values for text in coded.dictionary.to_pylist()], np.bool_)
    found: NDArray[np.bool_] = is_wanted.take(coded.indices.to_numpy())
    return found
