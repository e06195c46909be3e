"""TopicSeal: a topic that takes no records, because another cluster takes it over without loss.

A frozen value, as in `registrations`: a change returns a new one, and each is one record.

A seal begins a leader epoch of all partitions. A leader that knows this epoch takes no records any
more, so the end that it names is final as soon as all of it is committed and no transaction is
open. A leader of an earlier epoch names no end that counts:

1. Broker 1 leads `orders-0` in epoch 5 and ends at 100. The topic is sealed, in epoch 6.
2. Broker 1 has not heard of it, and tells the other cluster: the log ends at 100.
3. It takes record 100, and acknowledges it. The other cluster was promoted without it.

A topic that is unsealed keeps the number of the attempt. A request to seal that was sent before is
older than that, and must not seal the topic once more when no one waits for it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

import msgspec

from streamlog.protocol.messages.metadata_log import TopicSealRecord


class SealState(IntEnum):
    """Whether a topic takes records."""

    OPEN = 0
    """It does: the other cluster has given up, or an operator has unsealed it."""
    SEALED = 1
    """It does not, until the other cluster has taken it over or has given up."""
    MOVED = 2
    """It does not, since the other cluster leads it."""


class TopicSeal(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that was sealed once, and what has become of it."""

    topic_id: bytes
    state: SealState
    target_cluster_id: str
    """The cluster that takes it over."""
    attempt: int
    """The number of the promotion there, see `MirrorTopic.attempt`."""
    since_ms: int = 0
    """When the state began, in ms since 1970."""

    @property
    def is_closed(self) -> bool:
        """Whether the topic takes no records."""
        return self.state is not SealState.OPEN

    def record(self) -> TopicSealRecord:
        """Return the seal as a record."""
        return TopicSealRecord(
            topic_id=self.topic_id,
            state=self.state,
            target_cluster_id=self.target_cluster_id,
            attempt=self.attempt,
            since_ms=self.since_ms,
        )

    @classmethod
    def of_record(cls, record: TopicSealRecord) -> Self:
        """Return the seal in a record.

        Raises:
            ValueError: the state is not one of `SealState`.
        """
        return cls(
            topic_id=record.topic_id,
            state=SealState(record.state),
            target_cluster_id=record.target_cluster_id,
            attempt=record.attempt,
            since_ms=record.since_ms,
        )
