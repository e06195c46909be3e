"""Lines cut by position equal those that `split` gives."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData
from streamlog.records.arrow_rows import BinaryArray
from streamlog.records.byte_spans import ByteSpans, cut_lines

TEXT = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\r", b"\xff\0"]), max_size=40).map(
    b"".join
)


def lines_of(data: bytes) -> list[bytes]:
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return lines[:-1] if data.endswith(b"\n") or not data else lines


@given(TEXT, st.integers(0, 50), st.integers(0, 9))
def test_lines_are_those_that_split_gives(data: bytes, end: int, longest: int) -> None:
    end = min(end, len(data))
    expected, found = lines_of(data[:end]), cut_lines(data, end, longest)
    if max(map(len, expected), default=0) > longest:
        assert found is None
    else:
        assert found == expected
        assert found.content_bytes == sum(map(len, expected))


@given(TEXT, st.slices(12))
def test_spans_are_a_sequence_of_their_contents(data: bytes, part: slice) -> None:
    expected, found = lines_of(data), cut_lines(data, len(data), len(data))
    assert found is not None
    assert (len(found), [*found], found[part]) == (len(expected), expected, expected[part])
    for at in (-len(expected) - 1, -len(expected), -1, 0, len(expected) - 1, len(expected)):
        if -len(expected) <= at < len(expected):
            assert found[at] == expected[at]
        else:
            with pytest.raises(IndexError):
                found[at]
    assert found != [*expected, b""]


def test_a_column_of_nulls() -> None:
    for count in (0, 1, 8, 9):
        assert ByteSpans.nulls(count) == [None] * count


@pytest.mark.parametrize(("starts", "ends"), [([-1], [1]), ([2], [1]), ([0], [4]), ([0, 1], [1])])
def test_spans_that_are_not_in_the_buffer_are_refused(starts: list[int], ends: list[int]) -> None:
    with pytest.raises(CorruptData):
        BinaryArray(0, len(starts), array("i", ends), b"abc", starts=array("i", starts))


def test_an_end_behind_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="the end 3 is not in 2 bytes"):
        cut_lines(b"a\n", 3, 9)
