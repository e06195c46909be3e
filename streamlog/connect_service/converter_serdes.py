"""Converter serdes: converters as the serdes of topics, and what leads to them and away from them.

A topic's values travel as `ConvertedValue`, so that a converter gets the schema with the value, and
transforms change both.

| The registry of a converter | what the converter gets |
|---|---|
| does not answer | `Retriable`: the records wait |
| refuses the client: its password, its certificate | `Refused`: the task fails for now |
| refuses a schema, or does not have it | `BadRecord`, for `REFUSED_MS` without another request |

Rules:
- a tombstone never reaches a serde. Which nulls are tombstones is the converter's to say;
- each method of a registry blocks, and may be called by several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec

from streamlog.clock import Clock, SystemClock
from streamlog.connect.connector_errors import BadRecord, Refused, Retriable
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
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    SchemaRegistryError,
    SerdeError,
    StreamlogError,
)
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.registry_client.registry_settings import (
    AUTH,
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    KEY_PASSWORD,
    URL,
    RegistrySettings,
)
from streamlog.registry_client.rest_api import NOT_FOUND, RegistryClient
from streamlog.registry_client.schema_book import NOT_FOUND_MS, PAUSE_MS
from streamlog.replace import replace
from streamlog.schemas import Schema as RegistrySchema
from streamlog.serdes.erased_types import AnyRecord
from streamlog.serdes.registered.framing import SchemaKey
from streamlog.serdes.registered.schema_source import RegisteredSchema

DEFAULT_CONVERTER: Final = JsonConverter(schemas_enable=False)
"""What a worker converts with if its settings name no converter: JSON without schemas."""
REFUSED_MS: Final = 30_000
"""How long a refusal holds: bad records must not be a request each."""
REFUSED_KEPT: Final = 1_000
"""The most refusals that are kept; the oldest are dropped."""
_UNAUTHORIZED: Final = (401, 403)
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


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


def resolved(settings: S, resolve: Callable[[str], str] | None) -> S:
    """Return settings with their secrets replaced; without `resolve` as they are."""
    return settings if resolve is None else resolve_secrets(settings, resolve)


# ------------------------------------------------------------------------------ the registry


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    until_ms: int


def registry_settings(access: RegistryConverterSettings) -> RegistrySettings:
    """Return the settings of a client.

    Raises:
        ConfigError: a URL is malformed, or a secret is still a reference.
    """
    user, password = access.basic_auth_user_info, access.ssl_key_password
    return RegistrySettings.of(
        {
            URL: access.schema_registry_url,
            AUTH: "" if user is None else user.reveal(),
            CA_FILE: access.ssl_ca_location,
            CERTIFICATE_FILE: access.ssl_certificate_location,
            KEY_FILE: access.ssl_key_location,
            KEY_PASSWORD: "" if password is None else password.reveal(),
        }
    )


class RestConverterRegistry:
    """A registry behind a REST API; a `ConverterRegistry`."""

    def __init__(self, access: RegistryConverterSettings, clock: Clock | None = None) -> None:
        """Create it; secrets and files are looked at with the first question.

        Raises:
            ConfigError: a URL is malformed.
        """
        RegistrySettings.of(access.schema_registry_url)
        self._access, self._clock = access, clock or SystemClock()
        self._opened: RegistryClient | None = None
        self._refused: dict[object, _Refusal] = {}
        self._lock = threading.Lock()
        """Guards the refusals."""

    @property
    def _client(self) -> RegistryClient:
        # Two threads may make one each; either of them will do.
        if self._opened is None:
            self._opened = RegistryClient(registry_settings(self._access), clock=self._clock)
        return self._opened

    def find(self, key: SchemaKey) -> RegisteredSchema:
        """Return a schema by its id; see `ConverterRegistry`."""
        return self._asked(key, f"the schema with {key}", lambda: self._find(key))

    def register(
        self, subject: str, schema: RegistrySchema, *, normalize: bool
    ) -> RegisteredSchema:
        """Register a schema; see `ConverterRegistry`."""

        def ask() -> RegisteredSchema:
            found = self._client.register(subject, schema, normalize=normalize)
            return RegisteredSchema(found, None, schema)

        return self._asked(("register", subject, schema), f"a schema of subject {subject}", ask)

    def lookup(self, subject: str, schema: RegistrySchema, *, normalize: bool) -> RegisteredSchema:
        """Return a schema of a subject with its id; see `ConverterRegistry`."""

        def ask() -> RegisteredSchema:
            found = self._client.lookup(subject, schema, normalize=normalize)
            return RegisteredSchema(found.id, found.guid, schema)

        return self._asked(("lookup", subject, schema), f"a schema of subject {subject}", ask)

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest version of a subject; see `ConverterRegistry`."""

        def ask() -> RegisteredSchema:
            found = self._client.latest(subject)
            if found is None:
                raise BadRecord(
                    f"use.latest.version: the subject {subject} has no version; register one"
                )
            referenced = self._client.referenced(found.schema)
            return RegisteredSchema(found.id, found.guid, found.schema, referenced)

        return self._asked(("latest", subject), f"subject {subject}", ask)

    def _find(self, key: SchemaKey) -> RegisteredSchema:
        # Another of the registry's servers may have registered it just now.
        deadline_ms = self._clock.now_ms() + NOT_FOUND_MS
        while True:
            try:
                return self._client.find(key)
            except SchemaRegistryError as error:
                if error.status != NOT_FOUND or self._clock.now_ms() >= deadline_ms:
                    raise
            threading.Event().wait(PAUSE_MS / 1000)

    def _asked(self, question: object, what: str, ask: Callable[[], T]) -> T:
        """Return an answer of the registry, or raise as converters expect it."""
        with self._lock:
            refused = self._refused.get(question)
        if refused is not None and self._clock.now_ms() < refused.until_ms:
            raise BadRecord(refused.reason)
        try:
            return ask()
        except ConnectionLost as error:
            raise Retriable(str(error)) from error
        except SchemaRegistryError as error:
            # Without a status, one side distrusts the other's certificate.
            if error.status in (0, *_UNAUTHORIZED):
                raise Refused(f"the schema registry refuses the converter: {error}") from error
            reason = f"the schema registry refuses {what}: {error}"
            self._note(question, reason)
            raise BadRecord(reason) from error
        except BadRecord as error:
            self._note(question, str(error))
            raise

    def _note(self, question: object, reason: str) -> None:
        with self._lock:
            self._refused[question] = _Refusal(reason, self._clock.now_ms() + REFUSED_MS)
            while len(self._refused) > REFUSED_KEPT:
                del self._refused[next(iter(self._refused))]
