"""Texts and numbers as JSON: the bytes that msgspec writes, and no more room than it takes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamlog.connect.row_spans.json_writes import (
    NUMBER_ROOM,
    json_text_room,
    put_json_number,
    put_json_text,
    put_part,
    put_plain_number,
    put_plain_text,
    put_plain_truth,
)

encode = msgspec.json.Encoder().encode
TEXTS = st.text() | st.text('\x00\x1f"\\/\x7fé\u2028', max_size=9)
PlainPut = Callable[[bytearray, int, bytes, int, int], int]


def written(put: Callable[[bytearray], int], room: int) -> bytes | None:
    """Return what a function writes behind two bytes; None if it refuses."""
    data = bytearray(b"ab" + bytes(room) + b"z")
    end = put(data)
    if end == -1:
        assert data == b"ab" + bytes(room) + b"z", "a refusal leaves the buffer as it was"
        return None
    assert (data[:2], data[-1:], len(data)) == (b"ab", b"z", room + 3)
    return bytes(data[2:end])


@given(TEXTS)
@example("\x01" * 7)
@example("é" * 7)
def test_a_text_is_written_within_its_room(text: str) -> None:
    room = json_text_room(text)
    wanted = encode(text)
    assert written(lambda data: put_json_text(data, 2, text, room), room) == wanted
    has_escapes = len(wanted) != len(text.encode()) + 2
    assert room == (6 * len(text.encode()) + 2 if has_escapes else len(wanted))


@given(st.integers(-(2**64), 2**64))
@example(2**63 - 1)
@example(-(2**63))
@example(2**63)
@example(-(2**63) - 1)
def test_a_number_of_64_bits_is_written_within_its_room(number: int) -> None:
    found = written(lambda data: put_json_number(data, 2, number), NUMBER_ROOM)
    assert found == (encode(number) if -(2**63) <= number < 2**63 else None)
    assert len(encode(-(2**63))) == NUMBER_ROOM


def plainly(put: PlainPut, content: bytes) -> bytes | None:
    return written(lambda data: put(data, 2, b"<" + content + b">", 1, 1 + len(content)), 60)


@given(st.binary(max_size=20) | TEXTS.map(str.encode))
def test_only_ascii_that_json_has_as_it_is_is_copied(content: bytes) -> None:
    is_plain = content.isascii() and encode(content.decode()) == b'"%b"' % content
    if len(content) < 50:
        assert plainly(put_plain_text, content) == (b'"%b"' % content if is_plain else None)


@pytest.mark.parametrize(
    "number", [b"0", b"7", b"-7", b"9" * 18, b"-" + b"9" * 18, b"-100", b"1" + b"0" * 17]
)
def test_a_number_of_18_digits_is_copied(number: bytes) -> None:
    assert plainly(put_plain_number, number) == number == encode(int(number))


@pytest.mark.parametrize(
    "content",
    [b"", b"-", b"-0", b"00", b"07", b"-07", b"9" * 19, b"1" * 19, b"1.5", b"1e3", b"+1", b" 1",
     b"x", b"--1", "²".encode(), "٣".encode(), b"\xb2"],
)  # fmt: skip
def test_what_json_has_in_other_digits_is_no_plain_number(content: bytes) -> None:
    assert plainly(put_plain_number, content) is None


def test_truths_are_one_letter() -> None:
    letters = {b"t": b"true", b"f": b"false"}
    for content in (b"t", b"f", b"", b"T", b"true", b"x", b"tf"):
        assert plainly(put_plain_truth, content) == letters.get(content)


def test_a_part_is_copied() -> None:
    assert written(lambda data: put_part(data, 2, b"012345", 1, 4), 9) == b"123"
