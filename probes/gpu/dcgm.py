"""The probe of DCGM: ``dcgmi dmon`` as a child process, or a dcgm-exporter page.

``dcgmi`` works against any host engine that runs. The exporter refreshes its values every 30 s by
default, so a faster reader sees them repeated: such samples are marked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from analysis.schema import EVENT, GPU_INSTANCE_SAMPLE, GPU_SAMPLE, Table
from probes.engine.fetch import public_url
from probes.gpu.dcgm_fields import DEFAULT_FIELDS, XID, columns_of
from probes.gpu.dcgm_readers import DmonReader, ExporterReader, Reading
from probes.gpu.rows import sample_batch
from probes.probe import Batch, SourceReport, make_batch

SECOND_NS = 1_000_000_000


class DcgmProbe:
    """Samples GPUs through DCGM.

    Args:
        url: Page of a dcgm-exporter; None runs ``dcgmi dmon``.
        fields: Numbers of the fields to ask ``dcgmi`` for.
        interval_ns: Time between two samples, at least 100 ms.
        command: How to call dcgmi.
        uuids: Index of the device by UUID, to join the exporter's GPUs.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        url: str | None = None,
        fields: Sequence[int] = DEFAULT_FIELDS,
        interval_ns: int = SECOND_NS,
        command: Sequence[str] = ("dcgmi",),
        uuids: Mapping[str, int] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = "dcgm"
        self.tables: Sequence[Table] = (GPU_SAMPLE, GPU_INSTANCE_SAMPLE, EVENT)
        self.period_ns = interval_ns
        self._clock = clock
        self._readings: deque[Reading] = deque()
        self._events: deque[tuple[int, str, str]] = deque()
        self._reader: DmonReader | ExporterReader
        arguments = (interval_ns, self._readings, self._events, clock)
        if url is None:
            self._reader = DmonReader(tuple(command), tuple(fields), *arguments)
        else:
            self._reader = ExporterReader(url, uuids, *arguments)
        self._last: dict[tuple[int, int | None], Mapping[int, float | None]] = {}
        self._xids: dict[int, float] = {}
        self._n_rows = 0

    def start(self) -> None:
        """Begin reading.

        Raises:
            ProbeError: there is no dcgmi, or the URL is none.
        """
        self._reader.check()
        self._reader.start()

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return what was read since the last call; never waits."""
        rows: list[dict[str, Any]] = []
        parts: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        self._reader.look(now_ns)
        while self._readings:
            time_ns, device, instance, values = self._readings.popleft()
            is_repeated = self._reader.may_repeat and self._last.get((device, instance)) == values
            self._last[device, instance] = values
            if instance is None:
                events.extend(self._xid(time_ns, device, values.get(XID)))
            columns = columns_of(values)
            if not any(value is not None for value in columns.values()):
                continue
            row = {"time_ns": time_ns, "device": device, "source": "dcgm", **columns}
            if instance is None:
                rows.append({**row, "is_repeated": is_repeated})
            elif not is_repeated:
                parts.append({**row, "gpu_instance": instance})
        while self._events:
            time_ns, kind, detail = self._events.popleft()
            events.append({"time_ns": time_ns, "kind": kind, "name": "dcgm", "detail": detail})
        batches = [sample_batch(rows)] if rows else []
        if parts:
            batches.append(sample_batch(parts, GPU_INSTANCE_SAMPLE))
        if events:
            columns_of_events = {
                name: [event.get(name) for event in events] for name in EVENT.column_names
            }
            batches.append(make_batch(EVENT, columns_of_events))
        self._n_rows += sum(batch.rows.num_rows for batch in batches)
        return batches

    def stop(self) -> Iterable[Batch]:
        """Stop reading and return what is left."""
        self._reader.stop()
        return self.drain(self._clock())

    def report(self) -> SourceReport:
        """Return what was read, and the last error."""
        reader = self._reader
        return SourceReport(
            name=self.name,
            n_rows=self._n_rows,
            n_lost=0,
            cost_ns=reader.cost_ns,
            note=reader.last_error,
            details={
                "source": public_url(reader.source) if "://" in reader.source else reader.source,
                "n_failures": reader.n_failures,
                "n_instance_rows": reader.n_other_rows,
            },
        )

    def _xid(self, time_ns: int, device: int, value: float | None) -> list[dict[str, Any]]:
        """An event when the last Xid of a device is another than before."""
        before = self._xids.get(device)
        if value is None or value == before:
            return []
        self._xids[device] = value
        if not value:
            return []
        when = " (seen first; it may be old)" if before is None else ""
        detail = f"Last Xid of GPU {device} is {value:.0f}, told by DCGM{when}"
        return [{"time_ns": time_ns, "kind": "xid", "name": f"xid {value:.0f}", "detail": detail}]
