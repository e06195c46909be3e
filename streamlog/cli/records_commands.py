"""`streamlog send`: one record, or each line of a file, with lines of text or of JSON.

A regular file is read synchronously. A pipe or a terminal is read by the event loop, so that lines
are sent while others are awaited, and Ctrl-C ends the wait. Rule: an error names file and line.
Not done here: what `consume` prints (`output/record_format`), which `--format jsonl` reads.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, NamedTuple, TypeAlias

import msgspec
import typer

from streamlog.cli.output.progress_bar import progress_bar
from streamlog.cli.output.record_format import raw_bytes
from streamlog.cli.session import (
    LogOption,
    Session,
    complete_topics,
    run,
    use_registry_of,
)
from streamlog.cli.terminal import parse_name_values, say
from streamlog.cli.topics_command import partitions_of
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.durations import when_ms
from streamlog.errors import (
    LogError,
    SerdeError,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
    quantity,
)
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.inputs.record_queue import ANY_TIME
from streamlog.serdes import Serde, from_json, from_text
from streamlog.serdes.plain import FloatSerde
from streamlog.worker.topics.app_topics import declare_topics
from streamlog.worker.topics.topic_schemas import has_schemas

if TYPE_CHECKING:
    from streamlog.app import App

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


STANDARD_INPUT: Final = "-"
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A line is a record, and topics by default refuse records over 1 MiB."""


class Line(NamedTuple):
    """A line of input, split into key and value."""

    number: int
    """The line's number in its file, from 1."""
    key: str | None
    value: str


async def lines_of(name: str, *, key_separator: str | None) -> AsyncIterator[Line]:
    """Yield the lines of a file, or of standard input (`-`), without their line breaks.

    Raises:
        UsageError: the file can't be read, or a line is too long, not UTF-8, or has no separator.
    """
    number = 0
    async for data in _open_lines(name):
        number += 1
        where = f"{name}, line {number}"
        if len(data) > LINE_BYTES_MAX:
            raise UsageError(f"{where} is longer than {LINE_BYTES_MAX} bytes")
        yield parse_line(number, data, where, key_separator)


def parse_line(number: int, data: bytes, where: str, key_separator: str | None) -> Line:
    """Decode a line and split it into key and value; drops the byte order mark of line 1.

    Raises:
        UsageError: the line is not UTF-8, or has no separator.
    """
    if number == 1:
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not UTF-8: {error}") from error
    text = text.removesuffix("\n").removesuffix("\r")
    if key_separator is None:
        return Line(number, None, text)
    key, found, value = text.partition(key_separator)
    if not found:
        raise UsageError(f"{where} has no key separator {key_separator!r}")
    return Line(number, key, value)


async def _open_lines(name: str) -> AsyncIterator[bytes]:
    try:
        # A copy of the descriptor: closing it leaves standard input open.
        with os.fdopen(os.dup(0), "rb") if name == STANDARD_INPUT else open(name, "rb") as file:  # noqa: ASYNC230, PTH123 - a regular file does not block
            read = _read_pipe if _keeps_readers_waiting(file.fileno()) else _read_file
            async for data in read(file):
                yield data
    except OSError as error:
        raise UsageError(f"can't read {name}: {error.strerror}") from error


def _keeps_readers_waiting(descriptor: int) -> bool:
    """Return whether a read may wait; a file never does, nor /dev/null, which no loop can watch."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


async def _read_file(file: BinaryIO) -> AsyncIterator[bytes]:
    # One byte beyond the limit is enough for `lines_of` to refuse the line.
    while data := file.readline(LINE_BYTES_MAX + 1):
        yield data


async def _read_pipe(file: BinaryIO) -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        while data := await _line(reader):
            yield data
    finally:
        transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil()
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError:
        # The content does not matter: `lines_of` refuses the line for its length.
        return bytes(LINE_BYTES_MAX + 1)


PENDING_MAX = 1_000
"""Records in flight at a time."""


class LineForm(StrEnum):
    """What a line of a file is."""

    TEXT = "text"
    JSONL = "jsonl"


class SentRecord(NamedTuple):
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


LinesFile = Annotated[
    str | None,
    typer.Option(
        "--file", metavar="FILE|-", help="A file with one value per line; - is standard input."
    ),
]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        metavar="S",
        help="With --file: the text between key and value of a line.",
    ),
]
FormOption = Annotated[
    LineForm,
    typer.Option("--format", help="With --file: plain lines, or what `consume --json` prints."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="A header; may be given several times."),
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", min=0, metavar="P", help="This partition, whatever the key is."),
]
NullOption = Annotated[
    bool, typer.Option("--null", help="No value: a tombstone, which deletes the key.")
]


TopicArgument = Annotated[
    str,
    typer.Argument(help="A topic of the app, or any without -A.", autocompletion=complete_topics),
]


def send(
    context: typer.Context,
    topic: TopicArgument,
    value: Annotated[
        str | None,
        typer.Argument(help="The value: plain text for str, bytes and numbers, else JSON."),
    ] = None,
    *,
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="The key, written like VALUE.")
    ] = None,
    null: NullOption = False,
    header: HeaderOption = None,
    partition: PartitionOption = None,
    file: LinesFile = None,
    key_separator: KeySeparator = None,
    form: FormOption = LineForm.TEXT,
    log: LogOption = None,
) -> None:
    """Send one record, or each line of a file; with -A checked against the topic's types."""
    session: Session = context.obj
    if (value is not None) + null + (file is not None) != 1:
        raise UsageError("send takes VALUE, --null or --file FILE (--file - reads standard input)")
    _check_file_options(file, key, key_separator, form)
    encoder = Encoder(
        None if session.app is None else _spec(session.app, topic),
        topic,
        headers=_headers(header or ()),
        partition=partition,
    )

    early = encoder.early(key, value)

    async def main() -> None:
        spec = encoder.spec
        async with session.open(log, create=spec is not None) as opened:
            if spec is not None:
                await use_registry_of(opened, session.require_app())
                await declare_topics(opened, {topic: spec})
            one = early or encoder.typed(key, value)
            async with opened.producer() as producer:
                producer.partition_by({} if spec is None else {topic: spec.partitioner})
                sender = LineSender(producer, topic, await _round_robin(opened, topic))
                if file is None:
                    sent = await (await sender.hand_over(one))
                    say(f"sent to {sent.topic}, partition {sent.partition}, offset {sent.offset}")
                else:
                    lines = lines_of(file, key_separator=key_separator)
                    await sender.send_all(file, lines, encoder, key, form)

    run(main())


def _check_file_options(
    file: str | None, key: str | None, key_separator: str | None, form: LineForm
) -> None:
    """Check the options of `--file`.

    Raises:
        UsageError: two options contradict each other.
    """
    if file is None and key_separator is not None:
        raise UsageError("--key-separator needs --file; use --key for the key of one record")
    if file is None and form is LineForm.JSONL:
        raise UsageError("--format jsonl needs --file (--file - reads standard input)")
    if file is not None and key is not None and key_separator is not None:
        raise UsageError("--key and --key-separator can't be combined")
    if form is LineForm.JSONL and (key is not None or key_separator is not None):
        raise UsageError("with --format jsonl, each line has its own key: omit --key")
    if key_separator == "":
        raise UsageError("--key-separator is empty")


def _headers(given: Iterable[str]) -> Headers:
    """Return the headers of `--header`, in order; a name may come several times."""
    pairs = []
    for text in given:
        ((name, value),) = parse_name_values("--header", [text]).items()
        pairs.append((name, value.encode()))
    return tuple(pairs)


class Encoder:
    """Makes records out of what was typed, or of lines, by a topic's types if there are any."""

    def __init__(
        self,
        spec: TopicSpec | None,
        topic: str,
        *,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        self.spec = spec
        self._topic = topic
        self._headers = headers
        self._partition = partition

    def early(self, key: str | None, value: str | None) -> SentRecord | None:
        """Return what `typed` does before the log is open; None if it needs schemas of the log.

        Mistakes in a key or a value then end the command before it creates a log.
        """
        spec = self.spec
        if spec is not None and has_schemas({self._topic: spec}):
            return None
        return self.typed(key, value)

    def typed(self, key: str | None, value: str | None) -> SentRecord:
        """Return the record of a key and a value that were typed; None is null.

        Raises:
            SerdeError: they do not have the topic's types.
        """
        spec = self.spec
        if spec is None:
            raw_key = None if key is None else key.encode()
            raw_value = None if value is None else value.encode()
        else:
            raw_key = None if key is None else key_bytes(spec, key)
            raw_value = None if value is None else value_bytes(spec, value)
        return SentRecord(raw_key, raw_value, self._headers, self._partition)

    def of_line(self, line: Line, key: str | None, form: LineForm) -> SentRecord:
        """Return the record of a line; `key` is that of all lines without their own.

        Raises:
            UsageError, SerdeError: the line does not have the form, or the topic's types.
        """
        if form is LineForm.JSONL:
            return self.from_object(line.value)
        return self.typed(key if line.key is None else line.key, line.value)

    def from_object(self, text: str) -> SentRecord:
        """Return the record of a line that `consume --json` has printed.

        Raises:
            UsageError: the line is not such an object.
            SerdeError: key or value do not have the topic's types.
        """
        try:
            found = msgspec.json.decode(text, type=PrintedRecord)
        except (msgspec.MsgspecError, ValueError) as error:
            raise UsageError(f"not a record as `consume --json` prints it: {error}") from error
        spec = self.spec
        key, value = found.key, found.value
        headers = tuple((name, raw_bytes(data)) for name, data in found.headers)
        return SentRecord(
            key=raw_bytes(key) if spec is None else self._typed_bytes(spec.key, key, "key"),
            value=raw_bytes(value)
            if spec is None
            else self._typed_bytes(spec.value, value, "value"),
            # Those of the command come last: readers take the last one of a name.
            headers=(*headers, *self._headers),
            partition=found.partition if self._partition is None else self._partition,
            timestamp_ms=found.timestamp_ms,
        )

    def _typed_bytes(self, serde: Serde[Any], plain: Any, what: str) -> bytes | None:  # noqa: ANN401 - JSON
        if plain is None:
            return None
        try:
            # JSON has no NaN and no infinity: `consume --json` prints their names.
            if isinstance(serde, FloatSerde) and isinstance(plain, str):
                return serde.dumps(from_text(serde, plain))
            return serde.dumps(from_json(serde, msgspec.json.encode(plain)))
        except SerdeError as error:
            raise SerdeError(f"the {what} for {self._topic!r}: {error}") from error


class PrintedRecord(msgspec.Struct, frozen=True):
    """A record as `consume --json` prints it; topic and offset are those of another log."""

    key: Any = None
    value: Any = None
    headers: list[tuple[str, Any]] = []
    partition: int | None = None
    timestamp_ms: int | None = None


class LineSender:
    """Sends records to a topic, with `PENDING_MAX` records in flight at most."""

    def __init__(self, producer: Producer, topic: str, turns: Iterator[int]) -> None:
        self._producer = producer
        self._topic = topic
        self._turns = turns
        self._pending: deque[tuple[int, asyncio.Future[RecordMetadata]]] = deque()
        self._sent = 0

    async def hand_over(self, record: SentRecord) -> asyncio.Future[RecordMetadata]:
        """Send one record; a future of where it is."""
        partition = record.partition
        if partition is None and record.key is None:
            partition = next(self._turns)
        return await self._producer.send(
            self._topic,
            record.value,
            key=record.key,
            partition=partition,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )

    async def send_all(
        self,
        file: str,
        lines: AsyncIterator[Line],
        encoder: Encoder,
        key: str | None,
        form: LineForm,
    ) -> None:
        """Send all lines and print their number.

        Raises:
            StreamlogError: a line can't be sent; names it. The number of sent lines is printed.
        """
        encode = partial(encoder.of_line, key=key, form=form)
        try:
            with progress_bar(f"sending {file}", unit="records") as bar:
                async for line in lines:
                    await self._send_line(file, line, encode)
                    bar.done = self._sent
                await self._settle_all(file)
        except StreamlogError:
            say(f"sent {quantity(await self._delivered(), 'record')} before the error", err=True)
            raise
        say(f"sent {quantity(self._sent, 'record')} to {self._topic}")

    async def _send_line(self, file: str, line: Line, encode: Callable[[Line], SentRecord]) -> None:
        with _naming(f"{file}, line {line.number}"):
            self._pending.append((line.number, await self.hand_over(encode(line))))
        await self._settle_all(file, PENDING_MAX)

    async def _settle_all(self, file: str, left: int = 0) -> None:
        """Wait for the oldest records in flight, until no more than `left` remain."""
        while len(self._pending) > left:
            number, sending = self._pending.popleft()
            try:
                await sending
            except LogError as error:
                raise LogError(f"{file}, line {number}: {error}") from error
            self._sent += 1

    async def _delivered(self) -> int:
        """Wait for the records in flight; return how many records were sent in all."""
        results = await asyncio.gather(*(each for _, each in self._pending), return_exceptions=True)
        return self._sent + sum(not isinstance(each, BaseException) for each in results)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the place of a line before what is wrong with it."""
    try:
        yield
    except (SerdeError, UsageError, UnknownTopicOrPartition) as error:
        raise type(error)(f"{where}: {error}") from error


def _spec(app: App, topic: str) -> TopicSpec:
    spec = app.spec_of(topic)
    if spec is None:
        patterns = [f"those that match {each.pattern}" for each in app.patterns.values()]
        declared = ", ".join([*sorted(app.topics), *patterns]) or "none"
        raise UnknownTopicOrPartition(
            f"app {app.id!r} declares no topic {topic!r}; its topics: {declared}"
        )
    return spec


async def _round_robin(log: Log, topic: str) -> Iterator[int]:
    """Return the partitions for records without a key, round-robin, the shortest one first.

    Starting at the shortest one spreads records that are sent by one command each.
    """
    parts = await partitions_of(log, topic)
    async with log.consumer() as consumer:
        ends = await consumer.end_offsets(parts)
    return cycle([part.partition for part in sorted(parts, key=lambda p: (ends[p], p.partition))])


def key_bytes(spec: TopicSpec, text: str) -> bytes:
    """Encode a key that was typed on the command line; see `value_bytes`.

    Raises:
        SerdeError: the text does not fit the topic's key type.
    """
    return _encode_text(spec.key, text, f"the key for {spec.name!r}")[1]


def value_bytes(spec: TopicSpec, text: str) -> bytes:
    """Encode a value that was typed on the command line.

    The text is the value if the type is str, bytes or a number, else JSON that is decoded and
    encoded again: what the app could not read is refused here. A value without an event time for
    the topic's `timestamp=` is refused as well.

    Raises:
        SerdeError: the text does not fit the topic's value type, or has no event time.
    """
    what = f"the value for {spec.name!r}"
    value, data = _encode_text(spec.value, text, what)
    if spec.timestamp is not None:
        try:
            ANY_TIME.check(when_ms(spec.timestamp(value)))
        except Exception as error:
            raise SerdeError(f"{what}: timestamp= of the topic failed: {error}") from error
    return data


def _encode_text(serde: Serde[Any], text: str, what: str) -> tuple[Any, bytes]:
    try:
        value = from_text(serde, text)
        return value, serde.dumps(value)
    except SerdeError as error:
        raise SerdeError(f"{what}: {error}") from error
