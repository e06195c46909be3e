"""The `dlq` commands: records that failed, sent again to where they came from, or given up.

How far letters have been replayed is the offset of a group, `<topic>-replay`, which is committed
in the same transaction as the records that are sent: a crash in between sends nothing twice. What
was replayed stays in the topic until it is dropped, and so does what only the app itself may write
(`INTERNAL`), which is passed over. Rule of the file: only `drop` removes anything, and it
asks to be told up to where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as Grid

from streamlog.cli.session import LogOption, Session, with_log
from streamlog.cli.terminal import out, say, text_of
from streamlog.cli.topics_command import partitions_of
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.errors import UsageError
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing import error_handling
from streamlog.record import Headers, TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.partitioners import Partitioner, partitions_by
from streamlog.serdes import window_bytes

LIST_DEFAULT = 100
BATCH_RECORDS = 500
"""Replayed in one transaction."""
POLL_MS = 500
TEXT_CHARACTERS = 60
"""Of a key or a value in the table."""

dlq = typer.Typer(help="Records that failed, under on_error=on_error.dlq().", no_args_is_help=True)

Topic = Annotated[
    str | None, typer.Argument(help="The topic for dead letters. Default: <app>-dlq, with -A.")
]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter in its topic."""

    place: TopicPartition
    record: LogRecord
    headers: Mapping[str, bytes | None]

    @property
    def is_internal(self) -> bool:
        """Nobody but the app may write such a record."""
        return error_handling.INTERNAL in self.headers or error_handling.TOPIC not in self.headers

    def text(self, header: str) -> str:
        """What a header says."""
        return text_of(self.headers.get(header))


@dlq.command("list")
def dlq_list(
    context: typer.Context,
    topic: Topic = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were replayed or passed over.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The first so many.")] = LIST_DEFAULT,
    log: LogOption = None,
) -> None:
    """What is in the topic, with where each record came from and what failed on it."""
    name = _topic(context.obj, topic)

    async def look(opened: Log) -> list[DeadLetter]:
        async with _reader(opened, name) as consumer:
            starts = await _starts(opened, consumer, name, everything=everything)
            return await _letters(opened, consumer, starts, limit)

    found = with_log(context.obj, log, look)
    grid = Grid("letter", "time", "from", "operator", "error", "attempts", "key", "value")
    for letter in found:
        grid.add_row(*map(escape, _row(letter)))
    console = out(markup=True)
    console.print(grid)
    console.print(f"{len(found)} letters in {name}{' at least' if len(found) == limit else ''}")


@dlq.command("replay")
def dlq_replay(
    context: typer.Context,
    topic: Topic = None,
    *,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="The first so many; default: all there are."),
    ] = None,
    log: LogOption = None,
) -> None:
    """Send the records again, in order, to the partitions they came from; each once.

    A record that was never in a partition, as its topic refused the app, goes where its key
    belongs: that takes the app (-A), which knows how the topic is partitioned.
    """
    session: Session = context.obj
    name = _topic(session, topic)
    topics = None if session.app is None else session.app.program().topics

    async def replay(opened: Log) -> list[DeadLetter]:
        async with (
            _reader(opened, name) as consumer,
            opened.producer(transactional_id=_group(name)) as producer,
        ):
            starts = await _starts(opened, consumer, name, everything=False)
            letters = await _letters(opened, consumer, starts, limit)
            if topics is None:
                _check_places(letters)
            else:
                producer.partition_by(_partitioners(topics))
            for first in range(0, len(letters), BATCH_RECORDS):
                await _send_again(producer, consumer, letters[first : first + BATCH_RECORDS])
        return letters

    letters = with_log(session, log, replay)
    passed = [letter for letter in letters if letter.is_internal]
    say(f"sent {len(letters) - len(passed)} records again")
    if passed:
        places = ", ".join(_place(letter) for letter in passed)
        say(
            f"passed over {len(passed)} that only the app itself writes (behind a repartition or "
            f"an aggregation): {places}; correct the app, and send what they came from again"
        )


@dlq.command("drop")
def dlq_drop(
    context: typer.Context,
    topic: Topic = None,
    *,
    until: Annotated[
        list[str] | None,
        typer.Option(
            "--until",
            metavar="[PARTITION:]OFFSET",
            help="Remove what is before this letter; repeatable for several partitions.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all there are, replayed or not.")
    ] = False,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Remove those that were replayed or passed over.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Remove letters from the topic, for good: up to an offset, the replayed ones, or all."""
    name = _topic(context.obj, topic)
    if bool(until) + everything + replayed != 1:
        raise UsageError("dlq drop needs one of --until [PARTITION:]OFFSET, --replayed and --all")
    given = dict(_until(name, each) for each in until or ())

    async def drop(opened: Log) -> int:
        async with _reader(opened, name) as consumer:
            parts = await partitions_of(opened, name)
            begins = await consumer.begin_offsets(parts)
            if everything:
                wanted = await consumer.end_offsets(parts)
            elif replayed:
                wanted = await _starts(opened, consumer, name, everything=False)
            else:
                wanted = given
        await opened.admin().delete_records(wanted)
        return sum(max(offset - begins.get(part, offset), 0) for part, offset in wanted.items())

    say(f"removed {with_log(context.obj, log, drop)} offsets of {name}")


def _topic(session: Session, given: str | None) -> str:
    return given if given is not None else f"{session.require_app().id}-dlq"


def _group(topic: str) -> str:
    return f"{topic}-replay"


def _reader(log: Log, topic: str) -> Consumer:
    return log.consumer(
        group_id=_group(topic),
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )


async def _starts(
    log: Log, consumer: Consumer, topic: str, *, everything: bool
) -> dict[TopicPartition, int]:
    """Where to read from: the first letter that has not been replayed, or the first there is."""
    parts = await partitions_of(log, topic)
    begins = await consumer.begin_offsets(parts)
    if everything:
        return begins
    committed = await consumer.committed(parts)
    return {part: max(committed.get(part) or 0, begins[part]) for part in parts}


async def _send_again(producer: Producer, consumer: Consumer, letters: list[DeadLetter]) -> None:
    """In one transaction with the group's offset."""
    async with producer.transaction() as transaction:
        for letter in letters:
            if not letter.is_internal:
                await producer.send(
                    letter.text(error_handling.TOPIC),
                    letter.record.value,
                    key=letter.record.key,
                    timestamp_ms=letter.record.timestamp_ms,
                    headers=_own_headers(letter),
                    partition=_partition(letter),
                )
        ends = {letter.place: letter.record.offset + 1 for letter in letters}
        await transaction.send_offsets(ends, consumer.group_metadata())


def _partitioners(topics: Mapping[str, TopicSpec]) -> dict[str, Partitioner]:
    """How the app's topics are partitioned; a windowed key belongs where its key does."""
    return {
        name: partial(_by_key, spec.partitioner, window_bytes(spec.key))
        for name, spec in topics.items()
    }


def _by_key(partitioner: Partitioner, tail_bytes: int, key: bytes, count: int) -> int:
    return partitions_by(partitioner, (key,), count, tail_bytes)[0]


def _check_places(letters: list[DeadLetter]) -> None:
    """Without the app nobody knows how a topic is partitioned.

    Raises:
        UsageError: a key has to decide.
    """
    lost = [
        each
        for each in letters
        if not each.is_internal and each.record.key is not None and _partition(each) is None
    ]
    if lost:
        names = ", ".join(sorted({each.text(error_handling.TOPIC) for each in lost}))
        raise UsageError(
            f"nothing was sent: {len(lost)} of {len(letters)} records, for {names}, were never in "
            f"a partition, such as {_place(lost[0])}; their keys decide where they belong, so name "
            "the app, which knows how its topics are partitioned: streamlog -A MODULE dlq replay"
        )


def _partition(letter: DeadLetter) -> int | None:
    """Where to; None if it never came to a partition, so that its key decides."""
    partition = int(letter.text(error_handling.PARTITION))
    return partition if partition >= 0 else None


async def _letters(
    log: Log, consumer: Consumer, starts: Mapping[TopicPartition, int], limit: int | None
) -> list[DeadLetter]:
    """The letters from there up to the end, as it is now."""
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
    return letter.place, letter.record.offset


def _own_headers(letter: DeadLetter) -> Headers:
    """Those that the record had when it was read."""
    return tuple(each for each in letter.record.headers if each[0] not in error_handling.OWN)


def _row(letter: DeadLetter) -> list[str]:
    record = letter.record
    kind = letter.text(error_handling.EXCEPTION).removeprefix("builtins.")
    topic, partition = letter.text(error_handling.TOPIC), letter.text(error_handling.PARTITION)
    internal = " (internal)" if letter.is_internal else ""
    return [
        _place(letter),
        datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        f"{topic}-{partition}:{letter.text(error_handling.OFFSET)}{internal}",
        letter.text(error_handling.NODE),
        f"{kind}: {letter.text(error_handling.MESSAGE)}",
        letter.text(error_handling.ATTEMPT),
        text_of(record.key)[:TEXT_CHARACTERS],
        text_of(record.value)[:TEXT_CHARACTERS],
    ]


def _place(letter: DeadLetter) -> str:
    return f"{letter.place.partition}:{letter.record.offset}"


def _until(topic: str, text: str) -> tuple[TopicPartition, int]:
    partition, _, offset = text.rpartition(":")
    if not offset.isdecimal() or not (partition or "0").isdecimal():
        raise UsageError(f"--until takes [PARTITION:]OFFSET, such as 0:120, not {text!r}")
    return TopicPartition(topic, int(partition or 0)), int(offset)
