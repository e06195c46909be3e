"""`streamlog consume`: the records of a topic, as lines of text or as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Final

import msgspec
import typer

from streamlog.assignors import TopicPartition
from streamlog.cli.records import shown
from streamlog.cli.running import serve
from streamlog.cli.session import LogOption, Session
from streamlog.cli.terminal import say
from streamlog.cli.topics import partitions_of
from streamlog.client.consumer import Consumer
from streamlog.errors import SerdeError, UnknownTopicOrPartition, UsageError
from streamlog.log import Log
from streamlog.records.batch import Record
from streamlog.serdes import Serde
from streamlog.topology import TopicSpec

POLL_MS: Final = 200
WAIT_TOLD_MS: Final = 2_000
"""After so long without a record it is logged that the command waits."""
EARLIEST, LATEST = "earliest", "latest"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be printed, and until when."""

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
        raise UsageError("--from-beginning is --offset earliest: give one of them")
    start = EARLIEST if from_beginning else offset or LATEST
    parsed_offset(start, 0, 0)
    spec = None if session.app is None else session.app.topics.get(topic)
    wanted = Wanted(topic, partition, start, limit, exit_at_end, as_json, spec)

    async def main(stop: asyncio.Event) -> None:
        async with session.open(log) as opened:
            await _print(opened, wanted, stop)

    serve(main, "closing")


def parsed_offset(text: str, begin: int, end: int) -> int:
    """The offset that is meant, in a partition that holds these.

    Raises:
        UsageError: it is neither a word nor a number.
    """
    if text in (EARLIEST, LATEST):
        return begin if text == EARLIEST else end
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"--offset is earliest, latest, N or -N, not {text!r}") from None
    return max(end + number, begin) if text.startswith("-") else number


async def _print(log: Log, wanted: Wanted, stop: asyncio.Event) -> None:
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
        await _print_polled(consumer, wanted, ends, stop)


def _start(text: str, part: TopicPartition, begin: int, end: int) -> int:
    offset = parsed_offset(text, begin, end)
    where = f"{part.topic}-{part.partition}"
    if offset > end:
        raise UsageError(f"--offset {offset} is beyond the end of {where}, which is {end}")
    if offset < begin:
        logger.warning("%s begins at offset %d: what was before was deleted", where, begin)
    return max(offset, begin)


async def _print_polled(
    consumer: Consumer, wanted: Wanted, ends: Mapping[TopicPartition, int], stop: asyncio.Event
) -> None:
    printed, quiet_ms = 0, 0
    while not stop.is_set() and not (wanted.exit_at_end and _is_at(consumer, ends)):
        polled = await consumer.poll(timeout_ms=POLL_MS)
        for part, record in _of_each(polled, ends if wanted.exit_at_end else {}):
            _print_one(part, record, wanted)
            printed += 1
            if printed == wanted.limit:
                return
        before_ms, quiet_ms = quiet_ms, 0 if polled else quiet_ms + POLL_MS
        if before_ms < WAIT_TOLD_MS <= quiet_ms and wanted.limit is not None:
            logger.info(
                "waiting for records of %s: %d of %d so far; -e stops at the end",
                wanted.topic, printed, wanted.limit,
            )  # fmt: skip


def _of_each(
    polled: Mapping[TopicPartition, Sequence[Record]], ends: Mapping[TopicPartition, int]
) -> Iterator[tuple[TopicPartition, Record]]:
    """The records with their partitions, up to the ends if there are any."""
    for part, records in polled.items():
        end = ends.get(part)
        for record in records:
            if end is None or record.offset < end:
                yield part, record


def _is_at(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    positions = consumer.positions()
    return all(positions.get(part, 0) >= end for part, end in ends.items())


def _print_one(part: TopicPartition, record: Record, wanted: Wanted) -> None:
    try:
        if wanted.as_json:
            typer.echo(json.dumps(as_object(part, record, wanted.spec)))
        else:
            say(shown(record, wanted.spec))
    except SerdeError as error:
        where = f"{part.topic}-{part.partition}, offset {record.offset}"
        raise SerdeError(f"{where}: {error}") from error


def as_object(part: TopicPartition, record: Record, spec: TopicSpec | None) -> dict[str, Any]:
    """A record for JSON; bytes that are not text are an object with their base64."""
    return {
        "topic": part.topic,
        "partition": part.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _value(record.key, None if spec is None else spec.key),
        "value": _value(record.value, None if spec is None else spec.value),
        "headers": [[name, _text(data)] for name, data in record.headers],
    }


def _value(data: bytes | None, serde: Serde[Any] | None) -> Any:  # noqa: ANN401 - JSON
    if data is None or serde is None:
        return _text(data)
    return _finite(msgspec.to_builtins(serde.loads(data), str_keys=True, enc_hook=_plain))


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any type that a serde knows
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump(mode="json")


def _finite(plain: Any) -> Any:  # noqa: ANN401 - JSON
    """JSON has no NaN and no infinity: they are text."""
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_finite(value) for value in plain]
    return str(plain) if isinstance(plain, float) and not isfinite(plain) else plain


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}
