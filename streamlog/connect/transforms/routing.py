"""Routing: transforms that give a record another topic."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.java_values import moment_ms
from streamlog.connect.schema_record import with_topic
from streamlog.connect.transforms.date_formats import DateFormat
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import AnyRecord

_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_REFERENCE: Final = re.compile(r"\\(.)|\$\{([A-Za-z][A-Za-z0-9]*)\}|\$(\d+)", re.DOTALL)


@lru_cache(maxsize=1_000)
def java_pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression of Java's.

    Raises:
        ConfigError: it is malformed, or uses what Python's have not.
    """
    try:
        return re.compile(_NAMED_GROUP.sub("(?P<", text))
    except re.error as error:
        raise ConfigError(f"{text!r} is no regular expression: {error}") from None


class RegexRouter(msgspec.Struct, frozen=True, kw_only=True):
    """Renames the topic by a regular expression.

    Attributes:
        regex: the expression, of Java's kind; the whole name has to match.
        replacement: the new name; `$1` or `${name}` stand for groups.
    """

    regex: str
    replacement: str

    def check(self) -> None:
        """Raise ConfigError if the expression is malformed."""
        java_pattern(self.regex)

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with its new topic."""
        return with_topic(record, self.renamed(record.topic))

    def renamed(self, topic: str) -> str:
        """Return the new name of a topic, or its own if the expression does not match it.

        Raises:
            BadRecord: the replacement refers to a group that the expression does not have.
        """
        found = java_pattern(self.regex).fullmatch(topic)
        return topic if found is None else self._replaced(found)

    def _replaced(self, found: re.Match[str]) -> str:
        def text_of(reference: re.Match[str]) -> str:
            escaped, name, digits = reference.groups()
            # A backslash makes the next character plain, `$` and itself included.
            if escaped is not None:
                return str(escaped)
            try:
                return _group(found, str(digits)) if name is None else found[name] or ""
            except IndexError:
                raise BadRecord(
                    f"replacement {self.replacement!r}: there is no such group"
                ) from None

        return _REFERENCE.sub(text_of, self.replacement)


class TimestampRouter(msgspec.Struct, frozen=True, kw_only=True):
    """Puts the record's time into the name of its topic.

    Attributes:
        topic_format: the new name; `${topic}` and `${timestamp}` stand for the topic and the time.
        timestamp_format: how the time is written, as Java's SimpleDateFormat has it; UTC.
    """

    topic_format: str = "${topic}-${timestamp}"
    timestamp_format: str = "yyyyMMdd"

    def check(self) -> None:
        """Raise ConfigError if the format is malformed."""
        DateFormat(self.timestamp_format)

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with its new topic."""
        when = DateFormat(self.timestamp_format).text(moment_ms(record.timestamp))
        named = self.topic_format.replace("${topic}", record.topic)
        return with_topic(record, named.replace("${timestamp}", when))


def _group(found: re.Match[str], digits: str) -> str:
    """Return a group by its number; Java takes as many digits as give a group that there is."""
    # "$12" is group 12 if there are 12 groups, else group 1 and a 2 behind it.
    groups = found.re.groups
    length = 1
    while length < len(digits) and int(digits[: length + 1]) <= groups:
        length += 1
    return (found[int(digits[:length])] or "") + digits[length:]
