from __future__ import annotations

from dataclasses import dataclass

import pytest

from streamlog.errors import SerdeError
from streamlog.processing.column_batch import deserialize_column, serialize_column
from streamlog.serdes import JsonSerde, StrSerde, serde_for


@dataclass
class Point:
    x: int


class Longer(Point):
    """A subclass of the declared class."""


class Shouting(StrSerde):
    """A subclass that reads and writes differently."""

    def dumps(self, obj: str) -> bytes:
        return super().dumps(obj.upper())

    def loads(self, data: bytes) -> str:
        return super().loads(data).lower()


COLUMNS = [
    (str, ["a", None, "\u00e4"]),
    (bytes, [b"a", None]),
    (int, [1, None, -5]),
    (float, [1.5, 2, None]),
    (Point, [Point(1), None, Longer(2)]),
    (dict[str, int], [{"a": 1}, None]),
    (Point | None, [Point(1), None]),
]


@pytest.mark.parametrize(("declared", "column"), COLUMNS)
def test_a_column_is_serialized_like_its_single_entries(
    declared: object, column: list[object]
) -> None:
    serde = serde_for(declared)
    for part in (column, [entry for entry in column if entry is not None]):
        data = [None if entry is None else serde.dumps(entry) for entry in part]
        assert serialize_column(serde, part) == data
        read = [None if each is None else serde.loads(each) for each in data]
        assert deserialize_column(serde, data) == read


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [(str, 1), (str, "\ud800"), (int, True), (int, 2**63), (float, "1"), (Point, {"x": 1})],
)
def test_a_column_refuses_what_the_serde_refuses(declared: object, wrong: object) -> None:
    serde = serde_for(declared)
    with pytest.raises(SerdeError):
        serde.dumps(wrong)
    with pytest.raises(Exception):  # noqa: B017 - the caller finds the entry one by one
        serialize_column(serde, [wrong])


@pytest.mark.parametrize(("serde", "wrong"), [(StrSerde(), b"\xff"), (JsonSerde(Point), b"{}")])
def test_an_unreadable_entry_fails_the_column(serde: object, wrong: bytes) -> None:
    with pytest.raises(Exception):  # noqa: B017 - the caller finds the entry one by one
        deserialize_column(serde, [wrong])  # type: ignore[arg-type]


def test_a_user_s_serde_is_called_for_each_entry() -> None:
    assert serialize_column(Shouting(), ["a"]) == [b"A"]
    assert deserialize_column(Shouting(), [b"A", None]) == ["a", None]
