from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from streamlog.records.log_record import LogRecord
from streamlog.records.record_columns import (
    FieldColumns,
    RecordColumns,
    all_ascii,
    all_of_type,
    called,
    has_none,
    suffixed,
    total_bytes,
)


class Unequal:
    """An object that must not be compared."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError(other)

    __hash__ = None  # type: ignore[assignment]


def test_all_of_type_compares_exact_types() -> None:
    assert all_of_type([1, 2], frozenset({int}))
    assert all_of_type([1, "a", 2], frozenset({int, str}))
    assert not all_of_type([1, True], frozenset({int}))
    assert not all_of_type([1, None], frozenset({int}))
    assert all_of_type((), frozenset())


def test_called_skips_none() -> None:
    assert called(len, ["a", None, ""]) == [1, None, 0]
    assert called(len, ()) == []
    with pytest.raises(TypeError):
        called(len, ["a", 1])


def test_has_none_finds_none_without_comparing() -> None:
    assert has_none([Unequal(), None])
    assert not has_none([Unequal(), 0, "", b""])
    assert not has_none(())


def test_all_ascii_detects_bytes_above_127() -> None:
    assert all_ascii([b"", None, b"a\x7f" * 20])
    assert not all_ascii([b"a", b"b" * 40 + b"\x80"])


def test_total_bytes_skips_none() -> None:
    assert total_bytes([b"ab", None, b"", b"c"]) == 3
    assert total_bytes({b"ab": None, b"c": b"d"}.keys()) == 3


@dataclass
class Owner:
    suffix: bytes


def test_suffixed_appends_each_owners_suffix() -> None:
    one, other = Owner(b"/1"), Owner(b"")
    assert suffixed([b"a", b"b", b"", b"c"], [one, one, other, one], bytes) == [
        b"a/1",
        b"b/1",
        b"",
        b"c/1",
    ]
    assert suffixed([b"a", b"b"], [one, other], bytes.upper) == [b"a/1", b"b"]
    assert suffixed([b"a"], [one], lambda suffix: suffix[1:]) == [b"a1"]
    assert suffixed([], [], bytes) == []
    with pytest.raises(TypeError):
        suffixed([b"a"], [Owner("text")], lambda suffix: suffix)  # type: ignore[arg-type]


GAPS = [3, 4, 5, 9, 10]
OWN = (("name", b"content"),)


def records(offsets: Sequence[int], *, with_headers: bool = False) -> list[LogRecord]:
    return [
        LogRecord(
            at, 1_000 + at, b"k%d" % at, None if at % 2 else b"v", OWN if with_headers else ()
        )
        for at in offsets
    ]


@pytest.mark.parametrize("offsets", [[], [7], [7, 8, 9], GAPS])
@pytest.mark.parametrize("with_headers", [False, True])
def test_columns_return_the_records_they_were_made_of(
    offsets: list[int], with_headers: bool
) -> None:
    rows = records(offsets, with_headers=with_headers)
    columns = RecordColumns.of(rows)
    assert list(columns) == rows
    assert [columns[at] for at in range(len(columns))] == rows
    assert RecordColumns.of(columns) is columns
    for start in range(len(rows) + 1):
        for stop in range(start, len(rows) + 1):
            assert list(columns[start:stop]) == rows[start:stop]
            both = columns[start:stop]
            both += columns[stop:]
            assert list(both) == rows[start:]


def test_offsets_are_a_range_while_they_are_consecutive() -> None:
    columns = RecordColumns()
    for more, wanted in (
        ([3, 4], range(3, 5)),
        ([5], range(3, 6)),
        ([], range(3, 6)),
        ([9], [3, 4, 5, 9]),
        ([10], [3, 4, 5, 9, 10]),
    ):
        columns += RecordColumns.of(records(more))
        assert columns.offsets == wanted


def test_records_without_headers_may_join_those_with_some() -> None:
    without, with_some = records([1]), records([2], with_headers=True)
    both = RecordColumns.of(without)
    both += RecordColumns.of(with_some)
    assert list(both) == without + with_some
    assert RecordColumns.of(without).headers is None
    assert list(RecordColumns.of([*with_some, *records([3])])) == [*with_some, *records([3])]


def test_columns_of_different_lengths_are_refused() -> None:
    columns = FieldColumns()
    with pytest.raises(ValueError, match="different lengths: 1, 2 and 2"):
        columns.extend([1], [b"a", b"b"], [None, None])
    assert len(columns) == 0


def test_fields_are_collected_from_records_and_columns() -> None:
    columns = FieldColumns.of([(1, b"a", None, ())])
    columns.extend([2, 3], [b"b", None], [b"v", b"w"])
    columns.extend([4], [b"d"], [b"x"], [OWN])
    columns.append(5, None, None, ())
    assert list(columns) == [
        (1, b"a", None, ()),
        (2, b"b", b"v", ()),
        (3, None, b"w", ()),
        (4, b"d", b"x", OWN),
        (5, None, None, ()),
    ]
    assert list(columns.part(1, 3)) == list(columns)[1:3]


def test_pairs_become_records_with_one_timestamp() -> None:
    columns = FieldColumns.alike(5, [b"a", b"c"], [b"b", None], (("h", b""),))
    assert list(columns) == [
        (5, b"a", b"b", (("h", b""),)),
        (5, b"c", None, (("h", b""),)),
    ]
    with pytest.raises(ValueError, match="2 and 1"):
        FieldColumns.alike(5, [b"a", b"c"], [b"b"], ())
    bare = FieldColumns.alike(5, [b"a"], [b"b"], ())
    assert bare.headers is None
    assert list(bare) == [(5, b"a", b"b", ())]
