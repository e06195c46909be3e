"""`streamlog cluster log-dirs`: the directories of brokers, and moves between them (KIP-113)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from typing import Annotated

import typer
from rich.table import Table as Grid

from streamlog.cli.operate.partition_arguments import parse_partition
from streamlog.cli.output.progress_bar import progress_bar
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.admin import Admin, LogDir
from streamlog.clock import SystemClock
from streamlog.errors import quantity
from streamlog.record import TopicPartition

LOOK_S = 0.5

log_dirs = typer.Typer(help="Log directories of brokers, and moves between them.")

BrokerOption = Annotated[
    int | None, typer.Option("--broker", metavar="BROKER", help="Only of this broker.")
]


@log_dirs.command("describe")
def describe_log_dirs(
    context: typer.Context,
    *,
    broker: BrokerOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
    log: LogOption = None,
) -> None:
    """Print the directories with their space, and the partitions that move between them."""
    session: Session = context.obj
    found = [
        each
        for each in ask(session, log, lambda admin: admin.describe_log_dirs())
        if broker in (None, each.node_id)
    ]
    if as_json:
        say(json.dumps([_as_json(each) for each in found]))
        return
    grid = Grid("broker", "directory", "partitions", "bytes", "usable", "state")
    for each in found:
        usable = "" if each.usable_bytes < 0 else str(each.usable_bytes)
        numbers = (str(len(each.sizes)), str(sum(each.sizes.values())), usable)
        state = "ok" if each.error is None else f"failed: {each.error}"
        grid.add_row(str(each.node_id), each.path, *numbers, state)
    out().print(grid)
    for each in found:
        for partition, future in sorted(each.futures.items()):
            say(
                f"broker {each.node_id}: {partition.topic}-{partition.partition} moves to"
                f" {each.path}, {future.size_bytes} bytes copied,"
                f" {quantity(future.offset_lag, 'offset')} left"
            )


@log_dirs.command("move")
def move_log_dirs(
    context: typer.Context,
    partitions: Annotated[
        list[str], typer.Argument(metavar="TOPIC-PARTITION...", help="As orders-0.")
    ],
    *,
    broker: Annotated[
        int, typer.Option("--broker", metavar="BROKER", help="The broker with the replicas.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="DIRECTORY",
            help="A path in the broker's log.dirs; the present one cancels a move.",
        ),
    ],
    wait: Annotated[
        float | None,
        typer.Option("--wait", metavar="SECONDS", help="Wait until the moves have ended."),
    ] = None,
    log: LogOption = None,
) -> None:
    """Move replicas to another log directory of their broker, while it serves them."""
    session: Session = context.obj
    moved = [parse_partition(each) for each in partitions]
    is_done = ask(
        session, log, lambda admin: move_replicas(admin, moved, broker=broker, to=to, wait_s=wait)
    )
    if not is_done:
        raise typer.Exit(1)


async def move_replicas(
    admin: Admin,
    partitions: Sequence[TopicPartition],
    *,
    broker: int,
    to: str,
    wait_s: float | None = None,
    report: Callable[[str], None] = say,
) -> bool:
    """Begin moves between directories of a broker; with `wait_s`, wait until they have ended.

    Returns:
        Whether all moves have ended, or were not to be waited for.

    Raises:
        LogError: a move is refused; the others have begun.
    """
    errors = await admin.alter_replica_log_dirs(dict.fromkeys(partitions, to), broker=broker)
    refused = [each for each in errors.values() if each is not None]
    if len(refused) < len(errors):
        report(f"{quantity(len(errors) - len(refused), 'replica')} to move to {to}")
    if refused:
        raise refused[0]
    if wait_s is None:
        return True
    clock = SystemClock()
    until_ms = clock.now_ms() + int(wait_s * 1000)
    before = total = len(partitions)
    with progress_bar("moving", total=total, unit="replicas") as bar:
        while True:
            left = _moving(await admin.describe_log_dirs(partitions), broker)
            if left != before:
                report(f"{total - left} of {total} moves have ended")
                bar.done = total - left
                before = left
            if not left:
                return True
            if clock.now_ms() >= until_ms:
                return False
            await asyncio.sleep(LOOK_S)


def _moving(found: Collection[LogDir], broker: int) -> int:
    return sum(len(each.futures) for each in found if each.node_id == broker)


def _as_json(each: LogDir) -> dict[str, object]:
    return {
        "broker": each.node_id,
        "directory": each.path,
        "error": None if each.error is None else str(each.error),
        "total_bytes": each.total_bytes,
        "usable_bytes": each.usable_bytes,
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition, "bytes": size_bytes}
            for partition, size_bytes in sorted(each.sizes.items())
        ],
        "futures": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "bytes": future.size_bytes,
                "offset_lag": future.offset_lag,
            }
            for partition, future in sorted(each.futures.items())
        ],
    }
