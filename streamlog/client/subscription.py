"""Subscription: which topics a consumer shares with its group, by name or by pattern.

Pure. A pattern means the topics whose whole name matches, those of the future included; what the
log keeps for itself (`__consumer_offsets`) it never means, such a topic has to be named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from streamlog.errors import UsageError

Topics: TypeAlias = Sequence[str] | re.Pattern[str]
"""What an owner may subscribe to."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Names, or a pattern."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, topics: Topics) -> Self:
        """Check what an owner asks for.

        Raises:
            UsageError: it is one name, or a pattern of bytes.
        """
        if isinstance(topics, re.Pattern):
            if not isinstance(topics.pattern, str):
                raise UsageError(f"topics have names of text: {topics.pattern!r} is of bytes")
            return cls(pattern=topics)
        if isinstance(topics, str):
            raise UsageError(f"subscribe takes a list of topics: [{topics!r}]")
        return cls(names=tuple(sorted(set(topics))))

    def means(self, there: Iterable[str]) -> tuple[str, ...]:
        """The topics, given those that there are besides the log's own."""
        if self.pattern is None:
            return self.names
        return tuple(sorted(name for name in there if self.pattern.fullmatch(name)))
