"""Reads sessions and says what the GPU was waiting for: ``open_session`` and ``attribute``.

Both are loaded at their first use, so that a recorder that only needs :mod:`analysis.schema`
loads neither NumPy nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.attribution import attribute
    from analysis.timeline import open_session

__all__ = ["attribute", "open_session"]


def __getattr__(name: str) -> Any:
    if name == "attribute":
        from analysis.attribution import attribute

        return attribute
    if name == "open_session":
        from analysis.timeline import open_session

        return open_session
    raise AttributeError(f"module analysis has no attribute {name}")
