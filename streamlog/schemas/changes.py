"""Changes in words: what a person sees between two versions of a schema, field by field.

A field has a path: `customer.street`, `items[].price` for the records of a list, `by_name{}.price`
for those of a map. All three formats have the same words.

Rule: every change of a field is one sentence, compatible ones included. Whether readers bear it is
the business of `compatibility`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from streamlog.schemas.avro_schemas.avro_schema import AvroSchema
from streamlog.schemas.avro_schemas.avro_types import (
    NO_DEFAULT,
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroNamed,
    AvroPrimitive,
    AvroRecord,
    AvroType,
    AvroUnion,
    split_name,
)
from streamlog.schemas.json_schema.json_parsing import JsonSchema
from streamlog.schemas.json_schema.json_types import (
    JsonBool,
    JsonCombination,
    JsonEnumeration,
    JsonList,
    JsonMapping,
    JsonNull,
    JsonNumber,
    JsonText,
    JsonType,
    follow,
)
from streamlog.schemas.json_text import dump_json, shown
from streamlog.schemas.protobuf.linked_types import LinkedField, LinkedMessage
from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema
from streamlog.schemas.schema import ParsedSchema

MAX_FIELDS: Final = 2_000
"""How many fields of a schema are compared: through shared types, there may be any number."""


class _FieldText(msgspec.Struct, frozen=True):
    """A field in words."""

    key: str
    """What makes it the same field in another version: its path, or its number."""
    path: str
    type: str
    default: str = ""
    """Its default as JSON; "" for none."""
    is_required: bool = True
    """Whether a value without it can't be read: no default, or `required`."""
    aliases: tuple[str, ...] = ()
    """Keys that it may have in an earlier version."""


def describe_changes(old: ParsedSchema, new: ParsedSchema) -> list[str]:
    """Return what has changed from one version of a schema to the next, in sentences.

    Example:
        >>> from streamlog.schemas import Schema, SchemaType, parse_schema
        >>> def order(*fields):
        ...     text = f'{{"type":"record","name":"Order","fields":[{",".join(fields)}]}}'
        ...     return parse_schema(Schema(SchemaType.AVRO, text))
        >>> amount = '{"name":"amount","type":"int"}'
        >>> currency = '{"name":"currency","type":"string"}'
        >>> describe_changes(order(amount), order(currency))
        ['field `amount` is gone (int)', 'field `currency` is new (string), without a default']
    """
    if type(old) is not type(new):
        return [f"the format is {new.type} now, it was {old.type}"]
    before = {each.key: each for each in _fields_of(old)}
    after = {each.key: each for each in _fields_of(new)}
    changes = []
    if old.record_name != new.record_name:
        changes.append(f"the name is {new.record_name} now, it was {old.record_name}")
    # A field is renamed only if the old name is free and the new one was.
    renamed = {
        alias: key
        for key, each in after.items()
        for alias in each.aliases
        if alias in before and alias not in after and key not in before
    }
    for key, each in before.items():
        following = after.get(renamed.get(key, key))
        if following is None:
            changes.append(f"field `{each.path}` is gone ({each.type})")
        else:
            changes += _changed(each, following)
    # In the order of the old schema, then what the new one adds.
    known = {*before, *renamed.values()}
    for key, each in after.items():
        if key not in known:
            changes.append(f"field `{each.path}` is new ({each.type}){_tail(each)}")
    return changes


def _tail(found: _FieldText) -> str:
    if found.default:
        return f", with the default {shown(found.default)}"
    return ", without a default" if found.is_required else ""


def _changed(old: _FieldText, new: _FieldText) -> Iterator[str]:
    if old.path != new.path:
        yield f"field `{old.path}` is called `{new.path}` now"
    if old.type != new.type:
        yield f"field `{new.path}` is {new.type} now, it was {old.type}"
    if old.default != new.default:
        now, before = (shown(each.default) or "none" for each in (new, old))
        yield f"the default of field `{new.path}` is {now} now, it was {before}"
    elif old.is_required != new.is_required:
        yield f"field `{new.path}` is {'required' if new.is_required else 'optional'} now"


def _fields_of(schema: ParsedSchema) -> Iterator[_FieldText]:
    found: Iterator[_FieldText] = iter(())
    match schema:
        case AvroSchema():
            found = _avro_fields(schema.root, "", ())
        case JsonSchema():
            found = _json_fields(schema.root, "", ())
        case ProtobufSchema():
            found = _file_fields(schema)
    # A zip with a range ends before a field too many is made.
    for _, each in zip(range(MAX_FIELDS), found, strict=False):
        yield each


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _avro_fields(
    found: AvroType, path: str, around: tuple[AvroRecord, ...]
) -> Iterator[_FieldText]:
    match found:
        # The fields of a recursive type have been listed above.
        case AvroRecord() if found not in around:
            for each in found.fields:
                inner = _join(path, each.name)
                default = "" if each.default is NO_DEFAULT else dump_json(each.default)
                aliases = tuple(_join(path, alias) for alias in each.aliases)
                text = _avro_text(each.type)
                yield _FieldText(inner, inner, text, default, not default, aliases)
                yield from _avro_fields(each.type, inner, (*around, found))
        case AvroArray(items=items):
            yield from _avro_fields(items, f"{path}[]", around)
        case AvroMap(values=values):
            yield from _avro_fields(values, f"{path}{{}}", around)
        case AvroUnion(branches=branches):
            for branch in branches:
                yield from _avro_fields(branch, path, around)


def _avro_text(found: AvroType) -> str:
    match found:
        case AvroPrimitive(kind=kind, properties=properties):
            return str(properties.get("logicalType", kind))
        case AvroArray(items=items):
            return f"list of {_avro_text(items)}"
        case AvroMap(values=values):
            return f"map of {_avro_text(values)}"
        case AvroUnion(branches=branches):
            return " or ".join(map(_avro_text, branches)) or "nothing"
        case _:
            return split_name(found.name)[1] + _content(found)


def _content(found: AvroNamed) -> str:
    match found:
        case AvroEnum(symbols=symbols):
            return f": {', '.join(symbols)}"
        case AvroFixed(size=size):
            return f": {size} bytes"
        case AvroRecord():
            return ""


def _json_fields(found: JsonType, path: str, around: tuple[JsonType, ...]) -> Iterator[_FieldText]:
    found = follow(found)
    match found:
        case JsonMapping() if found not in around:
            for name, each in found.properties.items():
                inner, kind = _join(path, name), follow(each)
                default = dump_json(kind.default) if kind.has_default else ""
                text = _json_text(kind)
                yield _FieldText(inner, inner, text, default, name in found.required)
                yield from _json_fields(kind, inner, (*around, found))
            if found.additional is not None:
                yield from _json_fields(found.additional, f"{path}{{}}", (*around, found))
        case JsonList() if found not in around:
            for items in (found.items, found.additional):
                if items is not None:
                    yield from _json_fields(items, f"{path}[]", (*around, found))
        # All parts have a say, whatever the criterion is.
        case JsonCombination() if found not in around:
            for each in found.parts:
                yield from _json_fields(each, path, (*around, found))


def _json_text(found: JsonType) -> str:
    match found:
        case JsonText():
            return "string"
        case JsonNumber(is_integer=is_integer):
            return "integer" if is_integer else "number"
        case JsonEnumeration(values=values):
            return f"one of {', '.join(sorted(values))}"
        case JsonCombination(parts=parts, criterion=criterion):
            word = " and " if criterion == "allOf" else " or "
            return word.join(_json_text(follow(each)) for each in parts[:_SHOWN_PARTS])
        case _:
            return _JSON_WORDS.get(type(found), "any value")


_SHOWN_PARTS: Final = 8
"""How many alternatives a sentence names."""
_JSON_WORDS: Mapping[type[JsonType], str] = {
    JsonBool: "boolean",
    JsonNull: "null",
    JsonList: "list",
    JsonMapping: "object",
}


def _file_fields(schema: ProtobufSchema) -> Iterator[_FieldText]:
    for message in schema.file.messages.values():
        yield from _message_fields(message)


def _message_fields(message: LinkedMessage) -> Iterator[_FieldText]:
    for each in message.fields.values():
        key, path = f"{message.local_name}#{each.number}", _join(message.local_name, each.name)
        yield _FieldText(key, path, _proto_text(each), is_required=each.is_required)
    for inner in message.messages.values():
        yield from _message_fields(inner)


def _proto_text(found: LinkedField) -> str:
    if found.entry is not None:
        key, value = found.entry
        return f"map of {_proto_text(key)} to {_proto_text(value)}"
    kind = found.scalar or found.message.rpartition(".")[2]
    return f"list of {kind}" if found.is_repeated else kind
