"""Writers: a declaration and a version compiled to the function that writes it.

One function per message, the mirror of `reader`. It writes on from the last of a list of
buffers. Record batches are hung in between as they are, so that a response with a megabyte of
them costs no copy: the transport sends the list.

Rule of the file: a field that the version lacks is left out without a word, whatever it
holds: whether the peer can do without it is a question for who chose the version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, cast

from streamlog.protocol.schema import FIXED, Field, Message, Piece, Records, Struct, StructType
from streamlog.protocol.source import Source, elements_codes, present, qualified, tagged

Writer = Callable[[Message, list[Piece]], None]
"""May raise struct.error, TypeError, ValueError and AttributeError on a value of a wrong kind."""

_ONE_BYTE_MAX: Final = 127


def uvarint(number: int) -> bytes:
    """An unsigned number, seven bits to a byte, the lowest first."""
    out = bytearray()
    while number > _ONE_BYTE_MAX:
        out.append(number & _ONE_BYTE_MAX | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def compile_writer(message_type: type[Message], version: int) -> Writer:
    """The function that writes one version of a message."""
    source = Source(_SCOPE)
    compiler = _WriterCompiler(source, version, flexible=message_type.is_flexible(version))
    with source.block("def write(it, buffers):"):
        source.line("out = buffers[-1]")
        compiler.struct(message_type, "it")
    return cast("Writer", source.function("write", f"{message_type.__name__} {version} writer"))


def null_field(value: Struct, version: int) -> str | None:
    """The first field that is None although this version has no null, for an error's text."""
    for field in present(type(value), version):
        inner = getattr(value, field.name, None)
        if inner is None:
            if version not in field.nullable:
                return qualified(type(value), field)
        elif isinstance(inner, Struct):
            if found := null_field(inner, version):
                return found
        elif isinstance(inner, list):
            nulls = (null_field(item, version) for item in inner if isinstance(item, Struct))
            if found := next(filter(None, nulls), None):
                return found
    return None


def _write_records(records: Records, buffers: list[Piece]) -> bytearray:
    """Hang records in as they are; returns the buffer to go on with."""
    if isinstance(records, list):
        buffers += records
    else:
        buffers.append(records)
    out = bytearray()
    buffers.append(out)
    return out


def _records_bytes(records: Records) -> int:
    return sum(map(len, records)) if isinstance(records, list) else len(records)


_SCOPE: Final[dict[str, object]] = {
    "ONE": tuple(bytes((number,)) for number in range(_ONE_BYTE_MAX + 1)),
    "pack": struct.pack,
    "records_bytes": _records_bytes,
    "uvarint": uvarint,
    "write_records": _write_records,
}


class _WriterCompiler:
    """Writes the lines that write one version."""

    def __init__(self, source: Source, version: int, *, flexible: bool) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        # Neighbours of a fixed size that are still to be written: struct's code, what.
        self._pending: list[tuple[str, str]] = []

    def struct(self, declared: StructType, value: str, out: str = "out") -> None:
        """Lines for all fields of `value`, appending to the variable `out`."""
        for field in present(declared, self._version):
            self._field(field, f"{value}.{field.name}", out)
        if self._flexible:
            self._tags(declared, value, out)
        self._flush(out)

    def _field(self, field: Field, value: str, out: str) -> None:
        if field.kind in FIXED:
            self._pending.append((FIXED[field.kind], value))
            return
        if field.kind == "struct":
            assert isinstance(field.item, StructType)  # noqa: S101 - `schema.struct` sets it
            self._struct_field(field.item, value, out, nullable=self._version in field.nullable)
            return
        content = self._source.name("content")
        self._source.line(f"{content} = {value}")
        if self._version not in field.nullable:
            self._content(field, content, out)
            return
        self._flush(out)
        with self._source.block(f"if {content} is None:"):
            self._length(field.kind, "-1", out)
            self._flush(out)
        with self._source.block("else:"):
            self._content(field, content, out)
            self._flush(out)

    def _struct_field(self, item: StructType, value: str, out: str, *, nullable: bool) -> None:
        """A struct in its place; one that may be null has a byte in front, 1 or -1."""
        if not nullable:
            self.struct(item, value, out)
            return
        self._flush(out)
        with self._source.block(f"if {value} is None:"):
            self._source.line(f"{out}.append(0xFF)")
        with self._source.block("else:"):
            self._source.line(f"{out}.append(1)")
            self.struct(item, value, out)

    def _content(self, field: Field, content: str, out: str) -> None:
        """A field with its length in front; `content` is a variable and not None."""
        match field.kind:
            case "array":
                self._length(field.kind, f"len({content})", out)
                self._flush(out)
                self._elements(field.item, content, out)
            case "records":
                size = self._source.name("n")
                self._source.line(f"{size} = records_bytes({content})")
                self._length(field.kind, size, out)
                self._flush(out)
                with self._source.block(f"if {size}:"):
                    self._source.line(f"{out} = write_records({content}, buffers)")
            case _:
                if field.kind == "string":
                    self._source.line(f"{content} = {content}.encode()")
                self._length(field.kind, f"len({content})", out)
                self._flush(out)
                self._source.line(f"{out} += {content}")

    def _elements(self, item: StructType | str | None, content: str, out: str) -> None:
        if isinstance(item, str) and item in FIXED:
            codes = elements_codes(FIXED[item], f"len({content})")
            self._source.line(f"{out} += pack({codes}, *{content})")
            return
        element = self._source.name("it")
        with self._source.block(f"for {element} in {content}:"):
            if isinstance(item, StructType):
                self.struct(item, element, out)
                return
            self._source.line(f"{element} = {element}.encode()")
            self._length("string", f"len({element})", out)
            self._flush(out)
            self._source.line(f"{out} += {element}")

    def _length(self, kind: str, length: str, out: str) -> None:
        """A length, -1 for null, as the version writes it."""
        if not self._flexible:
            self._pending.append(("h" if kind == "string" else "i", length))
        elif length == "-1":
            self._pending.append(("x", ""))
        else:
            self._flush(out)
            number = self._source.name("n")
            self._source.line(f"{number} = {length} + 1")
            self._source.line(f"{out} += ONE[{number}] if {number} < 128 else uvarint({number})")

    def _flush(self, out: str) -> None:
        """Write the pending neighbours; the code x is a zero byte that takes no value."""
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        values = ", ".join(value for _, value in self._pending if value)
        pack = self._source.constant("pack", struct.Struct(f">{codes}").pack)
        self._source.line(f"{out} += {pack}({values})")
        self._pending.clear()

    def _tags(self, declared: StructType, value: str, out: str) -> None:
        """The tagged fields that have something to say: how many, then tag, size and bytes."""
        fields = tagged(declared, self._version)
        if not fields:
            self._pending.append(("x", ""))
            return
        self._flush(out)
        parts, part = self._source.name("parts"), self._source.name("part")
        self._source.line(f"{parts} = []")
        for field in fields:
            with self._source.block(f"if {_speaks(field, f'{value}.{field.name}')}:"):
                self._source.line(f"{part} = bytearray()")
                self._field(field, f"{value}.{field.name}", part)
                self._flush(part)
                self._source.line(f"{parts}.append(uvarint({field.tag}) + uvarint(len({part})))")
                self._source.line(f"{parts}.append({part})")
        self._source.line(f"{out}.append(len({parts}) // 2)")
        with self._source.block(f"if {parts}:"):
            self._source.line(f"{out} += b''.join({parts})")


def _speaks(field: Field, value: str) -> str:
    """The condition that a tagged field is not at its default."""
    match field.kind, field.default:
        case "array", _ if field.starts_empty:
            return value
        case _, None:
            return f"{value} is not None"
        case _, default:
            return f"{value} != {default!r}"
