from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def mock_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a stand-in ``libnvidia-ml.so.1`` of two GPUs."""
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("mock_nvml.c")
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-o", library, source]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def faults(tmp_path: Path) -> Callable[..., Path]:
    """Sets the faults of the stand-in; the file returned goes into MOCK_NVML."""
    path = tmp_path / "faults"
    path.write_text("")

    def set_faults(*lines: str) -> Path:
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.rename(path)
        return path

    return set_faults
