"""The newest lists of processes with a context on each GPU, for whoever needs them at once.

The probe of NVML writes them, the audit of MPS reads them: the driver is asked only once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceContexts:
    """Processes on one GPU as the driver lists them, in host pids.

    ``compute`` are all with a compute context; ``through_mps`` those that came through MPS, None
    where the driver does not tell. ``time_ns`` is CLOCK_MONOTONIC.
    """

    time_ns: int
    device: int
    compute: frozenset[int]
    through_mps: frozenset[int] | None


class ContextBoard:
    """Holds the newest lists of each GPU; may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[int, DeviceContexts] = {}

    def put_frames(self, items: Iterable[tuple[Any, ...]]) -> None:
        """Take over the ``processes`` rows of the sampler of NVML."""
        for time_ns, device, compute, through_mps, *_ in items:
            if compute is not None or through_mps is not None:
                self.put(
                    DeviceContexts(
                        time_ns,
                        device,
                        frozenset(pid for pid, _ in compute or ()),
                        None if through_mps is None else frozenset(pid for pid, _ in through_mps),
                    )
                )

    def put(self, contexts: DeviceContexts) -> None:
        """Replace what is known of one GPU."""
        with self._lock:
            self._newest[contexts.device] = contexts

    def newest(self, since_ns: int = 0) -> list[DeviceContexts]:
        """Return the newest lists by GPU, without those read before ``since_ns``."""
        with self._lock:
            found = [self._newest[device] for device in sorted(self._newest)]
        return [contexts for contexts in found if contexts.time_ns >= since_ns]
