"""`streamlog cluster`: brokers of one log, where its partitions are, and whether it is healthy.

`init`, `grow` (`cluster_init`) prepare data directories; the others are shells around `Admin`.
`status` looks once, or waits until the cluster is proved healthy (`cluster_descriptions`): the next
step of a rolling restart, or of a replacement of disks, has to wait for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from rich.table import Table as Grid

from streamlog.cli.cluster_init import cluster_grow, cluster_init
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.admin import Admin
from streamlog.client.admin.cluster_descriptions import (
    ClusterDescription,
    Evidence,
    PartitionDescription,
    QuorumDescription,
    find_problems,
    silent_voters,
)
from streamlog.clock import SystemClock
from streamlog.errors import LogError, NotAuthorized, StreamlogError, UnsupportedVersion, UsageError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition

EXIT_NOT_WELL = 1
NOBODY = -1
LOOK_AGAIN_S = 0.5
MIN_INSYNC = "min.insync.replicas"
FETCH_PATIENCE_S = 2.0
"""How long one look waits for every voter to fetch once more, which proves it alive."""
FETCH_LOOK_S = 0.1
PARTITIONS_SHOWN = DOUBTS_SHOWN = 50
"""The others are counted."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster at one moment."""

    cluster: ClusterDescription
    partitions: list[PartitionDescription]
    quorum: QuorumDescription | None
    """None if it has none, or that is not for who asks to know."""
    min_insync: Mapping[str, int]
    """What topics ask for that have partitions which lack replicas; 0: what is usual."""
    doubts: Sequence[str] = ()
    """Why the cluster is not proved well."""

    @property
    def missing(self) -> list[int]:
        """Nodes that are to be there and are not: they vote, or have replicas."""
        wanted = {node for each in self.partitions for node in each.replicas}
        if self.quorum is not None:
            wanted |= {each.node_id for each in self.quorum.voters}
        controllers = self._controllers_only()
        return sorted(wanted - {each.node_id for each in self.cluster.brokers} - controllers)

    def _controllers_only(self) -> set[int]:
        """Voters that have caught up and hold nothing: they need not be brokers."""
        if self.quorum is None:
            return set()
        return {
            each.node_id
            for each in self.quorum.voters
            if each.end_offset >= self.quorum.high_watermark
            and not any(each.node_id in partition.replicas for partition in self.partitions)
        }

    @property
    def lacking(self) -> list[PartitionDescription]:
        """Partitions with replicas that are not in sync, or without a leader."""
        return [
            each
            for each in self.partitions
            if len(each.in_sync) < len(each.replicas) or each.leader == NOBODY
        ]

    @property
    def offline(self) -> list[PartitionDescription]:
        """Partitions without a leader."""
        return [each for each in self.partitions if each.leader == NOBODY]

    @property
    def under_min_isr(self) -> list[PartitionDescription]:
        """Partitions that take no acks=all."""
        return [each for each in self.lacking if len(each.in_sync) < self._least(each)]

    @property
    def is_well(self) -> bool:
        """Whether every replica has proved that it has what it is counted for.

        Then one broker can be stopped, or lose its disk.
        """
        has_controller = self.cluster.controller != NOBODY
        return has_controller and not (self.missing or self.lacking or self.doubts)

    def _least(self, partition: PartitionDescription) -> int:
        copies = len(partition.replicas)
        usual = 2 if copies > 2 else 1  # noqa: PLR2004 - as brokers have it
        return min(self.min_insync.get(partition.topic, 0) or usual, copies)


def cluster_status(
    context: typer.Context,
    *,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            help="Look until the cluster is proved well, for this long at most; else exit with 1.",
        ),
    ] = None,
    log: LogOption = None,
) -> None:
    """The quorum, brokers, and partitions that lack a leader or replicas in sync."""
    session: Session = context.obj
    status = ask(session, log, read_status) if wait is None else wait_for(session, log, wait)
    show(status)
    if wait is not None and not status.is_well:
        say(f"not well after {wait:g} s", err=True)
        raise typer.Exit(EXIT_NOT_WELL)


def wait_for(session: Session, log: str | None, seconds: float) -> ClusterStatus:
    """Look until the cluster is well or the time is over; brokers may still be starting.

    Raises:
        StreamlogError: by then, none of the log's brokers could be asked.
    """
    clock = SystemClock()
    until_ms = clock.now_ms() + round(seconds * 1000)
    while True:
        left_s = max(0.0, (until_ms - clock.now_ms()) / 1000)
        try:
            return ask(session, log, partial(read_status_until, seconds=left_s))
        except StreamlogError as error:
            if not error.retriable or clock.now_ms() >= until_ms:
                raise
        time.sleep(LOOK_AGAIN_S)


async def read_status(admin: Admin) -> ClusterStatus:
    """Ask for all of it, in the order that `Evidence` names. Raises what asking raises."""
    first = await admin.describe_nodes()
    quorum = await _quorum(admin)
    described, partitions = await admin.describe_cluster(), await admin.describe_partitions()
    second = await admin.describe_nodes()
    evidence = Evidence(
        first=first,
        quorum=quorum,
        partitions=partitions,
        second=second,
        quorum_after=None if quorum is None else await _quorum_after(admin, quorum),
    )
    lacking = {each.topic for each in partitions if len(each.in_sync) < len(each.replicas)}
    least = {}
    for topic in sorted(lacking):
        settings = await admin.describe_configs(topic)
        least[topic] = int(settings[MIN_INSYNC].value or 0) if MIN_INSYNC in settings else 0
    return ClusterStatus(
        described, partitions, evidence.quorum_after, least, find_problems(evidence)
    )


async def _quorum(admin: Admin) -> QuorumDescription | None:
    """None if the cluster has none, or that is not for this user to know."""
    try:
        return await admin.describe_quorum()
    except (UnsupportedVersion, NotAuthorized):
        return None


async def _quorum_after(admin: Admin, before: QuorumDescription) -> QuorumDescription:
    """The quorum once every voter has fetched again, or has failed to for `FETCH_PATIENCE_S`."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + FETCH_PATIENCE_S
    while True:
        after = await admin.describe_quorum()
        if not silent_voters(before, after) or loop.time() >= until_s:
            return after
        await asyncio.sleep(FETCH_LOOK_S)


async def read_status_until(admin: Admin, seconds: float) -> ClusterStatus:
    """Ask again and again, until all is well or the time is over."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while True:
        try:
            status = await read_status(admin)
            if status.is_well or loop.time() >= until_s:
                return status
        except StreamlogError as error:
            if not error.retriable or loop.time() >= until_s:
                raise
        await asyncio.sleep(LOOK_AGAIN_S)


def show(status: ClusterStatus) -> None:
    """Print it."""
    say(f"cluster {status.cluster.cluster_id}")
    if status.quorum is not None:
        _show_quorum(status.quorum)
    grid = Grid("broker", "address", "rack", "leads", "holds", "in sync")
    for each in status.cluster.brokers:
        where = f"{each.host}:{each.port}"
        grid.add_row(str(each.node_id), where, each.rack or "", *_shares(status, each.node_id))
    for number in status.missing:
        grid.add_row(str(number), "not there", "", *_shares(status, number))
    out().print(grid)
    say(
        f"{len(status.partitions)} partitions, {len(status.lacking)} with replicas that are not in"
        f" sync, {len(status.under_min_isr)} of them with fewer than {MIN_INSYNC},"
        f" {len(status.offline)} without a leader"
    )
    if status.lacking:
        out().print(_partitions(status.lacking[:PARTITIONS_SHOWN]))
    if len(status.lacking) > PARTITIONS_SHOWN:
        say(f"and {len(status.lacking) - PARTITIONS_SHOWN} more")
    for doubt in status.doubts[:DOUBTS_SHOWN]:
        say(f"not proved: {doubt}")
    if len(status.doubts) > DOUBTS_SHOWN:
        say(f"and {len(status.doubts) - DOUBTS_SHOWN} more")


def numbers_of(numbers: Iterable[int]) -> str:
    """As one cell."""
    return ",".join(map(str, numbers))


def _show_quorum(quorum: QuorumDescription) -> None:
    say(
        f"quorum: node {quorum.leader} leads epoch {quorum.epoch},"
        f" committed up to {quorum.high_watermark}"
    )
    grid = Grid("node", "is", "end offset", "lag")
    for role, nodes in (("voter", quorum.voters), ("observer", quorum.observers)):
        for each in nodes:
            end = "?" if each.end_offset < 0 else str(each.end_offset)
            is_leader = each.node_id == quorum.leader
            grid.add_row(
                str(each.node_id), "leader" if is_leader else role, end, str(quorum.lag(each))
            )
    out().print(grid)


def _shares(status: ClusterStatus, number: int) -> tuple[str, str, str]:
    partitions = status.partitions
    return (
        str(sum(each.leader == number for each in partitions)),
        str(sum(number in each.replicas for each in partitions)),
        str(sum(number in each.in_sync for each in partitions)),
    )


def _partitions(partitions: Iterable[PartitionDescription]) -> Grid:
    grid = Grid("partition", "leader", "epoch", "replicas", "in sync", "offline")
    for each in partitions:
        grid.add_row(
            f"{each.topic}-{each.partition}",
            "none" if each.leader == NOBODY else str(each.leader),
            str(each.leader_epoch),
            *(numbers_of(numbers) for numbers in (each.replicas, each.in_sync, each.offline)),
        )
    return grid


EVERY = "*"
"""Any partition."""

cluster = typer.Typer(help="Brokers, and where partitions are.", no_args_is_help=True)


cluster.command("init")(cluster_init)


cluster.command("grow")(cluster_grow)


cluster.command("status")(cluster_status)


@cluster.command("elect")
def cluster_elect(
    context: typer.Context,
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC-PARTITION]...", help="Without any: all."),
    ] = None,
    *,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Any replica that lives, where nobody leads: may lose records."
        ),
    ] = False,
    log: LogOption = None,
) -> None:
    """Have the preferred replicas lead partitions again."""
    wanted = [parse_partition(text) for text in partitions or ()]
    if unclean and not wanted:
        raise UsageError("--unclean may lose records: name the partitions")
    session: Session = context.obj
    done = ask(session, log, lambda admin: admin.elect_leaders(wanted or None, unclean=unclean))
    elected = [where for where, error in done.items() if error is None]
    for where in sorted(elected):
        say(f"{where.topic}-{where.partition}: its leader is elected")
    refused = _first_other(done.values(), ErrorCode.ELECTION_NOT_NEEDED)
    if refused is not None:
        raise refused
    if not elected:
        say("nothing to do: all are led by their preferred replicas")


@cluster.command("reassign")
def cluster_reassign(
    context: typer.Context,
    moves: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC-PARTITION=BROKER,BROKER...]...",
            help="The first broker is to lead; nothing behind '=' gives a move up. 'TOPIC-*=' is"
            " for all partitions of a topic, '*=' for all there are: their leaders take turns.",
        ),
    ] = None,
    *,
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            min=1,
            help="A second, that each broker copies at most; alone: for moves on their way.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Remove the throttle if nothing is on its way any more; else end with 1.",
        ),
    ] = False,
    log: LogOption = None,
) -> None:
    """Move partitions to other brokers; without any, show those that are on their way."""
    session: Session = context.obj
    wanted = parse_moves(
        moves or (), lambda: ask(session, log, lambda admin: admin.describe_partitions())
    )
    if verify and (wanted or throttle is not None):
        raise UsageError("--verify looks at moves that were begun: give it alone")
    if throttle is not None:
        _throttle(session, log, throttle, wanted)
    if not wanted:
        is_over = _show_moves(session, log)
        if verify and not is_over:
            raise typer.Exit(1)
        if verify:
            for topic in ask(session, log, lambda admin: admin.remove_throttles()):
                say(f"{topic} is not throttled any more")
        return
    _move(session, log, wanted)


def _move(
    session: Session, log: str | None, wanted: Mapping[TopicPartition, list[int] | None]
) -> None:
    done = ask(session, log, lambda admin: admin.alter_partition_reassignments(wanted))
    for where, error in done.items():
        if error is None:
            what = "is on its way" if wanted[where] else "stays"
            say(f"{where.topic}-{where.partition} {what}")
    refused = next((error for error in done.values() if error is not None), None)
    if refused is not None:
        raise refused


def _throttle(
    session: Session,
    log: str | None,
    bytes_per_s: int,
    moves: Mapping[TopicPartition, list[int] | None],
) -> None:
    brokers = ask(session, log, lambda admin: admin.throttle_moves(bytes_per_s, moves))
    if brokers:
        say(
            f"brokers {numbers_of(brokers)} copy {bytes_per_s} bytes a second at most, until"
            " `streamlog cluster reassign --verify` finds nothing on its way"
        )
    else:
        say("nothing is copied, so nothing is throttled")


def _show_moves(session: Session, log: str | None) -> bool:
    """Those that are on their way; whether there are none."""
    under_way = ask(session, log, lambda admin: admin.list_partition_reassignments())
    grid = Grid("partition", "replicas", "coming", "going")
    for where, move in sorted(under_way.items()):
        numbers = (numbers_of(each) for each in (move.replicas, move.adding, move.removing))
        grid.add_row(f"{where.topic}-{where.partition}", *numbers)
    out().print(grid)
    return not under_way


def parse_partition(text: str) -> TopicPartition:
    """`orders-3`.

    Raises:
        UsageError: it is no partition.
    """
    topic, _, number = text.rpartition("-")
    if not topic or not number.isdecimal():
        raise UsageError(f"{text!r} is no partition: write it as TOPIC-PARTITION, such as orders-3")
    return TopicPartition(topic, int(number))


def parse_moves(
    texts: Iterable[str], described: Callable[[], Iterable[PartitionDescription]]
) -> dict[TopicPartition, list[int] | None]:
    """What is to be moved where; `described` tells of all partitions, and is asked if need be.

    Raises:
        UsageError: one of the texts is no move, or there is no partition such as it names.
    """
    wanted: dict[TopicPartition, list[int] | None] = {}
    for text in texts:
        where, _, _ = text.partition("=")
        if where.endswith(EVERY):
            wanted |= spread(text, described())
        else:
            partition, brokers = parse_move(text)
            wanted[partition] = brokers
    return wanted


def spread(text: str, known: Iterable[PartitionDescription]) -> dict[TopicPartition, list[int]]:
    """`orders-*=1,2,3`, or `*=1,2,3`: each of them leads as many partitions as the others.

    Raises:
        UsageError: it is neither, or there is no such partition.
    """
    where, _, brokers = text.partition("=")
    numbers = [int(each) for each in brokers.split(",") if each.isdecimal()]
    topic = where.removesuffix(EVERY)
    if brokers != ",".join(map(str, numbers)) or not numbers or not ("-" + topic).endswith("-"):
        raise UsageError(
            f"{text!r} is no move: write it as 'TOPIC-*=BROKER,BROKER...', or '*=BROKER,BROKER...'"
        )
    found = [
        TopicPartition(each.topic, each.partition)
        for each in known
        if not topic or each.topic == topic.removesuffix("-")
    ]
    if not found:
        raise UsageError(f"{text!r}: there are no such partitions")
    count = len(numbers)
    return {
        each: numbers[turn % count :] + numbers[: turn % count] for turn, each in enumerate(found)
    }


def parse_move(text: str) -> tuple[TopicPartition, list[int] | None]:
    """`orders-3=1,2`, or `orders-3=` to give a move up.

    Raises:
        UsageError: it is neither.
    """
    where, equals, brokers = text.partition("=")
    numbers = [each for each in brokers.split(",") if each]
    if not equals or not all(each.isdecimal() for each in numbers):
        raise UsageError(f"{text!r} is no move: write it as TOPIC-PARTITION=BROKER,BROKER...")
    return parse_partition(where), [int(each) for each in numbers] or None


def _first_other(errors: Iterable[LogError | None], than: int) -> LogError | None:
    return next((each for each in errors if each is not None and each.code != than), None)
