"""Readable names of C++ functions, through the demangler of the C++ library."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from functools import lru_cache
from typing import Any

#: Longest mangled name that is given to the demangler, and longest name that is kept.
MAX_MANGLED = 2048
MAX_NAME = 1024
#: Most bytes that a demangled name could have in the worst case; the target chooses the names.
MAX_GROWTH_BYTES = 64_000_000

_STUB = re.compile(r"(?:__wrapper)?__device_stub_+(?=_Z)")
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
_EXPANSION = re.compile(r"Dp|sp")
_LENGTH = re.compile(r"\d+")


@lru_cache(maxsize=1)
def _library() -> Any:
    """The C++ library's demangler, or None where there is none."""
    for name in ("libstdc++.so.6", ctypes.util.find_library("stdc++")):
        if name is None:
            continue
        try:
            library = ctypes.CDLL(name)
            function = getattr(library, "__cxa_demangle")
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        return function
    return None


@lru_cache(maxsize=16_384)
def kernel_name(symbol: str) -> str:
    """Return the readable name of a kernel, at most ``MAX_NAME`` characters.

    Args:
        symbol: Name as registered, or of the host function or stub that nvcc made for it.
    """
    symbol = _STUB.sub("", symbol, count=1)
    if symbol.startswith("_ZL_Z"):
        symbol = symbol[3:]
    name = _demangle(symbol) or _outline(symbol) or symbol
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"


def _demangle(symbol: str) -> str | None:
    """The demangled name, or None when it is none, too long, or could grow without bound."""
    if not symbol.startswith("_Z") or len(symbol) > MAX_MANGLED:
        return None
    if _worst_length(symbol) > MAX_GROWTH_BYTES:
        return None
    demangle = _library()
    if demangle is None:
        return None
    pointer = demangle(symbol.encode(), None, None, None)
    if not pointer:
        return None
    try:
        return ctypes.string_at(pointer).decode("utf-8", "replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(pointer))


def _worst_length(symbol: str) -> float:
    """A bound on the length of the demangled name, in bytes.

    A reference repeats what came before. n of them multiply the length by 3**(n/3) at most (the
    largest product of numbers with sum n), and a pack expansion by the number of its elements.
    """
    n_references = min(len(_REFERENCE.findall(symbol)), 300)
    n_expansions = min(len(_EXPANSION.findall(symbol)), 20)
    length = float(len(symbol))
    growth: float = 3.0 ** (n_references / 3.0) * length**n_expansions
    return length * growth


def _outline(symbol: str) -> str | None:
    """Name and namespaces of a mangled name, without parameters; ``<…>`` for template arguments."""
    match = re.match(r"_Z(N?)(?:L(?=\d))?", symbol)
    if match is None:
        return None
    at = match.end()
    parts: list[str] = []
    while number := _LENGTH.match(symbol, at):
        end = number.end() + int(number[0])
        if end > len(symbol):
            return None
        part = symbol[number.end() : end]
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N_") else part)
        at = end
        if not match[1]:
            break
    if not parts:
        return None
    return "::".join(parts) + ("<…>" if symbol[at : at + 1] == "I" else "")
