"""`streamlog send`: records written by hand, one or a file of them, and how records are shown."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlog.cli.lines import Line, lines_of
from streamlog.cli.running import run
from streamlog.cli.session import LogOption, Session
from streamlog.cli.terminal import say, text_of
from streamlog.cli.topics import partitions_of
from streamlog.client.producer import Producer
from streamlog.client.sender import RecordMetadata
from streamlog.durations import when_ms
from streamlog.errors import (
    LogError,
    SerdeError,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.log import Log
from streamlog.processing.event_times import ANY_TIME
from streamlog.records.batch import Record
from streamlog.serdes import Serde, from_text
from streamlog.topology import TopicSpec
from streamlog.worker.topics import declare_topics

if TYPE_CHECKING:
    from streamlog.app import App

PENDING_MAX = 1_000
"""Lines on their way at a time."""


def send(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic of the app.")],
    value: Annotated[
        str | None, typer.Argument(help="Plain text for str, bytes and numbers, else JSON.")
    ] = None,
    *,
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="The key, written like VALUE.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE|-", help="One value a line; -: standard input."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", metavar="S", help="Between key and value of each line."),
    ] = None,
    log: LogOption = None,
) -> None:
    """Send one record, or each line of a file, checked against the topic's types."""
    session: Session = context.obj
    spec = _spec(session.the_app(), topic)
    if (value is None) == (file is None):
        raise UsageError("send takes a VALUE or --file FILE (--file -: standard input)")
    if file is None and key_separator is not None:
        raise UsageError("--key-separator is for --file; --key gives the key of one record")
    if file is not None and key is not None and key_separator is not None:
        raise UsageError("--key and --key-separator contradict each other")
    if key_separator == "":
        raise UsageError("--key-separator is empty")
    common_key = None if key is None else key_bytes(spec, key)
    given = None if value is None else value_bytes(spec, value)

    async def main() -> None:
        async with session.open(log, create=True) as opened:
            await declare_topics(opened, {topic: spec})
            async with opened.producer() as producer:
                producer.partition_by({topic: spec.partitioner})
                turns = await _turns(opened, topic)
                if given is not None:
                    partition = next(turns) if common_key is None else None
                    sending = await producer.send(topic, given, key=common_key, partition=partition)
                    sent = await sending
                    say(f"sent to {sent.topic}, partition {sent.partition}, offset {sent.offset}")
                elif file is not None:
                    lines = Lines(producer, spec, common_key, turns)
                    await lines.send(file, key_separator)

    run(main())


class Lines:
    """The lines of a file on their way to a topic."""

    def __init__(
        self, producer: Producer, spec: TopicSpec, key: bytes | None, turns: Iterator[int]
    ) -> None:
        self._producer = producer
        self._spec = spec
        self._key = key
        self._turns = turns
        self._pending: deque[tuple[int, asyncio.Future[RecordMetadata]]] = deque()
        self._sent = 0

    async def send(self, file: str, key_separator: str | None) -> None:
        """Send them all, and say how many there were.

        Raises:
            StreamlogError: a line can't be sent; it is named, and how many were sent before it.
        """
        try:
            async for line in lines_of(file, key_separator=key_separator):
                await self._send(file, line)
                while len(self._pending) > PENDING_MAX:
                    await self._settle(file)
            while self._pending:
                await self._settle(file)
        except StreamlogError:
            say(f"sent {_counted(await self._delivered())} before the error", err=True)
            raise
        say(f"sent {_counted(self._sent)} to {self._spec.name}")

    async def _send(self, file: str, line: Line) -> None:
        try:
            value = value_bytes(self._spec, line.value)
            key = self._key if line.key is None else key_bytes(self._spec, line.key)
        except SerdeError as error:
            raise SerdeError(f"{file}, line {line.number}: {error}") from error
        partition = next(self._turns) if key is None else None
        sending = await self._producer.send(self._spec.name, value, key=key, partition=partition)
        self._pending.append((line.number, sending))

    async def _settle(self, file: str) -> None:
        number, sending = self._pending.popleft()
        try:
            await sending
        except LogError as error:
            raise LogError(f"{file}, line {number}: {error}") from error
        self._sent += 1

    async def _delivered(self) -> int:
        """How many were sent, those on their way included."""
        results = await asyncio.gather(*(each for _, each in self._pending), return_exceptions=True)
        return self._sent + sum(not isinstance(each, BaseException) for each in results)


def _counted(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"


def _spec(app: App, topic: str) -> TopicSpec:
    spec = app.topics.get(topic)
    if spec is None:
        declared = ", ".join(sorted(app.topics)) or "none"
        raise UnknownTopicOrPartition(
            f"app {app.id!r} declares no topic {topic!r}; its topics: {declared}"
        )
    return spec


async def _turns(log: Log, topic: str) -> Iterator[int]:
    """The partitions for records without a key, in turn; the one with the fewest records first.

    So they take turns from one command to the next, too.
    """
    parts = await partitions_of(log, topic)
    async with log.consumer() as consumer:
        ends = await consumer.end_offsets(parts)
    return cycle([part.partition for part in sorted(parts, key=lambda p: (ends[p], p.partition))])


def key_bytes(spec: TopicSpec, text: str) -> bytes:
    """The bytes of a key typed on the command line; see `value_bytes`.

    Raises:
        SerdeError: the text does not fit the type.
    """
    return _encoded(spec.key, text, f"the key for {spec.name!r}")[1]


def value_bytes(spec: TopicSpec, text: str) -> bytes:
    """The bytes of a value typed on the command line.

    Text stands for itself where the type is text, bytes or a number; otherwise it is JSON,
    which is read and written again. So what the app could not read is refused here, and so is a
    value that its `timestamp=` finds no event time in.

    Raises:
        SerdeError: the text does not fit the type, or has no event time.
    """
    what = f"the value for {spec.name!r}"
    value, data = _encoded(spec.value, text, what)
    if spec.timestamp is not None:
        try:
            ANY_TIME.check(when_ms(spec.timestamp(value)))
        except Exception as error:
            raise SerdeError(f"{what}: timestamp= of the topic failed: {error}") from error
    return data


def _encoded(serde: Serde[Any], text: str, what: str) -> tuple[Any, bytes]:
    try:
        value = from_text(serde, text)
        return value, serde.dumps(value)
    except SerdeError as error:
        raise SerdeError(f"{what}: {error}") from error


def shown(record: Record, spec: TopicSpec | None) -> str:
    """One record as a line: key, tab, value."""
    key, value = (None, None) if spec is None else (spec.key, spec.value)
    return f"{_text(record.key, key)}\t{_text(record.value, value)}"


def _text(data: bytes | None, serde: Serde[Any] | None) -> str:
    return text_of(data) if data is None or serde is None else str(serde.loads(data))
