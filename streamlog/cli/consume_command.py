"""`streamlog consume`: prints the records of a topic, from one place to another or as they come.

It reads partitions on its own, or as a member of a group, which continues where it has stopped. A
group's offsets are committed only for what was printed. Not done here: what a record looks like
(`output/record_format`), and what a condition may contain (`console/record_filter`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import msgspec
import typer

from streamlog.cli.operate.schemas_command import RegistryOption, registry_of
from streamlog.cli.output.record_format import (
    RecordFormat,
    RecordView,
    RegistrySchemas,
    as_object,
)
from streamlog.cli.records_commands import key_bytes
from streamlog.cli.session import (
    LogOption,
    Session,
    complete_topics,
    serve,
    use_registry_of,
)
from streamlog.cli.terminal import log_warnings, say
from streamlog.cli.topics_command import partitions_of
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import Reset
from streamlog.client.offset_lookup import Isolation
from streamlog.client.range_reader import RangeReader
from streamlog.clock import SystemClock
from streamlog.console.record_filter import RecordFilter
from streamlog.durations import duration_ms, when_ms
from streamlog.errors import (
    ConfigError,
    RebalanceInProgress,
    SerdeError,
    SourceLost,
    UnknownTopicOrPartition,
    UsageError,
    quantity,
)
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord

if TYPE_CHECKING:
    from streamlog.app import App

POLL_MS: Final = 200
WAIT_LOG_MS: Final = 2_000
"""Milliseconds without a record after which the command logs that it waits."""
EARLIEST, LATEST = "earliest", "latest"

logger = logging.getLogger(__name__)

BeginningOption = Annotated[
    bool, typer.Option("--from-beginning", help="Begin like --offset earliest.")
]
OffsetOption = Annotated[
    str | None,
    typer.Option(
        "--offset",
        metavar="earliest|latest|N|-N",
        help="Where to begin, in each partition: -N is N before its end. Default: latest.",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Begin at a time (ISO 8601), or as long ago (10m, 2h)."
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Stop before a time, or at the end if it is so."),
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", min=0, metavar="P", help="Only this partition.")
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="Stop after N records.")
]
EndOption = Annotated[
    bool, typer.Option("-e", "--exit-at-end", help="Stop at the end as of the start.")
]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="Read as a member of this group, and commit."),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="K", help="Only records with this key.")
]
FilterOption = Annotated[
    str,
    typer.Option(
        "--filter",
        metavar="CONDITION",
        help='Only records that fulfil it: value.amount > 100 and key == "ann".',
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=r"A line per record: '%t %p %o %T %k %v %h\n', as in kcat.",
    ),
]
UncommittedOption = Annotated[
    bool,
    typer.Option(
        "--uncommitted", help="Also records of transactions that are open or were aborted."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object per record.")]


class ConsumeRange(msgspec.Struct, frozen=True, kw_only=True):
    """The records to print: topic, start, end, and conditions."""

    topic: str
    partition: int | None
    offset: str
    since_ms: int | None
    until_ms: int | None
    limit: int | None
    exit_at_end: bool
    group: str | None
    isolation: Isolation


def consume(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(help="Any topic of the log.", autocompletion=complete_topics)
    ],
    *,
    from_beginning: BeginningOption = False,
    offset: OffsetOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    partition: PartitionOption = None,
    limit: LimitOption = None,
    exit_at_end: EndOption = False,
    group: GroupOption = None,
    uncommitted: UncommittedOption = False,
    key: KeyOption = None,
    condition: FilterOption = "",
    line_format: FormatOption = None,
    as_json: JsonOption = False,
    registry: RegistryOption = None,
    log: LogOption = None,
) -> None:
    """Print the records of a topic until Ctrl-C; with -A or --registry decoded: text, else JSON."""
    session: Session = context.obj
    now_ms = SystemClock().wall_ms()
    wanted = ConsumeRange(
        topic=topic,
        partition=partition,
        offset=EARLIEST if from_beginning else offset or LATEST,
        since_ms=None if since is None else time_of("--since", since, now_ms),
        until_ms=None if until is None else time_of("--until", until, now_ms),
        limit=limit,
        exit_at_end=exit_at_end or until is not None,
        group=group,
        # What an app has written in a commit that did not end is no result of it.
        isolation="read_uncommitted" if uncommitted else "read_committed",
    )
    _refuse_contradictions(wanted, starts=[from_beginning, offset is not None, since is not None])
    if as_json and line_format is not None:
        raise UsageError("--json is a format of its own: give only one of --json and --format")
    form = None if line_format is None else RecordFormat(line_format)
    printer = RecordPrinter(RecordView(), form, as_json=as_json)
    printer.condition = RecordFilter(condition)

    async def main(stop: asyncio.Event) -> None:
        async with session.open(log, listen=True) as opened:
            spec = None if session.app is None else await _spec_of(opened, session.app, topic)
            printer.view = _view(session, spec, registry)
            printer.key = None if key is None else _key(spec, key)
            await _read(opened, wanted, printer, stop)
        printer.tell_if_nothing_fits()

    serve(main, "closing")


def _view(session: Session, spec: TopicSpec | None, registry: str | None) -> RecordView:
    # An app knows the types of its topics, and has a registry of its own for them.
    if registry is None or spec is not None:
        return RecordView(spec)
    return RecordView(None, RegistrySchemas(registry_of(session, registry).find))


async def _spec_of(log: Log, app: App, topic: str) -> TopicSpec | None:
    """Return the app's types of a topic: its own, an internal one, or one of a version."""
    await use_registry_of(log, app)
    declared = app.spec_of(topic)
    if declared is not None:
        return declared
    with log_warnings():
        program = app.program()
    versions = await _versions_of(log, app.id)
    for each in (program, *map(program.as_version, versions)):
        known = {**each.topology.topics, **each.topics}
        if topic in known:
            return known[topic]
    return None


async def _versions_of(log: Log, app_id: str) -> list[str]:
    """Return the versions of an app that the log knows: each has recorded what it computes."""
    from streamlog.worker.topics.version_log import VERSION_TOPIC_SUFFIX  # noqa: PLC0415 - loads slowly

    names = [each.name for each in await log.admin().list_topics()]
    found = re.compile(re.escape(f"{app_id}-") + "(.+)" + re.escape(VERSION_TOPIC_SUFFIX))
    return [match[1] for name in names if (match := found.fullmatch(name))]


def _key(spec: TopicSpec | None, text: str) -> bytes:
    return text.encode() if spec is None else key_bytes(spec, text)


def _refuse_contradictions(wanted: ConsumeRange, *, starts: list[bool]) -> None:
    """Check that options fit each other, before anything is opened.

    Raises:
        UsageError: two of them contradict each other.
    """
    if sum(starts) > 1:
        raise UsageError(
            "--from-beginning means --offset earliest, and --since is a start as well: give only"
            " one of them"
        )
    parse_offset(wanted.offset, 0, 0)
    if wanted.group is None:
        return
    if wanted.offset not in (EARLIEST, LATEST) or wanted.since_ms is not None:
        raise UsageError(
            "a group continues at its own offsets; where it has none, --from-beginning or --offset"
            " latest decides: move it by `streamlog groups reset-offsets`"
        )
    if wanted.partition is not None or wanted.exit_at_end:
        raise UsageError(
            "--group shares the partitions with the group's other members, so it excludes"
            " --partition, --until and -e; --limit stops it"
        )


def time_of(option: str, text: str, now_ms: int) -> int:
    """Return the time that an option means: ISO 8601, or a duration before now.

    Raises:
        UsageError: the text is neither.
    """
    # A duration first: no time of ISO 8601 looks like one.
    try:
        return now_ms - duration_ms(text)
    except ConfigError:
        pass
    try:
        return when_ms(text)
    except ConfigError as error:
        raise UsageError(f"{option} takes a time, or how long ago it was (10m): {error}") from error


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


class RecordPrinter:
    """Prints the records that fulfil all conditions."""

    def __init__(self, view: RecordView, form: RecordFormat | None, *, as_json: bool) -> None:
        self.view = view
        self._form = form
        self._as_json = as_json
        self.key: bytes | None = None
        """Only records with this key; None: with any."""
        self.condition = RecordFilter("")
        self.printed = 0
        self._left_out = 0

    def take(self, part: TopicPartition, record: LogRecord) -> None:
        """Print a record, unless a condition excludes it.

        Raises:
            SerdeError: it does not have its type; the message names its offset.
        """
        if self.key is not None and record.key != self.key:
            return
        try:
            # Decoding costs more than reading: only for a condition.
            if self.condition.text and not self.condition.accepts(
                self.view.filtered(part.partition, record)
            ):
                self._left_out += 1
                return
            self._print(part, record)
        except SerdeError as error:
            where = f"{part.topic}-{part.partition}, offset {record.offset}"
            raise SerdeError(f"{where}: {error}") from error
        self.printed += 1

    def tell_if_nothing_fits(self) -> None:
        """Log that the filter has left out every record: a mistyped field is the usual reason."""
        if self._left_out and not self.printed:
            read = quantity(self._left_out, "record")
            logger.warning("--filter left out all of %s: check the names of its fields", read)

    def _print(self, part: TopicPartition, record: LogRecord) -> None:
        if self._as_json:
            typer.echo(json.dumps(as_object(part, record, self.view)))
        elif self._form is not None:
            typer.echo(self._form.line(part, record, self.view), nl=False)
        else:
            say("\t".join(self.view.texts(record)))


async def _read(
    log: Log, wanted: ConsumeRange, printer: RecordPrinter, stop: asyncio.Event
) -> None:
    parts = await partitions_of(log, wanted.topic)
    if wanted.group is not None:
        await _read_as_member(log, wanted, printer, stop)
        return
    if wanted.partition is not None:
        parts = [part for part in parts if part.partition == wanted.partition]
        if not parts:
            raise UnknownTopicOrPartition(
                f"topic {wanted.topic!r} has no partition {wanted.partition}"
            )
    reading = log.consumer(auto_offset_reset="none", isolation_level=wanted.isolation)
    async with reading as consumer:
        begins, ends = await consumer.begin_offsets(parts), await consumer.end_offsets(parts)
        starts = await _at_time(consumer, wanted.since_ms, ends)
        stops = await _at_time(consumer, wanted.until_ms, ends)
        consumer.assign(parts)
        for part in parts:
            start = starts.get(part)
            if start is None:
                start = _start(wanted.offset, part, begins[part], ends[part])
            # Behind `--until`, there is nothing to read.
            consumer.seek(part, min(start, stops.get(part, start)))
        reader = log.range_reader(consumer, stops or ends)
        pages = _Pages(consumer, reader if wanted.exit_at_end else consumer)
        with _still_there(wanted.topic):
            await _print_pages(log, pages, wanted, printer, stop)


async def _at_time(
    consumer: Consumer, time_ms: int | None, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the first offset at or after a time, else the end; nothing without a time."""
    if time_ms is None:
        return {}
    found = await consumer.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {part: end if (at := found[part]) is None else at.offset for part, end in ends.items()}


def _start(text: str, part: TopicPartition, begin: int, end: int) -> int:
    offset = parse_offset(text, begin, end)
    where = f"{part.topic}-{part.partition}"
    if offset > end:
        raise UsageError(f"--offset {offset} is beyond the end of {where}, which is {end}")
    if offset < begin:
        logger.warning("%s begins at offset %d: earlier records were deleted", where, begin)
    return max(offset, begin)


async def _read_as_member(
    log: Log, wanted: ConsumeRange, printer: RecordPrinter, stop: asyncio.Event
) -> None:
    reset: Reset = "earliest" if wanted.offset == EARLIEST else "latest"
    reading = log.consumer(
        group_id=wanted.group, auto_offset_reset=reset, isolation_level=wanted.isolation
    )
    async with reading as consumer:
        pages = _Pages(consumer, consumer, commits=True)
        await consumer.subscribe(
            [wanted.topic], on_assigned=pages.begin, on_revoked=lambda _: pages.commit()
        )
        with _still_there(wanted.topic):
            await _print_pages(log, pages, wanted, printer, stop)
        await pages.commit()


@contextmanager
def _still_there(topic: str) -> Iterator[None]:
    """Say what to do if the topic is deleted, or created again, while it is read.

    The consumer's own advice is for programs, which can seek, and for names that are wrong.
    """
    try:
        yield
    except SourceLost as lost:
        raise SourceLost(f"{lost.loss}: repeat the command to read what is there now") from lost
    except UnknownTopicOrPartition as gone:
        raise UnknownTopicOrPartition(f"topic {topic!r} was deleted while it was read") from gone


class _Source(Protocol):
    """A consumer, or a reader that knows its end."""

    async def poll(self, *, timeout_ms: int) -> Mapping[TopicPartition, Sequence[LogRecord]]: ...


class _Pages:
    """What polls return, and which of it was printed."""

    def __init__(self, consumer: Consumer, source: _Source, *, commits: bool = False) -> None:
        self._consumer = consumer
        self._source = source
        self._commits = commits
        self._printed: dict[TopicPartition, int] = {}

    async def poll(self) -> Iterator[tuple[TopicPartition, LogRecord]]:
        """Return the next records, each with its partition."""
        polled = await self._source.poll(timeout_ms=POLL_MS)
        return ((part, record) for part, records in polled.items() for record in records)

    async def begin(self, parts: Collection[TopicPartition]) -> None:
        """Note where the group begins in new partitions.

        It commits that before it has printed a record of them: `--limit` may end the command at the
        records of another partition, and the next run must not begin at the end of these.
        """
        for part in parts:
            self._printed.setdefault(part, await self._consumer.position(part))

    async def is_at_end(self) -> bool:
        """Return whether everything was read; never, if it follows the log."""
        return isinstance(self._source, RangeReader) and await self._source.is_at_end()

    def note(self, part: TopicPartition, record: LogRecord) -> None:
        """Note that a record was printed, or left out by a condition."""
        # The offset behind it: the group continues there.
        if self._commits:
            self._printed[part] = record.offset + 1

    async def commit(self) -> None:
        """Commit what was printed; in a rebalance, the next call does."""
        if not self._printed:
            return
        try:
            await self._consumer.commit(self._printed)
        except RebalanceInProgress:
            return
        self._printed = {}


async def _print_pages(
    log: Log, pages: _Pages, wanted: ConsumeRange, printer: RecordPrinter, stop: asyncio.Event
) -> None:
    quiet_ms = 0
    while not stop.is_set() and not await pages.is_at_end():
        before_ms, quiet_ms = quiet_ms, quiet_ms + POLL_MS
        for part, record in await pages.poll():
            quiet_ms = 0
            printer.take(part, record)
            pages.note(part, record)
            # The rest of the poll stays unread: a group gets it again.
            if printer.printed == wanted.limit:
                return
        await pages.commit()
        # Only in the poll in which the pause passes the limit: one line for each pause.
        if before_ms < WAIT_LOG_MS <= quiet_ms and wanted.limit is not None:
            # The usual reason is a worker that has ended, with an error in another terminal.
            alone = ", and no worker holds this log" if log.is_embedded else ""
            logger.info(
                "waiting for records of %s: %d of %d so far%s; -e stops at the end",
                wanted.topic, printer.printed, wanted.limit, alone,
            )  # fmt: skip
