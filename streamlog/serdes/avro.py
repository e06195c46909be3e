"""Avro by fastavro, the extra `avro`: a head that names the schema, then the value.

The head is the schema's fingerprint (Avro's single-object encoding), or the id that a schema
registry has given it (Confluent's wire format), for topics that other programs write.

Rule: bytes are read with the schema that they were written with, and resolved to the newest schema
by Avro's rules (fields with defaults, promoted numbers, aliases). Bytes of a schema that was not
passed are refused. Not done here: requests to a registry.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from types import ModuleType
from typing import Generic, Self, cast

import msgspec

from streamlog.errors import ConfigError, SerdeError, quantity
from streamlog.metrics.build_info import install_command
from streamlog.serdes.erased_types import JsonValue, UserObject
from streamlog.serdes.json_values import is_model
from streamlog.serdes.serde import T, type_name, unreadable_error

Schema = Mapping[str, JsonValue] | Sequence[JsonValue] | str
"""A schema as data (a union is a list), or as JSON text."""

SINGLE_OBJECT = b"\xc3\x01"
"""The marker before a fingerprint (Avro 1.8.2, single-object encoding)."""
REGISTERED = b"\x00"
"""The marker before the id of a registry (Confluent's wire format)."""
FINGERPRINT_BYTES = 8
PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
"""Names that are schemas by themselves."""
SHOWN_CHARACTERS = 120
"""The most characters of a schema that an error shows."""
_NAME = re.compile(r"[\w./\\:-]+")
_ID = struct.Struct(">cI")
_KEPT = (bytes, bytearray, datetime, date, time, timedelta, Decimal)
"""Types that fastavro writes itself, by logical types."""


class AvroSerde(Generic[T]):
    """Values of one type as Avro.

    Example:
        >>> from streamlog.serdes import AvroSerde
        >>> fields = [{"name": "shop", "type": "string"}]
        >>> sale = AvroSerde({"type": "record", "name": "Sale", "fields": fields}, dict)
        >>> sale.loads(sale.dumps({"shop": "ulm"}))
        {'shop': 'ulm'}
    """

    def __init__(self, schema: Schema, into: type[T], *, older: Sequence[Schema] = ()) -> None:
        """Make a serde whose bytes begin with the fingerprint of their schema.

        Args:
            schema: the schema to write with.
            into: the type of the values: dict, a dataclass, Struct, TypedDict or a model of
                pydantic.
            older: earlier schemas, whose bytes can be read too.

        Raises:
            ConfigError: fastavro is not installed.
            SerdeError: one of the schemas is not an Avro schema.
        """
        library = load_fastavro()
        schemas: dict[bytes, JsonValue] = {}
        for each in (schema, *older):
            parsed = _parse_schema(library, each)
            # Schemas that differ only in names or defaults have equal bytes and one fingerprint:
            # the newest one, which comes first, counts.
            schemas.setdefault(_fingerprint(library, parsed), parsed)
        self._take_over(library, schemas, into)

    @classmethod
    def registered(cls, schemas: Mapping[int, Schema], into: type[T]) -> Self:
        """Make a serde whose bytes begin with the id of their schema in a registry.

        Args:
            schemas: the schemas by id, the newest first; values are written with that one.
            into: as for `AvroSerde`.

        Raises:
            ConfigError: `schemas` is empty, or fastavro is not installed.
            SerdeError: one of the schemas is not an Avro schema.
        """
        if not schemas:
            raise ConfigError("AvroSerde.registered needs at least one schema with its id")
        library = load_fastavro()
        found = {_ID.pack(REGISTERED, id_): _parse_schema(library, s) for id_, s in schemas.items()}
        serde = cls.__new__(cls)
        serde._take_over(library, found, into)  # noqa: SLF001 - its own class
        return serde

    @property
    def form(self) -> object:
        """The heads of all schemas in hexadecimal digits, the newest first."""
        return {"avro": [head.hex() for head in self._schemas]}

    def dumps(self, obj: T) -> bytes:
        """Serialize a value with the newest schema; a value of another schema is refused."""
        written = io.BytesIO()
        written.write(self._head)
        try:
            self._library.schemaless_writer(written, self._schema, self._plain(obj), strict=True)
        except self._errors as error:
            raise SerdeError(f"{self._type_name} can't be written as Avro: {error}") from error
        return written.getvalue()

    def loads(self, data: bytes) -> T:
        """Deserialize a value that was written with any of the schemas."""
        # The heads of all schemas of one serde have one length: 10 bytes with a fingerprint, 5 with
        # an id.
        head = data[: len(self._head)]
        schema = self._schemas.get(head)
        if schema is None:
            raise unreadable_error(
                self._type_name,
                data,
                "it was written with a schema that is not known here: pass it in `older`, or by id",
            )
        read = io.BytesIO(data)
        read.seek(len(head))
        # Values of an older schema are resolved to the newest one; without a target, fastavro reads
        # the value as it was written.
        target = None if schema is self._schema else self._schema
        try:
            found = self._library.schemaless_reader(read, schema, target)
            # Avro has no length of its own: bytes that are left over show a wrong schema or damage.
            if read.tell() != len(data):
                raise ValueError(f"{quantity(len(data) - read.tell(), 'byte')} left over")
            return self._typed(found)
        except self._errors as error:
            raise unreadable_error(
                self._type_name, data, f"{type(error).__name__}: {error}"
            ) from error

    def _take_over(
        self, library: ModuleType, schemas: dict[bytes, JsonValue], into: type[T]
    ) -> None:
        self._library = library
        self._schemas = schemas
        self._head, self._schema = next(iter(schemas.items()))
        self._type_name = type_name(into)
        self.declared: object = into
        self.is_binary = True
        self._model: UserObject = (
            import_module("pydantic").TypeAdapter(into) if is_model(into) else None
        )
        # Damaged bytes make fastavro raise errors of many kinds.
        self._errors = (
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            EOFError,
            RecursionError,
            struct.error,
            library.read.SchemaResolutionError,
        )

    def _plain(self, obj: T) -> object:
        if not isinstance(obj, cast("type", dict if self._is_dict else self.declared)):
            raise TypeError(f"{self._type_name} expected, got {type(obj).__name__}")
        if self._model is not None:
            return self._model.dump_python(obj)
        return obj if self._is_dict else msgspec.to_builtins(obj, builtin_types=_KEPT)

    def _typed(self, found: object) -> T:
        if self._model is not None:
            return cast("T", self._model.validate_python(found))
        if self.declared is dict:
            return cast("T", found)
        return msgspec.convert(found, cast("type[T]", self.declared))

    @property
    def _is_dict(self) -> bool:
        return self.declared is dict or hasattr(self.declared, "__total__")


def load_fastavro() -> ModuleType:
    """Return fastavro.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module("fastavro")
    except ImportError as error:
        raise ConfigError(f"AvroSerde needs the extra `avro`: {install_command('avro')}") from error


def _parse_schema(library: ModuleType, schema: Schema) -> JsonValue:
    plain = _plain_schema(schema)
    try:
        return library.parse_schema(plain)
    except library.schema.UnknownType as error:
        raise SerdeError(
            f"{_format_schema(schema)} is not an Avro schema: it names the type {error.name!r}, "
            "which is neither one of Avro's nor defined in it: replace the first use of the name "
            "with the definition"
        ) from error
    except (ValueError, TypeError, LookupError, library.schema.SchemaParseException) as error:
        raise SerdeError(
            f"{_format_schema(schema)} is not an Avro schema: {type(error).__name__}: {error}"
        ) from error


def _plain_schema(schema: Schema) -> object:
    """Return a schema as dicts, lists and names.

    Raises:
        SerdeError: the schema is neither data nor JSON text.
    """
    if isinstance(schema, Mapping):
        return dict(schema)
    if isinstance(schema, list | tuple):
        return list(schema)
    if not isinstance(schema, str):
        raise SerdeError(
            f"an Avro schema is a dict, a list (a union) or JSON text, not {type(schema).__name__}"
        )
    if schema in PRIMITIVES:
        return schema
    try:
        return msgspec.json.decode(schema)
    except msgspec.DecodeError as error:
        if _NAME.fullmatch(schema):
            raise SerdeError(
                f"{schema!r} is a name, not an Avro schema: give the schema itself, as a dict or "
                "as JSON text (of a file: Path('NAME.avsc').read_text())"
            ) from error
        raise SerdeError(f"{_format_schema(schema)} is not an Avro schema: {error}") from error


def _format_schema(schema: object) -> str:
    text = schema if isinstance(schema, str) else repr(schema)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _fingerprint(library: ModuleType, schema: JsonValue) -> bytes:
    canonical = library.schema.to_parsing_canonical_form(schema)
    return SINGLE_OBJECT + bytes.fromhex(library.schema.fingerprint(canonical, "CRC-64-AVRO"))
