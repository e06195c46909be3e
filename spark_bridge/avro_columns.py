"""Avro columns: the Spark type of an Avro schema, and values of it.

Each value is read by the schema that it names, and resolved to the topic's latest version, as
Spark's `from_avro` does with a registry. Times of day are numbers and UUIDs text, as there.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from streamlog.errors import ConfigError, SerdeError
from streamlog.registry_client import SchemaBook
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.avro import load_fastavro
from streamlog.serdes.registered.framing import head_size, read_key

_SIMPLE: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
}
_LOGICAL: Final = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
"""Logical types that Spark has; the others are read as the types below them."""
_KEPT: Final = {*_LOGICAL, "decimal"}
_NESTING_MAX: Final = 100
Data = Any
"""A schema as data."""


class AvroColumns:
    """The values of one topic in Avro."""

    def __init__(self, book: SchemaBook, latest: Schema, referenced: Mapping[str, Schema]) -> None:
        self._book = book
        self._latest = latest
        self._library = load_fastavro()
        self._referenced = referenced
        self._target = self._parse(latest, referenced)
        self._parsed: dict[bytes, Data] = {}

    def spark_type(self, topic: str) -> str:
        """Return the Spark type of values; `topic` is for messages.

        Raises:
            ConfigError: Spark has no such type.
        """
        return _Columns(self._named(self._referenced)).of(_data(self._latest), topic, 0)

    def decode(self, data: bytes) -> object:
        """Return a value.

        Raises:
            SerdeError: it can't be read.
        """
        size = head_size(data)
        schema = self._parsed.get(data[:size])
        if schema is None:
            found = self._book.find(read_key(data, "a value with a schema"))
            if found.schema.type is not SchemaType.AVRO:
                raise SerdeError(f"its schema is {found.schema.type}, and not Avro")
            schema = self._parse(found.schema, found.referenced)
            self._parsed[data[:size]] = schema
        buffer = io.BytesIO(data)
        buffer.seek(size)
        try:
            return self._library.schemaless_reader(buffer, schema, self._target)
        except (
            LookupError,
            EOFError,
            ArithmeticError,
            self._library.read.SchemaResolutionError,
        ) as error:
            # Damaged bytes: errors of other kinds are known to the caller.
            raise SerdeError(f"{type(error).__name__}: {error}") from error

    def _parse(self, schema: Schema, referenced: Mapping[str, Schema]) -> Data:
        return self._library.parse_schema(_data(schema), self._named(referenced))

    def _named(self, referenced: Mapping[str, Schema]) -> dict[str, Data]:
        named: dict[str, Data] = {}
        # In the order of the client: each after those that it refers to.
        for each in referenced.values():
            self._library.parse_schema(_data(each), named)
        return named


def _data(schema: Schema) -> Data:
    text = schema.text
    return _without_logical(msgspec.json.decode(text) if text[:1] in '{["' else text)


def _without_logical(data: Data) -> Data:
    """Return a schema without the logical types that Spark lacks."""
    if isinstance(data, list):
        return [_without_logical(each) for each in data]
    if not isinstance(data, dict):
        return data
    return {
        # A default is a value and no schema, even if it looks like one.
        name: part if name == "default" else _without_logical(part)
        for name, part in data.items()
        if name != "logicalType" or part in _KEPT
    }


class _Columns:
    """The Spark type of one schema."""

    def __init__(self, named: Mapping[str, Data]) -> None:
        self._named = dict(named)

    def of(self, data: Data, where: str, depth: int) -> str:
        if depth > _NESTING_MAX:
            raise ConfigError(f"{where}: Spark has no types that contain themselves: read bytes")
        if isinstance(data, list):
            return self._union(data, where, depth)
        if isinstance(data, str) and data not in _SIMPLE:
            if data not in self._named:
                raise ConfigError(f"{where} has a type that Spark lacks ({data}): read bytes")
            return self.of(self._named[data], where, depth + 1)
        kind = data if isinstance(data, str) else data["type"]
        if not isinstance(kind, str):
            return self.of(kind, where, depth + 1)
        return self._complex(kind, data, where, depth)

    def _complex(self, kind: str, data: Data, where: str, depth: int) -> str:
        if kind == "record":
            self._note(data)
            fields = [(each["name"], each["type"]) for each in data["fields"]]
            columns = (
                f"`{name}`: {self.of(part, f'{where}.{name}', depth + 1)}" for name, part in fields
            )
            return f"struct<{', '.join(columns)}>"
        if kind == "array":
            return f"array<{self.of(data['items'], f'{where}[]', depth + 1)}>"
        if kind == "map":
            return f"map<string, {self.of(data['values'], f'{where}[]', depth + 1)}>"
        logical = data.get("logicalType") if isinstance(data, dict) else None
        if logical == "decimal":
            return f"decimal({data['precision']}, {data.get('scale', 0)})"
        if kind in {"enum", "fixed"}:
            self._note(data)
        return _LOGICAL.get(str(logical)) or _SIMPLE.get(kind) or self.of(kind, where, depth + 1)

    def _note(self, data: Data) -> None:
        name = data["name"]
        self._named[name] = data
        if data.get("namespace") and "." not in name:
            self._named[f"{data['namespace']}.{name}"] = data

    def _union(self, members: list[Data], where: str, depth: int) -> str:
        # Null and X is X: every column of Spark may be NULL.
        found = {self.of(each, where, depth + 1) for each in members if each != "null"}
        if len(found) != 1:
            raise ConfigError(f"{where} has a type that Spark lacks (a union): read bytes")
        return found.pop()
