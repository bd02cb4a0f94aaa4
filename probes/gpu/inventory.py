"""The GPUs of a host, as the driver tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Inventory:
    """The GPUs of the host: each a dict with the fields of the manifest's ``Gpu``, by index."""

    gpus: list[dict[str, Any]]
    driver_version: str | None = None
    nvml_version: str | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether this is the simulated device."""
        return "simulated" in (self.driver_version or "").lower()


def unique_uuids(gpus: Mapping[int, Mapping[str, Any]]) -> dict[int, str | None]:
    """Return the UUID of each GPU by index, None where it tells none that is its own."""
    uuids = {index: gpu.get("uuid") for index, gpu in gpus.items()}
    told = list(uuids.values())
    return {
        index: uuid if uuid and uuid.startswith("GPU-") and told.count(uuid) == 1 else None
        for index, uuid in uuids.items()
    }
