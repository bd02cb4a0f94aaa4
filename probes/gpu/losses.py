"""Which devices are lost, what was said of it, and when they are tried again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from probes.gpu.events import ALL, device_event, gpu_name

SECOND_NS = 1_000_000_000
FIRST_PAUSE_NS = 10 * SECOND_NS
LONGEST_PAUSE_NS = 300 * SECOND_NS


class DeviceLosses:
    """Keeps losses, each told once until the device is back, and plans ever rarer retries.

    Args:
        first_pause_ns: Time until the first retry; it doubles at each further one.
    """

    def __init__(self, first_pause_ns: int = FIRST_PAUSE_NS) -> None:
        #: Devices that are lost; -1 stands for the library as a whole.
        self.lost: set[int] = set()
        #: Columns of events not yet handed over.
        self.events: list[dict[str, Any]] = []
        self._first_pause_ns = first_pause_ns
        self._retries: list[tuple[int, list[int] | None]] = []
        #: Last pause of devices, and when it ended.
        self._pauses: dict[tuple[int, ...], tuple[int, int]] = {}

    def lose(self, device: int, time_ns: int, reason: str) -> None:
        """Note the loss of a device."""
        if device in self.lost:
            return
        self.lost.add(device)
        detail = f"{gpu_name(device)} cannot be sampled: {reason}."
        self.events.append(device_event(time_ns, "source_lost", device, detail))

    def recover(self, devices: Iterable[int], time_ns: int) -> None:
        """Note devices that are sampled (again); any of them shows that the library works."""
        found = set(devices)
        if found:
            found.add(ALL)
        for device in sorted(self.lost & found):
            self.lost.discard(device)
            detail = f"{gpu_name(device)} is sampled again."
            self.events.append(device_event(time_ns, "source_recovered", device, detail))

    def retry_later(self, devices: Iterable[int] | None, now_ns: int) -> None:
        """Plan to try devices again (None: all), later at each time; those that are planned already
        stay so. What went well for long begins anew.
        """
        planned = {device for _, others in self._retries for device in others or [ALL]}
        wanted = sorted({ALL} if devices is None else set(devices))
        wanted = [device for device in wanted if device not in planned]
        if not wanted:
            return
        pause, ended_ns = self._pauses.get(tuple(wanted), (0, now_ns))
        pause = min(2 * pause, LONGEST_PAUSE_NS)
        if not pause or now_ns - ended_ns > LONGEST_PAUSE_NS:
            pause = self._first_pause_ns
        self._pauses[tuple(wanted)] = (pause, now_ns + pause)
        self._retries.append((now_ns + pause, None if wanted == [ALL] else wanted))

    def take_due(self, now_ns: int) -> list[list[int] | None]:
        """Return the devices whose time to be tried has come (None: all)."""
        due = [devices for due_ns, devices in self._retries if due_ns <= now_ns]
        self._retries = [retry for retry in self._retries if retry[0] > now_ns]
        return due

    def take_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events
