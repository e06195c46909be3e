"""File names: under which path and name the records of a flush are written.

A path is a template such as `{topic}/dt={timestamp:%Y-%m-%d}/`. A file is named by topic, partition
and the first offset in it, so a range of offsets that is written again has the same files.

Rule of the module: what comes from a record is quoted (RFC 3986), so it can't name a directory of
its own, and `..` names none at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from string import Formatter
from typing import Any, TypeAlias
from urllib.parse import quote

from streamlog.connect import BadRecord, Batch, TopicPartition, fields_of
from streamlog.durations import moment
from streamlog.errors import ConfigError

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name of the partition of rows without a value, which Spark and others know."""
NAME_BYTES_MAX = 255
"""The longest name that a value of a record may give, as file systems have it."""
OFFSET_DIGITS = 10
"""Digits of an offset in a name, so that names sort as offsets do (as Confluent's S3 sink)."""
_SECOND_MS = 1_000
_NAMES = "{topic}, {partition}, {timestamp:%Y-%m-%d}, {key} and {value.NAME}"

AnyBatch: TypeAlias = Batch[Any, Any]
TextOf: TypeAlias = Callable[[int], str]
"""Returns a text by the index of a record in its batch."""
Part: TypeAlias = Callable[[AnyBatch], TextOf]
"""A placeholder of a template."""


class PathTemplate:
    """The path of each record's file, without the file's name.

    Args:
        text: the template; "" for no directories.

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
        self._is_of_topic = known <= {"topic", "partition"}
        self._end = "/" if text and not text.endswith("/") else ""

    def is_constant(self, batch: AnyBatch) -> bool:
        """Whether all records of a batch have one path."""
        # A transform may route each record to a topic of its own.
        return self._is_of_topic and len({*batch.topics}) == 1

    def paths_of(self, batch: AnyBatch) -> TextOf:
        """Return what gives the path of a record, with a slash at its end; "" for no directories.

        It raises BadRecord if the record lacks a field that is named, or its value is too long for
        a name.
        """
        parts = [(text, None if part is None else part(batch)) for text, part in self._parts]

        def path(index: int) -> str:
            texts = (text + ("" if text_of is None else text_of(index)) for text, text_of in parts)
            return "".join(texts) + self._end

        return path


def file_name(partition: TopicPartition, first_offset: int, suffix: str) -> str:
    """Return the name of a file of records from an offset on."""
    topic, number = partition
    return f"{topic}+{number}+{first_offset:0{OFFSET_DIGITS}}{suffix}"


def _part(template: str, field: str, spec: str, conversion: str | None) -> Part:
    if not conversion:
        name = field.removeprefix("value.")
        match field:
            case "topic" if not spec:
                return lambda batch: batch.topics.__getitem__
            case "partition" if not spec:
                return _partition_text
            case "timestamp" if spec:
                _check_time(template, spec)
                return lambda batch: _time_texts(batch.times, spec)
            case "key" if not spec:
                return lambda batch: _names("key", batch.keys)
            case _ if name and name != field and not spec:
                return lambda batch: _field_names(name, batch.values)
    raise ConfigError(f"path={template!r}: {{{field}}} is unknown; there are {_NAMES}")


def _partition_text(batch: AnyBatch) -> TextOf:
    text = str(batch.partition.partition)
    return lambda _: text


def _time_texts(times: Sequence[int] | Sequence[datetime], spec: str) -> TextOf:
    # Nearly always, records of one second follow each other: each text is made once.
    unit_ms = 1 if "%f" in spec else _SECOND_MS
    known: dict[int, str] = {}

    def text_of(index: int) -> str:
        time = times[index]
        if isinstance(time, datetime):
            return time.astimezone(UTC).strftime(spec)
        text = known.get(time // unit_ms)
        if text is None:
            text = known[time // unit_ms] = moment(time).strftime(spec)
        return text

    return text_of


def _check_time(template: str, spec: str) -> None:
    # The slashes of a format are wanted: `%Y/%m/%d` makes three directories.
    example = datetime(2025, 1, 31, tzinfo=UTC).strftime(spec)
    if ".." in example.split("/"):
        raise ConfigError(f"path={template!r} leads out of the url: it must be relative")


def _field_names(name: str, values: Sequence[object]) -> TextOf:
    name_of = _remembered(name)

    def text_of(index: int) -> str:
        fields = fields_of(values[index])
        if name not in fields:
            raise BadRecord(f"the value has no field {name}, which the path names")
        return name_of(fields[name])

    return text_of


def _names(name: str, values: Sequence[object]) -> TextOf:
    name_of = _remembered(name)
    return lambda index: name_of(values[index])


def _remembered(name: str) -> Callable[[object], str]:
    """Return `_quoted` of a field, which quotes each text once."""
    known: dict[str, str] = {}

    def name_of(value: object) -> str:
        # Texts alone: 1 and True are equal, and their names are not.
        if not isinstance(value, str):
            return _quoted(name, value)
        found = known.get(value)
        if found is None:
            found = known[value] = _quoted(name, value)
        return found

    return name_of


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
