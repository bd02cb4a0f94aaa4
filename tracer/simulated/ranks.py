"""Data-parallel ranks, one device each: ``python -m tracer.simulated.ranks --config FILE``.

The first process starts the ranks and waits for them, as a launcher of training jobs does. Each
step of a rank is a row of kernels and one all-reduce that begins on every device when the last
rank's has been launched. The configuration is a JSON object, the fields of :class:`RankOptions`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tracer.simulated.computing import compute
from tracer.simulated.cuda import SCHEDULE_BLOCKING, Cuda, Grid
from tracer.simulated.hog import name_process
from tracer.simulated.orphan import end_with_parent

_KERNELS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align8>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
)
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class RankOptions:
    """How the job is shaped.

    ``late_rank`` spends ``late_ns`` of CPU time more per step than the others. ``wedged_rank``
    leaves out the all-reduce of the step that begins ``wedge_s`` after its start, and every later
    one.
    """

    runtime: int = 12
    n_ranks: int = 4
    n_kernels: int = 30
    kernel_ns: int = 1_000_000
    reduce_ns: int = 3_000_000
    late_rank: int | None = None
    late_ns: int = 0
    wedged_rank: int | None = None
    wedge_s: float = 0.0
    cpus: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Return the options as a configuration file."""
        return json.dumps(dataclasses.asdict(self))


def run_rank(options: RankOptions, rank: int) -> None:
    """Train as one rank, for ever."""
    name_process("pt_main_thread")
    end_with_parent()
    cuda = Cuda(options.runtime)
    cuda.set_device(rank, SCHEDULE_BLOCKING)
    handles = cuda.register((*_KERNELS, _ALL_REDUCE))
    kernels, all_reduce = [handles[name] for name in _KERNELS], handles[_ALL_REDUCE]
    stream = cuda.stream()
    cuda.malloc(8 << 30)
    grid = Grid(256, 256)
    begin = time.monotonic()
    step = 0
    while True:
        for index in range(options.n_kernels):
            cuda.launch(kernels[index % 2], grid, stream, options.kernel_ns)
        if rank == options.late_rank:
            compute(options.late_ns)
        is_wedged = rank == options.wedged_rank and time.monotonic() > begin + options.wedge_s
        if not is_wedged:
            cuda.launch_collective(
                all_reduce, Grid(24, 512), stream, options.reduce_ns, step + 1, options.n_ranks
            )
        cuda.synchronize(stream)
        step += 1
        while is_wedged:
            time.sleep(1.0)


def main() -> None:
    """Start the ranks and wait for them."""
    parser = argparse.ArgumentParser(description="data-parallel ranks on simulated devices")
    parser.add_argument("--config", type=Path, required=True)
    data = json.loads(parser.parse_args().config.read_text(encoding="utf-8"))
    options = RankOptions(**{**data, "cpus": tuple(data["cpus"])})
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    ranks = [
        multiprocessing.Process(target=run_rank, args=(options, rank))
        for rank in range(options.n_ranks)
    ]
    for process in ranks:
        process.start()
    print(json.dumps({"pids": [process.pid for process in ranks]}), flush=True)
    end_with_parent()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main()
