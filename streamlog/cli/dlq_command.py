"""`streamlog dlq`: lists dead letters, replays them to the topics they came from, drops them.

The group `<topic>-replay` holds the offset up to which letters have been replayed. `replay` commits
it in the transaction of the records that it sends, so that a crash sends no record twice. Replayed
letters stay in the topic until `drop` removes them. `replay` skips letters that only the app may
write (`INTERNAL`); they stay as well. Rule of the file: only `drop` removes letters, and only up to
a limit that the user names.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as Grid

from streamlog.cli.output.plain_text import text_of
from streamlog.cli.output.progress_bar import progress_bar
from streamlog.cli.session import LogOption, Session, with_log
from streamlog.cli.terminal import JsonOption, out, print_grid, say
from streamlog.cli.topics_command import partitions_of
from streamlog.errors import UsageError, quantity
from streamlog.log import Log
from streamlog.processing import error_handling
from streamlog.record import TopicPartition
from streamlog.worker.topics.dead_letters import (
    BATCH_RECORDS,
    DeadLetter,
    check_partitions,
    letter_reader,
    partitioners_of,
    progress,
    read_letters,
    read_unsent,
    replay_group,
    send_again,
    unsent,
)

LIST_DEFAULT = 100
TEXT_CHARACTERS = 60
"""How much of a key or value the table shows."""

dlq = typer.Typer(
    help="Dead letters: records that failed under on_error=on_error.dlq().", no_args_is_help=True
)

Topic = Annotated[
    str | None,
    typer.Argument(help="The dead-letter topic. Default: <app>-dlq of the app that -A names."),
]


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
    trace: Annotated[
        bool, typer.Option("--trace", help="Show the stack trace of each error, too.")
    ] = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """List dead letters: where each came from, and its error."""
    name = _topic(context.obj, topic)

    async def look(opened: Log) -> list[DeadLetter]:
        async with letter_reader(opened, name) as consumer:
            if everything:
                begins = await consumer.begin_offsets(await partitions_of(opened, name))
                return await read_letters(opened, consumer, begins, limit)
            sent = await progress(opened, consumer, name)
            return unsent(await read_unsent(opened, consumer, sent, limit), sent)

    found = with_log(context.obj, log, look)
    columns = ["letter", "time", "source", "operator", "error", "attempts", "key", "value"]
    # Lines of a trace would tear a table apart: there, traces follow below it.
    is_column = trace and as_json
    grid = Grid(*columns, *(["trace"] if is_column else []))
    for letter in found:
        traced = [letter.trace] if is_column else []
        grid.add_row(*map(escape, [*_row(letter), *traced]))
    print_grid(grid, as_json=as_json, markup=True)
    if as_json:
        return
    for letter in found if trace else ():
        say(f"{letter.position}\n{_indented(letter)}")
    count = quantity(len(found), "letter")
    out(markup=True).print(f"{'the first ' if len(found) == limit else ''}{count} in {name}")


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
            letter_reader(opened, name) as consumer,
            opened.producer(transactional_id=replay_group(name)) as producer,
        ):
            # The producer is open first:
            # 1. An earlier replay was killed while its transaction was open.
            # 2. Opening a producer of the same name ends that transaction, and fences the replay.
            # 3. The committed offset now says for certain which letters were sent.
            sent = await progress(opened, consumer, name)
            letters = await read_unsent(opened, consumer, sent, limit)
            left = unsent(letters, sent)
            if topics is None:
                check_partitions(left)
            else:
                producer.partition_by(partitioners_of(topics))
            with progress_bar("replaying", total=len(letters), unit="letters") as bar:
                for first in range(0, len(letters), BATCH_RECORDS):
                    run = letters[first : first + BATCH_RECORDS]
                    sent = await send_again(producer, consumer, run, sent)
                    bar.advance(len(run))
        return left

    letters = with_log(session, log, replay)
    passed = [letter for letter in letters if letter.is_internal]
    say(f"replayed {quantity(len(letters) - len(passed), 'record')}")
    if passed:
        positions = ", ".join(letter.position for letter in passed)
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
        async with letter_reader(opened, name) as consumer:
            parts = await partitions_of(opened, name)
            begins = await consumer.begin_offsets(parts)
            if everything:
                wanted = await consumer.end_offsets(parts)
            elif replayed:
                sent = await progress(opened, consumer, name)
                wanted = {part: each.until for part, each in sent.items()}
            else:
                wanted = given
        await opened.admin().delete_records(wanted)
        return sum(max(offset - begins.get(part, offset), 0) for part, offset in wanted.items())

    say(f"removed {quantity(with_log(context.obj, log, drop), 'offset')} of {name}")


def _topic(session: Session, given: str | None) -> str:
    return given if given is not None else f"{session.require_app().id}-dlq"


def _row(letter: DeadLetter) -> list[str]:
    record = letter.record
    kind = _text(letter, error_handling.EXCEPTION).removeprefix("builtins.")
    topic, partition = _text(letter, error_handling.TOPIC), _text(letter, error_handling.PARTITION)
    internal = " (internal)" if letter.is_internal else ""
    return [
        letter.position,
        datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        f"{topic}-{partition}:{_text(letter, error_handling.OFFSET)}{internal}",
        _text(letter, error_handling.NODE),
        f"{kind}: {_text(letter, error_handling.MESSAGE)}",
        _text(letter, error_handling.ATTEMPT),
        text_of(record.key)[:TEXT_CHARACTERS],
        text_of(record.value)[:TEXT_CHARACTERS],
    ]


def _indented(letter: DeadLetter) -> str:
    lines = letter.trace.splitlines() or ["no stack trace"]
    # Line by line, as a header comes from a record, and could move the terminal.
    return "\n".join(f"  {text_of(line.encode())}" for line in lines)


def _text(letter: DeadLetter, header: str) -> str:
    # A header comes from a record, and could move the terminal.
    return text_of(letter.header(header))


def _until(topic: str, text: str) -> tuple[TopicPartition, int]:
    partition, _, offset = text.rpartition(":")
    if not offset.isdecimal() or not (partition or "0").isdecimal():
        raise UsageError(f"--until takes [PARTITION:]OFFSET, such as 0:120, not {text!r}")
    return TopicPartition(topic, int(partition or 0)), int(offset)
