r"""RecordFormat: a record as a line, as JSON, or by a format like kcat's; and back from JSON.

    %t topic, %p partition, %o offset, %T milliseconds since 1970, %d date and time in UTC,
    %k key, %v or %s value, %K and %S their bytes (-1: null), %h headers, %% a percent sign,
    \n \r \t \\, \x41 and \101 characters

`RecordView` decodes keys and values: by the app's types, by the schemas of a registry, or not at
all. Rules of the module: what a client has written is escaped, so a record is one line and can't
control a terminal; what `as_object` makes of bytes, `raw_bytes` turns into the same bytes again.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, TypeAlias

import msgspec

from streamlog.cli.output.plain_text import one_line, text_of
from streamlog.console.record_filter import FilteredRecord
from streamlog.console.shown_records import filtered
from streamlog.durations import moment
from streamlog.errors import SerdeError, UsageError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.schemas import SchemaType
from streamlog.serdes import Serde
from streamlog.serdes.avro import AvroSerde
from streamlog.serdes.registered.framing import ID_BYTES, SchemaKey
from streamlog.serdes.registered.schema_source import RegisteredSchema

Json: TypeAlias = Any
NULL_BYTES: Final = -1
BASE64: Final = "base64"
SCHEMAS_MAX: Final = 10_000
"""Schemas that one command keeps."""


class RegistrySchemas:
    """Decodes what serializers of a schema registry have written, by the schemas' ids."""

    def __init__(self, find: Callable[[SchemaKey], RegisteredSchema]) -> None:
        """`find` returns a schema by its id; each is asked for once."""
        self._find = find
        self._readers: dict[int, Callable[[bytes], Json]] = {}

    def decode(self, data: bytes) -> Json:
        """Return the value in framed bytes; other bytes as `plain_bytes` does.

        Raises:
            SerdeError: the bytes do not fit their schema.
            ConfigError: the library of the schema's format is not installed.
            StreamlogError: the registry does not know the schema, or does not answer.
        """
        if not is_framed(data):
            return plain_bytes(data)
        number = int.from_bytes(data[1:ID_BYTES], "big")
        # Ids are never given twice, so what was read once stays true.
        if number not in self._readers:
            if len(self._readers) >= SCHEMAS_MAX:
                self._readers.clear()
            self._readers[number] = _reader(self._find(SchemaKey(number)))
        return self._readers[number](data)


def _reader(written: RegisteredSchema) -> Callable[[bytes], Json]:
    schema = written.schema
    # Unlike JSON, this keeps NaN; but it knows one schema alone.
    if schema.type == SchemaType.AVRO and not written.referenced:
        serde = AvroSerde.registered({written.id: schema.text}, dict)
        return lambda data: _finite(msgspec.to_builtins(serde.loads(data), enc_hook=_plain))
    from streamlog.serdes.registered.written_values import json_reader  # noqa: PLC0415 - loads slowly

    read = json_reader(written)

    def decode(data: bytes) -> Json:
        try:
            return json.loads(read(data, ID_BYTES))
        except (ValueError, RecursionError) as error:
            raise SerdeError(f"the bytes behind the schema's id are not JSON: {error}") from error

    return decode


class RecordView:
    """How keys and values of records are read: by types, by schemas, or as they are."""

    def __init__(
        self, spec: TopicSpec | None = None, schemas: RegistrySchemas | None = None
    ) -> None:
        self._key: Serde[Any] | None = None if spec is None else spec.key
        self._value: Serde[Any] | None = None if spec is None else spec.value
        self._schemas = schemas

    @property
    def decodes(self) -> bool:
        """Whether keys and values have types or schemas."""
        return self._key is not None or self._schemas is not None

    def key(self, record: LogRecord) -> Json:
        """Return the key as data of JSON."""
        return self._data(record.key, self._key)

    def value(self, record: LogRecord) -> Json:
        """Return the value as data of JSON."""
        return self._data(record.value, self._value)

    def texts(self, record: LogRecord, null: str = "-") -> tuple[str, str]:
        """Return key and value as text on one line."""
        key = self._text(record.key, self._key, null)
        return key, self._text(record.value, self._value, null)

    def filtered(self, partition: int, record: LogRecord) -> FilteredRecord:
        """Return the record as a condition sees it."""
        found = filtered(partition, record)
        # Without types, what looks like JSON is JSON, as in the console.
        if not self.decodes:
            return found
        return msgspec.structs.replace(found, key=self.key(record), value=self.value(record))

    def _data(self, data: bytes | None, serde: Serde[Any] | None) -> Json:
        if data is None:
            return None
        if serde is not None:
            plain = msgspec.to_builtins(serde.loads(data), str_keys=True, enc_hook=_plain)
            return _finite(plain)
        return plain_bytes(data) if self._schemas is None else self._schemas.decode(data)

    def _text(self, data: bytes | None, serde: Serde[Any] | None, null: str) -> str:
        if data is None:
            return null
        if serde is not None:
            return one_line(_readable(serde.loads(data)))
        if self._schemas is None or not is_framed(data):
            return text_of(data)
        found = self._schemas.decode(data)
        return one_line(found) if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _readable(obj: object) -> str:
    """Return a key or value as people read and write it: text as it is, all else as JSON."""
    if isinstance(obj, bytes):
        return str(obj)
    plain = _finite(msgspec.to_builtins(obj, str_keys=True, enc_hook=_plain))
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def is_framed(data: bytes) -> bool:
    """Return whether bytes begin with the id of a schema."""
    return len(data) >= ID_BYTES and data[0] == 0


def plain_bytes(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as text; those that are no text become an object with their base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {BASE64: b64encode(data).decode()}


def raw_bytes(plain: Json) -> bytes | None:
    """Return the bytes that `plain_bytes` has shown.

    Raises:
        UsageError: it is something else.
    """
    match plain:
        case None:
            return None
        case str():
            return plain.encode()
        case {"base64": str(text)} if len(plain) == 1:
            try:
                return b64decode(text, validate=True)
            except (Base64Error, ValueError) as error:
                raise UsageError(f"the base64 is malformed: {error}") from error
        case _:
            raise UsageError(
                "it is decoded, so it needs the types of an app (-A): without them, it is text,"
                ' {"base64": TEXT} or null'
            )


def as_object(part: TopicPartition, record: LogRecord, view: RecordView) -> dict[str, Json]:
    """Return a record as a JSON object; bytes that are not text become their base64."""
    return {
        "topic": part.topic,
        "partition": part.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": view.key(record),
        "value": view.value(record),
        # Pairs, because several headers of a record may have one name.
        "headers": [[name, plain_bytes(data)] for name, data in record.headers],
    }


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any type that a serde knows
    # Pydantic's models know their JSON form; other types are shown as text.
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump(mode="json")


def _finite(plain: Json) -> Json:
    """Replace NaN and infinity by text, because JSON has neither."""
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_finite(value) for value in plain]
    return str(plain) if isinstance(plain, float) and not isfinite(plain) else plain


Part: TypeAlias = Callable[[TopicPartition, LogRecord, "tuple[str, str]"], str]
"""Makes one part of a line; the pair has key and value as text."""

_TOKEN: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.?)", re.DOTALL)
_ESCAPES: Final[Mapping[str, str]] = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
_PARTS: Final[Mapping[str, Part]] = {
    "t": lambda part, _record, _texts: part.topic,
    "p": lambda part, _record, _texts: str(part.partition),
    "o": lambda _part, record, _texts: str(record.offset),
    "T": lambda _part, record, _texts: str(record.timestamp_ms),
    "d": lambda _part, record, _texts: moment(record.timestamp_ms).isoformat("T", "milliseconds"),
    "k": lambda _part, _record, texts: texts[0],
    "v": lambda _part, _record, texts: texts[1],
    "s": lambda _part, _record, texts: texts[1],
    "K": lambda _part, record, _texts: _size(record.key),
    "S": lambda _part, record, _texts: _size(record.value),
    "h": lambda _part, record, _texts: _headers(record),
    "%": lambda _part, _record, _texts: "%",
}


class RecordFormat:
    """A format of lines, with the tokens of the module."""

    def __init__(self, text: str) -> None:
        """Parse a format.

        Raises:
            UsageError: it has an unknown token.
        """
        self._parts: list[Part | str] = []
        end = 0
        for found in _TOKEN.finditer(text):
            self._parts += [text[end : found.start()], _part(found)]
            end = found.end()
        self._parts.append(text[end:])

    def line(self, part: TopicPartition, record: LogRecord, view: RecordView) -> str:
        """Return a record as a line, with its line break."""
        texts = view.texts(record, null="")
        found = "".join(
            each if isinstance(each, str) else each(part, record, texts) for each in self._parts
        )
        # kcat's formats end with \n, and without one its records run into each other.
        return found if found.endswith("\n") else f"{found}\n"


def _part(found: re.Match[str]) -> Part | str:
    token, escape = found[1], found[2]
    if token is not None:
        if token in _PARTS:
            return _PARTS[token]
        known = " ".join(f"%{each}" for each in _PARTS)
        raise UsageError(f"--format has no token {found[0]!r}; it has {known}")
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    if escape[:1] == "x" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    if escape.isdecimal():
        return chr(int(escape, 8))
    raise UsageError(rf"--format has no escape {found[0]!r}; it has \n \r \t \\ \x41 \101")


def _size(data: bytes | None) -> str:
    return str(NULL_BYTES if data is None else len(data))


def _headers(record: LogRecord) -> str:
    pairs = ((name, "NULL" if data is None else text_of(data)) for name, data in record.headers)
    return ",".join(f"{text_of(name.encode())}={text}" for name, text in pairs)
