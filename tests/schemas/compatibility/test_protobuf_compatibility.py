"""Protobuf's compatibility: Confluent's examples, and values that a reader really reads."""

from __future__ import annotations

from random import Random

import pytest
from google.protobuf import descriptor_pool, message_factory

from streamlog.schemas import (
    ProtobufSchema,
    Schema,
    SchemaReference,
    SchemaType,
    incompatibilities,
    parse_schema,
)
from streamlog.schemas.compatibility.protobuf_compatibility import (
    COMPATIBLE_CHANGES,
    PROTOBUF_SENTENCES,
    protobuf_differences,
)
from tests.schemas.compatibility.protobuf_cases import CASES, IMPORT_CASES


def parsed(text: str, imported: str = "", syntax: str = "proto3") -> ProtobufSchema:
    references = (SchemaReference("other.proto", "other", 1),) if imported else ()
    found = parse_schema(
        Schema(SchemaType.PROTOBUF, f'syntax = "{syntax}"; {text}', references),
        {"other.proto": Schema(SchemaType.PROTOBUF, f'syntax = "proto3"; {imported}')},
    )
    assert isinstance(found, ProtobufSchema)
    return found


def listed(old: ProtobufSchema, new: ProtobufSchema) -> list[str]:
    return [f"{each.kind} {each.path}" for each in protobuf_differences(new, old)]


def split(differences: str) -> list[str]:
    return [each for each in differences.split(", ") if each]


@pytest.mark.parametrize(("old", "new", "differences"), CASES)
def test_kinds_and_paths_are_those_of_confluents_registry(
    old: str, new: str, differences: str
) -> None:
    assert listed(parsed(old), parsed(new)) == split(differences)


@pytest.mark.parametrize(("before", "old_file", "after", "new_file", "differences"), IMPORT_CASES)
def test_types_of_imports_are_compared(
    before: str, old_file: str, after: str, new_file: str, differences: str
) -> None:
    def schema(kind: str, file: str) -> ProtobufSchema:
        if not kind:
            return parsed(f"message M {{ GoogleHome h = 1; }} {file}")
        text = f'import "other.proto"; message M {{ .{kind} h = 1; }}'
        return parsed(text, f"package {kind.split('.', maxsplit=1)[0]}; {file}")

    assert listed(schema(before, old_file), schema(after, new_file)) == split(differences)


@pytest.mark.parametrize(
    ("old", "new", "differences"),
    [
        ("", "required string a = 1;", "REQUIRED_FIELD_ADDED #/M/1"),
        ("required string a = 1;", "", "REQUIRED_FIELD_REMOVED #/M/1"),
        ("optional string a = 1;", "required string a = 1;", "REQUIRED_FIELD_ADDED #/M/1"),
        ("required string a = 1;", "optional string a = 1;", ""),
    ],
)
def test_required_fields_of_proto2_are_compared(old: str, new: str, differences: str) -> None:
    schemas = (parsed(f"message M {{ {each} }}", syntax="proto2") for each in (old, new))
    assert listed(*schemas) == split(differences)


def test_each_kind_that_a_reader_does_not_bear_has_a_sentence() -> None:
    kinds = {each.split()[0] for case in CASES for each in split(case[2])}
    assert kinds - COMPATIBLE_CHANGES <= PROTOBUF_SENTENCES.keys()
    [found] = incompatibilities(
        parsed("message M { int32 a = 1; }"), parsed("message M { string a = 1; }")
    )
    assert str(found) == (
        "The kind of a SCALAR field at path '#/M/1' in the new schema does not match its kind in "
        "the old schema"
    )


KINDS = ("int32", "int64", "uint32", "bool", "sint64", "string", "bytes", "fixed32", "float", "N")


def random_message(chance: Random) -> dict[int, str]:
    labels = ("", "", "repeated ")
    numbers = range(1, chance.randint(2, 5))
    return {n: f"{chance.choice(labels)}{chance.choice(KINDS)}" for n in numbers}


def as_proto(fields: dict[int, str]) -> str:
    inside = " ".join(f"{kind} f{number} = {number};" for number, kind in fields.items())
    return f"message M {{ {inside} }} message N {{ string x = 1; }}"


def test_what_is_compatible_is_read() -> None:
    # Text of ASCII letters: bytes that are not UTF-8 are no text, whatever the registry says.
    compatible = 0
    for seed in range(150):
        chance = Random(seed)
        fields = random_message(chance)
        changed = {**fields, chance.randint(1, 5): random_message(chance)[1]}
        old, new = parsed(as_proto(fields)), parsed(as_proto(changed))
        if incompatibilities(new, old):
            continue
        compatible += 1
        writer, reader = (message_class(each) for each in (old, new))
        value = writer()
        for number, kind in fields.items():
            put(value, f"f{number}", kind)
        reader.FromString(value.SerializeToString())
    assert compatible > 20


def message_class(schema: ProtobufSchema) -> type:
    pool = descriptor_pool.DescriptorPool()
    for each in schema.files:
        pool.AddSerializedFile(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("M"))


def put(value: object, name: str, kind: str) -> None:
    scalar = kind.removeprefix("repeated ")
    if scalar == "N":
        inner = getattr(value, name)
        (inner.add() if kind != scalar else inner).x = "a"
        return
    one = {"string": "a", "bytes": b"a", "bool": True}.get(scalar, 1)
    if kind != scalar:
        getattr(value, name).extend([one, one])
    else:
        setattr(value, name, one)
