"""DCGM's fields by number, and parsers of ``dcgmi dmon`` text and of dcgm-exporter pages.

Fields are keyed by number: DCGM 4.6 renamed nearly all of them, and both names stay in use. The
new names say RATIO where the value is still in percent (field 203).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from probes.engine.exposition import Exposition


@dataclass(frozen=True)
class Field:
    """One field: its number, names in exporter pages, headings in dmon, column and factor."""

    number: int
    names: tuple[str, ...]
    headings: tuple[str, ...]
    column: str
    factor: float = 1.0
    is_whole: bool = False


def _profiling(number: int, old: str, new: str, heading: str, column: str) -> Field:
    names = (f"DCGM_FI_PROF_{old}", f"DCGM_FI_PROF_{new}")
    return Field(number, names, (heading,), column, 100.0)


def _device(
    number: int,
    names: tuple[str, ...],
    headings: tuple[str, ...],
    column: str,
    factor: float = 1.0,
    is_whole: bool = True,
) -> Field:
    full = tuple(f"DCGM_FI_DEV_{name}" for name in names)
    return Field(number, full, headings, column, factor, is_whole)


def _bytes(number: int, name: str, heading: str, column: str) -> Field:
    return Field(number, (f"DCGM_FI_PROF_{name}",), (heading,), column)


_MIB = float(1 << 20)

#: Fields below 1000 that are of the instance where the exporter labels one: memory.
_OF_INSTANCE = (250, 251, 252)

#: Number of the field that holds the last Xid.
XID = 230

#: Every field that fills a column of ``gpu_sample``. Ratios of profiling fields are 0..1.
FIELDS: tuple[Field, ...] = (
    _device(100, ("SM_CLOCK", "SM_CLOCK_MHZ"), ("SMCLK",), "sm_clock_mhz"),
    _device(101, ("MEM_CLOCK", "MEM_CLOCK_MHZ"), ("MMCLK",), "memory_clock_mhz"),
    _device(
        112,
        ("CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"),
        ("DVCCTR", "CLKER"),
        "clock_reasons",
    ),
    _device(150, ("GPU_TEMP", "GPU_TEMP_CELSIUS"), ("TMPTR",), "temperature_celsius"),
    _device(155, ("POWER_USAGE", "BOARD_POWER_WATTS"), ("POWER",), "power_mw", 1000.0),
    _device(156, ("TOTAL_ENERGY_CONSUMPTION",), ("TOTEC",), "energy_mj"),
    _device(
        157,
        ("POWER_USAGE_INSTANT", "BOARD_POWER_RAW_WATTS"),
        ("POWINST",),
        "power_instant_mw",
        1000.0,
    ),
    _device(
        160,
        ("POWER_MGMT_LIMIT", "BOARD_POWER_LIMIT_REQUESTED_WATTS"),
        ("PMLMT",),
        "power_limit_requested_mw",
        1000.0,
    ),
    _device(
        163,
        ("POWER_MGMT_LIMIT_DEF", "BOARD_POWER_LIMIT_DEFAULT_WATTS"),
        ("PMDEF",),
        "power_limit_default_mw",
        1000.0,
    ),
    _device(
        164,
        ("ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS"),
        ("EPLMT",),
        "power_limit_mw",
        1000.0,
    ),
    _device(203, ("GPU_UTIL", "GPU_UTIL_RATIO"), ("GPUTL",), "util_pct", is_whole=False),
    _device(
        204, ("MEM_COPY_UTIL", "MEM_COPY_UTIL_RATIO"), ("MCUTL",), "memory_util_pct", is_whole=False
    ),
    _device(250, ("FB_TOTAL",), ("FBTTL",), "memory_total_bytes", _MIB),
    _device(252, ("FB_USED",), ("FBUSD",), "memory_used_bytes", _MIB),
    _profiling(1001, "GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO", "GRACT", "engine_active_pct"),
    _profiling(1002, "SM_ACTIVE", "SM_UTIL_RATIO", "SMACT", "sm_active_pct"),
    _profiling(1003, "SM_OCCUPANCY", "SM_OCCUPANCY_RATIO", "SMOCC", "sm_occupancy_pct"),
    _profiling(1004, "PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO", "TENSO", "tensor_active_pct"),
    _profiling(1005, "DRAM_ACTIVE", "DRAM_UTIL_RATIO", "DRAMA", "dram_active_pct"),
    _bytes(1009, "PCIE_TX_BYTES", "PCITX", "pcie_tx_bytes_per_s"),
    _bytes(1010, "PCIE_RX_BYTES", "PCIRX", "pcie_rx_bytes_per_s"),
    _bytes(1011, "NVLINK_TX_BYTES", "NVLTX", "nvlink_tx_bytes_per_s"),
    _bytes(1012, "NVLINK_RX_BYTES", "NVLRX", "nvlink_rx_bytes_per_s"),
    _device(XID, ("XID_ERRORS", "XID_ERROR"), ("XIDER",), ""),
)

BY_NUMBER = {field.number: field for field in FIELDS}
BY_NAME = {name: field for field in FIELDS for name in field.names}
BY_HEADING = {heading: field for field in FIELDS for heading in field.headings}

#: What is asked of ``dcgmi dmon`` by default.
DEFAULT_FIELDS = (203, 204, 155, 100, 1001, 1002, 1003, 1004, 1005, 1009, 1010, 230)

_ROW = re.compile(r"^(GPU-CI|GPU-I|GPU)\s+(\d{1,4})\s+(\S.*)$")
_MAX_DIGITS = 4
_MAX_ERROR = 400
_KEPT_ERRORS = 20
_HEADER = re.compile(r"^#\s*Entity\b(.*)$")
_UNITS = re.compile(r"^\s*I[Dd]\b")


def value_of(text: str) -> float | None:
    """Return the number of a field's text; None for blanks, N/A and DCGM's sentinels."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    is_blank = (
        0x7FFFFFF0 <= number <= 0x7FFFFFFF
        or number >= 9.2e18
        or 140737488355328.0 <= number < 140737488355360.0
    )
    return None if is_blank else number


def columns_of(values: Mapping[int, float | None]) -> dict[str, float | int | None]:
    """Return columns of ``gpu_sample`` for values by number of the field."""
    columns: dict[str, float | int | None] = {}
    for number, value in values.items():
        field = BY_NUMBER.get(number)
        if field is None or not field.column:
            continue
        if value is None:
            columns[field.column] = None
        elif field.is_whole:
            columns[field.column] = round(value * field.factor)
        else:
            columns[field.column] = value * field.factor
    return columns


@dataclass(frozen=True)
class DmonRow:
    """One row of dmon: ``GPU``, ``GPU-I`` or ``GPU-CI``, its id, and values by field number."""

    entity: str
    index: int
    values: Mapping[int, float | None]


class DmonParser:
    """Parses the lines of ``dcgmi dmon`` as they come.

    Args:
        requested: Numbers of the fields in the order they were asked for, which is the order of
            the columns; used for headings that are not known.
    """

    def __init__(self, requested: Iterable[int] = ()) -> None:
        self._requested = tuple(requested)
        self._numbers: tuple[int | None, ...] = self._requested
        #: The last lines that are neither rows nor headings: errors of dcgmi.
        self.errors: list[str] = []

    def feed(self, line: str) -> DmonRow | None:
        """Return the row of a line; None for headings, blank lines and errors."""
        line = line.rstrip("\r\n")
        header = _HEADER.match(line)
        if header is not None:
            self._numbers = self._columns(header[1].split())
            return None
        row = _ROW.match(line)
        if row is None:
            if line.strip() and not _UNITS.match(line):
                self.errors.append(line.strip()[:_MAX_ERROR])
                del self.errors[:-_KEPT_ERRORS]
            return None
        words = row[3].split()
        if len(words) != len(self._numbers):
            # Rows of links ("GPU 0 LINK 3 ...") have more words; a cut line has fewer.
            return None
        values = {
            number: value_of(word)
            for number, word in zip(self._numbers, words, strict=True)
            if number is not None
        }
        return DmonRow(row[1], int(row[2]), values)

    def _columns(self, headings: list[str]) -> tuple[int | None, ...]:
        """Numbers of the columns, by heading, else by the order of the request."""
        by_order = self._requested if len(self._requested) == len(headings) else ()
        numbers: list[int | None] = []
        for position, heading in enumerate(headings):
            field = BY_HEADING.get(heading)
            if field is not None:
                numbers.append(field.number)
            else:
                numbers.append(by_order[position] if by_order else None)
        return tuple(numbers)


def read_exporter(
    page: Exposition, uuids: Mapping[str, int] | None = None
) -> dict[int, dict[int, float | None]]:
    """Return values by field number by device, of a dcgm-exporter page.

    Values of MIG instances are left out where they are of the instance only: memory and
    profiling fields.

    Args:
        page: The parsed page.
        uuids: Index of the device by UUID; without it DCGM's own number is taken.
    """
    devices: dict[int, dict[int, float | None]] = {}
    for device, instance, number, value in _values(page, uuids):
        if instance is None or not _is_of_instance(number):
            devices.setdefault(device, {})[number] = value
    return devices


def read_instances(
    page: Exposition, uuids: Mapping[str, int] | None = None
) -> dict[tuple[int, int], dict[int, float | None]]:
    """Return what is of MIG instances alone on a dcgm-exporter page: values by field number, by
    device and number of the GPU instance.

    Args:
        page: The parsed page.
        uuids: As for :func:`read_exporter`.
    """
    instances: dict[tuple[int, int], dict[int, float | None]] = {}
    for device, instance, number, value in _values(page, uuids):
        if instance is not None and _is_of_instance(number):
            instances.setdefault((device, instance), {})[number] = value
    return instances


def _values(
    page: Exposition, uuids: Mapping[str, int] | None
) -> Iterator[tuple[int, int | None, int, float | None]]:
    """Device, GPU instance (None: the whole), field number and value of each sample."""
    for series, value in page.samples:
        field = BY_NAME.get(series.name)
        if field is None:
            continue
        labels = series.labels
        device = (uuids or {}).get(labels.get("UUID", ""))
        if device is None:
            number = labels.get("gpu", "")
            if not _is_number(number):
                continue
            device = int(number)
        instance = labels.get("GPU_I_ID", "")
        if instance and not _is_number(instance):
            continue
        yield device, int(instance) if instance else None, field.number, value_of(repr(value))


def _is_number(text: str) -> bool:
    """Whether a label may be the number of a GPU or of an instance."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _is_of_instance(number: int) -> bool:
    """Whether a field with the label of an instance is of that instance, not of the whole GPU."""
    return number >= 1000 or number in _OF_INSTANCE
