"""Registry serde: the serde of one type whose schemas a registry keeps.

A codec turns values into bytes of one format, and back with the writer's schema. This module puts
the name of the schema before the bytes, and finds the writer's schema by it.

Rule: what a record costs is one look into a dict, by the first bytes. Only a schema that this serde
has not met asks the source. The tables are bounded: the schemas that were met first are dropped,
and found again in the cache of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, Literal, Protocol

from streamlog.errors import SerdeError
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.erased_types import TypeForm, UserValue
from streamlog.serdes.registered.avro_codec import avro_codec
from streamlog.serdes.registered.framing import (
    ID_BYTES,
    guid_head,
    head_size,
    id_head,
    read_key,
)
from streamlog.serdes.registered.json_codec import JsonCodec
from streamlog.serdes.registered.protobuf_codec import protobuf_codec
from streamlog.serdes.registered.schema_source import RegisteredSchema, SchemaAccess
from streamlog.serdes.registered.topic_schema import TopicSchema, subject_name
from streamlog.serdes.serde import T, type_name, unreadable_error

READERS_MAX: Final = 256
"""The most schemas of one topic that are kept ready for reading."""
Read = Callable[[bytes, int], UserValue]
"""From bytes, and where the value begins in them, to the value."""


class SchemaCodec(Protocol):
    """Port: values of one type in one format."""

    given: TopicSchema
    """The declaration that it was made from."""
    schema: Schema
    """The schema that values are written with."""
    referenced: Mapping[str, Schema]
    """The schemas that it refers to, as far as the program knows them, by reference name."""
    record_name: str | None
    """The full name of its record."""
    needs_writer_schema: bool
    """Whether bytes can't be read without the schema that they were written with."""
    errors: tuple[type[Exception], ...]
    """What reading damaged bytes may raise."""

    def write(self, head: bytes, value: UserValue) -> bytes:
        """Return the head, followed by the value.

        Raises:
            SerdeError: the value has another type.
        """

    def reader(self, writer: RegisteredSchema | None) -> Read:
        """Return what reads bytes of a schema.

        Raises:
            SerdeError: they can't be read as this type.
        """

    def head_size(self, data: bytes) -> int:
        """Return the size of what stands before a value."""


class RegistrySerde(Generic[T]):
    """Values of one type, with schemas in a registry."""

    def __init__(
        self, codec: SchemaCodec, declared: object, subject: str, access: SchemaAccess, *, ids: str
    ) -> None:
        self.declared = declared
        # JSON, too: the text that a person types has no id in front of it.
        self.is_binary = True
        self.subject = subject
        """The subject that the schema is registered under."""
        self.ids_in_headers = ids == "header"
        """Whether records name the schema in a header (`framing`)."""
        self.needs_writer_schema = codec.needs_writer_schema
        self.schema = codec.schema
        """The schema that values are written with."""
        self._codec = codec
        self._type_name = type_name(declared)
        self._access = access
        self._head: bytes | None = None
        self._readers: dict[bytes, Read] = {}
        self._any: Read | None = None if codec.needs_writer_schema else codec.reader(None)
        access.attach(self)

    @property
    def form(self) -> object:
        """The type and text of the schema, with the texts that it refers to."""
        form: dict[str, object] = {"type": str(self.schema.type), "text": self.schema.text}
        # Only if there are any: forms that workers have recorded stay what they are.
        if self._codec.referenced:
            referenced = self._codec.referenced.items()
            # A list: their order matters in Avro, and what is stored may sort names.
            form["references"] = [[name, each.text] for name, each in referenced]
        return {"registry": form}

    @property
    def is_assigned(self) -> bool:
        """Whether the id of the own schema is known."""
        return self._head is not None

    def assign(self, registered: RegisteredSchema) -> None:
        """Set the id and GUID of the own schema.

        Raises:
            SerdeError: records name it by a GUID, and the registry gives none.
        """
        # A header has room for a GUID, which other registries of a company know too; before the
        # value, four bytes of an id cost less (Confluent Platform 8.1, "Schema ID in headers").
        if self.ids_in_headers:
            if registered.guid is None:
                raise SerdeError(
                    f"{self.subject}: the registry gives schemas no GUIDs, which headers need: "
                    "write TopicSchema(..., ids='prefix')"
                )
            self._head = guid_head(registered.guid)
        else:
            self._head = id_head(registered.id)

    def forget(self) -> None:
        """Drop all ids: the source has changed."""
        self._head = None
        self._readers.clear()

    def dumps(self, obj: T) -> bytes:
        """Serialize a value with the own schema."""
        head = self._head
        # Only the first value of a program without a worker, such as a script that sends: a worker
        # assigns the id before it starts.
        if head is None:
            self.assign(self._access.source.identify(self.subject, self.schema))
            head = self._head or b""
        return self._codec.write(head, obj)

    def loads(self, data: bytes) -> T:
        """Deserialize a value by the schema that it was written with."""
        # A GUID begins with 0x01, so its 5 first bytes are no key of the table.
        read = self._readers.get(data[:ID_BYTES])
        size = ID_BYTES
        if read is None:
            size = head_size(data)
            read = self._readers.get(data[:size]) or self._reader(data, size)
        try:
            value: T = read(data, size)
        except self._codec.errors as error:
            reason = (
                str(error)
                if isinstance(error, SerdeError)
                else (f"{type(error).__name__}: {error}")
            )
            raise unreadable_error(self._type_name, data, reason) from error
        return value

    def head_size(self, data: bytes) -> int:
        """Return the size of what names the schema, before a value."""
        return self._codec.head_size(data)

    def _reader(self, data: bytes, size: int) -> Read:
        # 1. Bytes that name no schema raise here. 2. An unknown schema raises in `find`. Neither is
        # kept: the next record asks again, and the source bounds how often it asks the registry.
        key = read_key(data, self._type_name)
        read = self._any or self._codec.reader(self._access.source.find(key))
        if len(self._readers) >= READERS_MAX:
            # The oldest goes: a topic rarely has more than a few schemas at one time.
            self._readers.pop(next(iter(self._readers)), None)
        self._readers[data[:size]] = read
        return read

    def __reduce__(self) -> tuple[object, ...]:
        """Make the serde anew in another process, from its declaration."""
        spec = (self._codec.given, self.declared, self.subject, self._access)
        return _again, spec


def registry_serde(
    given: TopicSchema,
    declared: TypeForm,
    topic: str,
    field: Literal["key", "value"],
    access: SchemaAccess,
) -> RegistrySerde[UserValue]:
    """Return the serde of the keys or values of a topic.

    Raises:
        SerdeError: the type has no equivalent in the format, or the schema is invalid.
        ConfigError: the library of the format is not installed, or the subject has no name.
    """
    codec = _codec(given, declared)
    subject = subject_name(given.subjects, topic, field, codec.record_name)
    return RegistrySerde(codec, declared, subject, access, ids=given.ids)


def _again(
    given: TopicSchema, declared: TypeForm, subject: str, access: SchemaAccess
) -> RegistrySerde[UserValue]:
    return RegistrySerde(_codec(given, declared), declared, subject, access, ids=given.ids)


def _codec(given: TopicSchema, declared: TypeForm) -> SchemaCodec:
    match given.type:
        case SchemaType.AVRO:
            return avro_codec(given, declared)
        case SchemaType.JSON:
            return JsonCodec(given, declared)
        case SchemaType.PROTOBUF:
            return protobuf_codec(given, declared)
