"""Rows as JSON in one buffer: the bytes that msgspec writes of each row's dict, in both builds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamlog.connect.row_spans.copied_rows import (
    OTHER,
    TEXT,
    TRUTH,
    WHOLE_NUMBER,
    CopiedRows,
)
from tests.builds.sources import both
from tests.connect.row_spans.values import NESTED, VALUES

NAME = "streamlog.connect.row_spans.json_rows"
NAMES = ("id", 'a "name" \\ \n é', "")
encode = msgspec.json.Encoder().encode
FINITE = VALUES.filter(lambda value: not isinstance(value, float) or abs(value) < float("inf"))
ROWS = st.lists(st.tuples(FINITE | NESTED, FINITE, FINITE), max_size=6)


def form(module: ModuleType, kinds: list[frozenset[type] | None], at: tuple[int, ...]) -> Any:
    heads = [(b"," if number else b"{") + encode(NAMES[number]) + b":" for number in range(len(at))]
    return module.JsonForm(heads, at, kinds, encode)


@given(ROWS, st.permutations(range(3)), st.integers(1, 3))
@example([("", '\x00\x1f"\\\b\f\n\r\t/\x7f\u2028é\U0001f600', -(2**63))], [0, 1, 2], 3)
@example([("x" * 9, "1234567\n", "12345678\n")], [0, 1, 2], 3)
@example([(2**63, -(2**63) - 1, 10**40)], [0, 1, 2], 3)
@example([("x" * 5000, "\x01" * 5000, "é" * 5000)] * 3, [0, 1, 2], 3)
def test_rows_are_what_msgspec_writes_of_their_dicts(
    rows: list[tuple[Any, ...]], order: list[int], fields: int
) -> None:
    at = tuple(order[:fields])
    wanted = [encode(dict(zip(NAMES, [row[each] for each in at], strict=False))) for row in rows]
    for module in both(NAME):
        spans = form(module, [None] * fields, at).spans(rows)
        assert [*spans] == wanted
        assert spans.content_bytes == sum(map(len, wanted))


@given(
    st.lists(st.tuples(VALUES), max_size=4),
    st.sets(st.sampled_from([type(None), bool, int, float, str, bytes]), min_size=1),
)
def test_a_value_of_no_class_of_its_field_is_refused(
    rows: list[tuple[Any, ...]], kinds: set[type]
) -> None:
    are_allowed = all(type(value) in kinds for (value,) in rows)
    are_finite = all(value - value == 0 for (value,) in rows if type(value) is float)
    for module in both(NAME):
        spans = form(module, [frozenset(kinds)], (0,)).spans(rows)
        assert (spans is not None) == (are_allowed and are_finite)


@pytest.mark.parametrize("kinds", [None, frozenset({float, str})])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_json_lacks_is_refused(kinds: frozenset[type] | None, number: float) -> None:
    for module in both(NAME):
        assert form(module, [kinds], (0,)).spans([(1.5,), (number,)]) is None


def test_half_of_a_surrogate_pair_is_an_error() -> None:
    for module in both(NAME):
        with pytest.raises(UnicodeEncodeError):
            form(module, [None], (0,)).spans([("x",), ("\ud800",)])


def test_a_row_that_is_too_short_is_an_error() -> None:
    for module in both(NAME):
        for rows in ([()], [(1,)], [(1, 2), (1,)]):
            with pytest.raises(ValueError, match="too few"):
                form(module, [None], (1,)).spans(rows)
        with pytest.raises(TypeError):
            form(module, [None], (0,)).spans([None])
        for heads, at, kinds in (([], (), []), ([b"{"], (), []), ([b"{"], (0,), [])):
            with pytest.raises(ValueError, match="each field"):
                module.JsonForm(heads, at, kinds, encode)
        with pytest.raises(ValueError, match="too few"):
            form(module, [None], (-1,)).spans([(1,)])


FIELDS = st.sampled_from(
    [b"t", b"f", b"\\N", b"-", b"0", b"-0", b"007", b"-12", b"9" * 18, b"-" + b"9" * 18, b"9" * 19,
     b"9" * 30, b"1.5", b"1 ", b"", b"\\\\", b"a\\tb", b'"', b"\x01", b"\x7f", b"\xff",
     "é".encode(), b"NaN", b"x" * 7 + b'"', b"x" * 15 + b"\x1f", b"x" * 16 + b"\xe9",
     b"plain", b"x" * 3000]
) | st.text(max_size=20).map(lambda text: text.encode().translate(None, b"\t\n\\"))  # fmt: skip
ROW_OF_FIELDS = st.lists(FIELDS, min_size=3, max_size=3)


def read(content: bytes) -> object:
    return float(content) if content == b"NaN" else [content.decode(errors="replace")]


@given(
    st.lists(ROW_OF_FIELDS, max_size=5),
    st.lists(st.sampled_from([OTHER, TEXT, WHOLE_NUMBER, TRUTH]), min_size=3, max_size=3),
    st.permutations(range(3)),
    st.lists(
        st.none() | st.sets(st.sampled_from([type(None), bool, int, str, list, float])),
        min_size=1,
        max_size=3,
    ),
)
def test_rows_of_copy_are_written_as_their_values(
    rows: list[list[bytes]], kinds: list[int], order: list[int], classes: list[set[type] | None]
) -> None:
    copied = CopiedRows(b"".join(b"\t".join(row) + b"\n" for row in rows), kinds, [read] * 3)
    fields = [None if each is None else frozenset(each) for each in classes]
    for module in both(NAME):
        made = form(module, fields, tuple(order[: len(fields)]))
        wanted = made.spans(copied.rows())
        assert made.copied(copied) == wanted


@contextmanager
def bounds_checked(module: ModuleType) -> Iterator[None]:
    """Let an interpreted module write only where its buffer has room; C would write beyond it."""

    def put_bytes(data: bytearray, position: int, content: bytes) -> int:
        end = position + len(content)
        assert 0 <= position <= end <= len(data), "written behind the end of the buffer"
        data[position:end] = content
        return end

    with pytest.MonkeyPatch.context() as patch:
        for each in (module.buffer_writes, module.json_writes.buffer_writes):
            patch.setattr(each, "put_bytes", put_bytes)
        yield


NARROW = st.sampled_from(
    [-(2**63), 2**63 - 1, "\x01" * 40, "é" * 40, "", None, True, False, [1] * 50]
)


@given(st.lists(st.tuples(NARROW, NARROW, NARROW), max_size=8), st.integers(1, 3))
def test_nothing_is_written_beyond_the_room_of_the_buffer(
    rows: list[tuple[Any, ...]], fields: int
) -> None:
    at = tuple(range(fields))
    wanted = [encode(dict(zip(NAMES, row, strict=False))) for row in (r[:fields] for r in rows)]
    for module in both(NAME):
        if str(module.__file__).endswith(".py"):
            with bounds_checked(module):
                made = form(module, [None] * fields, at)
                assert [*made.spans(rows)] == wanted
                # The room of the second run is guessed by the first one.
                assert [*made.spans(rows[:1])] == wanted[:1]
                assert [*made.spans(rows)] == wanted


@given(st.lists(ROW_OF_FIELDS, max_size=5), st.sampled_from([OTHER, TEXT, WHOLE_NUMBER, TRUTH]))
@example([[b"\x01" * 300, b"x" * 3000, b""]], TEXT)
def test_no_row_of_copy_is_written_beyond_the_room_of_the_buffer(
    rows: list[list[bytes]], kind: int
) -> None:
    lines = b"".join(b"\t".join(row) + b"\n" for row in rows)
    copied = CopiedRows(lines, [kind] * 3, [lambda content: content.decode("latin-1")] * 3)
    for module in both(NAME):
        if str(module.__file__).endswith(".py"):
            made = form(module, [None] * 3, (0, 1, 2))
            wanted = made.spans(copied.rows())
            with bounds_checked(module):
                assert made.copied(copied) == wanted


def test_rows_of_copy_with_too_few_columns_are_an_error() -> None:
    for module in both(NAME):
        with pytest.raises(ValueError, match="too few"):
            form(module, [None], (1,)).copied(CopiedRows(b"1\n", [TEXT], [read]))
        with pytest.raises(ValueError, match="has not 2 columns"):
            form(module, [None], (1,)).copied(CopiedRows(b"1\n", [TEXT, TEXT], [read] * 2))


SHORT = frozenset({type(None), bool, int, float})


@given(st.lists(st.tuples(VALUES | NESTED, VALUES), max_size=8), st.integers(0, 60))
def test_the_first_rows_within_a_limit_have_its_content(
    rows: list[tuple[Any, ...]], limit: int
) -> None:
    sizes = [
        sum(
            len(value if type(value) in {str, bytes} else str(value))
            for value in row
            if type(value) not in SHORT
        )
        for row in rows
    ]
    for module in both(NAME):
        count, content = module.rows_within(rows, limit, SHORT)
        assert content == sum(sizes[:count])
        assert content <= limit or count == 1
        assert count == len(rows) or sum(sizes[: count + 1]) > limit


@given(st.lists(st.tuples(VALUES, VALUES), max_size=6), st.sets(st.sampled_from([int, str, bool])))
def test_classes_are_found_by_their_exact_name(
    rows: list[tuple[Any, ...]], kinds: set[type]
) -> None:
    for module in both(NAME):
        for at in (0, 1):
            found = module.all_of_kinds(rows, at, frozenset(kinds))
            assert found == all(type(row[at]) in kinds for row in rows)
        for at in (2, -1):
            if rows:
                with pytest.raises(IndexError):
                    module.all_of_kinds(rows, at, frozenset(kinds))


@pytest.mark.parametrize("value", [None, True, False, 5, 2**70, "x", "", 1.5, [1], {}], ids=repr)
def test_a_field_takes_values_of_exactly_the_classes_that_it_names(value: Any) -> None:
    for kind in (type(None), bool, int, str, float, list, dict):
        for module in both(NAME):
            spans = form(module, [frozenset({kind})], (0,)).spans([(value,)])
            wanted = [encode({"id": value})] if kind is type(value) else None
            assert (spans and [*spans]) == wanted


def test_rows_that_need_more_than_32_bits_are_left_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The compiled module has the limit as a constant of C, and nothing smaller can be put there.
    for module in both(NAME):
        if str(module.__file__).endswith(".py"):
            assert module._ENDS_MAX == 2**31 - 1
            monkeypatch.setattr(module, "_ENDS_MAX", 20)
            assert [*form(module, [None], (0,)).spans([(1,), (2,)])] == [b'{"id":1}', b'{"id":2}']
            assert form(module, [None], (0,)).spans([(1,), (2,), (3,)]) is None
            copied = CopiedRows(b"1\n2\n3\n", [WHOLE_NUMBER], [read])
            assert form(module, [None], (0,)).copied(copied) is None
            assert form(module, [None], (0,)).copied(CopiedRows(b"1\n2\n", [WHOLE_NUMBER], [read]))
