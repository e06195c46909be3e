"""Readers: a declaration and a version compiled to the function that reads it.

One function per message: nested structs become nested loops, neighbours of a fixed size one
`struct` call, absent fields their defaults. It takes the frame as a memoryview and a position
and returns the message and the position after it.

Rule of the file: no length from the wire is believed. A count is held against the bytes that
are left before anything is made of it; a text or an opaque field that leads past the end is
noticed by the next read, or by the caller, because the position never goes back. Tags nobody
knows are skipped (KIP-482). A null where there can be none is corrupt, but for arrays and opaque
fields of answers: there are brokers that write it for an empty one, beside an error above all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NoReturn, cast

from streamlog.errors import CorruptData
from streamlog.protocol.schema import FIXED, Buffer, Field, Message, StructType
from streamlog.protocol.source import (
    Source,
    elements_codes,
    fixed_bytes,
    present,
    qualified,
    size_bytes_min,
    tagged,
)

Reader = Callable[[memoryview, int], tuple[Message, int]]
"""May raise CorruptData, IndexError, UnicodeDecodeError and struct.error, or end too far."""

_EMPTY: Final = {"array": "[]", "bytes": "b''"}
_UVARINT_BYTES_MAX: Final = 5
_UINT32_MAX: Final = 0xFFFF_FFFF
_GOES_ON: Final = 0x80


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned variable-length number; also returns the position after it.

    Raises:
        CorruptData: it does not fit 32 bits.
        IndexError: the bytes end within it.
    """
    number = shift = 0
    for index in range(position, position + _UVARINT_BYTES_MAX):
        byte = data[index]
        if byte < _GOES_ON:
            number |= byte << shift
            if number <= _UINT32_MAX:
                return number, index + 1
            break
        number |= (byte - _GOES_ON) << shift
        shift += 7
    raise CorruptData(f"the number at byte {position} does not fit 32 bits")


def compile_reader(message_type: type[Message], version: int) -> Reader:
    """The function that reads one version of a message."""
    source = Source(_SCOPE)
    compiler = _ReaderCompiler(
        source,
        version,
        flexible=message_type.is_flexible(version),
        is_answer=message_type.__name__.endswith("Response"),
    )
    with source.block("def read(data, pos):"):
        source.line("size = len(data)")
        source.line(f"return {compiler.struct(message_type)}, pos")
    return cast("Reader", source.function("read", f"{message_type.__name__} {version} reader"))


def _bad_null(field: str) -> NoReturn:
    raise CorruptData(f"{field} is null")


def _bad_count(field: str, count: int, bytes_left: int, bytes_each: int) -> NoReturn:
    raise CorruptData(
        f"{field}: {count} elements of {bytes_each} bytes or more in {bytes_left} bytes"
    )


def _bad_tag(name: str, end: int, expected: int) -> NoReturn:
    raise CorruptData(f"a tagged field of {name} ends at byte {end} instead of {expected}")


_SCOPE: Final[dict[str, object]] = {
    "bad_count": _bad_count,
    "bad_null": _bad_null,
    "bad_tag": _bad_tag,
    "new": object.__new__,
    "read_uvarint": read_uvarint,
    "unpack_from": struct.unpack_from,
}


class _ReaderCompiler:
    """Writes the lines that read one version."""

    def __init__(self, source: Source, version: int, *, flexible: bool, is_answer: bool) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        self._is_answer = is_answer
        # Neighbours of a fixed size that are still to be read: struct's code, where to.
        self._pending: list[tuple[str, str]] = []

    def struct(self, declared: StructType) -> str:
        """Lines for all fields; returns the variable that holds the new object."""
        out = self._source.name("it")
        self._source.line(f"{out} = new({self._source.constant('Struct', declared)})")
        read = present(declared, self._version)
        for field in declared.__fields__:
            if field not in read:
                default = "[]" if field.starts_empty else repr(field.default)
                self._source.line(f"{out}.{field.name} = {default}")
        for field in read:
            self._field(declared, field, out)
        if self._flexible:
            self._tags(declared, out)
        self._flush()
        return out

    def _field(self, declared: StructType, field: Field, out: str) -> None:
        target = f"{out}.{field.name}"
        if field.kind in FIXED:
            self._pending.append((FIXED[field.kind], target))
        elif field.kind == "struct":
            self._struct_field(_struct_of(field), target, nullable=self._version in field.nullable)
        else:
            self._sized(declared, field, target)

    def _struct_field(self, item: StructType, target: str, *, nullable: bool) -> None:
        """A struct in its place; one that may be null has a byte in front, 1 or -1."""
        if not nullable:
            self._source.line(f"{target} = {self.struct(item)}")
            return
        mark = self._source.name("mark")
        self._pending.append(("b", mark))
        self._flush()
        with self._source.block(f"if {mark} < 0:"):
            self._source.line(f"{target} = None")
        with self._source.block("else:"):
            self._source.line(f"{target} = {self.struct(item)}")

    def _flush(self) -> None:
        """Read the pending neighbours."""
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        targets = "".join(f"{target}, " for _, target in self._pending)
        unpack = self._source.constant("unpack", struct.Struct(f">{codes}").unpack_from)
        self._source.line(f"{targets}= {unpack}(data, pos)")
        self._source.line(f"pos += {fixed_bytes(codes)}")
        self._pending.clear()

    def _uvarint(self, variable: str) -> None:
        """An unsigned number, mostly of one byte; that byte is read with its neighbours."""
        self._pending.append(("B", variable))
        self._flush()
        with self._source.block(f"if {variable} > 127:"):
            self._source.line(f"{variable}, pos = read_uvarint(data, pos - 1)")

    def _sized(self, declared: StructType, field: Field, target: str) -> None:
        """A field that begins with its length, which says null too."""
        length = self._source.name("n")
        if self._flexible:
            self._uvarint(length)
            is_null = f"not {length}"
        else:
            self._pending.append(("h" if field.kind == "string" else "i", length))
            self._flush()
            is_null = f"{length} < 0"
        with self._source.block(f"if {is_null}:"):
            if self._version in field.nullable:
                self._source.line(f"{target} = None")
            elif self._is_answer and field.kind in _EMPTY:
                self._source.line(f"{target} = {_EMPTY[field.kind]}")
            else:
                self._source.line(f"bad_null({qualified(declared, field)!r})")
        with self._source.block("else:"):
            if self._flexible:
                self._source.line(f"{length} -= 1")
            if field.kind == "array":
                self._array(qualified(declared, field), field.item, target, length)
            else:
                self._piece(field.kind, target, length)

    def _piece(self, kind: str, target: str, length: str) -> None:
        end = self._source.name("end")
        self._source.line(f"{end} = pos + {length}")
        piece = f"data[pos:{end}]"
        value = {"string": f"str({piece}, 'utf-8')", "bytes": f"bytes({piece})", "records": piece}
        self._source.line(f"{target} = {value[kind]}")
        self._source.line(f"pos = {end}")

    def _array(self, name: str, item: StructType | str | None, target: str, count: str) -> None:
        least = size_bytes_min(item, self._version, flexible=self._flexible)
        with self._source.block(f"if {count} * {least} > size - pos:"):
            self._source.line(f"bad_count({name!r}, {count}, size - pos, {least})")
        if isinstance(item, str) and item in FIXED:
            codes = elements_codes(FIXED[item], count)
            self._source.line(f"{target} = list(unpack_from({codes}, data, pos))")
            self._source.line(f"pos += {count} * {least}")
            return
        values = self._source.name("values")
        self._source.line(f"{target} = {values} = []")
        with self._source.block(f"for _ in range({count}):"):
            self._source.line(f"{values}.append({self._element(name, item)})")

    def _element(self, name: str, item: StructType | str | None) -> str:
        """Lines for one element of an array; returns the variable that holds it."""
        if isinstance(item, StructType):
            return self.struct(item)
        length, value = self._source.name("n"), self._source.name("value")
        if self._flexible:
            self._uvarint(length)
            self._source.line(f"{length} -= 1")
        else:
            self._pending.append(("h", length))
            self._flush()
        with self._source.block(f"if {length} < 0:"):
            self._source.line(f"bad_null({name!r})")
        self._piece("string", value, length)
        return value

    def _tags(self, declared: StructType, out: str) -> None:
        """The tagged fields: how many, and for each its tag, its size and itself."""
        count, tag, end = (self._source.name(stem) for stem in ("tags", "tag", "end"))
        self._uvarint(count)
        with self._source.block(f"for _ in range({count}):"):
            self._source.line(f"{tag}, pos = read_uvarint(data, pos)")
            self._source.line(f"{end}, pos = read_uvarint(data, pos)")
            self._source.line(f"{end} += pos")
            with self._source.block(f"if {end} > size:"):
                self._source.line(f"bad_tag({declared.__name__!r}, {end}, size)")
            for field in tagged(declared, self._version):
                with self._source.block(f"if {tag} == {field.tag}:"):
                    self._tag(declared, field, out, end)
            self._source.line(f"pos = {end}")

    def _tag(self, declared: StructType, field: Field, out: str, end: str) -> None:
        """A tagged field that is known: it has to end where it was said to."""
        self._field(declared, field, out)
        self._flush()
        with self._source.block(f"if pos != {end}:"):
            self._source.line(f"bad_tag({declared.__name__!r}, pos, {end})")


def _struct_of(field: Field) -> StructType:
    assert isinstance(field.item, StructType)  # noqa: S101 - `schema.struct` sets it
    return field.item
