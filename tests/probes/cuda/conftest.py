"""Real CUDA libraries as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_libraries import library


@pytest.fixture(scope="session")
def cuda_wheels() -> dict[str, Path]:
    """The real CUDA runtimes 12 and 13, by major version."""
    return {
        "12": library("nvidia-cuda-runtime-cu12", "libcudart.so.12"),
        "13": library("nvidia-cuda-runtime", "libcudart.so.13"),
    }


@pytest.fixture(scope="session")
def static_runtime() -> list[Path]:
    """Archives that make a program with the real static runtime of CUDA 12."""
    return [
        library("nvidia-cuda-runtime-cu12", "libcudart_static.a"),
        library("nvidia-cuda-runtime-cu12", "libculibos.a"),
    ]
