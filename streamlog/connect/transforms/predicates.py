"""Predicates: which records a transform applies to; and Filter, which drops those."""

from __future__ import annotations

import msgspec

from streamlog.connect.transforms.routing import java_pattern
from streamlog.serdes.erased_types import AnyRecord


class TopicNameMatches(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the whole name of the topic matches.

    Attributes:
        pattern: a regular expression of Java's.
    """

    pattern: str

    def check(self) -> None:
        """Raise ConfigError if the expression is malformed."""
        java_pattern(self.pattern)

    def holds(self, record: AnyRecord) -> bool:
        """Return whether it matches."""
        return java_pattern(self.pattern).fullmatch(record.topic) is not None


class HasHeaderKey(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the record has a header.

    Attributes:
        name: its name.
    """

    name: str

    def holds(self, record: AnyRecord) -> bool:
        """Return whether it has."""
        return any(name == self.name for name, _ in record.headers)


class RecordIsTombstone(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the record has no value."""

    def holds(self, record: AnyRecord) -> bool:
        """Return whether it has none."""
        return record.value is None


class FilterTransform(msgspec.Struct, frozen=True, kw_only=True):
    """Kafka's `Filter`: leaves out every record that it gets; a predicate says which those are."""

    def __call__(self, _record: AnyRecord, /) -> AnyRecord | None:
        """Return None."""
        return None


AnyPredicate = TopicNameMatches | HasHeaderKey | RecordIsTombstone
