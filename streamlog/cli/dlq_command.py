"""`streamlog dlq`: lists dead letters, replays them to the topics they came from, drops them.

The group `<topic>-replay` holds the offset up to which letters have been replayed. `replay` commits
it in the transaction of the records that it sends, so that a crash sends no record twice. Replayed
letters stay in the topic until `drop` removes them. `replay` skips letters that only the app may
write (`INTERNAL`); they stay as well. Rule of the file: only `drop` removes letters, and only up to
a limit that the user names.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final

import msgspec
import typer
from rich.markup import escape
from rich.table import Table as Grid

from streamlog.cli.output.plain_text import text_of
from streamlog.cli.session import LogOption, Session, with_log
from streamlog.cli.terminal import out, say
from streamlog.cli.topics_command import partitions_of
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.errors import UsageError, quantity
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing import error_handling
from streamlog.record import Headers, TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.partitioners import Partitioner, partitions_by
from streamlog.serdes import window_bytes

LIST_DEFAULT = 100
BATCH_RECORDS = 500
"""Letters that one transaction replays."""
POLL_MS = 500
TEXT_CHARACTERS = 60
"""How much of a key or value the table shows."""

dlq = typer.Typer(
    help="Dead letters: records that failed under on_error=on_error.dlq().", no_args_is_help=True
)

Topic = Annotated[
    str | None,
    typer.Argument(help="The dead-letter topic. Default: <app>-dlq of the app that -A names."),
]


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

    def text(self, header: str) -> str:
        """Return the value of a header as text; `-` if the letter lacks it."""
        return text_of(self.headers.get(header, self.headers.get(_CONNECT_NAMES.get(header, ""))))

    def _has(self, header: str) -> bool:
        return header in self.headers or _CONNECT_NAMES.get(header) in self.headers


_CONNECT_NAMES: Final = {
    error_handling.TOPIC: f"{error_handling.CONNECT}topic",
    error_handling.PARTITION: f"{error_handling.CONNECT}partition",
    error_handling.OFFSET: f"{error_handling.CONNECT}offset",
    error_handling.NODE: f"{error_handling.CONNECT}connector.name",
    error_handling.EXCEPTION: f"{error_handling.CONNECT}exception.class.name",
    error_handling.MESSAGE: f"{error_handling.CONNECT}exception.message",
}
"""Where the letters of a sink of Kafka Connect have what ours have."""


@dlq.command("list")
def dlq_list(
    context: typer.Context,
    topic: Topic = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Include letters that were replayed or skipped.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="List at most this many.")
    ] = LIST_DEFAULT,
    log: LogOption = None,
) -> None:
    """List dead letters: where each came from, and its error."""
    name = _topic(context.obj, topic)

    async def look(opened: Log) -> list[DeadLetter]:
        async with _reader(opened, name) as consumer:
            starts = await _starts(opened, consumer, name, everything=everything)
            return await _letters(opened, consumer, starts, limit)

    found = with_log(context.obj, log, look)
    grid = Grid("letter", "time", "source", "operator", "error", "attempts", "key", "value")
    for letter in found:
        grid.add_row(*map(escape, _row(letter)))
    console = out(markup=True)
    console.print(grid)
    count = quantity(len(found), "letter")
    console.print(f"{'the first ' if len(found) == limit else ''}{count} in {name}")


@dlq.command("replay")
def dlq_replay(
    context: typer.Context,
    topic: Topic = None,
    *,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Replay at most this many. Default: all."),
    ] = None,
    log: LogOption = None,
) -> None:
    """Send dead letters again, each once and in order, to the partitions they came from.

    A record that a topic refused never had a partition: its key decides. That needs the app (-A),
    which knows how the topic is partitioned.
    """
    session: Session = context.obj
    name = _topic(session, topic)
    topics = None if session.app is None else session.app.program().topics

    async def replay(opened: Log) -> list[DeadLetter]:
        async with (
            _reader(opened, name) as consumer,
            opened.producer(transactional_id=_group(name)) as producer,
        ):
            # The producer is open first:
            # 1. An earlier replay was killed while its transaction was open.
            # 2. Opening a producer of the same name ends that transaction, and fences the replay.
            # 3. The committed offset now says for certain which letters were sent.
            starts = await _starts(opened, consumer, name, everything=False)
            letters = await _letters(opened, consumer, starts, limit)
            if topics is None:
                _check_partitions(letters)
            else:
                producer.partition_by(_partitioners(topics))
            for first in range(0, len(letters), BATCH_RECORDS):
                await _send_again(producer, consumer, letters[first : first + BATCH_RECORDS])
        return letters

    letters = with_log(session, log, replay)
    passed = [letter for letter in letters if letter.is_internal]
    say(f"replayed {quantity(len(letters) - len(passed), 'record')}")
    if passed:
        positions = ", ".join(_position(letter) for letter in passed)
        say(
            f"skipped {quantity(len(passed), 'record')} that only the app may write, after a "
            f"repartition or an aggregation: {positions}. Correct the app, and send the source "
            "records again"
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
            help="Remove the letters before this offset; repeatable, once per partition.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all letters, replayed or not.")
    ] = False,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Remove the letters that were replayed or skipped.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Remove dead letters for good: up to an offset, the replayed ones, or all."""
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

    say(f"removed {quantity(with_log(context.obj, log, drop), 'offset')} of {name}")


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
    """Return the offset of the first letter that was not replayed, or of the first letter."""
    parts = await partitions_of(log, topic)
    begins = await consumer.begin_offsets(parts)
    if everything:
        return begins
    # The group's offset is the first letter that was neither replayed nor skipped.
    committed = await consumer.committed(parts)
    # The committed offset may be behind the first letter, after `drop` has removed letters.
    return {part: max(committed.get(part) or 0, begins[part]) for part in parts}


async def _send_again(producer: Producer, consumer: Consumer, letters: list[DeadLetter]) -> None:
    """Send the letters and commit the group's offset in one transaction."""
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
        # Letters are in order: the last one of a partition sets its offset.
        ends = {letter.partition: letter.record.offset + 1 for letter in letters}
        await transaction.send_offsets(ends, consumer.group_metadata())


def _partitioners(topics: Mapping[str, TopicSpec]) -> dict[str, Partitioner]:
    """Return the partitioner of each topic; a windowed key goes where its plain key goes."""
    return {
        name: partial(_by_key, spec.partitioner, window_bytes(spec.key))
        for name, spec in topics.items()
    }


def _by_key(partitioner: Partitioner, tail_bytes: int, key: bytes, count: int) -> int:
    return partitions_by(partitioner, (key,), count, tail_bytes)[0]


def _check_partitions(letters: list[DeadLetter]) -> None:
    """Check that a replay without the app knows the partition of every letter with a key.

    Raises:
        UsageError: a letter never had a partition, and only the app knows how to choose one.
    """
    lost = [
        each
        for each in letters
        if not each.is_internal and each.record.key is not None and _partition(each) is None
    ]
    if lost:
        names = ", ".join(sorted({each.text(error_handling.TOPIC) for each in lost}))
        raise UsageError(
            f"nothing was sent: {len(lost)} of {len(letters)} letters for {names} never had a "
            f"partition (the first one is {_position(lost[0])}), so their keys decide. Name the "
            "app, which knows how its topics are partitioned: streamlog -A MODULE dlq replay"
        )


def _partition(letter: DeadLetter) -> int | None:
    """Return the partition that the record came from; None if its topic never took it."""
    partition = int(letter.text(error_handling.PARTITION))
    return partition if partition >= 0 else None


async def _letters(
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


def _own_headers(letter: DeadLetter) -> Headers:
    """Return the headers that the record had before it became a dead letter."""
    return tuple(
        each for each in letter.record.headers if not error_handling.is_own_header(each[0])
    )


def _row(letter: DeadLetter) -> list[str]:
    record = letter.record
    kind = letter.text(error_handling.EXCEPTION).removeprefix("builtins.")
    topic, partition = letter.text(error_handling.TOPIC), letter.text(error_handling.PARTITION)
    internal = " (internal)" if letter.is_internal else ""
    return [
        _position(letter),
        datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        f"{topic}-{partition}:{letter.text(error_handling.OFFSET)}{internal}",
        letter.text(error_handling.NODE),
        f"{kind}: {letter.text(error_handling.MESSAGE)}",
        letter.text(error_handling.ATTEMPT),
        text_of(record.key)[:TEXT_CHARACTERS],
        text_of(record.value)[:TEXT_CHARACTERS],
    ]


def _position(letter: DeadLetter) -> str:
    return f"{letter.partition.partition}:{letter.record.offset}"


def _until(topic: str, text: str) -> tuple[TopicPartition, int]:
    partition, _, offset = text.rpartition(":")
    if not offset.isdecimal() or not (partition or "0").isdecimal():
        raise UsageError(f"--until takes [PARTITION:]OFFSET, such as 0:120, not {text!r}")
    return TopicPartition(topic, int(partition or 0)), int(offset)
