"""Protobuf codec: values of one type as messages.

The type is a dataclass, Struct, TypedDict or model, whose `.proto` file is derived, or a class of
messages that protoc has generated, whose file is registered as a descriptor in base64 (as
Confluent's Python client does), with the files that it imports as references. With a schema that
was written by hand, the type may be `dict` (`message_dicts`).

Rule: a message is read by the own descriptor: Protobuf's rules need no other one. Fields that only
the writer knows are skipped, and those that only the reader knows have their defaults. So no record
waits for a registry.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

from streamlog.errors import ConfigError, InvalidSchema, SerdeError
from streamlog.metrics.build_info import install_command
from streamlog.schemas import Schema, SchemaReference, SchemaType, parse_schema
from streamlog.schemas.protobuf.linked_types import messages_of
from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema
from streamlog.serdes.derived.protobuf_derivation import protobuf_file
from streamlog.serdes.derived.protobuf_values import ProtobufValues, message_class
from streamlog.serdes.derived.type_description import RecordType, describe_type
from streamlog.serdes.erased_types import TypeForm, UserObject, UserValue
from streamlog.serdes.json_values import without_none
from streamlog.serdes.registered.framing import (
    after_indexes,
    head_size,
    index_bytes,
    read_indexes,
)
from streamlog.serdes.registered.message_dicts import MessageDicts
from streamlog.serdes.registered.schema_source import RegisteredSchema
from streamlog.serdes.registered.topic_schema import TopicSchema
from streamlog.serdes.serde import type_name

_MODULES: Final = (
    "descriptor_pb2",
    "descriptor_pool",
    "duration_pb2",
    "message",
    "message_factory",
    "timestamp_pb2",
)
BUILT_IN: Final = ("confluent/", "google/protobuf/", "google/type/")
"""The directories of files that every registry knows."""


class ProtobufCodec:
    """Values of one type as messages."""

    needs_writer_schema = False

    def __init__(
        self,
        given: TopicSchema,
        schema: Schema,
        message: UserObject,
        values: ProtobufValues | MessageDicts | None,
        name: str,
    ) -> None:
        """`values` converts to and from messages; None: the values are messages themselves."""
        self.given = given
        self.schema = schema
        is_message = values is None
        self.referenced = _imported(message, schema) if is_message else given.referenced
        self.record_name: str | None = message.DESCRIPTOR.full_name
        self._message = message
        self._values = values
        self._type_name = name
        self._indexes = index_bytes(message_indexes(message.DESCRIPTOR))
        library = load_protobuf()
        self.errors: tuple[type[Exception], ...] = (
            SerdeError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
            library.message.DecodeError,
        )

    def write(self, head: bytes, value: UserValue) -> bytes:
        """Return the head with the message's indexes, followed by the value; see `SchemaCodec`."""
        try:
            message = self._message_of(value)
            # Deterministic: maps have an order, so equal keys of records are equal bytes.
            data: bytes = message.SerializeToString(deterministic=True)
        except (*self.errors, load_protobuf().message.EncodeError) as error:
            raise SerdeError(f"{self._type_name} can't be written as Protobuf: {error}") from error
        return head + self._indexes + data

    def reader(self, writer: RegisteredSchema | None) -> Callable[[bytes, int], UserValue]:  # noqa: ARG002 - see the rule of the module
        """Return what reads bytes; see `SchemaCodec`."""
        parse = self._message.FromString
        values = self._values

        def read(data: bytes, start: int) -> UserValue:
            message = parse(data[after_indexes(data, start) :])
            return message if values is None else values.read(message)

        return read

    def head_size(self, data: bytes) -> int:
        """Return the size of the id or GUID, with the message's indexes."""
        return after_indexes(data, head_size(data))

    def _message_of(self, value: UserValue) -> UserObject:
        if self._values is None:
            if not isinstance(value, self._message):
                raise SerdeError(f"{self._type_name} expected, got {type(value).__name__}")
            return value
        message = self._message()
        self._values.put(message, value)
        return message


def load_protobuf() -> ModuleType:
    """Return the library, with the modules that are used here.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        for name in _MODULES:
            import_module(f"google.protobuf.{name}")
        return import_module("google.protobuf")
    except ImportError as error:
        raise ConfigError(
            f"schema='protobuf' needs the extra `protobuf`: {install_command('protobuf')}"
        ) from error


def protobuf_codec(given: TopicSchema, declared: TypeForm) -> ProtobufCodec:
    """Return the codec of a type.

    Raises:
        SerdeError: the type has no equivalent in Protobuf.
        ConfigError: protobuf is not installed.
    """
    declared = without_none(declared)
    library = load_protobuf()
    name = type_name(declared)
    if isinstance(declared, type) and issubclass(declared, library.message.Message):
        return ProtobufCodec(
            given, given.schema or _compiled_schema(declared), declared, None, name
        )
    if declared is dict and given.schema is not None:
        return _dict_codec(given, given.schema)
    described = describe_type(declared)
    file = protobuf_file(described, declared)
    if not isinstance(described, RecordType):
        raise SerdeError(f"{name} has no equivalent in Protobuf")
    schema = given.schema or Schema(SchemaType.PROTOBUF, file.text)
    values = ProtobufValues(described)
    return ProtobufCodec(given, schema, message_class(library, file), values, name)


def _dict_codec(given: TopicSchema, schema: Schema) -> ProtobufCodec:
    """Return the codec of a message that only its schema describes."""
    given.require_references()
    message = registered_message(schema, given.referenced, given.message)
    return ProtobufCodec(given, schema, message, MessageDicts(message.DESCRIPTOR), "dict")


def registered_message(
    schema: Schema, referenced: Mapping[str, Schema], name: str = ""
) -> UserObject:
    """Return the class of a message in a schema.

    Args:
        schema: the schema.
        referenced: the schemas that it refers to.
        name: the full name of the message; by default the first one.

    Raises:
        SerdeError: the schema is invalid, or has no such message.
    """
    library = load_protobuf()
    parsed = _parse(schema, referenced)
    if parsed.record_name is None:
        raise SerdeError("its schema has no message")
    pool = library.descriptor_pool.DescriptorPool()
    for each in parsed.files:
        pool.AddSerializedFile(each)
    wanted = name or parsed.record_name
    # Of this file alone: the indexes of a record count its messages, not those of imports.
    own = {each.removeprefix(".") for each, _ in messages_of(parsed.file)}
    if wanted not in own:
        raise SerdeError(f"its schema has no message {wanted}, but {', '.join(sorted(own))}")
    return library.message_factory.GetMessageClass(pool.FindMessageTypeByName(wanted))


def message_at(schema: Schema, referenced: Mapping[str, Schema], indexes: bytes) -> str:
    """Return the full name of the message that a record's indexes name.

    Args:
        schema: the schema that the record names.
        referenced: the schemas that it refers to.
        indexes: the message indexes, as they stand in the record.

    Raises:
        SerdeError: the schema is not one of Protobuf, or has no such message.
    """
    file = _parse(schema, referenced).file
    messages, name = file.messages, file.package
    for index in read_indexes(indexes):
        names = [*messages]
        if index >= len(names):
            raise SerdeError(f"its schema has no message {index} in {name or 'its file'}")
        name = f"{name}.{names[index]}" if name else names[index]
        messages = messages[names[index]].messages
    return name


def _parse(schema: Schema, referenced: Mapping[str, Schema]) -> ProtobufSchema:
    try:
        parsed = parse_schema(schema, referenced, is_new=False)
    except InvalidSchema as error:
        raise SerdeError(f"its schema is not one of Protobuf: {error}") from error
    if not isinstance(parsed, ProtobufSchema):
        raise SerdeError(f"its schema is {schema.type}, and not Protobuf")
    return parsed


def _imported(message: UserObject, schema: Schema) -> Mapping[str, Schema]:
    """Return the files that the file of a message imports, as references name them."""
    found: dict[str, Schema] = {}
    names = {each.name for each in schema.references}
    pending = [*message.DESCRIPTOR.file.dependencies]
    while pending:
        file = pending.pop()
        if file.name.startswith(BUILT_IN) or file.name in found:
            continue
        references = tuple(
            SchemaReference(each.name, "", 0)
            for each in file.dependencies
            if not each.name.startswith(BUILT_IN)
        )
        text = b64encode(file.serialized_pb).decode()
        found[file.name] = Schema(SchemaType.PROTOBUF, text, references)
        pending += file.dependencies
    return found if names <= found.keys() else {}


def _compiled_schema(declared: UserObject) -> Schema:
    file = declared.DESCRIPTOR.file
    for imported in file.dependencies:
        if not imported.name.startswith(BUILT_IN):
            raise SerdeError(
                f"{type_name(declared)}: {file.name} imports {imported.name}, which has to be "
                "registered first: give TopicSchema(schema=Schema(..., references=...))"
            )
    return Schema(SchemaType.PROTOBUF, b64encode(file.serialized_pb).decode())


def message_indexes(descriptor: UserObject) -> list[int]:
    """Return the position of a message in its file, from the outermost message inwards."""
    # From the inside out: the message's index in its parent, then the parent's index, up to the
    # file.
    indexes: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name if parent is None else None
        names = [*siblings] if siblings is not None else [n.name for n in parent.nested_types]
        indexes.insert(0, names.index(descriptor.name))
        descriptor = parent
    return indexes
