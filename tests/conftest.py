"""Shared fixtures: where the real recordings are, and which tests may not skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast a shared machine draws examples says nothing of the code under test.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

#: Folder of the real recordings; not part of the repository.
DATA_VARIABLE = "TRACER_TEST_DATA"
#: Set in CI: every skip becomes a failure that repeats the reason.
STRICT_VARIABLE = "TRACER_TESTS_NO_SKIP"
#: In the reason of a skip that the machine caused and no one can mend: real scheduling was tested
#: while something else took the CPU.
DISTURBED = "disturbed by other load"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the real recordings and labels.json."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get(DATA_VARIABLE, default))
    if not (folder / "labels.json").is_file():
        pytest.skip(f"no recordings in {folder}; set {DATA_VARIABLE} to the folder that has them")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    is_root = os.geteuid() == 0
    for item in items:
        if item.get_closest_marker("root") and not is_root:
            item.add_marker(pytest.mark.skip(reason="needs root: run the tests with sudo"))
        if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
            item.add_marker(
                pytest.mark.skip(reason="needs a GPU: run 'pytest tests/gpu' on a node")
            )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get(STRICT_VARIABLE) and not hasattr(report, "wasxfail"):
        if item.get_closest_marker("gpu") or DISTURBED in str(report.longrepr):
            return
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {report.longrepr}"
