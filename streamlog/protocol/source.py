"""Source: the text of a function in the making, with the constants it refers to.

`reader` and `writer` say line by line what a function does, this keeps the lines, hands out
names nobody else uses and turns the whole into a function. Only declarations of this package
get here, never anything that came over a wire.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from streamlog.protocol.schema import FIXED, Field, Struct, StructType

_FIXED_BYTES: Final = {kind: struct.calcsize(f">{code}") for kind, code in FIXED.items()}
_EMPTY_BYTES: Final = {"string": 2, "bytes": 4, "records": 4, "array": 4}


class Source:
    """Lines of one function; `scope` is what it can name besides its parameters."""

    def __init__(self, scope: Mapping[str, object]) -> None:
        self._scope = dict(scope)
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Add a statement at the current depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Statements under `head`, such as "else:"."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        """A variable nobody else uses."""
        self._names += 1
        return f"{stem}_{self._names}"

    def constant(self, stem: str, value: object) -> str:
        """What to call a constant."""
        name = self.name(stem)
        self._scope[name] = value
        return name

    def function(self, name: str, title: str) -> object:
        """Compile the lines and pick the function out of them."""
        code = compile("\n".join(self._lines), f"<{title}>", "exec")
        exec(code, self._scope)  # noqa: S102 - made of this package's declarations alone
        return self._scope[name]


def present(declared: StructType, version: int) -> list[Field]:
    """The fields of a version that stand in their place, in the order of the wire."""
    return [
        field for field in declared.__fields__ if field.tag is None and version in field.versions
    ]


def tagged(declared: StructType, version: int) -> list[Field]:
    """The tagged fields of a version, in the order of their tags."""
    fields = (field for field in declared.__fields__ if version in field.versions)
    return sorted((field for field in fields if field.tag is not None), key=_tag)


def size_bytes_min(item: StructType | str | None, version: int, *, flexible: bool) -> int:
    """The least that an element of an array takes on the wire, and at least one byte."""
    if isinstance(item, str):
        return _least(item, flexible=flexible)
    assert item is not None  # noqa: S101 - an array declares what it holds
    sizes = (_least(field.kind, flexible=flexible) for field in present(item, version))
    return max(1, sum(sizes) + flexible)


def fixed_bytes(codes: str) -> int:
    """The size of neighbours of a fixed size."""
    return struct.calcsize(f">{codes}")


def elements_codes(code: str, count: str) -> str:
    """The expression of struct's codes for `count` elements in a row.

    A number in front of a code repeats it; in front of 16s it would make it 316s.
    """
    return f"f'>{{{count}}}{code}'" if len(code) == 1 else f"'>' + {code!r} * {count}"


def qualified(declared: type[Struct] | StructType, field: Field) -> str:
    """How errors call a field."""
    return f"{declared.__name__}.{field.name}"


def _least(kind: str, *, flexible: bool) -> int:
    if kind in _FIXED_BYTES:
        return _FIXED_BYTES[kind]
    return 1 if flexible else _EMPTY_BYTES[kind]


def _tag(field: Field) -> int:
    return -1 if field.tag is None else field.tag
