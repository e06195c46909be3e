"""Rows of an old type, read by a new one: the rule against the serdes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from streamlog.blueprints.readability import is_readable
from streamlog.errors import SerdeError
from streamlog.record import Windowed
from streamlog.serdes import form_of, serde_for


@dataclass
class Plain:
    a: int
    b: str


@dataclass
class More:
    a: int
    b: str
    c: int = 0


@dataclass
class Needy:
    a: int
    b: str
    c: int


@dataclass
class Less:
    a: int


@dataclass
class Wide:
    a: float
    b: str | None


@dataclass
class Other:
    a: str
    b: str


@dataclass
class Tree:
    a: int
    branches: list[Tree] = field(default_factory=list)


@dataclass
class Bush:
    a: float
    branches: list[Bush] = field(default_factory=list)


class Loose(TypedDict):
    a: int
    b: NotRequired[str]


READABLE = [
    (Plain, More),
    (More, Plain),
    (Needy, Plain),
    (Plain, Less),
    (Plain, Wide),
    (Plain, Loose),
    (Plain, dict[str, Any]),
    (Tree, Bush),
    (list[Plain], list[Less]),
    (tuple[int, str], tuple[float, str]),
    (dict[str, int], dict[str, float]),
    (Literal["x"], Literal["x", "y"]),
    (int | str, int | str | None),
    (Plain, Any),
]
UNREADABLE = [
    (Plain, Needy),
    (Plain, Other),
    (Wide, Plain),
    (Loose, Plain),
    (Bush, Tree),
    (str, int),
    (Plain, str),
    (list[Plain], Plain),
    (tuple[int, str], tuple[int, str, int]),
    (Literal["x", "y"], Literal["x"]),
    (Any, Plain),
    (dict[str, float], dict[str, int]),
]
VALUES: dict[Any, object] = {
    Plain: Plain(1, "x"),
    More: More(1, "x", 2),
    Needy: Needy(1, "x", 2),
    Tree: Tree(1, [Tree(2)]),
    list[Plain]: [Plain(1, "x")],
    tuple[int, str]: (1, "x"),
    dict[str, int]: {"x": 1},
}


def type_name(pair: object) -> str:
    return getattr(pair, "__name__", str(pair))


@pytest.mark.parametrize(("old", "new"), READABLE, ids=type_name)
def test_rows_of_the_old_type_are_readable(old: Any, new: Any) -> None:
    assert is_readable(form_of(serde_for(new)), form_of(serde_for(old)))
    if old in VALUES:
        serde_for(new).loads(serde_for(old).dumps(VALUES[old]))


@pytest.mark.parametrize(("old", "new"), UNREADABLE, ids=type_name)
def test_rows_of_the_old_type_are_unreadable(old: Any, new: Any) -> None:
    assert not is_readable(form_of(serde_for(new)), form_of(serde_for(old)))


@pytest.mark.parametrize("new", [Needy, Other, str])
def test_unreadable_rows_are_refused_by_the_serde(new: Any) -> None:
    written = serde_for(Plain).dumps(Plain(1, "x"))
    if new is not str:
        with pytest.raises(SerdeError):
            serde_for(new).loads(written)
    assert not is_readable(form_of(serde_for(new)), form_of(serde_for(Plain)))


def test_keys_of_a_changed_type_are_unreadable() -> None:
    more, plain = form_of(serde_for(More)), form_of(serde_for(Plain))
    assert is_readable(more, plain)
    assert not is_readable(more, plain, is_key=True)
    assert not is_readable(form_of(serde_for(Windowed[More])), form_of(serde_for(Windowed[Plain])))
    assert is_readable(form_of(serde_for(Windowed[str])), form_of(serde_for(Windowed[str])))


def test_renaming_a_type_keeps_rows_readable() -> None:
    assert is_readable({"json": {"type": "integer"}}, {"json": {"type": "integer", "title": "n"}})
    assert not is_readable({"json": {}}, {"msgpack": {}})
    assert not is_readable("MySerde", "YourSerde")
