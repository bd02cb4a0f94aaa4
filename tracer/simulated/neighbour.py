"""Another process on the same device: ``python -m tracer.simulated.neighbour --config FILE``.

An embedding job that comes in bursts: each burst launches batches of kernels and waits for each
batch. The configuration is a JSON object: ``name`` and ``cpus`` of the process, ``runtime``,
``device``, ``n_kernels`` per batch of ``kernel_ns`` each that fill a ``share`` of the device,
``burst_s``, ``pause_s``, and ``start_s``, the wait before the first burst.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from tracer.simulated.cuda import DEVICE_TO_HOST, SCHEDULE_BLOCKING, Cuda, Grid
from tracer.simulated.hog import name_process
from tracer.simulated.orphan import end_with_parent

_KERNELS = (
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_32x5_tn",
    "void at::native::layer_norm_kernel<c10::Half, float>",
)


def run(config: dict[str, Any]) -> None:
    """Run bursts for ever."""
    cuda = Cuda(config["runtime"])
    cuda.set_device(config["device"], SCHEDULE_BLOCKING)
    kernels = list(cuda.register(_KERNELS).values())
    stream = cuda.stream()
    on_device, on_host = cuda.malloc(1 << 30), cuda.malloc_host(1 << 20)
    grid = Grid(512, 256)
    for kernel in kernels:
        cuda.launch(kernel, grid, stream, 10_000)
    cuda.synchronize(stream)
    time.sleep(config["start_s"])
    while True:
        end = time.monotonic() + config["burst_s"]
        while time.monotonic() < end:
            for index in range(config["n_kernels"]):
                kernel = kernels[index % len(kernels)]
                cuda.launch_small(kernel, grid, stream, config["kernel_ns"], config["share"])
            cuda.copy(on_host, on_device, 4096, DEVICE_TO_HOST, stream)
            cuda.synchronize(stream)
        time.sleep(config["pause_s"])


def main() -> None:
    """Run the job that the configuration describes until the process is ended."""
    parser = argparse.ArgumentParser(description="an embedding job on a simulated device")
    parser.add_argument("--config", type=Path, required=True)
    config = json.loads(parser.parse_args().config.read_text(encoding="utf-8"))
    os.sched_setaffinity(0, config["cpus"])
    end_with_parent()
    name_process(config["name"])
    run(config)


if __name__ == "__main__":
    main()
