"""Whether a reader with one Avro schema reads what a writer with another has written.

Rule: kinds, paths and details are those of Apache Avro's `SchemaCompatibility`, which Confluent's
registry asks. Two things are stricter. A pair of types that was assumed to be compatible, because
the types are recursive, and proves not to be, takes back what followed from the assumption; Avro's
checker keeps it. And a reader's field that has several fields of the writer behind its name and
aliases is refused with its path; Avro's checker ends with an exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from streamlog.errors import InvalidSchema
from streamlog.schemas.avro.avro_types import (
    NO_DEFAULT,
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroNamed,
    AvroRecord,
    AvroType,
    AvroUnion,
    split_name,
)
from streamlog.schemas.compatibility.levels import Difference

SENTENCES: Mapping[str, str] = {
    "FIXED_SIZE_MISMATCH": (
        "The size of FIXED type field at path '{path}' in the {reader} schema does not match with "
        "the {writer} schema"
    ),
    "TYPE_MISMATCH": (
        "The type (path '{path}') of a field in the {reader} schema does not match with the "
        "{writer} schema"
    ),
    "NAME_MISMATCH": "The name of the schema has changed (path '{path}')",
    "MISSING_ENUM_SYMBOLS": (
        "The {reader} schema is missing enum symbols '{detail}' at path '{path}' in the {writer} "
        "schema"
    ),
    "MISSING_UNION_BRANCH": (
        "The {reader} schema is missing a type inside a union field at path '{path}' in the "
        "{writer} schema"
    ),
    "READER_FIELD_MISSING_DEFAULT_VALUE": (
        "The field '{detail}' at path '{path}' in the {reader} schema has no default value and is "
        "missing in the {writer} schema"
    ),
}
"""Confluent's sentences, by Avro's kinds."""
MAX_DEPTH = 150
"""How many pairs of types may be compared inside one another; each takes four frames of Python."""
_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
"""What a primitive type of a reader reads beside its own kind."""
_Path = tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Pair:
    """A reader's and a writer's type: what is wrong with them, and the pairs inside."""

    parts: list[Difference | _Pair] = field(default_factory=list)
    """In the order of the reader's schema; only pairs that are wrong."""
    is_open: bool = True
    """Whether it is still being compared."""
    is_assumed: bool = False
    """Whether a pair inside it has taken it for compatible."""


def avro_differences(reader: AvroType, writer: AvroType) -> list[Difference]:
    """Return why a reader can't read what a writer writes; [] if it can.

    Raises:
        InvalidSchema: the types are nested too deep to be compared.
    """
    return _collect(_Comparison().compare(reader, writer, (), 0))


def _collect(root: _Pair) -> list[Difference]:
    found: dict[Difference, None] = {}
    # A pair counts once, however often its types are used: a chain of records with two fields of
    # the next one would double the list at each link.
    seen = {id(root)}
    waiting: list[Iterator[Difference | _Pair]] = [iter(root.parts)]
    while waiting:
        part = next(waiting[len(waiting) - 1], None)
        match part:
            case None:
                waiting.pop()
            case Difference():
                found.setdefault(part)
            case _Pair() if id(part) not in seen:
                seen.add(id(part))
                waiting.append(iter(part.parts))
    return list(found)


@dataclass(slots=True)
class _Comparison:
    """Compares pairs of types, each once."""

    pairs: dict[tuple[int, int], _Pair] = field(default_factory=dict)
    """By the identities of both types, in the order in which their comparison began."""
    fields: dict[int, dict[str, AvroField]] = field(default_factory=dict)
    """The fields of writers' records, by identity and name."""
    unions: dict[int, dict[str, list[AvroType]]] = field(default_factory=dict)
    """The branches of readers' unions, by identity and by kind or name."""

    def compare(self, reader: AvroType, writer: AvroType, path: _Path, depth: int) -> _Pair:
        """Compare two types at a path of the reader's schema."""
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"The schemas are nested deeper than {MAX_DEPTH} types together")
        key = (id(reader), id(writer))
        pair = self.pairs.get(key)
        if pair is not None:
            pair.is_assumed |= pair.is_open
            return pair
        pair = self.pairs[key] = _Pair()
        self._fill(pair, reader, writer, path, depth)
        pair.is_open = False
        if pair.parts and pair.is_assumed:
            self._take_back(key)
        return pair

    def _take_back(self, key: tuple[int, int]) -> None:
        """Forget the compatible pairs that were compared since, on an assumption that is wrong."""
        since = list(takewhile(lambda other: other != key, reversed(self.pairs)))
        for other in since:
            if not self.pairs[other].parts:
                del self.pairs[other]

    def _fill(
        self, pair: _Pair, reader: AvroType, writer: AvroType, path: _Path, depth: int
    ) -> None:
        match reader, writer:
            case (AvroUnion(), _) | (_, AvroUnion()):
                self._unions(pair, reader, writer, path, depth)
            case AvroArray(), AvroArray():
                self._add(pair, reader.items, writer.items, (*path, "items"), depth)
            case AvroMap(), AvroMap():
                self._add(pair, reader.values, writer.values, (*path, "values"), depth)
            case AvroRecord(), AvroRecord():
                pair.parts += _name_differences(reader, writer, path)
                self._fields(pair, reader, writer, (*path, "fields"), depth)
            case _:
                pair.parts += _leaf_differences(reader, writer, path)

    def _unions(
        self, pair: _Pair, reader: AvroType, writer: AvroType, path: _Path, depth: int
    ) -> None:
        match reader, writer:
            case AvroUnion(), AvroUnion():
                for number, branch in enumerate(writer.branches):
                    if not self._reads(reader, branch, depth):
                        pair.parts.append(_lacking_branch(branch, (*path, str(number))))
            case _, AvroUnion():
                # As in Avro, paths start again inside the union.
                for branch in writer.branches:
                    self._add(pair, reader, branch, (), depth)
            case AvroUnion(), _:
                if not self._reads(reader, writer, depth):
                    pair.parts.append(_lacking_branch(writer, path))

    def _add(
        self, pair: _Pair, reader: AvroType, writer: AvroType, path: _Path, depth: int
    ) -> None:
        inner = self.compare(reader, writer, path, depth + 1)
        # An open pair is a recursion: it is compatible unless something else proves that it is not.
        if inner.parts and not inner.is_open:
            pair.parts.append(inner)

    def _reads(self, reader: AvroUnion, writer: AvroType, depth: int) -> bool:
        """Whether a branch of the reader's union reads a type that is no union."""
        for branch in self._candidates(reader, writer):
            inner = self.compare(branch, writer, (), depth + 1)
            if inner.is_open or not inner.parts:
                return True
        return False

    def _candidates(self, union: AvroUnion, writer: AvroType) -> Iterator[AvroType]:
        """Return the branches that may read a type, found by name: a union may have thousands."""
        index = self.unions.get(id(union))
        if index is None:
            index = self.unions[id(union)] = {}
            for branch in union.branches:
                for key in _index_keys(branch):
                    index.setdefault(key, []).append(branch)
        match writer:
            case AvroRecord() | AvroEnum() | AvroFixed():
                _, last = split_name(writer.name)
                yield from index.get(f"{writer.kind} {last}", ())
                yield from index.get(f"{writer.kind} alias {writer.name}", ())
            case _:
                for kind in (writer.kind, *_PROMOTIONS):
                    yield from index.get(kind, ())

    def _fields(
        self, pair: _Pair, reader: AvroRecord, writer: AvroRecord, path: _Path, depth: int
    ) -> None:
        known = self.fields.get(id(writer))
        if known is None:
            known = self.fields[id(writer)] = {each.name: each for each in writer.fields}
        for number, each in enumerate(reader.fields):
            here = (*path, str(number))
            names = [name for name in dict.fromkeys((each.name, *each.aliases)) if name in known]
            if len(names) > 1:
                detail = f"field {each.name} matches {', '.join(names)}"
                pair.parts.append(Difference("NAME_MISMATCH", _pointer(here), detail))
            elif names:
                self._add(pair, each.type, known[names[0]].type, (*here, "type"), depth)
            elif each.default is NO_DEFAULT:
                pair.parts.append(_absent_field(each, writer, here))


def _index_keys(branch: AvroType) -> list[str]:
    match branch:
        case AvroRecord() | AvroEnum() | AvroFixed():
            _, last = split_name(branch.name)
            return [
                f"{branch.kind} {last}",
                *(f"{branch.kind} alias {alias}" for alias in branch.aliases),
            ]
        case _:
            return [branch.kind]


def _pointer(path: _Path) -> str:
    return "/" + "/".join(path)


def _lacking_branch(writer: AvroType, path: _Path) -> Difference:
    detail = f"reader union lacking writer type: {writer.kind.upper()}"
    return Difference("MISSING_UNION_BRANCH", _pointer(path), detail)


def _type_mismatch(reader: AvroType, writer: AvroType, path: _Path) -> Difference:
    kinds = reader.kind.upper(), writer.kind.upper()
    detail = f"reader type: {kinds[0]} not compatible with writer type: {kinds[1]}"
    return Difference("TYPE_MISMATCH", _pointer(path), detail)


def _leaf_differences(reader: AvroType, writer: AvroType, path: _Path) -> list[Difference]:
    match reader, writer:
        case AvroEnum(), AvroEnum():
            names = _name_differences(reader, writer, path)
            return names + _symbol_differences(reader, writer, path)
        case AvroFixed(), AvroFixed():
            return _name_differences(reader, writer, path) + _size_differences(reader, writer, path)
        case _ if _is_promoted(reader, writer):
            return []
        case _:
            return [_type_mismatch(reader, writer, path)]


def _is_promoted(reader: AvroType, writer: AvroType) -> bool:
    return reader.kind == writer.kind or writer.kind in _PROMOTIONS.get(reader.kind, ())


def _absent_field(reader: AvroField, writer: AvroRecord, path: _Path) -> Difference:
    if isinstance(reader.type, AvroEnum) and reader.type.default is not None:
        # The default of an enum is for symbols, not for fields; Avro says so by comparing the enum
        # with the record that lacks the field.
        return _type_mismatch(reader.type, writer, (*path, "type"))
    return Difference("READER_FIELD_MISSING_DEFAULT_VALUE", _pointer(path), reader.name)


def _name_differences(reader: AvroNamed, writer: AvroNamed, path: _Path) -> list[Difference]:
    # Namespaces do not count, unless an alias is compared.
    if split_name(reader.name)[1] == split_name(writer.name)[1] or writer.name in reader.aliases:
        return []
    return [Difference("NAME_MISMATCH", _pointer((*path, "name")), f"expected: {writer.name}")]


def _symbol_differences(reader: AvroEnum, writer: AvroEnum, path: _Path) -> list[Difference]:
    absent = sorted(set(writer.symbols) - set(reader.symbols))
    if not absent or reader.default is not None:
        return []
    detail = f"[{', '.join(absent)}]"
    return [Difference("MISSING_ENUM_SYMBOLS", _pointer((*path, "symbols")), detail)]


def _size_differences(reader: AvroFixed, writer: AvroFixed, path: _Path) -> list[Difference]:
    if reader.size == writer.size:
        return []
    detail = f"expected: {writer.size}, found: {reader.size}"
    return [Difference("FIXED_SIZE_MISMATCH", _pointer((*path, "size")), detail)]
