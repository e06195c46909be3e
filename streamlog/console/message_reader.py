"""Message reader: finds the records that a page of messages shows, and follows new ones.

Rule of the module: a search ends after `SCAN_MAX` records, `SCAN_BYTES_MAX` bytes or `PATIENCE_S`
seconds, whichever comes first, and says so; a page is no reason to read a whole log.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from streamlog.client.consumer import Consumer
from streamlog.console.pages.message_pages import Asked, Found
from streamlog.console.record_filter import RecordFilter
from streamlog.console.shown_records import Decode, ShownRecord, filtered, show_all, undecoded
from streamlog.console.turns import Turns
from streamlog.errors import UnknownTopicOrPartition, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.log_record import LogRecord

SHOWN: Final = 50
"""Records of one page."""
SCAN_MAX: Final = 50_000
SCAN_BYTES_MAX: Final = 64 * 1024 * 1024
PATIENCE_S: Final = 5.0
POLL_MS: Final = 200
POLL_RECORDS: Final = 500
FETCH_BYTES: Final = 256 * 1024
"""Of one partition at a time: a page of a topic with many partitions must not fetch gigabytes."""
PARTITIONS_MAX: Final = 200
"""Partitions of a topic that one page reads; of a larger topic, an operator names one."""
PAUSE_S: Final = 0.5
"""Between two updates of a live page, at least."""
PAUSE_SHARE: Final = 9
"""An update of a live page takes at most a tenth of the time."""
PAUSE_MAX_S: Final = 10.0
BEHIND_MAX: Final = 5_000
"""Records of a partition that a live page with a condition may lag behind."""
Polled: TypeAlias = Mapping[TopicPartition, Sequence[LogRecord]]
DecoderOf: TypeAlias = Callable[[Polled], Awaitable[Decode]]
"""Returns what reads the framed values of some records by their schemas."""


async def decode_nothing(_: Polled) -> Decode:
    """Return what reads no framed value, where there is no registry."""
    return undecoded


@dataclass(slots=True)
class _Search:
    """What a search has found so far."""

    asked: Asked
    condition: RecordFilter
    key: bytes | None
    decoder_of: DecoderOf
    scanned: int = 0
    bytes: int = 0
    kept: list[tuple[int, LogRecord]] = field(default_factory=list)

    @classmethod
    def of(cls, asked: Asked, decoder_of: DecoderOf) -> _Search:
        key = asked.key.encode() if asked.key else None
        return cls(asked, RecordFilter(asked.condition), key, decoder_of)

    async def fitting(
        self, polled: Polled, turns: Turns, deadline_ms: float = math.inf
    ) -> tuple[list[tuple[int, LogRecord]], dict[TopicPartition, int]]:
        """Return the records that fit, and where those begin that the deadline left unread."""
        pairs = [(part, each) for part, found in polled.items() for each in found]
        # Only a condition looks into values; schemas of others are not asked for.
        decode = await self.decoder_of(polled) if self.condition.text else undecoded
        # A poll may be 50 MB of JSON: read in one go, it would hold up the whole broker.
        fit = await turns.collect(
            (self._fits(part.partition, each, decode) for part, each in pairs), deadline_ms
        )
        rest = dict[TopicPartition, int]()
        for part, record in pairs[len(fit) :]:
            rest.setdefault(part, record.offset)
        # Shorter if the deadline came first.
        read = zip(pairs, fit, strict=False)
        return [(part.partition, each) for (part, each), fits in read if fits], rest

    def _fits(self, partition: int, record: LogRecord, decode: Decode) -> bool:
        self.scanned += 1
        # Of what was read, whether it fits or not: the broker has sent all of it.
        self.bytes += len(record.key or b"") + len(record.value or b"")
        if self.key is not None and record.key != self.key:
            return False
        # Decoding costs more than reading: only for a condition.
        return not self.condition.text or self.condition.accepts(
            filtered(partition, record, decode)
        )

    @property
    def exhausted(self) -> str:
        if self.scanned >= SCAN_MAX:
            return f"the search ended after {SCAN_MAX:,} records"
        if self.bytes >= SCAN_BYTES_MAX:
            return f"the search ended after {SCAN_BYTES_MAX // 1024 // 1024} MiB"
        return ""


async def find(
    log: Log,
    topic: str,
    asked: Asked,
    turns: Turns,
    decoder_of: DecoderOf = decode_nothing,
) -> Found:
    """Return the records that a page asks for.

    Raises:
        UnknownTopicOrPartition: there is no such topic or partition.
        UsageError: the topic has too many partitions to be read at once.
        StreamlogError: the log does not answer.
    """
    search = _Search.of(asked, decoder_of)
    async with _consumer(log) as consumer:
        parts = await _partitions(consumer, topic, asked)
        begins, ends = await consumer.begin_offsets(parts), await consumer.end_offsets(parts)
        starts = await _starts(consumer, asked, begins, ends)
        consumer.assign(parts)
        # Every partition has a position of its own, so no reset of offsets is in play.
        for part in parts:
            consumer.seek(part, starts[part])
        stopped = await _scan(consumer, search, ends, turns)
        positions = {part: await consumer.position(part) for part in parts}
    return await _shown(search, stopped, positions, ends, turns)


async def follow(
    log: Log,
    topic: str,
    asked: Asked,
    *,
    stopped: asyncio.Event,
    turns: Turns,
    decoder_of: DecoderOf = decode_nothing,
    quiet_ms: float = math.inf,
) -> AsyncGenerator[Found | None]:
    """Yield the newest records of those that are written from now on, whenever there are new ones.

    It ends once `stopped` is set. After `quiet_ms` without new ones it yields None.

    Raises:
        UnknownTopicOrPartition, UsageError, StreamlogError: as for `find`.
    """
    search, newest = _Search.of(asked, decoder_of), deque[tuple[int, LogRecord]](maxlen=SHOWN)
    async with _consumer(log) as consumer:
        parts = await _partitions(consumer, topic, asked)
        ends = await consumer.end_offsets(parts)
        consumer.assign(parts)
        for part in parts:
            consumer.seek(part, ends[part])
        # At once, so that the page can say that it waits.
        yield Found(records=())
        skipped, yielded_ms = 0, turns.clock.now_ms()
        while not stopped.is_set():
            polled = await consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
            before, began_ms = search.scanned, turns.clock.now_ms()
            # All are read, also those that do not fit: the page says how many there were.
            newest.extend((await search.fitting(polled, turns))[0])
            if search.scanned != before:
                records = await _texts([*reversed(newest)], search, turns)
                said = f"{skipped:,} were skipped to keep up" if skipped else ""
                yield Found(records=records, scanned=search.scanned, stopped=said)
                yielded_ms = turns.clock.now_ms()
                # One update for all that arrives meanwhile: a browser can't show more. The more
                # pages take part in this, the longer each one takes, and the longer it rests.
                took_s = (turns.clock.now_ms() - began_ms) / 1_000
                await asyncio.sleep(min(max(PAUSE_S, PAUSE_SHARE * took_s), PAUSE_MAX_S))
                skipped += await _skip(consumer, parts, search)
            # Here, and not by a timer around this generator: it may hold a time-out, which
            # belongs to the task that began it.
            elif turns.clock.now_ms() - yielded_ms >= quiet_ms:
                yield None
                yielded_ms = turns.clock.now_ms()


async def _skip(consumer: Consumer, parts: Sequence[TopicPartition], search: _Search) -> int:
    """Go on to the newest records of partitions that grow faster than they are read."""
    skipped = 0
    # With a condition, those that fit may be far apart.
    kept = BEHIND_MAX if search.condition.text or search.key is not None else SHOWN
    for part, end in (await consumer.end_offsets(parts)).items():
        at = await consumer.position(part)
        if end - at > kept:
            consumer.seek(part, end - SHOWN)
            skipped += end - SHOWN - at
    return skipped


def _consumer(log: Log) -> Consumer:
    # What is not committed may never have happened: a page must not show it as fact.
    return log.consumer(
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_wait_ms=POLL_MS,
    )


async def _partitions(consumer: Consumer, topic: str, asked: Asked) -> list[TopicPartition]:
    count = await consumer.partitions(topic)
    if asked.partition is not None:
        if asked.partition >= count:
            raise UnknownTopicOrPartition(
                f"topic {topic} has partitions 0 to {count - 1}, and no {asked.partition}"
            )
        return [TopicPartition(topic, asked.partition)]
    if count > PARTITIONS_MAX:
        raise UsageError(
            f"topic {topic} has {count} partitions, more than a page reads at once"
            f" ({PARTITIONS_MAX}): name a partition"
        )
    return [TopicPartition(topic, each) for each in range(count)]


async def _starts(
    consumer: Consumer,
    asked: Asked,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return where the search begins in each partition."""
    match asked.begin:
        case "oldest":
            return {**begins}
        case "offset":
            return {part: min(max(asked.offset, begins[part]), ends[part]) for part in begins}
        case "time":
            found = await consumer.offsets_for_times(dict.fromkeys(begins, asked.time_ms))
            return {
                part: ends[part] if (first := found[part]) is None else first.offset
                for part in begins
            }
        case "newest":
            # With a condition, the last of many have to be looked at to find some that fit.
            is_selective = bool(asked.key or asked.condition)
            # Spread evenly: it is not known which partition has the records that fit.
            back = SCAN_MAX // len(begins) if is_selective else SHOWN
            return {part: max(begins[part], ends[part] - back) for part in begins}


async def _scan(
    consumer: Consumer,
    search: _Search,
    ends: Mapping[TopicPartition, int],
    turns: Turns,
) -> str:
    """Read until enough is found, or the ends; return why it stopped before, or an empty text."""
    is_newest, clock = search.asked.begin == "newest", turns.clock
    deadline_ms = clock.now_ms() + int(PATIENCE_S * 1_000)
    open_parts = {part for part in ends if await consumer.position(part) < ends[part]}
    done = ends.keys() - open_parts
    if done:
        consumer.pause(*done)
    while open_parts:
        if why := search.exhausted:
            return why
        if clock.now_ms() >= deadline_ms:
            return f"the search ended after {PATIENCE_S:.0f} s"
        # One page from its beginning needs no more than this; the newest need all up to the end.
        wanted = POLL_RECORDS if is_newest or search.condition.text or search.key else SHOWN
        polled = await consumer.poll(timeout_ms=POLL_MS, max_records=wanted)
        fit, rest = await search.fitting(polled, turns, deadline_ms)
        search.kept += fit
        for part, offset in rest.items():
            # The next page begins with what this one had no time for.
            consumer.seek(part, offset)
        if is_newest:
            # Only the newest survive each poll, so that memory does not grow with the search.
            search.kept = heapq.nlargest(SHOWN, search.kept, key=_by_time)
        # A page is full: the rest is for the next one, which begins where this one has ended.
        elif len(search.kept) >= SHOWN:
            return ""
        # By positions and not by records: behind the last record may be markers of transactions.
        ended = {part for part in open_parts if await consumer.position(part) >= ends[part]}
        if ended:
            consumer.pause(*ended)
            open_parts -= ended
    return ""


async def _texts(
    records: Sequence[tuple[int, LogRecord]], search: _Search, turns: Turns
) -> tuple[ShownRecord, ...]:
    # One partition stands for all of them: here, only the bytes count.
    decode = await search.decoder_of({TopicPartition("", 0): [each for _, each in records]})
    return tuple(await turns.collect(show_all(records, search.asked.form, decode)))


def _by_time(found: tuple[int, LogRecord]) -> tuple[int, int, int]:
    partition, record = found
    return record.timestamp_ms, record.offset, partition


async def _shown(
    search: _Search,
    stopped: str,
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    turns: Turns,
) -> Found:
    asked = search.asked
    is_newest = asked.begin == "newest"
    kept = sorted(search.kept, key=_by_time, reverse=is_newest)
    if len(ends) == 1:
        # In one partition the order of offsets is the order of the log.
        kept = sorted(search.kept, key=lambda each: each[1].offset, reverse=is_newest)
    records = await _texts(kept[:SHOWN], search, turns)
    following = None
    if len(ends) == 1 and not is_newest:
        (part, end), at = next(iter(ends.items())), next(iter(positions.values()))
        # Those that were read and are not shown come first on the next page.
        following_at = kept[SHOWN][1].offset if len(kept) > SHOWN else at
        following = (part.partition, following_at) if following_at < end else None
    return Found(records=records, scanned=search.scanned, stopped=stopped, following=following)
