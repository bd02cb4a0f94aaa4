"""Arrow without pandas (a third of a second and 40 MB that most commands never use), without the
file systems of clouds, and without memory kept for later.

pyarrow imports pandas, where it is installed, the first time that any array is made, only to ask
whether it was given one of its objects. Commands give it none. What does use pandas, such as a
table turned into a frame, still finds it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: What pyarrow asks for and does without where it is not there.
_UNUSED = frozenset(
    {"pandas", "pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs"}
)


class _NoUnused(MetaPathFinder):
    """Says that there is no such module."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse what is not used, and leave everything else to the other finders."""
        if name in _UNUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def make_arrow_lean() -> None:
    """Let pyarrow ask its questions now, with the answer no; without effect once pandas is loaded.

    Call it before the first array of the process is made.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoUnused()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.fs

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def give_memory_back() -> None:
    """Let Arrow return memory to the system as soon as it is free.

    Its own pools keep what a block of a large file took; an import then needs a third more.
    """
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
