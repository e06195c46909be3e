"""How one Protobuf schema differs from the one before it, and whether readers bear it.

Fields are known by their numbers. Scalars are of kinds, such as all integers of variable length,
which are encoded alike: each is read as any other of its kind.

Rule: kinds and paths are those of Confluent's registry. One thing is stricter: a field that becomes
required is REQUIRED_FIELD_ADDED, since what was written before may lack it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from streamlog.schemas.compatibility.levels import Difference
from streamlog.schemas.compatibility.pairs import Pair, PairTable, Path, listed
from streamlog.schemas.protobuf.linked_types import (
    LinkedEnum,
    LinkedField,
    LinkedFile,
    LinkedMessage,
)
from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema

COMPATIBLE_CHANGES = frozenset(
    (
        *("PACKAGE_CHANGED", "MESSAGE_ADDED", "MESSAGE_MOVED", "ENUM_ADDED", "ENUM_REMOVED"),
        *("ENUM_CONST_ADDED", "ENUM_CONST_CHANGED", "ENUM_CONST_REMOVED"),
        *("FIELD_ADDED", "FIELD_REMOVED", "FIELD_NAME_CHANGED"),
        "FIELD_STRING_OR_BYTES_LABEL_CHANGED",
        *("ONEOF_ADDED", "ONEOF_REMOVED", "ONEOF_FIELD_ADDED"),
    )
)
"""The changes after which a reader still reads what was written before them."""

PROTOBUF_SENTENCES: Mapping[str, str] = {
    "MESSAGE_REMOVED": (
        "The {reader} schema is missing a field or type at path '{path}' which is present in the "
        "{writer} schema"
    ),
    "FIELD_KIND_CHANGED": (
        "The type of a field at path '{path}' in the {reader} schema does not match the {writer} "
        "schema"
    ),
    "FIELD_SCALAR_KIND_CHANGED": (
        "The kind of a SCALAR field at path '{path}' in the {reader} schema does not match its "
        "kind in the {writer} schema"
    ),
    "FIELD_NAMED_TYPE_CHANGED": (
        "The type of a MESSAGE field at path '{path}' in the {reader} schema does not match its "
        "type in the {writer} schema"
    ),
    "FIELD_NUMERIC_LABEL_CHANGED": (
        "The label of a numeric field at path '{path}' in the {reader} schema does not match its "
        "label in the {writer} schema"
    ),
    "REQUIRED_FIELD_ADDED": (
        "The {reader} schema has a required field at path '{path}' that is missing, or not "
        "required, in the {writer} schema"
    ),
    "REQUIRED_FIELD_REMOVED": (
        "The {reader} schema is missing a required field at path '{path}' that is in the {writer} "
        "schema"
    ),
    "ONEOF_FIELD_REMOVED": (
        "The {reader} schema is missing a oneof field at path '{path}' that is in the {writer} "
        "schema"
    ),
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": (
        "Multiple fields in the oneof at path '{path}' in the {reader} schema are outside a oneof "
        "in the {writer} schema"
    ),
    "FIELD_MOVED_TO_EXISTING_ONEOF": (
        "A field in the oneof at path '{path}' in the {reader} schema is outside an existing oneof "
        "in the {writer} schema"
    ),
}
"""Sentences by the kinds that a reader does not bear."""

_FILE = ""
"""Stands in a path where the messages of another file begin."""
_GENERAL = ("int32", "int64", "uint32", "uint64", "bool", "enum")
_SCALAR_KINDS = {
    **dict.fromkeys(_GENERAL, "general number"),
    **dict.fromkeys(("sint32", "sint64"), "signed number"),
    **dict.fromkeys(("string", "bytes"), "string or bytes"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
    "float": "float",
    "double": "double",
}
"""Scalars that are encoded alike."""


def protobuf_differences(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Difference]:
    """Return how a reader's schema differs from a writer's, compatible changes included.

    Raises:
        InvalidSchema: the schemas are nested too deep to be compared.
    """
    comparison = _ProtoComparison(writer, reader)
    found = listed(comparison.compare_files(writer.file, reader.file))
    return [Difference(each.kind, f"#/{'/'.join(_from_file(path))}") for path, each in found]


def _from_file(path: Path) -> Path:
    """Return a path from the last file on, since an import's messages have paths of their own."""
    start = max((index for index, part in enumerate(path) if part == _FILE), default=-1)
    return path[start + 1 :]


def protobuf_incompatibilities(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Difference]:
    """Return why a reader can't read what a writer writes; [] if it can.

    Raises:
        InvalidSchema: the schemas are nested too deep to be compared.
    """
    found = protobuf_differences(reader, writer)
    return [each for each in found if each.kind not in COMPATIBLE_CHANGES]


def _note(pair: Pair, kind: str, *path: str) -> None:
    pair.add(Difference(kind, ""), path, is_wrong=kind not in COMPATIBLE_CHANGES)


@dataclass(slots=True)
class _ProtoComparison:
    """Compares the schema before (old) with the one after (new), which reads."""

    old: ProtobufSchema
    new: ProtobufSchema
    table: PairTable = field(default_factory=PairTable)

    def compare_files(self, old: LinkedFile, new: LinkedFile) -> Pair:
        """Compare two files."""
        pair = Pair()
        if old.package != new.package:
            _note(pair, "PACKAGE_CHANGED")
        self._types(pair, old, new, ())
        return pair

    def _types(
        self,
        pair: Pair,
        old: LinkedFile | LinkedMessage,
        new: LinkedFile | LinkedMessage,
        path: Path,
    ) -> None:
        """Compare the messages and enums of two files or messages, by name."""
        before, after = (dict(zip(each.messages, count(), strict=False)) for each in (old, new))
        for name in dict.fromkeys((*old.messages, *new.messages)):
            if name not in new.messages:
                _note(pair, "MESSAGE_REMOVED", *path, name)
            elif name not in old.messages:
                _note(pair, "MESSAGE_ADDED", *path, name)
            else:
                inner = self._compare(old.messages[name], new.messages[name])
                pair.include(inner, (*path, name))
                if before[name] != after[name]:
                    # The index of a record's message counts in the schema that it was written with.
                    _note(pair, "MESSAGE_MOVED", *path, name)
        for name in dict.fromkeys((*old.enums, *new.enums)):
            if name not in new.enums:
                _note(pair, "ENUM_REMOVED", *path, name)
            elif name not in old.enums:
                _note(pair, "ENUM_ADDED", *path, name)
            else:
                _compare_enums(pair, old.enums[name], new.enums[name], (*path, name))

    def _compare(self, old: LinkedMessage, new: LinkedMessage) -> Pair:
        return self.table.compare(old, new, lambda pair: self._messages(pair, old, new))

    def _messages(self, pair: Pair, old: LinkedMessage, new: LinkedMessage) -> None:
        # Moves concern a oneof as a whole; then each number is compared once.
        _compare_moves(pair, old, new)
        for name in dict.fromkeys((*old.oneofs, *new.oneofs)):
            if name not in new.oneofs:
                _note(pair, "ONEOF_REMOVED", name)
            elif name not in old.oneofs:
                _note(pair, "ONEOF_ADDED", name)
        for number in sorted(old.fields.keys() | new.fields.keys()):
            before, after = old.fields.get(number), new.fields.get(number)
            if before is not None and after is not None:
                self._shared_field(pair, before, after, old.oneofs)
            elif before is not None:
                _note_removed(pair, before, new.oneofs)
            elif after is not None:
                _note_added(pair, after, old.oneofs)
        self._types(pair, old, new, ())

    def _shared_field(
        self, pair: Pair, old: LinkedField, new: LinkedField, old_oneofs: list[str]
    ) -> None:
        path: Path = (str(new.number),)
        # In one and the same oneof, its name is part of the path.
        if new.oneof and new.oneof == old.oneof:
            path = (new.oneof, *path)
        elif new.oneof in old_oneofs and new.oneof:
            _note(pair, "ONEOF_FIELD_ADDED", new.oneof, *path)
        elif old.oneof and not new.oneof:
            # It left a oneof: nothing that was written is lost.
            _note(pair, "FIELD_ADDED", *path)
        if old.name != new.name:
            _note(pair, "FIELD_NAME_CHANGED", *path)
        if new.is_required and not old.is_required:
            _note(pair, "REQUIRED_FIELD_ADDED", *path)
        self._field_types(pair, old, new, path)

    def _field_types(self, pair: Pair, old: LinkedField, new: LinkedField, path: Path) -> None:
        if _kind(old) != _kind(new):
            _note(pair, "FIELD_KIND_CHANGED", *path)
        elif old.entry is not None and new.entry is not None:
            for before, after in zip(old.entry, new.entry, strict=True):
                self._field_types(pair, before, after, path)
        elif old.scalar:
            _compare_scalars(pair, old, new, path)
        elif not self._is_same_message(pair, old.message, new.message):
            _note(pair, "FIELD_NAMED_TYPE_CHANGED", *path)

    def _is_same_message(self, pair: Pair, old: str, new: str) -> bool:
        """Whether two fields have a message of one name, whose own changes fit."""
        before, after = self.old.messages[old], self.new.messages[new]
        # Packages do not count: they are not part of what is written.
        if before.local_name != after.local_name:
            return False
        if before.file == self.old.file.path and after.file == self.new.file.path:
            # Compared among the messages of the files, where its differences have their path.
            return True
        inner = self._compare(before, after)
        pair.include(inner, (_FILE, *before.local_name.split(".")))
        return inner.fits


def _compare_enums(pair: Pair, old: LinkedEnum, new: LinkedEnum, path: Path) -> None:
    for number in sorted(old.values.keys() | new.values.keys()):
        if number not in new.values:
            _note(pair, "ENUM_CONST_REMOVED", *path, str(number))
        elif number not in old.values:
            _note(pair, "ENUM_CONST_ADDED", *path, str(number))
        elif old.values[number] != new.values[number]:
            _note(pair, "ENUM_CONST_CHANGED", *path, str(number))


def _compare_moves(pair: Pair, old: LinkedMessage, new: LinkedMessage) -> None:
    """Compare which fields have moved into oneofs, where one value drives out the others."""
    for name in new.oneofs:
        numbers = [each.number for each in new.fields.values() if each.oneof == name]
        before = [old.fields[number] for number in numbers if number in old.fields]
        moved = [each for each in before if not each.oneof]
        if len(moved) > 1:
            _note(pair, "MULTIPLE_FIELDS_MOVED_TO_ONEOF", name)
        # One that moves alone can't drive out what was written beside it.
        elif moved and len(before) > 1:
            _note(pair, "FIELD_MOVED_TO_EXISTING_ONEOF", name)


def _note_removed(pair: Pair, old: LinkedField, new_oneofs: list[str]) -> None:
    number = str(old.number)
    if old.oneof:
        # A oneof that is gone is noted as a whole.
        if old.oneof in new_oneofs:
            _note(pair, "ONEOF_FIELD_REMOVED", old.oneof, number)
    else:
        _note(pair, "REQUIRED_FIELD_REMOVED" if old.is_required else "FIELD_REMOVED", number)


def _note_added(pair: Pair, new: LinkedField, old_oneofs: list[str]) -> None:
    number = str(new.number)
    if new.oneof:
        if new.oneof in old_oneofs:
            _note(pair, "ONEOF_FIELD_ADDED", new.oneof, number)
    else:
        _note(pair, "REQUIRED_FIELD_ADDED" if new.is_required else "FIELD_ADDED", number)


def _kind(found: LinkedField) -> str:
    if found.entry is not None:
        return "map"
    return "scalar" if found.scalar else "message"


def _compare_scalars(pair: Pair, old: LinkedField, new: LinkedField, path: Path) -> None:
    kind = _SCALAR_KINDS[new.scalar]
    if _SCALAR_KINDS[old.scalar] != kind:
        _note(pair, "FIELD_SCALAR_KIND_CHANGED", *path)
    elif old.is_repeated != new.is_repeated:
        # Repeated numbers are packed into one value, which no single number is.
        name = "STRING_OR_BYTES" if kind == "string or bytes" else "NUMERIC"
        _note(pair, f"FIELD_{name}_LABEL_CHANGED", *path)
