"""File names: under which path and name the records of a flush are written.

A path is a template such as `{topic}/dt={timestamp:%Y-%m-%d}/`. A file is named by topic, partition
and the first offset in it, so a range of offsets that is written again has the same files.

Rule of the module: what comes from a record is quoted (RFC 3986), so it can't name a directory of
its own, and `..` names none at all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from string import Formatter
from typing import TypeAlias
from urllib.parse import quote

from streamlog.connect import BadRecord, TopicPartition, fields_of
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import AnyRecord

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name of the partition of rows without a value, which Spark and others know."""
NAME_BYTES_MAX = 255
"""The longest name that a value of a record may give, as file systems have it."""
OFFSET_DIGITS = 10
"""Digits of an offset in a name, so that names sort as offsets do (as Confluent's S3 sink)."""
_NAMES = "{topic}, {partition}, {timestamp:%Y-%m-%d}, {key} and {value.NAME}"

Part: TypeAlias = Callable[[AnyRecord], str]


class PathTemplate:
    """The path of a record's file, without the file's name.

    Args:
        text: the template; "" for no directories.

    Attributes:
        is_constant: whether all records of a partition have the same path.

    Raises:
        ConfigError: the template is absolute, leads upwards, or names something unknown.
    """

    def __init__(self, text: str) -> None:
        if text.startswith("/") or ".." in text.split("/"):
            raise ConfigError(f"path={text!r} leads out of the url: it must be relative")
        try:
            parsed = [*Formatter().parse(text)]
        except ValueError as error:
            raise ConfigError(f"path={text!r} is no template: {error}") from error
        self._parts: list[tuple[str, Part | None]] = []
        for literal, field, spec, conversion in parsed:
            part = None if field is None else _part(text, field, spec or "", conversion)
            self._parts.append((literal, part))
        known = {field for _, field, _, _ in parsed if field is not None}
        self.is_constant = known <= {"topic", "partition"}
        self._end = "/" if text and not text.endswith("/") else ""

    def path(self, record: AnyRecord) -> str:
        """Return the path of a record, with a slash at its end; "" for no directories.

        Raises:
            BadRecord: the record lacks a field that is named, or its value is too long for a name.
        """
        return (
            "".join(text + ("" if part is None else part(record)) for text, part in self._parts)
            + self._end
        )


def file_name(partition: TopicPartition, first_offset: int, suffix: str) -> str:
    """Return the name of a file of records from an offset on."""
    topic, number = partition
    return f"{topic}+{number}+{first_offset:0{OFFSET_DIGITS}}{suffix}"


def _part(template: str, field: str, spec: str, conversion: str | None) -> Part:
    if not conversion:
        name = field.removeprefix("value.")
        match field:
            case "topic" if not spec:
                return lambda record: record.topic
            case "partition" if not spec:
                return lambda record: str(record.partition)
            case "timestamp" if spec:
                _check_time(template, spec)
                return lambda record: record.timestamp.astimezone(UTC).strftime(spec)
            case "key" if not spec:
                return lambda record: _quoted("key", record.key)
            case _ if name and name != field and not spec:
                return lambda record: _quoted(name, _field(record, name))
    raise ConfigError(f"path={template!r}: {{{field}}} is unknown; there are {_NAMES}")


def _check_time(template: str, spec: str) -> None:
    # The slashes of a format are wanted: `%Y/%m/%d` makes three directories.
    example = datetime(2025, 1, 31, tzinfo=UTC).strftime(spec)
    if ".." in example.split("/"):
        raise ConfigError(f"path={template!r} leads out of the url: it must be relative")


def _field(record: AnyRecord, name: str) -> object:
    fields = fields_of(record.value)
    if name not in fields:
        raise BadRecord(f"the value has no field {name}, which the path names")
    return fields[name]


def _quoted(name: str, value: object) -> str:
    if value is None or value == "":
        return NULL_NAME
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    # A dot is not quoted by RFC 3986, but a name of dots alone is a way upwards.
    found = quote(text, safe=" ")
    if not found.strip("."):
        found = found.replace(".", "%2E")
    if len(found) > NAME_BYTES_MAX:
        raise BadRecord(f"{name} is too long for a name: {len(found)} of {NAME_BYTES_MAX} bytes")
    return found
