"""LedShards: the shards of one internal topic, one for each of its partitions that is led here.

A key belongs to a partition by its hash, and to the broker that leads it. Becoming its leader,
a broker replays what the partition held by then before it answers for any key in it (rule G6);
losing it, it forgets everything: the next leader does the same. Whoever asks at the wrong broker,
or too early, is told so with Kafka's codes, and asks again.
A partition is replayed in slices, so that one with much in it does not keep the loop from others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.records.batch import RecordBatch, split_batches

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partition, Partitions

S = TypeVar("S")
LOAD_BYTES = 1024 * 1024
"""Read at a time while loading."""
COMMIT_WAIT_MS = 10
"""Before it is looked again whether what a new leader found in its log is committed."""


@dataclass(frozen=True, slots=True)
class Led(Generic[S]):
    """A shard that answers, and the partition that holds what it knows."""

    index: int
    shard: S
    log: Partition


@dataclass(slots=True)
class _Loading(Generic[S]):
    """A shard on its way into memory: replayed up to `offset`, complete at `end_offset`."""

    led: Led[S]
    offset: int
    end_offset: int


class LedShards(Generic[S]):
    """The shards of `topic` that this broker answers for."""

    def __init__(
        self,
        topic: str,
        partitions: Partitions,
        *,
        make: Callable[[], S],
        replay: Callable[[RecordBatch, S], None],
    ) -> None:
        """`make` gives a shard that knows nothing, `replay` tells it of a batch."""
        self.topic = topic
        self._partitions = partitions
        self._make = make
        self._replay = replay
        self._led: dict[int, Led[S]] = {}
        self._loading: dict[int, _Loading[S]] = {}

    def __iter__(self) -> Iterator[Led[S]]:
        """Those that answer."""
        return iter(list(self._led.values()))

    def __len__(self) -> int:
        return len(self._led)

    @property
    def is_loading(self) -> bool:
        """Whether some are not complete yet."""
        return bool(self._loading)

    @property
    def can_load(self) -> bool:
        """Whether `load_on` has something to do now; what is not committed yet it waits for."""
        return any(each.offset < each.led.log.high_watermark for each in self._loading.values())

    def lead(self, index: int) -> bool:
        """This broker leads a partition from now on; whether its shard is complete already.

        Raises:
            CorruptData: a record is not what it claims to be.
            LogDirectoryError: the disk refused.
        """
        log = self._partitions.get(self.topic, index)
        led = Led(index, self._make(), log)
        self._led.pop(index, None)
        start, end = log.log.log_start_offset, log.log.log_end_offset
        self._loading[index] = _Loading(led, start, end)
        return self._load(index)

    def resign(self, index: int) -> Led[S] | None:
        """Another broker leads it: forget all of it; what answered until now, if anything did."""
        self._loading.pop(index, None)
        return self._led.pop(index, None)

    def load_on(self) -> list[int]:
        """Load a slice of each; those that are complete now. Raises what `lead` raises."""
        return [index for index in list(self._loading) if self._load(index)]

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When `load_on` has something to do at the earliest; None for never."""
        if not self._loading:
            return None
        return now_ms if self.can_load else now_ms + COMMIT_WAIT_MS

    def index_of(self, key: str) -> int:
        """The partition that a key belongs to.

        Raises:
            LogError: COORDINATOR_NOT_AVAILABLE, the topic is not there yet.
        """
        count = self._partitions.partitions(self.topic)
        if not count:
            raise error_for(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no topic {self.topic} yet"
            )
        return shard_index(key, count)

    def at(self, index: int) -> Led[S]:
        """The shard of a partition.

        Raises:
            LogError: NOT_COORDINATOR, another broker leads it; COORDINATOR_LOAD_IN_PROGRESS, this
                one does not know all of it yet.
        """
        led = self._led.get(index)
        if led is not None:
            return led
        if index in self._loading:
            raise error_for(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{index} is being loaded"
            )
        raise error_for(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{index} is led by another broker")

    def has(self, led: Led[S]) -> bool:
        """Whether this one still answers: it was not lost meanwhile, nor lost and won again."""
        return self._led.get(led.index) is led

    def of(self, key: str) -> Led[S]:
        """The shard that a key belongs to. Raises what `index_of` and `at` raise."""
        return self.at(self.index_of(key))

    def _load(self, index: int) -> bool:
        loading = self._loading[index]
        log = loading.led.log
        committed = min(loading.end_offset, log.high_watermark)
        if loading.offset < committed:
            found = log.log.read(loading.offset, max_bytes=LOAD_BYTES, before_offset=committed)
            for batch in split_batches(found):
                self._replay(batch, loading.led.shard)
                loading.offset = batch.next_offset
        if loading.offset < loading.end_offset:
            return False
        del self._loading[index]
        self._led[index] = loading.led
        return True


def shard_index(key: str, count: int) -> int:
    """Which partition a key belongs to: Java's `String.hashCode`, as in Kafka."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    # Java's absolute value; the smallest negative number has none and counts as 0.
    return (code if code < 1 << 31 else ((1 << 32) - code) & 0x7FFFFFFF) % count
