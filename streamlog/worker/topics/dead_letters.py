"""Dead letters: reads those of a topic, and sends them again, each once.

The group `<topic>-replay` holds the offset up to which letters were sent again, and in its metadata
those beyond it that were sent one by one. Both are committed in the transaction of the records, so
that a crash sends no record twice. Letters stay in their topic until someone deletes them there.
Letters that only the app may write (`INTERNAL`) are never sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.errors import UsageError
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing import error_handling
from streamlog.record import Headers, TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.partitioners import Partitioner, partitions_by
from streamlog.serdes import window_bytes

BATCH_RECORDS: Final = 500
"""Letters that one transaction sends."""
POLL_MS: Final = 500
AHEAD_MAX: Final = 3_000
"""Characters of the metadata that name letters which were sent one by one; Kafka allows 4096."""
RUN_MAX: Final = 10_000
"""Letters of one run; more than ever were sent one by one."""
_SENT: Final = "sent "
Progress: TypeAlias = "Mapping[TopicPartition, Replayed]"


class Replayed(msgspec.Struct, frozen=True):
    """Which letters of a partition were sent again."""

    until: int
    """All before this offset."""
    ahead: frozenset[int] = frozenset()
    """Those beyond it that were sent one by one."""

    def has(self, offset: int) -> bool:
        """Return whether the letter at an offset was sent."""
        return offset < self.until or offset in self.ahead

    def to(self, until: int) -> Replayed:
        """Return what is known once all before an offset were sent."""
        return Replayed(until, frozenset(each for each in self.ahead if each >= until))

    def committed(self) -> OffsetAndMetadata:
        """Return what the group commits.

        Raises:
            UsageError: the metadata of an offset has no room for more single letters.
        """
        named = f"{_SENT}{','.join(_runs(self.ahead))}" if self.ahead else ""
        if len(named) > AHEAD_MAX:
            raise UsageError(
                "too many letters far apart were sent one by one: send all of them in order, by"
                " streamlog dlq replay, which skips those that were sent"
            )
        return OffsetAndMetadata(self.until, named)


def sent_of(found: OffsetAndMetadata | None, begin: int) -> Replayed:
    """Return what a group has committed; `begin` is the first letter that the topic has."""
    if found is None:
        return Replayed(begin)
    ahead = set[int]()
    # Another program may have written the metadata: what it means is then nothing to us.
    is_ours = found.metadata.startswith(_SENT)
    for run in found.metadata.removeprefix(_SENT).split(",") if is_ours else ():
        first, _, last = run.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            begins, ends = int(first), int(last or first)
            ahead |= {*range(begins, min(ends, begins + RUN_MAX) + 1)}
    return Replayed(found.offset, frozenset(ahead)).to(max(found.offset, begin))


def _runs(offsets: Iterable[int]) -> list[str]:
    """Return offsets as texts, neighbours together: 5, 7-9."""
    # Failures come in bursts: a hundred neighbours take no more room than two.
    runs = list[list[int]]()
    for each in sorted(offsets):
        if runs and runs[-1][1] == each - 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    return [f"{a}-{b}" if b > a else f"{a}" for a, b in runs]


class DeadLetter(msgspec.Struct, frozen=True):
    """A record of a dead-letter topic."""

    partition: TopicPartition
    """The partition of the dead-letter topic."""
    record: LogRecord
    headers: Mapping[str, bytes | None]

    @property
    def is_internal(self) -> bool:
        """Whether only the app may write such a record: a repartition or changelog record."""
        return error_handling.INTERNAL in self.headers or not self._has(error_handling.TOPIC)

    @property
    def position(self) -> str:
        """Its partition and offset, which name it among the letters of its topic."""
        return f"{self.partition.partition}:{self.record.offset}"

    def header(self, name: str) -> bytes | None:
        """Return one of our headers, or the one of Kafka Connect for it."""
        return self.headers.get(name, self.headers.get(_CONNECT_NAMES.get(name, "")))

    def text(self, header: str) -> str:
        """Return the value of a header as text; `-` if the letter lacks it."""
        data = self.header(header)
        return "-" if data is None else data.decode(errors="backslashreplace")

    @property
    def trace(self) -> str:
        """Where the error arose in the app; empty if the letter does not say."""
        data = self.header(error_handling.TRACE)
        return "" if data is None else data.decode(errors="backslashreplace")

    def _has(self, header: str) -> bool:
        return header in self.headers or _CONNECT_NAMES.get(header) in self.headers


_CONNECT_NAMES: Final = {
    error_handling.TOPIC: f"{error_handling.CONNECT}topic",
    error_handling.PARTITION: f"{error_handling.CONNECT}partition",
    error_handling.OFFSET: f"{error_handling.CONNECT}offset",
    error_handling.NODE: f"{error_handling.CONNECT}connector.name",
    error_handling.EXCEPTION: f"{error_handling.CONNECT}exception.class.name",
    error_handling.MESSAGE: f"{error_handling.CONNECT}exception.message",
    error_handling.TRACE: f"{error_handling.CONNECT}exception.stacktrace",
}
"""Where the letters of a sink of Kafka Connect have what ours have."""


def replay_group(topic: str) -> str:
    """Return the group that holds what was sent again."""
    return f"{topic}-replay"


def letter_reader(log: Log, topic: str) -> Consumer:
    """Return a reader of dead letters, in the group that holds what was sent again."""
    return log.consumer(
        group_id=replay_group(topic),
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )


async def progress(log: Log, consumer: Consumer, topic: str) -> Progress:
    """Return which letters of a topic were sent again.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
    """
    (described,) = await log.admin().describe_topics([topic])
    parts = [TopicPartition(topic, number) for number in range(described.partitions)]
    begins = await consumer.begin_offsets(parts)
    committed = await consumer.committed_metadata(parts)
    # The committed offset may be behind the first letter, after letters were deleted.
    return {part: sent_of(committed.get(part), begins[part]) for part in parts}


async def read_letters(
    log: Log, consumer: Consumer, starts: Mapping[TopicPartition, int], limit: int | None
) -> list[DeadLetter]:
    """Return the letters from `starts` to the ends that the partitions have now, in order."""
    found: list[DeadLetter] = []
    ends = await consumer.end_offsets(starts)
    consumer.assign(starts)
    for part, start in starts.items():
        consumer.seek(part, start)
    reader = log.range_reader(consumer, ends)
    while (limit is None or len(found) < limit) and not await reader.is_at_end():
        for part, records in (await reader.poll(timeout_ms=POLL_MS)).items():
            found += [DeadLetter(part, each, dict(each.headers)) for each in records]
    return sorted(found, key=_order)[:limit]


def _order(letter: DeadLetter) -> tuple[TopicPartition, int]:
    return letter.partition, letter.record.offset


async def read_unsent(
    log: Log, consumer: Consumer, sent: Progress, limit: int | None
) -> list[DeadLetter]:
    """Return the letters from the first that was not sent on, up to a number that were not."""
    starts = {part: each.until for part, each in sent.items()}
    # Those that were sent one by one lie in between, and do not count.
    more = sum(len(each.ahead) for each in sent.values())
    found = await read_letters(log, consumer, starts, None if limit is None else limit + more)
    if limit is None:
        return found
    left = unsent(found, sent)
    last = left[limit - 1] if len(left) >= limit else None
    return found if last is None else found[: found.index(last) + 1]


def unsent(letters: Iterable[DeadLetter], sent: Progress) -> list[DeadLetter]:
    """Return the letters that were not sent again."""
    return [each for each in letters if not sent[each.partition].has(each.record.offset)]


async def send_again(
    producer: Producer, consumer: Consumer, letters: Sequence[DeadLetter], sent: Progress
) -> Progress:
    """Send all letters of a run in order, and commit up to where; returns what was sent then."""
    # Letters are in order: the last one of a partition sets its offset.
    ends = {letter.partition: letter.record.offset + 1 for letter in letters}
    after = {part: sent[part].to(end) for part, end in ends.items()}
    await _send(producer, consumer, unsent(letters, sent), after)
    return {**sent, **after}


async def send_chosen(
    producer: Producer, consumer: Consumer, letters: Sequence[DeadLetter], sent: Progress
) -> None:
    """Send single letters, and commit that these were sent.

    Raises:
        UsageError: one of them was sent meanwhile, or only the app may write it.
    """
    # All are checked before any is sent: half of a choice would be no choice.
    for each in letters:
        if sent[each.partition].has(each.record.offset):
            raise UsageError(f"letter {each.position} was sent again already: nothing was sent now")
        if each.is_internal:
            raise UsageError(
                f"only the app may write the record of letter {each.position}, which comes from"
                " inside of it: correct the app, and send the source records again"
            )
    after = {
        part: Replayed(
            sent[part].until,
            sent[part].ahead | {e.record.offset for e in letters if e.partition == part},
        )
        for part in {each.partition for each in letters}
    }
    await _send(producer, consumer, letters, after)


async def _send(
    producer: Producer, consumer: Consumer, letters: Iterable[DeadLetter], after: Progress
) -> None:
    # Before anything is sent: it may be refused.
    offsets = {part: each.committed() for part, each in after.items()}
    async with producer.transaction() as transaction:
        for letter in letters:
            if not letter.is_internal:
                await producer.send(
                    letter.text(error_handling.TOPIC),
                    letter.record.value,
                    key=letter.record.key,
                    timestamp_ms=letter.record.timestamp_ms,
                    headers=own_headers(letter),
                    partition=partition_of(letter),
                )
        await transaction.send_offsets(offsets, consumer.group_metadata())


def partitioners_of(topics: Mapping[str, TopicSpec]) -> dict[str, Partitioner]:
    """Return the partitioner of each topic; a windowed key goes where its plain key goes."""
    return {
        name: partial(_by_key, spec.partitioner, window_bytes(spec.key))
        for name, spec in topics.items()
    }


def _by_key(partitioner: Partitioner, tail_bytes: int, key: bytes, count: int) -> int:
    return partitions_by(partitioner, (key,), count, tail_bytes)[0]


def check_partitions(letters: Collection[DeadLetter]) -> None:
    """Check that a replay without the app knows the partition of every letter with a key.

    Raises:
        UsageError: a letter never had a partition, and only the app knows how to choose one.
    """
    lost = [
        each
        for each in letters
        if not each.is_internal and each.record.key is not None and partition_of(each) is None
    ]
    if lost:
        names = ", ".join(sorted({each.text(error_handling.TOPIC) for each in lost}))
        raise UsageError(
            f"nothing was sent: {len(lost)} of {len(letters)} letters for {names} never had a "
            f"partition (the first one is {lost[0].position}), so their keys decide. Name the "
            "app, which knows how its topics are partitioned: streamlog -A MODULE dlq replay"
        )


def partition_of(letter: DeadLetter) -> int | None:
    """Return the partition that the record came from; None if its topic never took it."""
    partition = int(letter.text(error_handling.PARTITION))
    return partition if partition >= 0 else None


def own_headers(letter: DeadLetter) -> Headers:
    """Return the headers that the record had before it became a dead letter."""
    return tuple(
        each for each in letter.record.headers if not error_handling.is_own_header(each[0])
    )
