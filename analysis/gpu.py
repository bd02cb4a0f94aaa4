"""Samples of the GPUs: utilisation and power over time, and who has a context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis import intervals
from analysis.timeline import Session

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Name of the MPS server itself: it holds a context on behalf of its clients.
MPS_SERVER = "nvidia-cuda-mps"


@dataclass(frozen=True)
class Samples:
    """Samples of one quantity of one GPU, each with the window it averages over.

    Attributes:
        begin: Begin of each sample's window, ns.
        end: End of it, ns.
        value: The value, in the unit of the column it was read from.
    """

    begin: Ints
    end: Ints
    value: Floats

    def __len__(self) -> int:
        return len(self.value)

    def mean(self, spans: Ints) -> tuple[float, int] | None:
        """Return the mean over ``spans`` weighted by time, and the number of samples that lie
        in them for the most part; None where none does.
        """
        inside = intervals.overlap_each(intervals.make(self.begin, self.end), spans)
        length = np.maximum(self.end - self.begin, 1)
        is_in = 2 * inside >= length
        if not is_in.any():
            return None
        return float(np.average(self.value[is_in], weights=inside[is_in])), int(is_in.sum())

    def per_window(self, edges: Ints) -> Floats:
        """Return the mean in each window weighted by time, NaN where no sample covers it."""
        order = np.argsort(self.end, kind="stable")
        # Each sample speaks for the time since the sample before it.
        end = self.end[order]
        begin = np.maximum(self.begin[order], np.concatenate((self.begin[order][:1], end[:-1])))
        rows = intervals.make(begin, end)
        is_some = rows[:, 1] > rows[:, 0]
        rows, value = rows[is_some], self.value[order][is_some]
        if len(rows) == 0:
            return np.full(len(edges) - 1, np.nan)
        knots = rows.reshape(-1)
        lengths = rows[:, 1] - rows[:, 0]
        zeros = np.zeros_like(lengths)
        time = np.cumsum(np.stack((zeros, lengths), axis=1).reshape(-1))
        area = np.cumsum(np.stack((zeros, lengths * value), axis=1).reshape(-1))
        covered = np.diff(np.interp(edges, knots, time))
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.diff(np.interp(edges, knots, area)) / covered
        result: Floats = np.where(covered > 0, mean, np.nan)
        return result


class GpuSamples:
    """Samples of every GPU of a session, and the processes on them."""

    def __init__(self, samples: pd.DataFrame, processes: pd.DataFrame) -> None:
        self.samples = samples
        self.processes = processes

    @cached_property
    def devices(self) -> list[int]:
        """Indices of the GPUs that were sampled."""
        return sorted(int(device) for device in self.samples["device"].unique())

    def quantity(self, device: int, column: str) -> Samples | None:
        """Return one column of one GPU, repeated samples left out; None where there is none."""
        rows = self.samples[(self.samples["device"] == device) & self.samples[column].notna()]
        rows = rows[~rows["is_repeated"].fillna(False).astype(bool)]
        if rows.empty:
            return None
        time = rows["time_ns"].to_numpy(dtype=np.int64)
        end = rows["sample_ns"].fillna(rows["time_ns"]).to_numpy(dtype=np.int64)
        spacing = int(np.median(np.diff(time))) if len(time) > 1 else 1_000_000_000
        period = rows["period_ns"].fillna(max(spacing, 1)).to_numpy(dtype=np.int64)
        return Samples(end - period, end, rows[column].to_numpy(dtype=float))

    def contexts(self, device: int | None) -> pd.DataFrame:
        """Return the processes seen on a GPU: pid, name, type, is_target, share of samples with
        the device in use, mean ``sm_util_pct``; the MPS server is left out.
        """
        import pandas as pd

        rows = self.processes
        if device is not None:
            rows = rows[rows["device"] == device]
        rows = rows[~rows["name"].fillna("").str.startswith(MPS_SERVER)]
        grouped = rows.groupby("pid", sort=True)
        return pd.DataFrame(
            {
                "name": grouped["name"].last(),
                "type": grouped["type"].last(),
                "is_target": grouped["is_target"].any(),
                "n": grouped.size(),
                "sm_util_pct": grouped["sm_util_pct"].mean(),
            }
        ).reset_index()

    def without(self, device: int | None, pid: int) -> Ints:
        """Return when a process had no context on a GPU, as ``(n, 2)`` ns: it is missing from a
        list of processes that names others.
        """
        rows = self.processes
        if device is not None:
            rows = rows[rows["device"] == device]
        times = np.unique(rows["time_ns"].to_numpy(dtype=np.int64))
        if len(times) < 2:
            return intervals.EMPTY
        spacing = max(int(np.median(np.diff(times))), 1)
        own = rows.loc[rows["pid"] == pid, "time_ns"].to_numpy(dtype=np.int64)
        missing = times[~np.isin(times, own)]
        return intervals.union(intervals.make(missing - spacing, missing))

    def process_util(self, device: int | None, pid: int) -> Samples | None:
        """Return the SM share in % that the driver ascribes to a process, sample by sample.

        The driver names only processes that were active: at a sample that names some, a process
        that it does not name had 0.
        """
        rows = self.processes
        if device is not None:
            rows = rows[rows["device"] == device]
        told = rows.loc[rows["sm_util_pct"].notna(), "time_ns"].unique()
        rows = rows[rows["time_ns"].isin(told)]
        rows = rows[rows["pid"] == pid].fillna({"sm_util_pct": 0.0})
        if rows.empty:
            return None
        time = rows["time_ns"].to_numpy(dtype=np.int64)
        spacing = int(np.median(np.diff(time))) if len(time) > 1 else 1_000_000_000
        return Samples(time - max(spacing, 1), time, rows["sm_util_pct"].to_numpy(dtype=float))


def load_gpu(session: Session) -> GpuSamples | None:
    """Return the GPU samples of a session, None where no GPU was sampled."""
    if not session.has("gpu_sample"):
        return None
    import pandas as pd

    columns = (
        "time_ns",
        "device",
        "source",
        "sample_ns",
        "period_ns",
        "is_repeated",
        "util_pct",
        "power_mw",
        "power_limit_mw",
        "sm_clock_mhz",
        "sm_clock_max_mhz",
        "clock_reasons",
        "n_context_switches",
        "context_switch_active_pct",
        "dram_active_pct",
        "sm_active_pct",
        "tensor_active_pct",
        "pcie_link_gen",
        "pcie_link_width",
        "pcie_tx_bytes_per_s",
        "pcie_rx_bytes_per_s",
        "nvlink_tx_bytes_per_s",
        "nvlink_rx_bytes_per_s",
    )
    samples = session.table("gpu_sample", columns=columns).to_pandas()
    names = ("time_ns", "device", "pid", "type", "sm_util_pct", "name", "is_target")
    if session.has("gpu_process"):
        processes = session.table("gpu_process", columns=names).to_pandas()
    else:
        processes = pd.DataFrame({name: [] for name in names})
        processes["is_target"] = processes["is_target"].astype(bool)
        processes["name"] = processes["name"].astype(object)
    return GpuSamples(samples, processes)
