"""Reads numbers and texts at many places of a text at once.

The eight bytes at a place are one 64-bit word, its first byte the lowest. Arithmetic on a column of
words finds a character in, or reads the digits of, every row in a few passes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_Words = npt.NDArray[np.uint64]

#: Bytes that can be read at one place at most; as many can be before the text.
MAX_BYTES = 64
#: Bytes behind the text that a place may be at most.
_BEHIND = 64
#: Digits of a whole number at most; longer ones are not read.
MAX_DIGITS = 16
#: Words that hold a number with what ends it; longer ones are not read.
_NUMBER_WORDS = 3
#: Microseconds beyond this are no time of a trace.
MAX_MICROSECONDS = 4_000_000_000_000_000
#: Words of a text at most; longer ones are not read.
_TEXT_WORDS = 512

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINE = np.uint64(0x7676767676767676)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_BYTE = np.uint64(0xFF)
#: Times ``1 << 8 * k``, its top three bits are ``k``.
_PLACE_OF_BYTE = np.uint64(sum(k << (61 - 8 * k) for k in range(1, 8)))
_DIGIT_STEPS = tuple(
    (np.uint64(mask), np.uint64(factor), np.uint64(shift))
    for mask, factor, shift in (
        (0x0F0F0F0F0F0F0F0F, 2561, 8),
        (0x00FF00FF00FF00FF, 6553601, 16),
        (0x0000FFFF0000FFFF, 42949672960001, 32),
    )
)
_POWERS = 10 ** np.arange(9, dtype=np.int64)
#: A word whose last n bytes count, by n.
_LAST = np.array([0, *((1 << 64) - (1 << (64 - 8 * n)) for n in range(1, 9))], np.uint64)
_IS_OF_NUMBER = np.zeros(256, bool)
_IS_OF_NUMBER[np.frombuffer(b"+-.0123456789Ee", np.uint8)] = True
_MINUS, _DOT, _QUOTE, _BACKSLASH = b'-."\\'


class Words:
    """A text that can be read at many places at once.

    Places lie in the text, or at most 64 bytes before or behind it, where all bytes are zero.

    Args:
        text: The text.

    Attributes:
        data: It, with zeros before and behind; places count from its begin.
        begin: Place where the text begins.
        end: Place where it ends.
    """

    def __init__(self, text: bytes) -> None:
        self.data = b"".join((bytes(MAX_BYTES), text, bytes(MAX_BYTES + _BEHIND)))
        self.begin, self.end = MAX_BYTES, MAX_BYTES + len(text)

    def at(self, places: Ints, n_words: int) -> _Words:
        """Return the words at each place as ``(rows, n_words)``."""
        n_bytes = 8 * n_words
        windows = np.ndarray(
            (len(self.data) - n_bytes + 1,), f"V{n_bytes}", self.data, strides=(1,)
        )
        words: _Words = windows[places].view(np.dtype("<u8")).reshape(-1, n_words)
        return words

    def word(self, places: Ints) -> _Words:
        """Return the word at each place."""
        return self.at(places, 1)[:, 0]

    def quotes_after(self, places: Ints) -> tuple[Ints, Bools]:
        """Return where the next quote is, at or after each place, and where it ends a text there:
        one that no backslash precedes, not too far away.
        """
        ends = places.copy()
        left = np.arange(len(places))
        for _ in range(_TEXT_WORDS // 8):
            further = find(self.at(ends[left], 8), _QUOTE)
            ends[left] += further
            left = left[further == MAX_BYTES]
            left = left[ends[left] < self.end]
            if not len(left):
                break
        is_end = (self.word(ends - 1) & _BYTE) != _BACKSLASH
        is_end &= (self.word(ends) & _BYTE) == _QUOTE
        return ends, is_end

    def integers(self, begin: Ints, stop: int) -> tuple[Ints, Ints, Bools]:
        """Return whole numbers, where each ends, and where there is one.

        Args:
            begin: Where each begins.
            stop: The character that ends them.
        """
        words = self.word(begin)
        token = self._same(words, begin, stop)
        if token is not None and token.isdigit():
            n = len(begin)
            return np.full(n, int(token)), begin + len(token), np.ones(n, bool)
        length, is_short = _first(words, stop)
        digits = (words ^ _ZEROS) & ~_LAST[8 - length]
        values, are_digits = _digits(digits << (8 * (8 - length)).astype(np.uint64))
        is_number = is_short & are_digits & (length > 0)
        odd = np.flatnonzero(~is_number)
        if len(odd):
            length[odd], values[odd], is_number[odd] = self._long_integers(begin[odd], stop)
        return values, begin + length, is_number

    def nanoseconds(self, begin: Ints, stop: int) -> tuple[Ints, Ints, Bools]:
        """Return microseconds in ns, where each ends, and where they are a possible time.

        More than three decimals are rounded, half to even; more than eight are not read.

        Args:
            begin: Where each begins.
            stop: The character that ends them.
        """
        if not len(begin):
            return begin, begin, np.ones(0, bool)
        length, dot = self._shape(begin[:1], stop)
        values, is_time = self._shaped(begin, stop, int(length[0]), int(dot[0]))
        odd = np.flatnonzero(~is_time)
        lengths = np.full(len(begin), length[0])
        if len(odd):
            length, dot = self._shape(begin[odd], stop)
            lengths[odd] = length
            values[odd], is_time[odd] = self._times(begin[odd], length, dot)
        return values, begin + lengths, is_time

    def numbers(self, begin: Ints, stop: int) -> tuple[Ints, Bools]:
        """Return where each number ends, and where there is one, of any kind.

        Args:
            begin: Where each begins.
            stop: The character that ends them.
        """
        words = self.word(begin)
        token = self._same(words, begin, stop)
        if token is not None and token.isdigit():
            return begin + len(token), np.ones(len(begin), bool)
        length, is_short = _first(words, stop)
        _, are_digits = _digits((words ^ _ZEROS) & ~_LAST[8 - length])
        is_number = is_short & are_digits & (length > 0)
        odd = np.flatnonzero(~is_number)
        if len(odd):
            words = self.at(begin[odd], _NUMBER_WORDS)
            length[odd] = find(words, stop)
            index = np.arange(8 * _NUMBER_WORDS)
            is_other = ~_IS_OF_NUMBER[words.view(np.uint8)] & (index < length[odd, None])
            is_number[odd] = ~is_other.any(axis=1) & (length[odd] > 0)
            is_number[odd] &= length[odd] < 8 * _NUMBER_WORDS
        return begin + length, is_number

    def _same(self, words: _Words, begin: Ints, stop: int) -> bytes | None:
        """The text up to a character where it is the same everywhere, and short; else None."""
        first = int(begin[0])
        length = self.data.find(bytes([stop]), first, first + 8) - first
        if length < 0:
            return None
        mask = np.uint64((1 << 8 * (length + 1)) - 1)
        if ((words ^ words[0]) & mask).any():
            return None
        return self.data[first : first + length]

    def _long_integers(self, begin: Ints, stop: int) -> tuple[Ints, Ints, Bools]:
        """Length and value of whole numbers that are long or negative, and where there is one."""
        words = self.at(begin, _NUMBER_WORDS)
        length = find(words, stop)
        is_negative = (words[:, 0] & _BYTE) == _MINUS
        values, is_number = self._integers(begin + is_negative, begin + length)
        return length, np.where(is_negative, -values, values), is_number

    def _integers(self, begin: Ints, end: Ints) -> tuple[Ints, Bools]:
        """Value of the digits between two places, and where there is nothing else."""
        length = end - begin
        words = self.at(end - MAX_DIGITS, 2) ^ _ZEROS
        high, is_high = _digits(words[:, 1] & _LAST[np.clip(length, 0, 8)])
        low, is_low = _digits(words[:, 0] & _LAST[np.clip(length - 8, 0, 8)])
        is_number = is_high & is_low & (length > 0) & (length <= MAX_DIGITS)
        return low * _POWERS[8] + high, is_number

    def _shape(self, begin: Ints, stop: int) -> tuple[Ints, Ints]:
        """Length of each number, and where its point is (the length where it has none)."""
        words = self.at(begin, _NUMBER_WORDS)
        length = find(words, stop)
        return length, np.minimum(find(words, _DOT), length)

    def _shaped(self, begin: Ints, stop: int, length: int, dot: int) -> tuple[Ints, Bools]:
        """Times of one length with the point at one place, and where they are such."""
        n_decimals = max(length - dot - 1, 0)
        if length == 8 * _NUMBER_WORDS or n_decimals > 3 or dot > MAX_DIGITS:
            return np.zeros(len(begin), np.int64), np.zeros(len(begin), bool)
        words = self.at(begin + (dot - MAX_DIGITS), 3)
        behind = int.from_bytes(b"." * (dot < length) + bytes(n_decimals) + bytes([stop]), "little")
        fixed = np.uint64(behind)
        mask = np.uint64(int(_ALL) & ~(((1 << 8 * n_decimals) - 1) << 8 * (dot < length)))
        mask &= np.uint64((1 << 8 * (length - dot + 1)) - 1)
        is_time = (words[:, 2] & mask) == fixed
        whole, is_whole = _digits((words[:, 1] ^ _ZEROS) & _LAST[min(dot, 8)])
        is_time &= is_whole
        if dot > 8:
            high, is_high = _digits((words[:, 0] ^ _ZEROS) & _LAST[dot - 8])
            whole += high * _POWERS[8]
            is_time &= is_high & (whole <= MAX_MICROSECONDS)
        values = whole * 1000
        if n_decimals:
            shift = np.uint64(8 * (7 - n_decimals))
            decimals = ((words[:, 2] << shift) ^ _ZEROS) & _LAST[n_decimals]
            thousandths, are_digits = _digits(decimals)
            values += thousandths * _POWERS[3 - n_decimals]
            is_time &= are_digits
        return values, is_time & (dot > 0) & (n_decimals > 0 or dot == length)

    def _times(self, begin: Ints, length: Ints, dot: Ints) -> tuple[Ints, Bools]:
        """Times of any length, and where they are possible."""
        whole, is_time = self._integers(begin, begin + dot)
        n_decimals = np.maximum(length - dot - 1, 0)
        decimals, is_read = _digits(
            (self.word(begin + length - 8) ^ _ZEROS) & _LAST[np.minimum(n_decimals, 8)]
        )
        is_time &= is_read & (whole <= MAX_MICROSECONDS) & (length < 8 * _NUMBER_WORDS)
        is_time &= (n_decimals <= 8) & ((n_decimals > 0) | (dot == length))
        scaled = decimals * _POWERS[8 - np.minimum(n_decimals, 8)]
        thousandths, rest = np.divmod(scaled, _POWERS[5])
        half = _POWERS[5] // 2
        thousandths += (rest > half) | ((rest == half) & (thousandths & 1 == 1))
        return np.where(is_time, whole, 0) * 1000 + thousandths, is_time


class Literal:
    """Text that is the same in every row.

    Args:
        text: The text.
    """

    def __init__(self, text: bytes) -> None:
        self.n_bytes = len(text)
        self._pieces: list[tuple[int, list[tuple[np.uint64, np.uint64]]]] = []
        for begin in range(0, len(text), MAX_BYTES):
            piece = text[begin : begin + MAX_BYTES]
            words = []
            for at in range(0, len(piece), 8):
                part = piece[at : at + 8]
                mask = (1 << 8 * len(part)) - 1
                words.append((np.uint64(mask), np.uint64(int.from_bytes(part, "little"))))
            self._pieces.append((begin, words))

    def stands_at(self, text: Words, places: Ints) -> Bools:
        """Return at which of the places it stands."""
        result = np.ones(len(places), bool)
        for begin, words in self._pieces:
            at = places if begin == 0 else np.minimum(places + begin, text.end)
            found = text.at(at, len(words))
            for index, (mask, word) in enumerate(words):
                column = found[:, index]
                result &= (column if mask == _ALL else column & mask) == word
        return result


def find(words: _Words, character: int) -> Ints:
    """Return the place of the first such byte in each row of words, their length where none is."""
    is_found = words.view(np.uint8) == character
    places: Ints = is_found.argmax(axis=1)
    places[(places == 0) & ~is_found[:, 0]] = 8 * words.shape[1]
    return places


def has_byte(words: _Words, character: int) -> Bools:
    """Return which of the words have such a byte."""
    different = words ^ (_ONES * np.uint64(character))
    found: Bools = ((different - _ONES) & ~different & _HIGHS) != 0
    return found


def _first(words: _Words, character: int) -> tuple[Ints, Bools]:
    """Return the place of the first such byte in each word, 8 where none is; where one is."""
    different = words ^ (_ONES * np.uint64(character))
    found = (different - _ONES) & ~different & _HIGHS
    lowest = found & (np.uint64(0) - found)
    places = (((lowest >> np.uint64(7)) * _PLACE_OF_BYTE) >> np.uint64(61)).astype(np.int64)
    is_found = found != 0
    places[~is_found] = 8
    return places, is_found


def _digits(words: _Words) -> tuple[Ints, Bools]:
    """Return the number that the digits (values, not characters) of each word make, and where all
    of them are digits.
    """
    are_digits: Bools = (((words + _ABOVE_NINE) | words) & _HIGHS) == 0
    for mask, factor, shift in _DIGIT_STEPS:
        words = ((words & mask) * factor) >> shift
    return words.astype(np.int64), are_digits
