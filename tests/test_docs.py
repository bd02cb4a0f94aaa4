"""Generated pages equal what the sources say; run ``make docs`` when this fails."""

from __future__ import annotations

import pytest

from tests.generated_docs import DOCS, PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_is_current(name: str):
    assert (DOCS / name).read_text() == PAGES[name](), "run 'make docs' and commit"
