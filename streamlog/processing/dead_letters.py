"""A dead letter: the record as it was read, with headers that say where from and what failed.

Key, value and headers are the origin's bytes, so that it can be sent there again. Names of headers
are those of Kafka Streams (KIP-1034) where it has one, so that its users' tools find them; numbers
are text. Rule of the file: what comes behind an aggregation on close, or through a repartition
topic, is a record that only the app itself may write; it is told by `INTERNAL`. A record that
is refused for its timestamp becomes a dead letter with the time of its source, so that the letter
can be written wherever it goes; `TIMESTAMP` has its own. Not done here: deciding (`failures`),
sending again (`cli/dlq`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamlog.durations import TIMESTAMP_MS_MAX
from streamlog.processing.outbox import SinkBatch
from streamlog.record import Headers

TOPIC = "__streams.errors.topic"
PARTITION = "__streams.errors.partition"
OFFSET = "__streams.errors.offset"
EXCEPTION = "__streams.errors.exception"
MESSAGE = "__streams.errors.message"
TIMESTAMP = "__streams.errors.timestamp"
NODE = "__streams.errors.node"
ATTEMPT = "__streams.errors.attempt"
SIZE = "__streams.errors.value.bytes"
"""There if the value is left out: it was larger than the topic for dead letters takes."""
INTERNAL = "__streams.errors.internal"
"""There if the origin is no topic that anybody but the app may write to."""
OWN = frozenset(
    {TOPIC, PARTITION, OFFSET, EXCEPTION, MESSAGE, TIMESTAMP, NODE, ATTEMPT, INTERNAL, SIZE}
)
"""What a dead letter has beside the headers of its record."""
MESSAGE_CHARACTERS_MAX = 2_000
"""Of an error's text: it is for people, and a record has a largest size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A record, and what failed on it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    node: str
    error: Exception
    attempt: int
    is_internal: bool = False
    sent_ms: int | None = None
    """Timestamp of the dead letter, if it must not be that of the record."""

    def told(self) -> str:
        """What failed, in a line."""
        name, error = type(self.error).__name__, self.error
        return f"offset {self.offset} of {self.topic}-{self.partition}: {name}: {error}"

    def to(self, topic: str) -> SinkBatch:
        """To be written there."""
        sent_ms = self.timestamp_ms if self.sent_ms is None else self.sent_ms
        # A log may refuse what lies outside the calendar, and no reader could show it.
        sent_ms = min(max(sent_ms, 0), TIMESTAMP_MS_MAX)
        return SinkBatch(topic, None, [sent_ms], [self.key], [self.value], [self._headers()])

    def _headers(self) -> Headers:
        kind = type(self.error)
        own: Iterable[tuple[str, object]] = (
            (TOPIC, self.topic),
            (PARTITION, self.partition),
            (OFFSET, self.offset),
            (TIMESTAMP, self.timestamp_ms),
            (NODE, self.node),
            (EXCEPTION, f"{kind.__module__}.{kind.__qualname__}"),
            (MESSAGE, str(self.error)[:MESSAGE_CHARACTERS_MAX]),
            (ATTEMPT, self.attempt),
            *(((INTERNAL, 1),) if self.is_internal else ()),
        )
        # A record that was replayed and fails again has those of its first failure.
        kept = tuple(header for header in self.headers if header[0] not in OWN)
        return (*kept, *((name, str(value).encode(errors="replace")) for name, value in own))
