"""Partition: one partition as its leader serves it, and Partitions, all that this broker has.

A thin layer over `PartitionLog` that knows what may be shown: with one node everything that is
in the log is committed, so the high watermark is the log's end. Rule of the file: whatever is
appended, by a producer or by a coordinator, goes through `Partition.append`, which tells the
one listener, so that nobody who waits for bytes has to poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamlog.errors import OffsetOutOfRange
from streamlog.protocol.error_codes import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamlog.broker.storage.log_directory import LogDirectory, TopicState
    from streamlog.broker.storage.partition_log import AppendResult, PartitionLog
    from streamlog.protocol.schema import Buffer

NO_EPOCH = -1
"""The leader epoch of a client that does not know any: it is not checked."""


HIGH_WATERMARK = -1
"""Of a deletion: up to there."""


class AppendListener(Protocol):
    """Who is told that there is more to read, or that there will be no more."""

    def on_append(self, topic: str, partition: int, size_bytes: int) -> None:
        """Bytes were appended."""
        ...

    def on_gone(self, topic: str, partition: int) -> None:
        """The partition was deleted."""
        ...


class Partition:
    """One partition, led by this broker."""

    def __init__(self, topic: str, index: int, log: PartitionLog, listener: AppendListener) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self._listener = listener

    @property
    def high_watermark(self) -> int:
        """Records below this offset are committed: consumers may see them."""
        return self.log.log_end_offset

    def check_epoch(self, leader_epoch: int) -> None:
        """Compare the epoch in a request with ours (KIP-320).

        Raises:
            LogError: FENCED_LEADER_EPOCH, the client has missed an election;
                UNKNOWN_LEADER_EPOCH, this broker has.
        """
        current = self.log.leader_epoch
        if leader_epoch in (NO_EPOCH, current):
            return
        older = leader_epoch < current
        raise error_for(
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic}-{self.index}: leader epoch {leader_epoch}, the current one is {current}",
        )

    def append(self, data: Buffer, *, now_ms: int, wall_ms: int | None = None) -> AppendResult:
        """Append batches and tell the listener. See `PartitionLog.append`, and what it raises."""
        result = self.log.append(data, now_ms=now_ms, wall_ms=wall_ms)
        if not result.duplicate:
            self._listener.on_append(self.topic, self.index, len(data))
        return result

    def delete_before(self, offset: int) -> None:
        """Delete the records below `offset`; -1 means all that consumers may see.

        It is for good once the directory has written its checkpoints.

        Raises:
            OffsetOutOfRange: consumers can't see that far.
            LogDirectoryError: the log has failed.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index}: offset {offset} is beyond the high watermark"
                f" {self.high_watermark}"
            )
        self.log.advance_start(self.high_watermark if offset == HIGH_WATERMARK else offset)


class Partitions:
    """The partitions of this broker, found by topic and number."""

    def __init__(self, directory: LogDirectory, listener: AppendListener) -> None:
        self._directory = directory
        self._listener = listener
        self._served: dict[tuple[str, int], Partition] = {}

    def get(self, topic: str, index: int) -> Partition:
        """The partition.

        Raises:
            UnknownTopicOrPartition: it is not there.
        """
        partition = self._served.get((topic, index))
        if partition is None:
            log = self._directory.log(topic, index)
            partition = self._served[topic, index] = Partition(topic, index, log, self._listener)
        return partition

    def exists(self, topic: str, index: int) -> bool:
        """Whether there is such a partition."""
        state = self._directory.topics.get(topic)
        return state is not None and 0 <= index < len(state.partitions)

    def create(self, name: str, count: int, configs: Mapping[str, str]) -> TopicState:
        """Make a topic of `count` partitions. Raises what `LogDirectory.create_topic` raises."""
        return self._directory.create_topic(name, count, configs)

    def delete(self, name: str) -> None:
        """Delete a topic; whoever waits for it is told."""
        count = len(self._directory.topics[name].partitions)
        self._directory.delete_topic(name)
        for index in range(count):
            self._served.pop((name, index), None)
            self._listener.on_gone(name, index)
