"""Whether a reader with one Avro schema reads what a writer with another has written.

Rule: kinds, paths and details are those of Apache Avro's `SchemaCompatibility`, which Confluent's
registry asks. Two things are stricter. What followed from an assumption about a recursive type that
proves wrong is taken back (`pairs`); Avro's checker keeps it. And a reader's field that has several
fields of the writer behind its name and aliases is refused with its path; Avro's checker ends with
an exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from streamlog.schemas.avro_schemas.avro_types import (
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
from streamlog.schemas.compatibility.pairs import Pair, PairTable, Path, listed

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
_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
"""What a primitive type of a reader reads beside its own kind."""


def avro_differences(reader: AvroType, writer: AvroType) -> list[Difference]:
    """Return why a reader can't read what a writer writes; [] if it can.

    Raises:
        InvalidSchema: the types are nested too deep to be compared.
    """
    found = listed(_AvroComparison().compare(reader, writer, ()))
    return list(dict.fromkeys(each for _, each in found))


@dataclass(slots=True)
class _AvroComparison:
    """Compares pairs of types. Differences have their paths in themselves, as in Avro."""

    table: PairTable = field(default_factory=PairTable)
    fields: dict[int, dict[str, AvroField]] = field(default_factory=dict)
    """The fields of writers' records, by identity and name."""
    unions: dict[int, dict[str, list[AvroType]]] = field(default_factory=dict)
    """The branches of readers' unions, by identity and by kind or name."""

    def compare(self, reader: AvroType, writer: AvroType, path: Path) -> Pair:
        """Compare two types at a path of the reader's schema."""
        return self.table.compare(
            reader, writer, lambda pair: self._fill(pair, reader, writer, path)
        )

    def _fill(self, pair: Pair, reader: AvroType, writer: AvroType, path: Path) -> None:
        match reader, writer:
            case (AvroUnion(), _) | (_, AvroUnion()):
                self._unions(pair, reader, writer, path)
            case AvroArray(), AvroArray():
                self._add(pair, reader.items, writer.items, (*path, "items"))
            case AvroMap(), AvroMap():
                self._add(pair, reader.values, writer.values, (*path, "values"))
            case AvroRecord(), AvroRecord():
                _add_all(pair, _name_differences(reader, writer, path))
                self._fields(pair, reader, writer, (*path, "fields"))
            case _:
                _add_all(pair, _leaf_differences(reader, writer, path))

    def _unions(self, pair: Pair, reader: AvroType, writer: AvroType, path: Path) -> None:
        match reader, writer:
            case AvroUnion(), AvroUnion():
                for number, branch in enumerate(writer.branches):
                    if not self._reads(reader, branch):
                        pair.add(_lacking_branch(branch, (*path, str(number))))
            case _, AvroUnion():
                for number, branch in enumerate(writer.branches):
                    self._add(pair, reader, branch, (*path, str(number)))
            case AvroUnion(), _:
                if not self._reads(reader, writer):
                    pair.add(_lacking_branch(writer, path))

    def _add(self, pair: Pair, reader: AvroType, writer: AvroType, path: Path) -> None:
        pair.include(self.compare(reader, writer, path))

    def _reads(self, reader: AvroUnion, writer: AvroType) -> bool:
        """Whether a branch of the reader's union reads a type that is no union."""
        for branch in self._candidates(reader, writer):
            if self.compare(branch, writer, ()).fits:
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
                # Names without their namespaces; aliases with theirs.
                _, last = split_name(writer.name)
                yield from index.get(f"{writer.kind} {last}", ())
                yield from index.get(f"{writer.kind} alias {writer.name}", ())
            case _:
                # A union has each primitive type once, so these are few.
                for kind in (writer.kind, *_PROMOTIONS):
                    yield from index.get(kind, ())

    def _fields(self, pair: Pair, reader: AvroRecord, writer: AvroRecord, path: Path) -> None:
        known = self.fields.get(id(writer))
        if known is None:
            known = self.fields[id(writer)] = {each.name: each for each in writer.fields}
        for number, each in enumerate(reader.fields):
            here = (*path, str(number))
            names = [name for name in dict.fromkeys((each.name, *each.aliases)) if name in known]
            if len(names) > 1:
                detail = f"field {each.name} matches {', '.join(names)}"
                pair.add(Difference("NAME_MISMATCH", _pointer(here), detail))
            elif names:
                self._add(pair, each.type, known[names[0]].type, (*here, "type"))
            elif each.default is NO_DEFAULT:
                pair.add(_absent_field(each, writer, here))


def _add_all(pair: Pair, differences: list[Difference]) -> None:
    for each in differences:
        pair.add(each)


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


def _pointer(path: Path) -> str:
    return "/" + "/".join(path)


def _lacking_branch(writer: AvroType, path: Path) -> Difference:
    detail = f"reader union lacking writer type: {writer.kind.upper()}"
    return Difference("MISSING_UNION_BRANCH", _pointer(path), detail)


def _type_mismatch(reader: AvroType, writer: AvroType, path: Path) -> Difference:
    kinds = reader.kind.upper(), writer.kind.upper()
    detail = f"reader type: {kinds[0]} not compatible with writer type: {kinds[1]}"
    return Difference("TYPE_MISMATCH", _pointer(path), detail)


def _leaf_differences(reader: AvroType, writer: AvroType, path: Path) -> list[Difference]:
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


def _absent_field(reader: AvroField, writer: AvroRecord, path: Path) -> Difference:
    if isinstance(reader.type, AvroEnum) and reader.type.default is not None:
        # The default of an enum is for symbols, not for fields; Avro says so by comparing the enum
        # with the record that lacks the field.
        return _type_mismatch(reader.type, writer, (*path, "type"))
    return Difference("READER_FIELD_MISSING_DEFAULT_VALUE", _pointer(path), reader.name)


def _name_differences(reader: AvroNamed, writer: AvroNamed, path: Path) -> list[Difference]:
    # Namespaces do not count, unless an alias is compared.
    if split_name(reader.name)[1] == split_name(writer.name)[1] or writer.name in reader.aliases:
        return []
    return [Difference("NAME_MISMATCH", _pointer((*path, "name")), f"expected: {writer.name}")]


def _symbol_differences(reader: AvroEnum, writer: AvroEnum, path: Path) -> list[Difference]:
    absent = sorted(set(writer.symbols) - set(reader.symbols))
    if not absent or reader.default is not None:
        return []
    detail = f"[{', '.join(absent)}]"
    return [Difference("MISSING_ENUM_SYMBOLS", _pointer((*path, "symbols")), detail)]


def _size_differences(reader: AvroFixed, writer: AvroFixed, path: Path) -> list[Difference]:
    if reader.size == writer.size:
        return []
    detail = f"expected: {writer.size}, found: {reader.size}"
    return [Difference("FIXED_SIZE_MISMATCH", _pointer((*path, "size")), detail)]
