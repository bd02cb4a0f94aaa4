"""Produces items in a thread of its own, a few ahead of who takes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def ahead(items: Iterable[_T], n_items: int = 2) -> Iterator[_T]:
    """Yield the items, which another thread produces at most ``n_items`` ahead.

    What producing raises is raised here, after the items before it. Taking no further item ends the
    thread.

    Args:
        items: What to produce.
        n_items: Most items that wait to be taken.
    """
    waiting: deque[_T] = deque()
    changed = threading.Condition()
    failure: list[BaseException] = []
    is_done = False
    is_stopped = False

    def produce() -> None:
        nonlocal is_done
        try:
            for item in items:
                with changed:
                    changed.wait_for(lambda: len(waiting) < n_items or is_stopped)
                    if is_stopped:
                        return
                    waiting.append(item)
                    changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - it is raised again by who takes the items
            failure.append(error)
        finally:
            with changed:
                is_done = True
                changed.notify_all()

    thread = threading.Thread(target=produce, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: waiting or is_done)
                if not waiting:
                    break
                item = waiting.popleft()
                changed.notify_all()
            yield item
        if failure:
            raise failure[0]
    finally:
        with changed:
            is_stopped = True
            changed.notify_all()
        thread.join()
