"""The parts of Avro data that a reader's schema can't read.

Rule: whether a type can be read is Avro's own decision (`schemas/compatibility`). This module finds
the parts that are the reason, by the names of fields instead of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.blueprints.unread_part import UnreadKind, UnreadPart, parts_inside
from streamlog.schemas.avro_schemas.avro_types import (
    NAMED,
    NO_DEFAULT,
    AvroArray,
    AvroEnum,
    AvroMap,
    AvroRecord,
    AvroType,
    AvroUnion,
)
from streamlog.schemas.compatibility.avro_compatibility import avro_differences


def unread_avro(reader: AvroType, writer: AvroType, *, needs_all: bool = False) -> list[UnreadPart]:
    """Return the parts of a writer's data that a reader can't read.

    Args:
        reader: the reader's type.
        writer: the writer's type.
        needs_all: whether fields count as required that the reader has a default for.

    Raises:
        InvalidSchema: the types are nested too deep to be compared.
    """
    # Most pairs fit, and one comparison tells so. The walk below compares again at each level.
    if not needs_all and not avro_differences(reader, writer):
        return []
    return [*dict.fromkeys(_Walk(needs_all=needs_all).unread(reader, writer))]


class _Walk:
    """Finds unread parts; each pair of named types once."""

    def __init__(self, *, needs_all: bool) -> None:
        self._needs_all = needs_all
        self._known: dict[tuple[int, int], list[UnreadPart]] = {}

    def unread(self, reader: AvroType, writer: AvroType) -> list[UnreadPart]:
        """Return the parts, with paths relative to this type."""
        pair = (id(reader), id(writer))
        if pair not in self._known:
            # A type that contains itself is compared at its first occurrence.
            self._known[pair] = []
            self._known[pair] = [*self._compare(reader, writer)]
        return self._known[pair]

    def _compare(self, reader: AvroType, writer: AvroType) -> Iterator[UnreadPart]:
        match reader, writer:
            case _, AvroUnion():
                for branch in writer.branches:
                    yield from self.unread(reader, branch)
            case AvroUnion(), _:
                yield from self._unread_of_any(reader, writer)
            case AvroRecord(), AvroRecord():
                yield from self._fields(reader, writer)
            case AvroArray(), AvroArray():
                yield from parts_inside("[]", self.unread(reader.items, writer.items))
            case AvroMap(), AvroMap():
                yield from parts_inside("{}", self.unread(reader.values, writer.values))
            case AvroEnum(), AvroEnum() if avro_differences(reader, writer):
                symbols = (f"one of {', '.join(each.symbols)}" for each in (reader, writer))
                yield UnreadPart("", UnreadKind.CHOICE, *symbols)
            case _ if avro_differences(reader, writer):
                yield UnreadPart("", UnreadKind.TYPE, describe_avro(reader), describe_avro(writer))

    def _unread_of_any(self, reader: AvroUnion, writer: AvroType) -> Iterator[UnreadPart]:
        # The branch that Avro would take, else the one that is meant: of this kind.
        fitting = [each for each in reader.branches if not avro_differences(each, writer)]
        alike = [each for each in reader.branches if each.kind == writer.kind]
        for branch in (fitting or alike)[:1]:
            yield from self.unread(branch, writer)
        if not fitting and not alike:
            yield UnreadPart("", UnreadKind.TYPE, describe_avro(reader), describe_avro(writer))

    def _fields(self, reader: AvroRecord, writer: AvroRecord) -> Iterator[UnreadPart]:
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            name = next((name for name in (field.name, *field.aliases) if name in written), None)
            if name is not None:
                inner = self.unread(field.type, written[name].type)
                yield from parts_inside(field.name, inner)
            # A field that only the writer has is skipped, whatever its type is.
            elif self._needs_all or field.default is NO_DEFAULT:
                yield UnreadPart(field.name, UnreadKind.MISSING, describe_avro(field.type), "")


_ARTICLES = {"int": "an int", "array": "an array", "null": "null"}


def describe_avro(type_: AvroType) -> str:
    """Return a type as text for a message: "a string", "Order", "null or a long"."""
    match type_:
        case AvroUnion():
            return " or ".join(map(describe_avro, type_.branches))
        case AvroArray():
            return f"an array of {describe_avro(type_.items)}"
        case AvroMap():
            return f"a map of {describe_avro(type_.values)}"
        case _ if isinstance(type_, NAMED):
            return type_.name.rpartition(".")[2]
    return _ARTICLES.get(type_.kind, f"a {type_.kind}")
