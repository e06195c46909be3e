"""`streamlog cluster plan`, `cordon` and `uncordon`: where replicas go, and what a move costs.

`plan` reads the placement, prints the moves that `replica_plan` finds with their cost, and starts
them with `--execute`. It sets the throttle before the moves start, and removes it after `--wait`
has seen the last one end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.cli.output.progress_bar import progress_bar
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.admin import Admin
from streamlog.client.admin.replica_plan import (
    Moves,
    PlacedPartition,
    ReplicaPlacement,
    cost_of,
    plan_add,
    plan_balance,
    plan_drain,
)
from streamlog.clock import SystemClock
from streamlog.errors import StreamlogError, UsageError, quantity
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition

CORDONED = "cordoned.log.dirs"
ALL_DIRECTORIES = "*"
LOOK_S = 0.5
MOVES_SHOWN = 50


ThrottleOption = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        min=1,
        help="Bytes per second that each broker copies at most.",
    ),
]
WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        help="With --execute: wait until the moves have ended, and remove the throttle.",
    ),
]


class Aim(StrEnum):
    """What a plan is for."""

    BALANCE = "balance"
    DRAIN = "drain"
    ADD = "add"


def cluster_plan(
    context: typer.Context,
    *,
    balance: Annotated[
        bool, typer.Option("--balance", help="Give all brokers equally many replicas and leaders.")
    ] = False,
    drain: Annotated[
        list[int] | None,
        typer.Option("--drain", metavar="BROKER", help="Move all replicas off this broker."),
    ] = None,
    add: Annotated[
        list[int] | None,
        typer.Option("--add", metavar="BROKER", help="Give this broker its share of replicas."),
    ] = None,
    throttle: ThrottleOption = None,
    execute: Annotated[bool, typer.Option("--execute", help="Start the moves.")] = False,
    wait: WaitOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    log: LogOption = None,
) -> None:
    """Plan a balance, a drain, or the share of new brokers; print the moves and their cost."""
    aims = [
        aim
        for aim, is_given in ((Aim.BALANCE, balance), (Aim.DRAIN, drain), (Aim.ADD, add))
        if is_given
    ]
    if len(aims) != 1:
        raise UsageError("plan takes one of --balance, --drain BROKER and --add BROKER")
    if wait is not None and not execute:
        raise UsageError("--wait waits for moves that --execute starts: give both")
    session: Session = context.obj
    placement = ask(session, log, read_placement)
    moves = plan_for(aims[0], placement, drain or add or ())
    say(plan_json(placement, moves, throttle)) if as_json else _show(placement, moves, throttle)
    if not execute or not moves:
        return

    def report(text: str) -> None:
        say(text, err=as_json)

    is_done = ask(
        session,
        log,
        lambda admin: execute_moves(admin, moves, throttle=throttle, wait_s=wait, report=report),
    )
    if not is_done:
        raise typer.Exit(1)


def cluster_cordon(
    context: typer.Context,
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The id of the broker.")],
    *,
    log: LogOption = None,
) -> None:
    """Place no new partition or replica on a broker; it keeps those that it has (KIP-1066)."""
    session: Session = context.obj
    ask(session, log, lambda admin: set_cordoned(admin, broker, is_cordoned=True))
    say(f"broker {broker} is cordoned: it gets no new replicas")


def cluster_uncordon(
    context: typer.Context,
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The id of the broker.")],
    *,
    log: LogOption = None,
) -> None:
    """Let a cordoned broker get new partitions and replicas again."""
    session: Session = context.obj
    ask(session, log, lambda admin: set_cordoned(admin, broker, is_cordoned=False))
    say(f"broker {broker} is not cordoned: it gets new replicas")


async def set_cordoned(admin: Admin, broker: int, *, is_cordoned: bool) -> None:
    """Cordon a broker, or end that; raises what `Admin.alter_configs` raises."""
    await admin.alter_configs({CORDONED: ALL_DIRECTORIES if is_cordoned else None}, broker=broker)


async def read_placement(admin: Admin) -> ReplicaPlacement:
    """Read where all replicas are, their sizes, and which brokers are cordoned."""
    brokers = (await admin.describe_cluster()).brokers
    sizes: dict[TopicPartition, int] = {}
    for directory in await admin.describe_log_dirs():
        for partition, size in directory.sizes.items():
            # Replicas differ while some of them catch up, and by what each has removed.
            sizes[partition] = max(size, sizes.get(partition, 0))
    partitions = {}
    for each in await admin.describe_partitions():
        partition = TopicPartition(each.topic, each.partition)
        partitions[partition] = PlacedPartition(each.replicas, sizes.get(partition, 0), each.leader)
    cordoned = set()
    for each_broker in brokers:
        entry = (await admin.describe_configs(broker=each_broker.node_id)).get(CORDONED)
        if entry is not None and entry.value == ALL_DIRECTORIES:
            cordoned.add(each_broker.node_id)
    racks = {each.node_id: each.rack for each in brokers}
    return ReplicaPlacement(partitions, racks, frozenset(cordoned))


def plan_for(aim: Aim, placement: ReplicaPlacement, brokers: Collection[int]) -> Moves:
    """Return the moves of a plan; raises as the planners do."""
    if aim is Aim.BALANCE:
        return plan_balance(placement)
    return (plan_drain if aim is Aim.DRAIN else plan_add)(placement, brokers)


async def execute_moves(
    admin: Admin,
    moves: Moves,
    *,
    throttle: int | None = None,
    wait_s: float | None = None,
    report: Callable[[str], None] = say,
) -> bool:
    """Start the moves; with `wait_s`, wait until they have ended.

    Returns:
        Whether all moves have ended, or were not to be waited for.

    Raises:
        LogError: a move is refused.
    """
    if throttle is not None:
        await admin.throttle_moves(throttle, moves)
    done = await admin.alter_partition_reassignments(moves)
    refused = next((error for error in done.values() if error is not None), None)
    if refused is not None:
        raise refused
    if wait_s is None:
        verify = "`streamlog cluster reassign --verify` removes the throttle when they have ended"
        report(f"{quantity(len(moves), 'move')} started; {verify}")
        return True
    if not await wait_for_moves(admin, moves, wait_s, report):
        return False
    if throttle is not None:
        await admin.remove_throttles()
    elected = await admin.elect_leaders(list(moves))
    failed = [
        error
        for error in elected.values()
        if error is not None and error.code != ErrorCode.ELECTION_NOT_NEEDED
    ]
    if failed:
        raise failed[0]
    report("all moves have ended")
    return True


async def wait_for_moves(
    admin: Admin,
    moves: Collection[TopicPartition],
    wait_s: float,
    report: Callable[[str], None] = say,
) -> bool:
    """Wait until moves have ended, for `wait_s` at most; return whether they have.

    Raises:
        StreamlogError: the cluster refuses to list the moves.
    """
    clock = SystemClock()
    until_ms = clock.now_ms() + round(wait_s * 1000)
    before = len(moves)
    with progress_bar("moving", total=len(moves), unit="partitions") as bar:
        while True:
            left = await _moves_left(admin, moves, before)
            if not left:
                return True
            if left != before:
                report(f"{len(moves) - left} of {len(moves)} moves have ended")
                bar.done = len(moves) - left
                before = left
            if clock.now_ms() >= until_ms:
                break
            await asyncio.sleep(LOOK_S)
    report(f"moves are still in progress after {wait_s:g} s")
    return False


async def _moves_left(admin: Admin, moves: Collection[TopicPartition], before: int) -> int:
    """Return how many moves are in progress; as many as before while no broker answers."""
    try:
        return len(await admin.list_partition_reassignments(moves))
    except StreamlogError as error:
        if not error.retriable:
            raise
        return before


def plan_json(placement: ReplicaPlacement, moves: Moves, throttle: int | None) -> str:
    """Return a plan and its cost as JSON."""
    cost = cost_of(placement, moves)
    return json.dumps(
        {
            "moves": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "from": list(placement.partitions[each].replicas),
                    "to": list(replicas),
                    "bytes": placement.partitions[each].size_bytes,
                }
                for each, replicas in moves.items()
            ],
            "cost": msgspec.to_builtins(cost),
            "seconds": None if throttle is None else cost.seconds(throttle),
            "cordoned": sorted(placement.cordoned),
        }
    )


def _show(
    placement: ReplicaPlacement,
    moves: Mapping[TopicPartition, tuple[int, ...]],
    throttle: int | None,
) -> None:
    if placement.cordoned:
        say(f"cordoned brokers: {', '.join(map(str, sorted(placement.cordoned)))}")
    if not moves:
        say("nothing to move")
        return
    grid = Grid("partition", "from", "to", "bytes")
    for where, replicas in [*moves.items()][:MOVES_SHOWN]:
        now = placement.partitions[where]
        sides = (",".join(map(str, row)) for row in (now.replicas, replicas))
        grid.add_row(f"{where.topic}-{where.partition}", *sides, str(now.size_bytes))
    out().print(grid)
    if len(moves) > MOVES_SHOWN:
        say(f"and {len(moves) - MOVES_SHOWN} more; --json shows all")
    cost = cost_of(placement, moves)
    time = "" if throttle is None else f", at least {cost.seconds(throttle):.0f} s at this throttle"
    say(
        f"{quantity(cost.replicas, 'replica')} to copy, {cost.bytes} bytes in all,"
        f" {cost.busiest_bytes} on the busiest broker{time};"
        f" {quantity(cost.leaders, 'partition')} will be led by another broker"
    )
