"""Converter serdes: converters as the serdes of topics, and what leads to them and away from them.

A topic's values travel as `ConvertedValue`, so that a converter gets the schema with the value, and
transforms change both.

Rule: a tombstone never reaches a serde. Which nulls are tombstones is the converter's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec

from streamlog.connect.converters import ConvertedValue, JsonConverter, converter_of
from streamlog.connect.converters.converter import Converter
from streamlog.connect.converters.registry_converter import (
    RegistryConverter,
    RegistryConverterSettings,
)
from streamlog.connect.row_schema import Schema
from streamlog.connect.schema_record import with_schemas
from streamlog.connect.secrets import resolve_secrets
from streamlog.connect.source import Transform
from streamlog.connect.transforms.transform_chain import TransformChain
from streamlog.connect_service.converter_registry import RestConverterRegistry
from streamlog.errors import ConfigError, SerdeError, StreamlogError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

DEFAULT_CONVERTER: Final = JsonConverter(schemas_enable=False)
"""What a worker converts with if its settings name no converter: JSON without schemas."""


@dataclass(frozen=True, slots=True)
class ConverterSerde:
    """A converter as the serde of a topic's keys or values."""

    converter: Converter

    @property
    def may_block(self) -> bool:
        """Whether its calls may wait for a server."""
        return bool(getattr(self.converter, "may_block", False))

    def dumps(self, obj: object) -> bytes:
        """Return the bytes of a value; bytes stay as they are.

        Raises:
            SerdeError: the value does not fit, or is a tombstone, which has no bytes.
            Retriable: the converter waits for a server.
            ConfigError: a setting of the converter is wrong.
        """
        if isinstance(obj, bytes):
            return obj
        schema, value = obj if isinstance(obj, ConvertedValue) else (None, obj)
        try:
            written = self.converter.encode(schema, value)
        except StreamlogError as error:
            # What may pass stays what it is, so that it is tried again.
            if error.retriable or isinstance(error, ConfigError):
                raise
            raise SerdeError(str(error)) from error
        if written is None:
            raise SerdeError("a null without bytes is a tombstone, and no value to convert")
        return written

    def loads(self, data: bytes) -> ConvertedValue:
        """Return a value with its schema.

        Raises:
            SerdeError: the bytes are malformed.
            Retriable: the converter waits for a server.
            ConfigError: a setting of the converter is wrong.
        """
        try:
            return self.converter.decode(data)
        except StreamlogError as error:
            # What may pass stays what it is, so that it is tried again.
            if error.retriable or isinstance(error, ConfigError):
                raise
            raise SerdeError(str(error)) from error


AnyTopicConverter = Converter | RegistryConverter
"""A converter of any topic; one with a registry needs the topic's name for its subject."""


def serde_of(converter: AnyTopicConverter, topic: str) -> ConverterSerde:
    """Return a converter as the serde of a topic's keys or values."""
    if isinstance(converter, RegistryConverter):
        return ConverterSerde(converter.of_topic(topic))
    return ConverterSerde(converter)


@dataclass(frozen=True, slots=True)
class ReadTransform:
    """The transforms of a source: its record in, a record of the log's topic out."""

    chain: TransformChain
    topic: str
    """The topic of records that name none."""
    key: AnyTopicConverter
    value: AnyTopicConverter
    """The converters say which nulls are tombstones."""
    adapt: Transform | None = None
    """Makes the record of it that a Java class writes."""

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with its values and schemas together, for the converters."""
        adapted = record if self.adapt is None else self.adapt(record)
        if adapted is None:
            return None
        named = replace(adapted, topic=adapted.topic or self.topic)
        changed = self.chain(named)
        if changed is None:
            return None
        whole = with_schemas(changed)
        return replace(
            whole,
            key=_together(self.key, whole.key_schema, whole.key),
            value=_together(self.value, whole.value_schema, whole.value),
        )


def _together(converter: AnyTopicConverter, schema: Schema | None, value: object) -> object:
    # Bytes without a schema stay as they are: raw reads are not converted.
    if isinstance(value, bytes) and schema is None:
        return value
    # A serde is never asked for the bytes of a tombstone, as it has none.
    is_tombstone = value is None and converter.is_tombstone(schema)
    return None if is_tombstone else ConvertedValue(schema, value)


@dataclass(frozen=True, slots=True)
class WriteTransform:
    """The transforms of a sink: a record as converters read it in, a record for the sink out."""

    chain: TransformChain

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with plain values."""
        key_schema, key = _apart(record.key)
        value_schema, value = _apart(record.value)
        whole = replace(
            with_schemas(record),
            key=key,
            value=value,
            key_schema=key_schema,
            value_schema=value_schema,
        )
        return self.chain(whole)


def _apart(value: object) -> ConvertedValue:
    return value if isinstance(value, ConvertedValue) else ConvertedValue(None, value)


def topic_spec(topic: str, key: AnyTopicConverter, value: AnyTopicConverter) -> TopicSpec:
    """Return a topic whose keys and values these converters convert."""
    return TopicSpec(topic, serde_of(key, topic), serde_of(value, topic))


def open_converter(
    settings: Mapping[str, str],
    worker: Mapping[str, str],
    side: Literal["key", "value"],
    resolve: Callable[[str], str] | None,
) -> AnyTopicConverter:
    """Return the converter that a configuration names for keys or values, else that of the worker.

    A registry is not asked yet. Without `resolve` it can't be, as secrets stay references.

    Raises:
        ConfigError: there is no such converter, or one of its settings is wrong.
    """
    default = converter_of(worker, side, default=DEFAULT_CONVERTER)
    chosen = converter_of(settings, side, default=default)
    if not isinstance(chosen, RegistryConverterSettings):
        return chosen
    registry = RestConverterRegistry(resolved(chosen, resolve))
    return RegistryConverter(chosen.format(), registry, chosen.use(side))


S = TypeVar("S", bound=msgspec.Struct)


def resolved(settings: S, resolve: Callable[[str], str] | None) -> S:
    """Return settings with their secrets replaced; without `resolve` as they are."""
    return settings if resolve is None else resolve_secrets(settings, resolve)
