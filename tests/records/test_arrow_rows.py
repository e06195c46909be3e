"""Rows of Arrow arrays become batches equal to those of rows as objects."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData, UsageError
from streamlog.records.arrow_rows import ArrowRows, BinaryArray
from streamlog.records.batch import RecordBatch, encode_batch
from streamlog.records.builder import TIMESTAMP_MS_MAX, BatchBuilder
from streamlog.records.murmur2 import partitions_of_keys

FIELDS = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=3), FIELDS), max_size=2).map(tuple)
ROWS = st.lists(
    st.tuples(st.integers(-(2**61), 2**61), FIELDS, FIELDS, HEADERS), min_size=1, max_size=30
)
EVERYTHING = 1 << 20


def binary(entries: list[bytes | None], first: int = 0) -> BinaryArray:
    """Return an array in Arrow's layout, behind `first` other entries."""
    entries = [b"other"] * first + entries
    ends, valid = [0], bytearray(len(entries) // 8 + 1)
    for at, entry in enumerate(entries):
        ends.append(ends[-1] + len(entry or b""))
        valid[at >> 3] |= (entry is not None) << (at & 7)
    data = b"".join(entry or b"" for entry in entries)
    bits = None if None not in entries else valid
    return BinaryArray(
        first, len(entries) - first, struct.pack(f"<{len(ends)}i", *ends), data, bits
    )


def arrow_rows(rows: list[Any], first: int = 0) -> ArrowRows:
    times, keys, values, headers = ([*column] for column in zip(*rows, strict=True))
    keys = None if keys == [None] * len(keys) else binary(keys, first)
    return ArrowRows(
        keys, binary(values, first), array("q", times), headers if any(headers) else None
    )


@given(ROWS, st.integers(0, 9))
def test_a_batch_of_arrow_rows_equals_one_of_the_records(rows: list[Any], first: int) -> None:
    builder = BatchBuilder()
    assert builder.take(arrow_rows(rows, first), 0, len(rows), EVERYTHING) == len(rows)
    assert builder.build() == encode_batch(rows)


@given(ROWS, st.integers(0, 200))
def test_batches_end_at_their_size_and_have_at_least_one_row(
    rows: list[Any], bytes_max: int
) -> None:
    found, at, taken = arrow_rows(rows), 0, []
    while at < len(rows):
        builder = BatchBuilder()
        before, at = at, builder.take(found, at, len(rows), bytes_max)
        assert at > before
        assert builder.size_bytes <= bytes_max or at == before + 1
        taken += [
            (*record[1:4], record.headers) for record in RecordBatch(builder.build()).records()
        ]
    assert taken == rows


@given(ROWS, st.integers(1, 5), st.data())
def test_rows_are_arranged_by_partition(
    rows: list[Any], partitions: int, data: st.DataObject
) -> None:
    found, otherwise = arrow_rows(rows), partitions - 1
    hashed = found.partitions_by_key(partitions, otherwise)
    assert hashed == [
        otherwise if key is None else partitions_of_keys([key], partitions)[0]
        for _, key, _, _ in rows
    ]
    number = st.integers(0, partitions - 1)
    numbers = data.draw(st.just(hashed) | st.lists(number, min_size=len(rows), max_size=len(rows)))
    starts = found.arrange(numbers, partitions)
    for partition in range(partitions):
        wanted = [row for row, at in zip(rows, numbers, strict=True) if at == partition]
        assert starts[partition + 1] - starts[partition] == len(wanted)
        builder = BatchBuilder()
        builder.take(found, starts[partition], starts[partition + 1], EVERYTHING)
        assert not wanted or builder.build() == encode_batch(wanted)


@pytest.mark.parametrize(
    ("first", "count", "ends", "valid"),
    [
        pytest.param(0, 2, (0, 1), None, id="too few ends"),
        pytest.param(1, 1, (0, 1), None, id="begins behind the last"),
        pytest.param(-1, 1, (0, 1), None, id="begins before the first"),
        pytest.param(0, 2, (0, 3, 2), None, id="ends before it begins"),
        pytest.param(0, 1, (0, 5), None, id="ends behind the data"),
        pytest.param(0, 1, (-1, 2), None, id="begins before the data"),
        pytest.param(0, 9, (0,) * 10, b"\xff", id="too few bits"),
    ],
)
def test_an_inconsistent_array_is_refused(
    first: int, count: int, ends: tuple[int, ...], valid: bytes | None
) -> None:
    with pytest.raises(CorruptData):
        BinaryArray(first, count, struct.pack(f"<{len(ends)}i", *ends), b"data", valid)


def test_columns_of_different_lengths_are_refused() -> None:
    two, one = binary([b"a", b"b"]), binary([b"a"])
    for keys, times, headers in (
        (one, [1, 2], None),
        (None, [1], None),
        (two, [1, 2], [()]),
    ):
        with pytest.raises(ValueError, match="the columns have"):
            ArrowRows(keys, two, array("q", times), headers)


def test_rows_and_partitions_out_of_range_raise() -> None:
    rows = arrow_rows([(1, b"k", b"v", ())])
    for first, end in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(ValueError, match="are not in 1 rows"):
            BatchBuilder().take(rows, first, end, EVERYTHING)
    for numbers in ([1], [-1]):
        with pytest.raises(ValueError, match="is not from 0 to 0"):
            rows.arrange(numbers, 1)
    with pytest.raises(ValueError, match="0 partitions for 1"):
        rows.arrange([], 1)


def test_a_timestamp_out_of_range_is_refused() -> None:
    rows = arrow_rows([(1, None, b"v", ()), (TIMESTAMP_MS_MAX + 1, None, b"v", ())])
    builder = BatchBuilder()
    with pytest.raises(UsageError, match="out of range"):
        builder.take(rows, 0, 2, EVERYTHING)
    assert builder.record_count == 1
