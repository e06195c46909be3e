"""`streamlog send` and `consume`: lines of text or JSON to records, and records to such lines.

A regular file is read synchronously. A pipe or a terminal is read by the event loop, so that lines
are sent while others are awaited, and Ctrl-C ends the wait. Rule: an error names file and line.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import os
import stat
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import cycle
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, NamedTuple

import msgspec
import typer

from streamlog.cli.session import LogOption, Session, run, serve, use_registry_of
from streamlog.cli.terminal import say, text_of
from streamlog.cli.topics_command import partitions_of
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.client.range_reader import RangeReader
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
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.serdes import Serde, from_text
from streamlog.worker.topics.app_topics import declare_topics
from streamlog.worker.topics.topic_schemas import has_schemas

if TYPE_CHECKING:
    from streamlog.app import App


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
            read = _read_file if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else _read_pipe
            async for data in read(file):
                yield data
    except OSError as error:
        raise UsageError(f"can't read {name}: {error.strerror}") from error


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


def send(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic of the app.")],
    value: Annotated[
        str | None,
        typer.Argument(help="The value: plain text for str, bytes and numbers, else JSON."),
    ] = None,
    *,
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="The key, written like VALUE.")
    ] = None,
    file: LinesFile = None,
    key_separator: KeySeparator = None,
    log: LogOption = None,
) -> None:
    """Send one record, or each line of a file; checks them against the topic's types."""
    session: Session = context.obj
    spec = _spec(session.require_app(), topic)
    if (value is None) == (file is None):
        raise UsageError("send takes VALUE or --file FILE (--file - reads standard input)")
    if file is None and key_separator is not None:
        raise UsageError("--key-separator needs --file; use --key for the key of one record")
    if file is not None and key is not None and key_separator is not None:
        raise UsageError("--key and --key-separator can't be combined")
    if key_separator == "":
        raise UsageError("--key-separator is empty")

    def encode() -> tuple[bytes | None, bytes | None]:
        return (
            None if key is None else key_bytes(spec, key),
            None if value is None else value_bytes(spec, value),
        )

    # Mistakes in them end the command before the log is opened; ids of schemas are in the log.
    encoded = None if has_schemas({topic: spec}) else encode()

    async def main() -> None:
        async with session.open(log, create=True) as opened:
            await use_registry_of(opened, session.require_app())
            common_key, given = encoded or encode()
            await declare_topics(opened, {topic: spec})
            async with opened.producer() as producer:
                producer.partition_by({topic: spec.partitioner})
                turns = await _round_robin(opened, topic)
                if given is not None:
                    partition = next(turns) if common_key is None else None
                    sending = await producer.send(topic, given, key=common_key, partition=partition)
                    sent = await sending
                    say(f"sent to {sent.topic}, partition {sent.partition}, offset {sent.offset}")
                elif file is not None:
                    lines = LineSender(producer, spec, common_key, turns)
                    await lines.send(file, key_separator)

    run(main())


class LineSender:
    """Sends the lines of a file to a topic, with `PENDING_MAX` records in flight at most."""

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
        """Send all lines and print their number.

        Raises:
            StreamlogError: a line can't be sent; names it. The number of sent lines is printed.
        """
        try:
            async for line in lines_of(file, key_separator=key_separator):
                await self._send(file, line)
                while len(self._pending) > PENDING_MAX:
                    await self._settle(file)
            while self._pending:
                await self._settle(file)
        except StreamlogError:
            say(f"sent {quantity(await self._delivered(), 'record')} before the error", err=True)
            raise
        say(f"sent {quantity(self._sent, 'record')} to {self._spec.name}")

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
        """Wait for the records in flight; return how many records were sent in all."""
        results = await asyncio.gather(*(each for _, each in self._pending), return_exceptions=True)
        return self._sent + sum(not isinstance(each, BaseException) for each in results)


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


def format_record(record: LogRecord, spec: TopicSpec | None) -> str:
    """Return a record as a line: key, tab, value."""
    key, value = (None, None) if spec is None else (spec.key, spec.value)
    return f"{_display_text(record.key, key)}\t{_display_text(record.value, value)}"


def _display_text(data: bytes | None, serde: Serde[Any] | None) -> str:
    return text_of(data) if data is None or serde is None else str(serde.loads(data))


POLL_MS: Final = 200
WAIT_LOG_MS: Final = 2_000
"""Milliseconds without a record after which the command logs that it waits."""
EARLIEST, LATEST = "earliest", "latest"

logger = logging.getLogger(__name__)


class ConsumeRange(msgspec.Struct, frozen=True):
    """The records to print: topic, start, end, and form."""

    topic: str
    partition: int | None
    offset: str
    limit: int | None
    exit_at_end: bool
    as_json: bool
    spec: TopicSpec | None


def consume(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Any topic of the log.")],
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="The same as --offset earliest.")
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            metavar="earliest|latest|N|-N",
            help="Where to begin, in each partition: -N is N before its end. Default: latest.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, metavar="P", help="Only this partition.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Stop after N records.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("-e", "--exit-at-end", help="Stop at the end as of the start.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per record.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Print the records of a topic until Ctrl-C; with -A decoded, else as text."""
    session: Session = context.obj
    if from_beginning and offset is not None:
        raise UsageError("--from-beginning means --offset earliest: give only one of them")
    start = EARLIEST if from_beginning else offset or LATEST
    # Only to check the text, before anything is opened.
    parse_offset(start, 0, 0)
    spec = None if session.app is None else session.app.spec_of(topic)
    wanted = ConsumeRange(topic, partition, start, limit, exit_at_end, as_json, spec)

    async def main(stop: asyncio.Event) -> None:
        async with session.open(log) as opened:
            if session.app is not None:
                await use_registry_of(opened, session.app)
            await _print(opened, wanted, stop)

    serve(main, "closing")


def parse_offset(text: str, begin: int, end: int) -> int:
    """Return the offset that `--offset` means in a partition from `begin` to `end`.

    Raises:
        UsageError: the text is neither one of the two words nor a number.
    """
    if text in (EARLIEST, LATEST):
        return begin if text == EARLIEST else end
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"--offset is earliest, latest, N or -N, not {text!r}") from None
    # The sign decides, not the number: -0 is the end, and 0 is the first offset.
    return max(end + number, begin) if text.startswith("-") else number


async def _print(log: Log, wanted: ConsumeRange, stop: asyncio.Event) -> None:
    parts = await partitions_of(log, wanted.topic)
    if wanted.partition is not None:
        parts = [part for part in parts if part.partition == wanted.partition]
        if not parts:
            raise UnknownTopicOrPartition(
                f"topic {wanted.topic!r} has no partition {wanted.partition}"
            )
    async with log.consumer(auto_offset_reset="none") as consumer:
        begins, ends = await consumer.begin_offsets(parts), await consumer.end_offsets(parts)
        consumer.assign(parts)
        for part in parts:
            consumer.seek(part, _start(wanted.offset, part, begins[part], ends[part]))
        await _print_records(consumer, wanted, log.range_reader(consumer, ends), stop)


def _start(text: str, part: TopicPartition, begin: int, end: int) -> int:
    offset = parse_offset(text, begin, end)
    where = f"{part.topic}-{part.partition}"
    if offset > end:
        raise UsageError(f"--offset {offset} is beyond the end of {where}, which is {end}")
    if offset < begin:
        logger.warning("%s begins at offset %d: earlier records were deleted", where, begin)
    return max(offset, begin)


async def _print_records(
    consumer: Consumer,
    wanted: ConsumeRange,
    reader: RangeReader,
    stop: asyncio.Event,
) -> None:
    printed, quiet_ms = 0, 0
    while not stop.is_set() and not (wanted.exit_at_end and await reader.is_at_end()):
        # Without -e the consumer follows the log beyond the ends.
        source = reader if wanted.exit_at_end else consumer
        polled = await source.poll(timeout_ms=POLL_MS)
        for part, record in _of_each(polled):
            _print_one(part, record, wanted)
            printed += 1
            if printed == wanted.limit:
                return
        before_ms, quiet_ms = quiet_ms, 0 if polled else quiet_ms + POLL_MS
        # Only in the poll in which the pause passes the limit: one line for each pause.
        if before_ms < WAIT_LOG_MS <= quiet_ms and wanted.limit is not None:
            logger.info(
                "waiting for records of %s: %d of %d so far; -e stops at the end",
                wanted.topic, printed, wanted.limit,
            )  # fmt: skip


def _of_each(
    polled: Mapping[TopicPartition, Sequence[LogRecord]],
) -> Iterator[tuple[TopicPartition, LogRecord]]:
    """Yield each record with its partition."""
    for part, records in polled.items():
        for record in records:
            yield part, record


def _print_one(part: TopicPartition, record: LogRecord, wanted: ConsumeRange) -> None:
    try:
        if wanted.as_json:
            typer.echo(json.dumps(as_object(part, record, wanted.spec)))
        else:
            say(format_record(record, wanted.spec))
    except SerdeError as error:
        where = f"{part.topic}-{part.partition}, offset {record.offset}"
        raise SerdeError(f"{where}: {error}") from error


def as_object(part: TopicPartition, record: LogRecord, spec: TopicSpec | None) -> dict[str, Any]:
    """Return a record as a JSON object; bytes that are not text become their base64."""
    return {
        "topic": part.topic,
        "partition": part.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _value(record.key, None if spec is None else spec.key),
        "value": _value(record.value, None if spec is None else spec.value),
        # Pairs, because several headers of a record may have one name.
        "headers": [[name, _json_text(data)] for name, data in record.headers],
    }


def _value(data: bytes | None, serde: Serde[Any] | None) -> Any:  # noqa: ANN401 - JSON
    if data is None or serde is None:
        return _json_text(data)
    return _finite(msgspec.to_builtins(serde.loads(data), str_keys=True, enc_hook=_plain))


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any type that a serde knows
    # Pydantic's models know their JSON form; other types are shown as text.
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump(mode="json")


def _finite(plain: Any) -> Any:  # noqa: ANN401 - JSON
    """Replace NaN and infinity by text, because JSON has neither."""
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_finite(value) for value in plain]
    return str(plain) if isinstance(plain, float) and not isfinite(plain) else plain


def _json_text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}
