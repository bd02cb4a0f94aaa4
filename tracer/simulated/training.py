"""A training loop with a DataLoader: ``python -m tracer.simulated.training --config FILE``.

The main process takes a batch from worker processes, copies it in, and launches forward, backward
and optimiser as eager kernels. The configuration is a JSON object, the fields of
:class:`TrainingOptions`.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

from tracer.simulated.computing import compute
from tracer.simulated.cuda import (
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    SCHEDULE_BLOCKING,
    Cuda,
    Grid,
)
from tracer.simulated.hog import name_process
from tracer.simulated.orphan import end_with_parent

_KERNELS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align8>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "void at::native::cunn_SoftMaxForward<8, float, float, float>",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_64x3_tn_align8>",
)
_OPTIMISER = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>"


@dataclass(frozen=True)
class TrainingOptions:
    """How the loop is shaped.

    ``load_ns`` is the CPU time of one batch in a worker, ``step_ns`` the device time of one step.
    ``sync_every`` reads the loss back with a blocking copy every so many kernels (0: once a step).
    """

    runtime: int = 12
    device: int = 0
    n_workers: int = 2
    load_ns: int = 20_000_000
    step_ns: int = 40_000_000
    n_kernels: int = 120
    batch_bytes: int = 4 << 20
    sync_every: int = 0
    host_kernel_ns: int = 0
    main_cpus: tuple[int, ...] = ()
    worker_cpus: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Return the options as a configuration file."""
        return json.dumps(dataclasses.asdict(self))


def load_batches(queue: Queue[int], load_ns: int, cpus: tuple[int, ...]) -> None:
    """Prepare batches in a worker for ever: real CPU time, then a place in the queue."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    name_process("pt_data_worker")
    end_with_parent()
    block = bytes(1 << 16)
    index = 0
    while True:
        end_ns = time.thread_time_ns() + load_ns
        while time.thread_time_ns() < end_ns:
            hashlib.sha256(block).digest()
        queue.put(index)
        index += 1


class Trainer:
    """The main process of the loop.

    Args:
        options: How the loop is shaped.
    """

    def __init__(self, options: TrainingOptions) -> None:
        self._options = options
        # Before the first CUDA call: a process that has a context must not fork.
        self._queue: Queue[int] = multiprocessing.Queue(maxsize=2 * options.n_workers)
        for _ in range(options.n_workers):
            multiprocessing.Process(
                target=load_batches,
                args=(self._queue, options.load_ns, options.worker_cpus),
                daemon=True,
            ).start()
        self._cuda = Cuda(options.runtime)
        self._cuda.set_device(options.device, SCHEDULE_BLOCKING)
        kernels = self._cuda.register((*_KERNELS, _OPTIMISER))
        self._kernels = [kernels[name] for name in _KERNELS]
        self._optimiser = kernels[_OPTIMISER]
        self._stream = self._cuda.stream()
        self._on_device = self._cuda.malloc(8 << 30)
        self._on_host = self._cuda.malloc_host(options.batch_bytes)

    def step(self) -> None:
        """Take one batch and train on it."""
        options, cuda, stream = self._options, self._cuda, self._stream
        self._queue.get()
        grid = Grid(256, 256)
        cuda.copy(self._on_device, self._on_host, options.batch_bytes, HOST_TO_DEVICE, stream)
        kernel_ns = options.step_ns // options.n_kernels
        for index in range(options.n_kernels):
            if options.host_kernel_ns:
                compute(options.host_kernel_ns)
            cuda.launch(self._kernels[index % len(self._kernels)], grid, stream, kernel_ns)
            if options.sync_every and (index + 1) % options.sync_every == 0:
                self._read_loss()
        cuda.launch(self._optimiser, grid, stream, kernel_ns)
        self._read_loss()

    def _read_loss(self) -> None:
        self._cuda.copy(self._on_host, self._on_device, 4, DEVICE_TO_HOST, self._stream)
        self._cuda.synchronize(self._stream)


def main() -> None:
    """Train until the process is ended."""
    parser = argparse.ArgumentParser(description="a training loop on a simulated device")
    parser.add_argument("--config", type=Path, required=True)
    data = json.loads(parser.parse_args().config.read_text(encoding="utf-8"))
    for name in ("main_cpus", "worker_cpus"):
        data[name] = tuple(data[name])
    options = TrainingOptions(**data)
    if options.main_cpus:
        os.sched_setaffinity(0, options.main_cpus)
    trainer = Trainer(options)
    end_with_parent()
    print("ready", flush=True)
    while True:
        trainer.step()


if __name__ == "__main__":
    main()
