"""What a URL may hold of secrets is neither stored nor shown."""

from __future__ import annotations

import pytest

from probes.engine.fetch import Fetcher, FetchError, public_url
from probes.engine.scrape import EngineProbe
from probes.engine.settings import read_settings
from probes.probe import ProbeError
from tests.probes.engine.serving import page, serving


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000/metrics", "http://127.0.0.1:8000/metrics"),
        ("http://user:SECRET@h:1/metrics?token=SECRET#SECRET", "http://h:1/metrics"),
        ("http://us:SE@CRET@[::1]:1/m", "http://[::1]:1/m"),
        ("http://[::1", "***"),
        ("user:SECRET@host/m", "user:host/m"),
    ],
)
def test_user_password_and_query_are_left_out(url: str, shown: str) -> None:
    assert public_url(url) == shown


@pytest.mark.parametrize(
    "url", ["http://[::1", "ftp://x", "http://", "http://h:99999/", "file:///"]
)
def test_what_cannot_be_fetched_is_refused_by_its_own_error(url: str) -> None:
    with pytest.raises(FetchError):
        Fetcher(url)


@pytest.mark.parametrize("text", ["", "node_load1 3\n"])
def test_nothing_that_is_said_of_an_engines_settings_has_them(text: str) -> None:
    with serving(page(text)) as server, pytest.raises(ProbeError) as caught:
        read_settings(f"http://user:SECRET@127.0.0.1:{server.port}/metrics?token=SECRET")
    assert "SECRET" not in str(caught.value)
    with pytest.raises(ProbeError) as caught:
        read_settings("http://user:SECRET@127.0.0.1:1?token=SECRET")
    assert "SECRET" not in str(caught.value) and "127.0.0.1:1" in str(caught.value)


def test_nothing_of_a_recording_has_the_secrets_of_the_url() -> None:
    probe = EngineProbe(urls=["http://user:SECRET@127.0.0.1:1?token=SECRET"])
    probe.start()
    batches = list(probe.stop())
    assert "SECRET" not in repr([batch.rows.to_pylist() for batch in batches])
    assert "SECRET" not in repr((probe.report(), probe.endpoints))
