"""JSON codec: values of one type as JSON, with a JSON Schema in the registry.

Rule: a declared type is read and written by msgspec or pydantic, whose strict decoding checks at
least what the derived schema says, so bytes are readable whatever their writer's schema is, and no
record waits for a registry. Values of `dict` are checked against a schema that was written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

import msgspec

from streamlog.errors import ConfigError, SerdeError
from streamlog.metrics.build_info import install_command
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.derived.json_derivation import json_schema_of
from streamlog.serdes.erased_types import AnySerde, JsonValue, TypeForm, UserObject, UserValue
from streamlog.serdes.json_values import JsonSerde, ModelSerde, has_model, without_none
from streamlog.serdes.registered.framing import head_size
from streamlog.serdes.registered.schema_source import RegisteredSchema
from streamlog.serdes.registered.topic_schema import TopicSchema
from streamlog.serdes.serde import type_name


class JsonCodec:
    """Values of one type as JSON."""

    needs_writer_schema = False

    def __init__(self, given: TopicSchema, declared: TypeForm) -> None:
        """Make the codec of a type.

        Raises:
            SerdeError: the type has no equivalent in JSON, or the schema is invalid.
            ConfigError: jsonschema is not installed, which values of `dict` need.
        """
        declared = without_none(declared)
        self.given = given
        self._inner: AnySerde
        self._inner = ModelSerde(declared) if has_model(declared) else JsonSerde(declared)
        if given.schema is None:
            data = json_schema_of(declared)
            self.schema = Schema(SchemaType.JSON, msgspec.json.encode(data).decode())
        else:
            data = _data_of(given.schema.text)
            self.schema = given.schema
        self.referenced = given.referenced
        title = data.get("title") if isinstance(data, dict) else None
        self.record_name: str | None = title or type_name(declared)
        # msgspec checks a declared type while it decodes, in a fraction of jsonschema's time.
        self._validator: UserObject = None
        if given.schema is not None and declared is dict:
            given.require_references()
            self._validator = _validator_of(data, given.referenced)
        self.errors: tuple[type[Exception], ...] = (SerdeError,)

    def write(self, head: bytes, value: UserValue) -> bytes:
        """Return the head, followed by the value; see `SchemaCodec`."""
        self._validate(value)
        return head + self._inner.dumps(value)

    def reader(self, writer: RegisteredSchema | None) -> Callable[[bytes, int], UserValue]:  # noqa: ARG002 - see the rule of the module
        """Return what reads bytes; see `SchemaCodec`."""
        loads = self._inner.loads
        if self._validator is None:
            return lambda data, start: loads(data[start:])

        def read(data: bytes, start: int) -> UserValue:
            value = loads(data[start:])
            self._validate(value)
            return value

        return read

    def head_size(self, data: bytes) -> int:
        """Return the size of the id or GUID."""
        return head_size(data)

    def _validate(self, value: UserValue) -> None:
        if self._validator is None:
            return
        error = next(self._validator.iter_errors(value), None)
        if error is not None:
            raise SerdeError(f"`{error.json_path}`: {error.message}")


SHOWN_CHARACTERS: Final = 120
"""The most characters of a schema that an error shows."""


def _data_of(text: str) -> JsonValue:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise SerdeError(f"{text[:SHOWN_CHARACTERS]} is not a JSON Schema: {error}") from error


def _validator_of(data: JsonValue, referenced: Mapping[str, Schema]) -> UserObject:
    try:
        library, referencing = import_module("jsonschema"), import_module("referencing")
    except ImportError as error:
        raise ConfigError(
            f"a JSON Schema of dict needs the extra `json-schema`: {install_command('json-schema')}"
        ) from error
    kind = library.validators.validator_for(data, default=library.Draft7Validator)
    try:
        kind.check_schema(data)
    except library.SchemaError as error:
        raise SerdeError(f"the JSON Schema is invalid: {error.message}") from error
    # A reference without `$schema` is of the draft of the schema that refers to it.
    draft = referencing.jsonschema.specification_with(kind.META_SCHEMA["$schema"])
    documents = [
        (name, referencing.Resource.from_contents(_data_of(each.text), draft))
        for name, each in referenced.items()
    ]
    return kind(data, registry=referencing.Registry().with_resources(documents))
