"""LedShards: the shards of one internal topic, one for each partition that this broker leads.

The hash of a key decides its partition, and the partition's leader serves it. A broker that becomes
leader replays the whole partition before it serves a key (rule G6); a broker that loses the
partition forgets the shard. A client at the wrong broker, or too early, gets Kafka's error codes
and retries. A partition is replayed in slices, so that a large one does not hold up the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.records.batch import RecordBatch, split_batches

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partition, Partitions

S = TypeVar("S")
LOAD_BYTES = 1024 * 1024
"""Bytes per read while loading."""
COMMIT_WAIT_MS = 10
"""The pause before a new leader checks again whether the records in its log are committed."""


class LedShard(msgspec.Struct, Generic[S], frozen=True):
    """A shard that serves requests, and its partition."""

    index: int
    shard: S
    log: Partition


@dataclass(slots=True)
class _Loading(Generic[S]):
    """A shard that is being loaded: replayed up to `offset`, complete at `end_offset`."""

    led: LedShard[S]
    offset: int
    end_offset: int


class LedShards(Generic[S]):
    """The shards of `topic` that this broker serves."""

    def __init__(
        self,
        topic: str,
        partitions: Partitions,
        *,
        make: Callable[[], S],
        replay: Callable[[RecordBatch, S], None],
    ) -> None:
        """`make` returns an empty shard; `replay` passes a batch to it."""
        self.topic = topic
        self._partitions = partitions
        self._make = make
        self._replay = replay
        self._led: dict[int, LedShard[S]] = {}
        self._loading: dict[int, _Loading[S]] = {}

    def __iter__(self) -> Iterator[LedShard[S]]:
        """Iterate over the shards that serve requests."""
        return iter(list(self._led.values()))

    def __len__(self) -> int:
        return len(self._led)

    @property
    def is_loading(self) -> bool:
        """Whether shards are incomplete."""
        return bool(self._loading)

    @property
    def can_load(self) -> bool:
        """Whether `load_on` has something to replay; it waits for uncommitted records."""
        return any(each.offset < each.led.log.high_watermark for each in self._loading.values())

    def lead(self, index: int) -> bool:
        """Start loading the shard of a partition; return whether it is complete already.

        Raises:
            CorruptData: a record is malformed.
            LogDirectoryError: the disk refused.
        """
        log = self._partitions.get(self.topic, index)
        led = LedShard(index, self._make(), log)
        # A new leadership of the same partition starts again: another leader may have written.
        self._led.pop(index, None)
        start, end = log.log.log_start_offset, log.log.log_end_offset
        self._loading[index] = _Loading(led, start, end)
        return self._load(index)

    def resign(self, index: int) -> LedShard[S] | None:
        """Drop the shard of a partition, because another broker leads it.

        Return it if it served.
        """
        self._loading.pop(index, None)
        return self._led.pop(index, None)

    def load_on(self) -> list[int]:
        """Load a slice of each shard; return those that are complete now. Raises as `lead` does."""
        return [index for index in list(self._loading) if self._load(index)]

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When `load_on` has something to do; None for never."""
        if not self._loading:
            return None
        return now_ms if self.can_load else now_ms + COMMIT_WAIT_MS

    def index_of(self, key: str) -> int:
        """Return the partition of a key.

        Raises:
            LogError: COORDINATOR_NOT_AVAILABLE: the topic does not exist yet.
        """
        count = self._partitions.partitions(self.topic)
        if not count:
            raise error_for(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"topic {self.topic} does not exist yet"
            )
        return shard_index(key, count)

    def at(self, index: int) -> LedShard[S]:
        """Return the shard of a partition.

        Raises:
            LogError: NOT_COORDINATOR: another broker leads it; COORDINATOR_LOAD_IN_PROGRESS: it is
                not loaded yet.
        """
        led = self._led.get(index)
        if led is not None:
            return led
        if index in self._loading:
            raise error_for(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{index} is being loaded"
            )
        raise error_for(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{index} is led by another broker")

    def has(self, led: LedShard[S]) -> bool:
        """Whether this shard still serves: it was not lost meanwhile, nor lost and loaded again."""
        return self._led.get(led.index) is led

    def of(self, key: str) -> LedShard[S]:
        """Return the shard of a key. Raises what `index_of` and `at` raise."""
        return self.at(self.index_of(key))

    def _load(self, index: int) -> bool:
        loading = self._loading[index]
        log = loading.led.log
        # Only committed records are replayed. 1. This leader's log ends at 100, its high watermark
        # is still 90. 2. Replayed up to 100, it would answer from records 90-99. 3. If it dies, the
        # next leader may not have them, and clients have seen state that never existed.
        committed = min(loading.end_offset, log.high_watermark)
        if loading.offset < committed:
            found = log.log.read(loading.offset, max_bytes=LOAD_BYTES, before_offset=committed)
            for batch in split_batches(found):
                self._replay(batch, loading.led.shard)
                loading.offset = batch.next_offset
        # `end_offset` is fixed when leadership begins: later records are this leader's own, which
        # are replayed when they are appended.
        if loading.offset < loading.end_offset:
            return False
        del self._loading[index]
        self._led[index] = loading.led
        return True


def shard_index(key: str, count: int) -> int:
    """Return the partition of a key, by the hash of Java's `String.hashCode`, as in Kafka."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    # Java's absolute value; the smallest negative number has none and counts as 0.
    return (code if code < 1 << 31 else ((1 << 32) - code) & 0x7FFFFFFF) % count
