"""`streamlog transactions`: open transactions, and those that hang (KIP-664)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table as Grid

from streamlog.cli.operate.partition_arguments import parse_partition, partition_name
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.admin import Admin, HangingTransaction, TransactionDescription
from streamlog.durations import duration_ms, moment
from streamlog.errors import ConfigError, UsageError
from streamlog.record import TopicPartition

transactions = typer.Typer(help="Transactions of producers, and those that hang.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print all as JSON.")]


@transactions.command("list")
def list_transactions(
    context: typer.Context,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Such as Ongoing; can be repeated."),
    ] = None,
    open_for: Annotated[
        str | None,
        typer.Option("--open-for", metavar="DURATION", help="Open for longer, such as 5m."),
    ] = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Print the transactional ids with their states."""
    session: Session = context.obj
    open_for_ms = None if open_for is None else duration_ms(open_for)
    found = ask(
        session,
        log,
        lambda admin: admin.list_transactions(states=state or (), open_for_ms=open_for_ms),
    )
    if as_json:
        rows = [
            {"transactional_id": i.transactional_id, "producer_id": i.producer_id, "state": i.state}
            for i in found
        ]
        say(json.dumps(rows))
        return
    grid = Grid("transactional id", "producer id", "state")
    for each in found:
        grid.add_row(each.transactional_id, str(each.producer_id), each.state)
    out().print(grid)


@transactions.command("describe")
def describe_transactions(
    context: typer.Context,
    transactional_ids: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID...")],
    *,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Print the open transaction of each id, and the partitions in it."""
    session: Session = context.obj
    found = ask(session, log, lambda admin: admin.describe_transactions(transactional_ids))
    if as_json:
        say(json.dumps([_as_json(each) for each in found]))
        return
    grid = Grid(
        *("transactional id", "state", "coordinator", "producer id", "epoch", "time-out ms"),
        *("begun", "partitions"),
    )
    for each in found:
        begun = "" if each.start_ms is None else _time(each.start_ms)
        numbers = (each.coordinator, each.producer_id, each.producer_epoch, each.timeout_ms)
        partitions = " ".join(partition_name(partition) for partition in sorted(each.partitions))
        cells = (each.transactional_id, each.state, *map(str, numbers), begun, partitions)
        grid.add_row(*cells)
    out().print(grid)


@transactions.command("find-hanging")
def find_hanging(
    context: typer.Context,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC...]", help="All topics by default.")
    ] = None,
    *,
    open_for: Annotated[
        str,
        typer.Option(
            "--max-transaction-timeout",
            metavar="DURATION",
            help="The largest time-out of a producer; younger transactions are left out.",
        ),
    ] = "15m",
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Find transactions that no coordinator will end, with the commands that abort them.

    Exits with 1 if there are any.
    """
    session: Session = context.obj
    open_for_ms = duration_ms(open_for)
    found = ask(session, log, lambda admin: _find(admin, topics or [], open_for_ms))
    if as_json:
        say(json.dumps([_hanging_as_json(each) for each in found]))
    elif not found:
        say(f"no transaction hangs that is older than {open_for}")
    else:
        grid = Grid("partition", "start offset", "producer id", "epoch", "last written")
        for each in found:
            producer = each.producer
            numbers = (producer.transaction_start_offset, producer.producer_id)
            grid.add_row(
                partition_name(each.partition),
                *map(str, (*numbers, producer.producer_epoch)),
                _time(producer.last_timestamp_ms),
            )
        out().print(grid)
        for each in found:
            say(
                f"streamlog transactions abort {partition_name(each.partition)} --start-offset"
                f" {each.producer.transaction_start_offset}"
            )
    if found:
        raise typer.Exit(1)


@transactions.command("abort")
def abort_transaction(
    context: typer.Context,
    partition: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", help="As orders-0.")],
    *,
    start_offset: Annotated[
        int,
        typer.Option(
            "--start-offset",
            metavar="OFFSET",
            help="Where it begins in the partition, as find-hanging prints it.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Abort it even if its coordinator knows it.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Abort a hanging transaction in one partition."""
    session: Session = context.obj
    where = parse_partition(partition)
    ask(session, log, lambda admin: abort_hanging(admin, where, start_offset, force=force))
    say(f"the transaction at offset {start_offset} of {partition} is aborted")


async def abort_hanging(
    admin: Admin, partition: TopicPartition, start_offset: int, *, force: bool = False
) -> None:
    """Abort the transaction that begins at an offset, unless a coordinator will end it.

    Raises:
        UsageError: no open transaction begins there; or its coordinator knows it, and `force` is
            not given.
        LogError: its producer has begun another one meanwhile.
    """
    producers = (await admin.describe_producers([partition]))[partition]
    begins = [each for each in producers if each.transaction_start_offset == start_offset]
    if not begins:
        others = sorted(
            each.transaction_start_offset
            for each in producers
            if each.transaction_start_offset is not None
        )
        listed = ", ".join(map(str, others)) or "none"
        raise UsageError(
            f"no open transaction begins at offset {start_offset} of {partition_name(partition)};"
            f" transactions begin at: {listed}"
        )
    if not force and not await admin.find_hanging_transactions([partition], open_for_ms=0):
        (known,) = await admin.list_transactions(producer_ids=[begins[0].producer_id])
        raise UsageError(
            f"the transaction belongs to transactional id {known.transactional_id!r}, and its"
            " coordinator will end it: stop its producer, and it is aborted after its time-out."
            " --force aborts it now: if the producer commits, the records of this partition are"
            " lost"
        )
    await admin.abort_transaction(partition, begins[0])


async def _find(admin: Admin, topics: Sequence[str], open_for_ms: int) -> list[HangingTransaction]:
    listing = admin.describe_topics(topics) if topics else admin.list_topics(internal=True)
    partitions = [
        TopicPartition(topic.name, number)
        for topic in await listing
        for number in range(topic.partitions)
    ]
    return await admin.find_hanging_transactions(partitions, open_for_ms=open_for_ms)


def _as_json(each: TransactionDescription) -> dict[str, object]:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "coordinator": each.coordinator,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_ms": each.timeout_ms,
        "start_ms": each.start_ms,
        "partitions": [partition_name(partition) for partition in sorted(each.partitions)],
    }


def _hanging_as_json(each: HangingTransaction) -> dict[str, object]:
    return {
        "partition": partition_name(each.partition),
        "start_offset": each.producer.transaction_start_offset,
        "producer_id": each.producer.producer_id,
        "producer_epoch": each.producer.producer_epoch,
        "last_timestamp_ms": each.producer.last_timestamp_ms,
        "transactional_id": each.transactional_id,
    }


def _time(timestamp_ms: int) -> str:
    try:
        return moment(timestamp_ms).isoformat(timespec="seconds")
    except ConfigError:  # A producer writes what it likes.
        return f"{timestamp_ms} ms"
