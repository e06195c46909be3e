"""`streamlog send` and `streamlog consume`: records written and read by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from streamlog.assignors import TopicPartition
from streamlog.cli.running import run, serve
from streamlog.cli.session import LogOption, Session
from streamlog.cli.terminal import say, text_of
from streamlog.cli.topics import partitions_of
from streamlog.errors import UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.records.batch import Record
from streamlog.serdes import Serde, from_text
from streamlog.topology import TopicSpec
from streamlog.worker.topics import declare_topics

POLL_MS = 200


def send(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic of the app.")],
    value: Annotated[str, typer.Argument(help="Plain text for str, bytes and numbers, else JSON.")],
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="Likewise.")] = None,
    log: LogOption = None,
) -> None:
    """Send one record to a topic of the app, checked against the topic's types."""
    session: Session = context.obj
    app = session.the_app()
    spec = app.topics.get(topic)
    if spec is None:
        declared = ", ".join(sorted(app.topics)) or "none"
        raise UnknownTopicOrPartition(
            f"app {app.id!r} declares no topic {topic!r}; its topics: {declared}"
        )
    value_bytes = encode(spec.value, value)
    key_bytes = None if key is None else encode(spec.key, key)

    async def main() -> None:
        async with session.open(log, create=True) as opened:
            await declare_topics(opened, {topic: spec})
            partition = None if key_bytes is not None else await _emptiest(opened, topic)
            async with opened.producer() as producer:
                producer.partition_by({topic: spec.partitioner})
                sending = await producer.send(
                    topic, value_bytes, key=key_bytes, partition=partition
                )
                sent = await sending
        say(f"sent to {sent.topic}, partition {sent.partition}, offset {sent.offset}")

    run(main())


async def _emptiest(log: Log, topic: str) -> int:
    """The partition for a record without a key: one command after the other, they take turns."""
    parts = await partitions_of(log, topic)
    async with log.consumer() as consumer:
        ends = await consumer.end_offsets(parts)
    return min(parts, key=lambda part: (ends[part], part.partition)).partition


def consume(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Any topic of the log.")],
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Not only what comes from now on.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Print keys and values of a topic until Ctrl-C; with -A decoded, else as text."""
    session: Session = context.obj
    spec = None if session.app is None else session.app.topics.get(topic)

    async def main(stop: asyncio.Event) -> None:
        async with session.open(log) as opened:
            parts = await partitions_of(opened, topic)
            async with opened.consumer(auto_offset_reset="latest") as consumer:
                consumer.assign(parts)
                if from_beginning:
                    await consumer.seek_to_beginning(*parts)
                while not stop.is_set():
                    _show(await consumer.poll(timeout_ms=POLL_MS), spec)

    serve(main, "closing")


def encode(serde: Serde[Any], text: str) -> bytes:
    """The bytes of a value typed on the command line.

    Text stands for itself where the type is text, bytes or a number; otherwise it is JSON,
    which is read and written again, so that what does not fit is refused here.

    Raises:
        SerdeError: the text does not fit the type.
    """
    return serde.dumps(from_text(serde, text))


def _show(polled: Mapping[TopicPartition, Sequence[Record]], spec: TopicSpec | None) -> None:
    for records in polled.values():
        for record in records:
            say(shown(record, spec))


def shown(record: Record, spec: TopicSpec | None) -> str:
    """One record as a line: key, tab, value."""
    key, value = (None, None) if spec is None else (spec.key, spec.value)
    return f"{_text(record.key, key)}\t{_text(record.value, value)}"


def _text(data: bytes | None, serde: Serde[Any] | None) -> str:
    return text_of(data) if data is None or serde is None else str(serde.loads(data))
