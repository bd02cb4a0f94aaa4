"""Numbers and texts read many at once, against what Python reads of each."""

from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from probes.recorded.words import MAX_MICROSECONDS, Literal, Words, find

INTEGERS = st.one_of(
    st.integers(-(10**15), 10**15), st.integers(0, 9), st.integers(10**15, 10**20)
).map(str)
TIMES = st.one_of(
    st.decimals(0, 5 * 10**15, allow_nan=False, places=3).map(str),
    st.decimals(0, 10**6, allow_nan=False, places=8).map(str),
    st.integers(0, 10**17).map(str),
    st.sampled_from(["1.5e3", "1.", ".5", "-1", "1.2.3", "", "1x", "12345678", "1.0005", "1.0015"]),
)


def _placed(tokens, stop=","):
    """A text that holds the tokens, each before a stop, and where they begin."""
    pieces = [f'{{"a": {token}{stop} "b' for token in tokens]
    begins = np.cumsum([0, *(len(piece) for piece in pieces)])[:-1] + len('{"a": ')
    text = Words("".join(pieces).encode())
    return text, begins + text.begin


@given(st.lists(INTEGERS, min_size=1, max_size=20))
def test_whole_numbers(tokens):
    text, begins = _placed(tokens)
    values, ends, is_number = text.integers(begins, ord(","))
    for token, begin, value, end, good in zip(tokens, begins, values, ends, is_number, strict=True):
        assert good == (len(token.lstrip("-")) <= 16)
        if good:
            assert (int(value), end - begin) == (int(token), len(token))


@given(st.lists(st.text('0123456789abcdef.-+ "{', max_size=12), min_size=1, max_size=20))
def test_what_is_no_whole_number_is_not_read_as_one(tokens):
    text, begins = _placed(tokens)
    values, _, is_number = text.integers(begins, ord(","))
    for token, value, good in zip(tokens, values, is_number, strict=True):
        assert good == token.removeprefix("-").isdigit()
        assert not good or int(value) == int(token)


@given(st.lists(TIMES, min_size=1, max_size=20))
def test_times_are_exact_to_the_nanosecond(tokens):
    text, begins = _placed(tokens, "\n")
    values, ends, is_time = text.nanoseconds(begins, ord("\n"))
    for token, begin, value, end, good in zip(tokens, begins, values, ends, is_time, strict=True):
        whole, point, decimals = token.partition(".")
        is_plain = whole.isdigit() and (decimals.isdigit() if point else True)
        is_read = is_plain and int(whole) <= MAX_MICROSECONDS and len(decimals) <= 8
        assert good == is_read, token
        if good:
            exact = (Decimal(token) * 1000).quantize(Decimal(1), ROUND_HALF_EVEN)
            assert (int(value), end - begin) == (int(exact), len(token))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False).map(repr), min_size=1))
def test_any_number_is_passed_over(tokens):
    text, begins = _placed(tokens, "}")
    ends, is_number = text.numbers(begins, ord("}"))
    for token, begin, end, good in zip(tokens, begins, ends, is_number, strict=True):
        assert good == (len(token) < 24)
        assert not good or end - begin == len(token)


@given(st.lists(st.text('ab"\\{', max_size=200), min_size=1, max_size=10))
def test_a_text_ends_at_its_first_quote(tokens):
    text, begins = _placed([f'{token}"' for token in tokens])
    ends, is_end = text.quotes_after(begins)
    for token, begin, end, good in zip(tokens, begins, ends, is_end, strict=True):
        length = (token + '"').index('"')
        assert end - begin == length
        assert good == (not token[:length].endswith("\\"))


def test_a_text_without_an_end_has_none():
    text = Words(b'"' + b"a" * 10_000)
    _, is_end = text.quotes_after(np.array([text.begin + 1, text.end, text.begin]))
    assert is_end.tolist() == [False, False, True]


@given(st.binary(min_size=1, max_size=150), st.integers(0, 150))
def test_a_literal_stands_where_it_stands(data, other):
    text = Words(b"{" + data + b"}" + data[:-1] + b"\xff\xff")
    second = text.begin + 2 + len(data)
    places = np.array([text.begin + 1, second, min(text.begin + other, text.end)])
    stands = Literal(data).stands_at(text, places)
    assert stands[0]
    for place, found in zip(places.tolist(), stands.tolist(), strict=True):
        assert found == (text.data[place : place + len(data)] == data)


@given(st.lists(st.binary(min_size=24, max_size=24), min_size=1), st.integers(0, 255))
def test_the_first_byte_of_a_kind(rows, character):
    words = np.frombuffer(b"".join(rows), "<u8").reshape(-1, 3)
    expected = [row.find(bytes([character])) for row in rows]
    assert find(words, character).tolist() == [24 if at < 0 else at for at in expected]
