"""Row spans: what the serde of the topic writes, or nothing, for every kind of declared type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streamlog.connect import row_spans as row_spans_module
from streamlog.connect.row_spans import column_spans, row_spans, spans_of_contents
from streamlog.connect_tasks.carried import declare_rows
from streamlog.errors import SerdeError
from streamlog.processing.column_batch import serialize_column
from streamlog.serdes import serde_for
from streamlog.serdes.erased_types import AnySerde
from streamlog.serdes.named_columns import NamedColumns
from tests.connect.row_spans.values import NESTED, VALUES

NAMES = ("id", "note", "rate", "id")
"""With two columns of one name, as a query may have them."""


class Plain(msgspec.Struct):
    rate: float | None
    id: int | None


class Texts(msgspec.Struct, rename={"text": "note"}):
    text: str | None


class Others(msgspec.Struct):
    id: UUID | None
    note: bytes | None
    rate: Decimal | None


class Times(msgspec.Struct):
    note: datetime | None


class Untyped(msgspec.Struct):
    id: Any


class Short(msgspec.Struct, omit_defaults=True):
    id: int | None = None


class Listed(msgspec.Struct, array_like=True):
    id: int | None
    note: str | None


class Checked(msgspec.Struct):
    id: int | None

    def __post_init__(self) -> None:
        if self.id == 0:
            raise ValueError("id is 0")


class Tagged(msgspec.Struct, tag=True):
    id: int | None


class Missing(msgspec.Struct):
    id: int | None
    other: str = "none"


class Model(BaseModel):
    id: int | None


class Row(TypedDict):
    id: int


DIRECT = (Plain, Texts, Others, Times, dict, dict[str, Any], Row, Any)
"""Types whose rows are written here, if the values allow it."""
LEFT = (Untyped, Short, Listed, Checked, Tagged, Missing, Model, int, dict[str, int] | list[int])
"""Types whose rows are left to their serde."""


@pytest.fixture(autouse=True)
def no_form_is_remembered() -> None:
    """Let each test find the forms of rows itself, and not those that another one has found."""
    row_spans_module._form_of.cache_clear()


def outcome(act: Callable[[], object]) -> object:
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - whatever the serde raises
        return type(error).__name__


@given(st.lists(st.tuples(*[VALUES | NESTED] * 4) | st.tuples(*[VALUES] * 4), max_size=3))
def test_rows_are_what_their_serde_writes(rows: list[tuple[Any, ...]]) -> None:
    """Also rows that the serde refuses: they get no bytes here."""
    columns = NamedColumns(NAMES, rows)
    for declared in (*DIRECT, *LEFT):
        serde: AnySerde = serde_for(declared)
        found = outcome(lambda serde=serde: row_spans(serde, columns))  # type: ignore[misc]
        if found is None or isinstance(found, str):
            continue
        assert declared in DIRECT
        assert found == serialize_column(serde, declare_rows(serde, [*columns]))


FITTING: dict[Any, tuple[Any, ...]] = {
    Plain: (7, None, 1.5, -8),
    Texts: (7, "ü\n", object, None),
    Others: (0, b"\xff", Decimal("-1.50"), UUID(int=7)),
    Times: (0, datetime(2026, 1, 2, 3, 4, 5, 600, UTC), 0, 0),
    **dict.fromkeys(DIRECT[4:], (None, "x", [1, {"a": None}], 2**70)),
}


@pytest.mark.parametrize("declared", DIRECT)
def test_rows_that_fit_are_written_here(declared: Any) -> None:
    columns = NamedColumns(NAMES, [FITTING[declared]] * 3)
    serde: AnySerde = serde_for(declared)
    found = row_spans(serde, columns)
    assert found is not None
    wanted = [dict(zip(NAMES, row, strict=True)) for row in columns.rows]
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        names = {each.encode_name for each in msgspec.structs.fields(declared)}
        wanted = [{name: row[name] for name in row if name in names} for row in wanted]
    assert [msgspec.json.decode(each) for each in found if each] == [
        msgspec.json.decode(msgspec.json.encode(row)) for row in wanted
    ]


def test_a_number_that_json_lacks_is_found_within_a_value() -> None:
    for value in ([float("nan")], {"a": [float("inf")]}, {float("nan"): 1}):
        for declared in (dict, dict[str, Any], Any):
            with pytest.raises(SerdeError):
                row_spans(serde_for(declared), NamedColumns(("id",), [(1,), (value,)]))


def test_serdes_of_other_classes_are_left_alone() -> None:
    class Own:
        def dumps(self, obj: object) -> bytes:
            return repr(obj).encode()

        def loads(self, data: bytes) -> object:
            raise NotImplementedError

    rows = NamedColumns(("id",), [(1,)])
    assert row_spans(Own(), rows) is None
    assert column_spans(Own(), [1]) is None
    assert column_spans(Own(), rows) is None


NUMBERS = st.floats() | st.integers()
WRITTEN: Mapping[Any, Any] = {
    int: st.integers(),
    str: st.text(),
    dict: st.dictionaries(st.text() | NUMBERS, VALUES),
    bytes: st.binary(),
    Any: VALUES | NESTED,
    Plain: st.builds(Plain, NUMBERS, st.integers() | st.none()),
    Tagged: st.builds(Tagged, st.integers()),
    Texts | None: st.builds(Texts, st.text()),
    dict[float, int]: st.dictionaries(NUMBERS, st.integers()),
    Untyped: st.builds(
        Untyped, NESTED | st.builds(msgspec.Raw, st.sampled_from([b"1", b"[1,\n2]"]))
    ),
    msgspec.Raw: st.builds(msgspec.Raw, st.sampled_from([b"1", b"2\r", b"3\n", b"[1,\n2]", b""])),
}


@given(st.sampled_from([*WRITTEN]), st.data())
def test_a_column_is_what_its_serde_writes(declared: Any, data: st.DataObject) -> None:
    """Also one that the serde refuses: it gets no bytes here."""
    others = data.draw(st.sampled_from([st.nothing(), st.none(), VALUES]))
    column = data.draw(st.lists(WRITTEN[declared] | others, max_size=4))
    serde: AnySerde = serde_for(declared)
    wanted = outcome(lambda: serialize_column(serde, column))
    found = outcome(lambda: column_spans(serde, column))
    if found is not None and not isinstance(found, str):
        assert found == wanted


def test_values_of_a_class_are_written_here() -> None:
    column = [Plain(1.5, 7), Plain(None, 2**63), Plain(-0.0, None)]
    assert column_spans(serde_for(Plain), column) == [*map(msgspec.json.encode, column)]
    with pytest.raises(SerdeError):
        column_spans(serde_for(Plain), [Plain(float("nan"), 7)])
    assert column_spans(serde_for(Plain), [Plain(1.5, 7), None]) is None
    assert column_spans(serde_for(msgspec.Raw), [msgspec.Raw(b"1\n2"), msgspec.Raw(b"3")]) is None
    assert column_spans(serde_for(msgspec.Raw), [msgspec.Raw(b"1\r")]) is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_key_that_json_lacks_is_an_error_as_a_value_is(number: float) -> None:
    for declared, wrong, right in (
        (dict[float, int], {number: 1}, {1.5: 2}),
        (dict[str, float], {"a": number}, {"a": 1.5}),
        (dict[str, float | None], {"a": None, "b": number}, {"a": None}),
        (list[float], [number], [2.5]),
    ):
        serde: AnySerde = serde_for(declared)
        with pytest.raises(SerdeError):
            column_spans(serde, [right, wrong])
        assert column_spans(serde, [right]) in (None, [serde.dumps(right)])


def test_keys_of_the_usual_types_are_written_here() -> None:
    found = column_spans(serde_for(int), [1, -1, 2**63 - 1, -(2**63)])
    assert found is not None
    assert [int.from_bytes(each or b"", "big", signed=True) for each in found] == [
        1, -1, 2**63 - 1, -(2**63),
    ]  # fmt: skip
    assert found.content_bytes == 32
    assert column_spans(serde_for(str), ["é", None, ""]) == ["é".encode(), None, b""]
    composite = NamedColumns.of_columns({"a": [1], "b": ["x"]})
    assert column_spans(serde_for(dict[str, Any]), composite) == [b'{"a":1,"b":"x"}']
    assert column_spans(serde_for(int), []) == []


@given(st.lists(st.none() | st.binary(max_size=9), max_size=9))
def test_contents_in_one_buffer_are_the_contents(column: list[bytes | None]) -> None:
    assert spans_of_contents(column) == column
