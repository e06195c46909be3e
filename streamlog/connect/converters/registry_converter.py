"""Registry converter: rows as bytes whose schema a schema registry keeps.

Before the value stands the id of its schema (`serdes.registered.framing`). A format (Avro, JSON
Schema) says how a schema of Connect is written, and makes what writes and reads values; this module
asks the registry for ids and schemas, and keeps the answers.

Rule: a record costs one look into a table. Only a schema that was not met asks the registry, which
blocks, so the owner calls a converter on a thread (`may_block`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.json_converter import SCHEMAS_CACHED, ConvertedValue
from streamlog.connect.row_schema import Schema
from streamlog.connect.secrets import Secret
from streamlog.errors import ConfigError, SerdeError
from streamlog.schemas import Schema as RegistrySchema
from streamlog.serdes.registered.framing import SchemaKey, head_size, id_head, read_key
from streamlog.serdes.registered.schema_source import RegisteredSchema
from streamlog.serdes.registered.topic_schema import SubjectNames, subject_name

WriteRow = Callable[[object], bytes]
"""Returns the bytes of a value, without the id; raises BadRecord if it does not fit."""
ReadRow = Callable[[bytes, int], ConvertedValue]
"""Returns the value that begins at a place in some bytes; raises BadRecord if it is malformed."""
TOPICS_CACHED: Final = 1_000
"""The most topics whose subjects a converter keeps."""


class ConverterRegistry(Protocol):
    """Port: a schema registry, as converters ask it.

    Its methods block. They raise Retriable while the registry does not answer, BadRecord where it
    refuses a schema or has none, and ConfigError where it refuses the client.
    """

    def find(self, key: SchemaKey, /) -> RegisteredSchema:
        """Return a schema by its id."""

    def register(
        self, subject: str, schema: RegistrySchema, /, *, normalize: bool
    ) -> RegisteredSchema:
        """Register a schema, unless the subject has it; return it with its id."""

    def lookup(
        self, subject: str, schema: RegistrySchema, /, *, normalize: bool
    ) -> RegisteredSchema:
        """Return a schema that a subject has, with its id."""

    def latest(self, subject: str, /) -> RegisteredSchema:
        """Return the latest version of a subject."""


class RegistryFormat(Protocol):
    """Port: how one format writes schemas and rows."""

    def described(self, schema: Schema | None, /) -> tuple[RegistrySchema, str | None]:
        """Return a schema as the registry keeps it, and the name of its record.

        Raises:
            BadRecord: the format has no schema for it.
        """

    def writer(self, schema: Schema | None, found: RegisteredSchema, /) -> WriteRow:
        """Return what writes values of a schema by a registered one; raises as `described`."""

    def reader(self, found: RegisteredSchema, /) -> ReadRow:
        """Return what reads values of a registered schema; raises as `described`."""

    def is_tombstone(self, schema: Schema | None, /) -> bool:
        """Return whether a null of a schema has no bytes."""


@dataclass(frozen=True, slots=True)
class RegistryUse:
    """How a converter finds the schema that it writes with."""

    side: Literal["key", "value"]
    registers: bool = True
    """Whether it registers schemas that the registry lacks (`auto.register.schemas`)."""
    uses_latest: bool = False
    """Whether it writes with the latest version of the subject, if it does not register."""
    normalizes: bool = False
    """Whether the registry takes schemas for one that differ in spelling."""
    subjects: SubjectNames = "topic"
    """The name of the subject (Confluent's subject name strategies)."""


class RegistryConverter:
    """Converts keys or values of any topic, with the schemas of one registry."""

    may_block = True
    """Whether calls may wait for a server."""

    def __init__(self, made: RegistryFormat, registry: ConverterRegistry, use: RegistryUse) -> None:
        self._format, self._registry, self._use = made, registry, use
        # Threads of several readers share them; `lru_cache` allows it, and keeps no error.
        self._reader = lru_cache(SCHEMAS_CACHED)(self._make_reader)
        self._writer = lru_cache(SCHEMAS_CACHED)(self._make_writer)
        self._of_topic = lru_cache(TOPICS_CACHED)(lambda topic: TopicConverter(self, topic))

    def of_topic(self, topic: str) -> TopicConverter:
        """Return the converter of one topic's keys or values."""
        return self._of_topic(topic)

    def is_tombstone(self, schema: Schema | None) -> bool:
        """Return whether a null of a schema has no bytes, as the format says."""
        return self._format.is_tombstone(schema)

    def decode(self, data: bytes | None) -> ConvertedValue:
        """Return what bytes of a topic hold.

        Raises:
            BadRecord: they name no schema that the registry has, or are malformed.
            Retriable: the registry does not answer.
            ConfigError: the registry refuses the client.
        """
        if data is None:
            return ConvertedValue(None, None)
        size = head_size(data)
        return self._reader(data[:size])(data, size)

    def encode(self, topic: str, schema: Schema | None, value: object) -> bytes:
        """Return the bytes of a value for a topic.

        Raises:
            BadRecord: the value does not fit, or the registry refuses its schema.
            Retriable: the registry does not answer.
            ConfigError: the registry refuses the client, or the subject has no name.
        """
        head, write = self._writer(topic, schema)
        return head + write(value)

    def _make_reader(self, head: bytes) -> ReadRow:
        try:
            key = read_key(head, "a value with a schema in a registry")
        except SerdeError as error:
            raise BadRecord(str(error)) from None
        return self._format.reader(self._registry.find(key))

    def _make_writer(self, topic: str, schema: Schema | None) -> tuple[bytes, WriteRow]:
        use, registry = self._use, self._registry
        described, record = self._format.described(schema)
        subject = subject_name(use.subjects, topic, use.side, record)
        # As in Confluent's serializers: who registers does not write with the latest version.
        if use.registers:
            found = registry.register(subject, described, normalize=use.normalizes)
        elif use.uses_latest:
            found = registry.latest(subject)
        else:
            found = registry.lookup(subject, described, normalize=use.normalizes)
        return id_head(found.id), self._format.writer(schema, found)


class TopicConverter:
    """The converter of one topic's keys or values; a `Converter`."""

    may_block = True

    def __init__(self, converter: RegistryConverter, topic: str) -> None:
        self._converter, self._topic = converter, topic

    def is_tombstone(self, schema: Schema | None) -> bool:
        """Return whether a null of a schema has no bytes, as the format says."""
        return self._converter.is_tombstone(schema)

    def decode(self, data: bytes | None) -> ConvertedValue:
        """Return what bytes of the topic hold; raises as `RegistryConverter.decode`."""
        return self._converter.decode(data)

    def encode(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the bytes of a value; raises as `RegistryConverter.encode`."""
        if value is None and self.is_tombstone(schema):
            return None
        return self._converter.encode(self._topic, schema, value)


_STRATEGIES: Final[dict[str, SubjectNames]] = {
    "TopicNameStrategy": "topic",
    "RecordNameStrategy": "record",
    "TopicRecordNameStrategy": "topic_record",
}
STRATEGY_PACKAGE: Final = "io.confluent.kafka.serializers.subject."
TOPIC_STRATEGY: Final = f"{STRATEGY_PACKAGE}TopicNameStrategy"


class RegistryConverterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where schemas are, and how they get there.

    Attributes:
        schema_registry_url: the servers of the registry, separated by commas.
        basic_auth_credentials_source: whether the password is in the URL, or in
            `basic.auth.user.info`.
        basic_auth_user_info: `USER:PASSWORD`.
        ssl_ca_location: a PEM file with the certificates that servers may be signed by.
        ssl_certificate_location: a PEM file with the certificate that the client shows.
        ssl_key_location: the key of that certificate.
        ssl_key_password: the password of an encrypted key.
        auto_register_schemas: whether schemas that the registry lacks are registered.
        use_latest_version: whether records are written with the latest version of their subject;
            only with `auto.register.schemas=false`.
        normalize_schemas: whether the registry takes schemas for one that differ in spelling.
        key_subject_name_strategy: what names the subject of keys: TopicNameStrategy,
            RecordNameStrategy or TopicRecordNameStrategy.
        value_subject_name_strategy: what names the subject of values.
        schemas_cache_config: accepted; a converter keeps the last 1,000 schemas.
    """

    schema_registry_url: str
    basic_auth_credentials_source: Literal["URL", "USER_INFO"] = "URL"
    basic_auth_user_info: Secret | None = None
    ssl_ca_location: str = ""
    ssl_certificate_location: str = ""
    ssl_key_location: str = ""
    ssl_key_password: Secret | None = None
    auto_register_schemas: bool = True
    use_latest_version: bool = False
    normalize_schemas: bool = False
    key_subject_name_strategy: str = TOPIC_STRATEGY
    value_subject_name_strategy: str = TOPIC_STRATEGY
    schemas_cache_config: int = SCHEMAS_CACHED

    def check(self) -> None:
        """Raise ConfigError if settings contradict each other."""
        for side in ("key", "value"):
            self.subjects(side)
        if self.basic_auth_credentials_source == "USER_INFO" and self.basic_auth_user_info is None:
            raise ConfigError(
                "basic.auth.credentials.source=USER_INFO needs basic.auth.user.info=USER:PASSWORD"
            )

    def subjects(self, side: str) -> SubjectNames:
        """Return what names the subject of keys or values.

        Raises:
            ConfigError: there is no such strategy.
        """
        is_key = side == "key"
        given = self.key_subject_name_strategy if is_key else self.value_subject_name_strategy
        found = _STRATEGIES.get(given.removeprefix(STRATEGY_PACKAGE))
        if found is None:
            raise ConfigError(f"{side}.subject.name.strategy: use one of {', '.join(_STRATEGIES)}")
        return found

    def use(self, side: Literal["key", "value"]) -> RegistryUse:
        """Return how schemas of keys or values are found."""
        return RegistryUse(
            side,
            registers=self.auto_register_schemas,
            uses_latest=self.use_latest_version,
            normalizes=self.normalize_schemas,
            subjects=self.subjects(side),
        )
