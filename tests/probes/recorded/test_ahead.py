from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from probes.recorded.ahead import ahead


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


def test_items_come_in_order_and_the_thread_ends() -> None:
    assert list(ahead(range(1000))) == list(range(1000))
    assert list(ahead([])) == []
    assert readers() == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("damaged")

    taken = []
    with pytest.raises(ValueError, match="damaged"):
        taken.extend(item for item in ahead(failing()) if taken.append(item) or False)
    assert taken == [1]
    assert readers() == []


def test_it_never_runs_further_ahead_than_told_and_ends_with_who_takes() -> None:
    made = 0

    def endless() -> Iterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    items = ahead(endless(), 2)
    for taken in range(1, 6):
        assert next(items) == taken
        # Two wait, and one is in the hand of the thread.
        assert made <= taken + 3
    items.close()
    assert readers() == []
