"""Numbers the GPUs of a recording."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: Ids of devices beyond this are not real.
MAX_DEVICES = 4096
#: CUPTI's mark of a sync that is of no one stream, and beyond.
MAX_STREAM = (1 << 32) - 1


class DeviceIndex:
    """Numbers the GPUs of a recording.

    The traces of several ranks may come from several hosts, where equal ids are different GPUs:
    then every pair of file and id gets its own number. One trace keeps the ids it uses.
    """

    def __init__(self, is_per_file: bool) -> None:
        self._is_per_file = is_per_file
        self._file = 0
        self._numbers: dict[tuple[int, int], int] = {}
        self._described: dict[int, dict[str, Any]] = {}

    def learn(self, properties: object) -> None:
        """Take over what a trace says of its devices (``deviceProperties``)."""
        if not isinstance(properties, list):
            return
        for item in properties[:MAX_DEVICES]:
            if not isinstance(item, dict) or not isinstance(item.get("id"), int):
                continue
            memory = item.get("totalGlobalMem")
            self._described[item["id"]] = {
                "name": str(item.get("name") or "unknown GPU")[:200],
                "memory_bytes": memory if isinstance(memory, int) else None,
            }
            if not self._is_per_file and 0 <= item["id"] < MAX_DEVICES:
                self._numbers.setdefault((0, item["id"]), item["id"])

    def next_file(self) -> None:
        """Say that what follows comes from another file."""
        self._file += self._is_per_file

    def numbers(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the GPU's number in the manifest for each id of the present file."""
        unique, inverse = np.unique(ids, return_inverse=True)
        found = []
        for value in unique.tolist():
            key = (self._file, value)
            if key not in self._numbers:
                self._numbers[key] = len(self._numbers) if self._is_per_file else value
            found.append(self._numbers[key])
        return np.array(found, np.int64)[inverse]

    def gpus(self) -> list[dict[str, Any]]:
        """Return the GPUs for the manifest."""
        by_number = {number: key[1] for key, number in self._numbers.items()}
        unknown: dict[str, Any] = {"name": "unknown GPU"}
        return [
            {"index": number, **self._described.get(by_number.get(number, -1), unknown)}
            for number in range(max(by_number, default=-1) + 1)
        ]
