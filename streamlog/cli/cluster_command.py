"""`streamlog cluster`: the brokers of a log, the replicas of its partitions, and their health.

`init` and `grow` (`cluster_init`) prepare data directories, `plan` and `cordon`
(`operate/cluster_plan`) place replicas, `log-dirs` (`operate/log_dirs_command`) moves them between
disks; the others are shells around `Admin`. `status` reads the state once, or waits until the
cluster is proved healthy (`cluster_descriptions`), as a rolling restart or a replacement of disks
does before its next step.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.cli.cluster_init import cluster_grow, cluster_init
from streamlog.cli.operate.cluster_plan import (
    cluster_cordon,
    cluster_plan,
    cluster_uncordon,
    wait_for_moves,
)
from streamlog.cli.operate.log_dirs_command import log_dirs
from streamlog.cli.operate.partition_arguments import parse_partition
from streamlog.cli.output.progress_bar import progress_bar
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import JsonOption, out, say
from streamlog.client.admin import Admin
from streamlog.client.admin.cluster_descriptions import (
    ClusterDescription,
    ClusterReports,
    Evidence,
    PartitionDescription,
    QuorumDescription,
    find_problems,
    silent_voters,
)
from streamlog.clock import SystemClock
from streamlog.errors import (
    LogError,
    NotAuthorized,
    RequestTimedOut,
    StreamlogError,
    UnsupportedVersion,
    UsageError,
    quantity,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition

EXIT_UNHEALTHY = 1
NO_NODE = -1
LOOK_AGAIN_S = 0.5
MIN_INSYNC = "min.insync.replicas"
FETCH_PATIENCE_S = 2.0
"""How long one reading waits until every voter has fetched again, which proves that it runs."""
FETCH_LOOK_S = 0.1
QUORUM_PATIENCE_S = 12.0
"""How long to wait for the quorum's leader; an election takes some seconds."""
PARTITIONS_SHOWN = PROBLEMS_SHOWN = 50
"""Lines of each kind that `status` prints; of the others it prints the number."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The state of a cluster at one moment."""

    cluster: ClusterDescription
    partitions: list[PartitionDescription]
    quorum: QuorumDescription | None
    """None if the cluster has no quorum, or this user may not see it."""
    min_insync: Mapping[str, int]
    """`min.insync.replicas` of the topics that lack replicas; 0 for the broker's default."""
    problems: Sequence[str] = ()
    """Why the cluster is not proved healthy."""

    @property
    def missing(self) -> list[int]:
        """Nodes that vote or have replicas, and are not registered as running brokers."""
        wanted = {node for each in self.partitions for node in each.replicas}
        if self.quorum is not None:
            wanted |= {each.node_id for each in self.quorum.voters}
        controllers = self._controllers_only()
        return sorted(wanted - {each.node_id for each in self.cluster.brokers} - controllers)

    def _controllers_only(self) -> set[int]:
        """Return voters that have caught up and hold no replica: they need not be brokers."""
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
            if len(each.in_sync) < len(each.replicas) or each.leader == NO_NODE
        ]

    @property
    def offline(self) -> list[PartitionDescription]:
        """Partitions without a leader."""
        return [each for each in self.partitions if each.leader == NO_NODE]

    @property
    def under_min_isr(self) -> list[PartitionDescription]:
        """Partitions with too few replicas in sync for acks=all."""
        return [each for each in self.lacking if len(each.in_sync) < self._least(each)]

    @property
    def is_healthy(self) -> bool:
        """Whether every replica has proved that it holds what the cluster counts on.

        If so, one broker can be stopped, or lose its disk.
        """
        has_controller = self.cluster.controller != NO_NODE
        return has_controller and not (self.missing or self.lacking or self.problems)

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
            help="Wait at most this long until the cluster is proved healthy; else exit with 1.",
        ),
    ] = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Show the quorum, brokers, and partitions that lack a leader or replicas in sync."""
    session: Session = context.obj
    if wait is None:
        status = ask(session, log, read_status)
    else:
        with progress_bar("waiting until the cluster is proved healthy"):
            status = wait_for(session, log, wait)
    if as_json:
        typer.echo(json.dumps(status_object(status), ensure_ascii=False))
    else:
        show(status)
    if wait is not None and not status.is_healthy:
        say(f"not healthy after {wait:g} s", err=True)
        raise typer.Exit(EXIT_UNHEALTHY)


def wait_for(session: Session, log: str | None, seconds: float) -> ClusterStatus:
    """Wait until the cluster is healthy, or for `seconds`; brokers may still be starting.

    Raises:
        StreamlogError: no broker of the log answered in that time.
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
    """Read the cluster's state in the order of `Evidence`; raises what `Admin` raises."""
    first = await admin.describe_nodes()
    quorum = await _quorum(admin, first)
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


async def _quorum(admin: Admin, reports: ClusterReports) -> QuorumDescription | None:
    """Return the quorum; None if the cluster has none, or this user may not see it.

    Raises:
        RequestTimedOut: it has no leader that answers.
    """
    try:
        async with asyncio.timeout(QUORUM_PATIENCE_S):
            return await admin.describe_quorum()
    except (UnsupportedVersion, NotAuthorized):
        return None
    except TimeoutError as error:
        raise RequestTimedOut(without_leader(reports)) from error


def without_leader(reports: ClusterReports) -> str:
    """Return what to do about a quorum whose leader does not answer."""
    text = f"the quorum has no leader that answers within {QUORUM_PATIENCE_S:g} s"
    if not reports.silent:
        return f"{text}, though all brokers answer: repeat the command, and read their logs"
    why = next(iter(reports.silent.values()))
    return (
        f"{text}. Brokers that answer: {numbers_of(reports.reports) or 'none'}; silent:"
        f" {numbers_of(reports.silent)} ({why}). Without a majority of the voters, no topic can be"
        " changed, and no partition gets a new leader: start the silent ones"
    )


async def _quorum_after(admin: Admin, before: QuorumDescription) -> QuorumDescription:
    """Return the quorum once every voter has fetched again, or after `FETCH_PATIENCE_S`."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + FETCH_PATIENCE_S
    while True:
        after = await admin.describe_quorum()
        if not silent_voters(before, after) or loop.time() >= until_s:
            return after
        await asyncio.sleep(FETCH_LOOK_S)


async def read_status_until(admin: Admin, seconds: float) -> ClusterStatus:
    """Read the state repeatedly, until the cluster is healthy or `seconds` have passed."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while True:
        try:
            status = await read_status(admin)
            if status.is_healthy or loop.time() >= until_s:
                return status
        except StreamlogError as error:
            if not error.retriable or loop.time() >= until_s:
                raise
        await asyncio.sleep(LOOK_AGAIN_S)


def show(status: ClusterStatus) -> None:
    """Print a cluster's state."""
    say(f"cluster {status.cluster.cluster_id}")
    if status.quorum is not None:
        _show_quorum(status.quorum)
    grid = Grid("broker", "address", "rack", "leads", "holds", "in sync")
    for each in status.cluster.brokers:
        where = f"{each.host}:{each.port}"
        shares = map(str, _shares(status, each.node_id))
        grid.add_row(str(each.node_id), where, each.rack or "", *shares)
    for number in status.missing:
        grid.add_row(str(number), "missing", "", *map(str, _shares(status, number)))
    out().print(grid)
    say(
        f"{quantity(len(status.partitions), 'partition')}, {len(status.lacking)} with replicas out "
        f"of sync, {len(status.under_min_isr)} of them with fewer in sync than {MIN_INSYNC}, "
        f"{len(status.offline)} without a leader"
    )
    if status.lacking:
        out().print(_partitions(status.lacking[:PARTITIONS_SHOWN]))
    if len(status.lacking) > PARTITIONS_SHOWN:
        say(f"and {len(status.lacking) - PARTITIONS_SHOWN} more")
    for problem in status.problems[:PROBLEMS_SHOWN]:
        say(f"not proved: {problem}")
    if len(status.problems) > PROBLEMS_SHOWN:
        say(f"and {len(status.problems) - PROBLEMS_SHOWN} more")


def status_object(status: ClusterStatus) -> dict[str, object]:
    """Return a cluster's state as a JSON object; unlike `show`, it leaves nothing out."""
    least = {(each.topic, each.partition) for each in status.under_min_isr}
    brokers = {each.node_id: each for each in status.cluster.brokers}
    controller = status.cluster.controller
    return {
        "cluster": status.cluster.cluster_id,
        "controller": None if controller == NO_NODE else controller,
        "is_healthy": status.is_healthy,
        "quorum": None if status.quorum is None else _quorum_object(status.quorum),
        "brokers": [
            {
                "broker": number,
                "host": each.host if (each := brokers.get(number)) else None,
                "port": each.port if each else None,
                "rack": each.rack if each else None,
                "is_missing": each is None,
                **dict(zip(("leads", "holds", "in_sync"), _shares(status, number), strict=True)),
            }
            for number in (*brokers, *status.missing)
        ],
        "partitions": len(status.partitions),
        "out_of_sync": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "leader": None if each.leader == NO_NODE else each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": each.replicas,
                "in_sync": each.in_sync,
                "offline": each.offline,
                "is_under_min_isr": (each.topic, each.partition) in least,
            }
            for each in status.lacking
        ],
        "not_proved": [*status.problems],
    }


def _quorum_object(quorum: QuorumDescription) -> dict[str, object]:
    return {
        "leader": quorum.leader,
        "epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "nodes": [
            {
                "node": each.node_id,
                "role": role,
                # Negative until the leader knows it, since it began to lead.
                "end_offset": None if each.end_offset < 0 else each.end_offset,
                "lag": quorum.lag(each),
            }
            for role, nodes in (("voter", quorum.voters), ("observer", quorum.observers))
            for each in nodes
        ],
    }


def numbers_of(numbers: Iterable[int]) -> str:
    """Return numbers as the text of one table cell."""
    return ",".join(map(str, numbers))


def _show_quorum(quorum: QuorumDescription) -> None:
    say(
        f"quorum: node {quorum.leader} leads epoch {quorum.epoch},"
        f" committed up to {quorum.high_watermark}"
    )
    grid = Grid("node", "role", "end offset", "lag")
    for role, nodes in (("voter", quorum.voters), ("observer", quorum.observers)):
        for each in nodes:
            end = "?" if each.end_offset < 0 else str(each.end_offset)
            is_leader = each.node_id == quorum.leader
            grid.add_row(
                str(each.node_id), "leader" if is_leader else role, end, str(quorum.lag(each))
            )
    out().print(grid)


def _shares(status: ClusterStatus, number: int) -> tuple[int, int, int]:
    """Return how many partitions a broker leads, holds, and holds in sync."""
    partitions = status.partitions
    return (
        sum(each.leader == number for each in partitions),
        sum(number in each.replicas for each in partitions),
        sum(number in each.in_sync for each in partitions),
    )


def _partitions(partitions: Iterable[PartitionDescription]) -> Grid:
    grid = Grid("partition", "leader", "epoch", "replicas", "in sync", "offline")
    for each in partitions:
        grid.add_row(
            f"{each.topic}-{each.partition}",
            "none" if each.leader == NO_NODE else str(each.leader),
            str(each.leader_epoch),
            *(numbers_of(numbers) for numbers in (each.replicas, each.in_sync, each.offline)),
        )
    return grid


EVERY = "*"
"""Stands for all partitions of a topic, or of all topics."""

cluster = typer.Typer(
    help="The brokers of a log, and the replicas of its partitions.", no_args_is_help=True
)


cluster.command("init")(cluster_init)


cluster.command("grow")(cluster_grow)


cluster.command("status")(cluster_status)


cluster.command("plan")(cluster_plan)


cluster.command("cordon")(cluster_cordon)


cluster.command("uncordon")(cluster_uncordon)


cluster.add_typer(log_dirs, name="log-dirs")


@cluster.command("elect")
def cluster_elect(
    context: typer.Context,
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC-PARTITION]...", help="Partitions. Default: all."),
    ] = None,
    *,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Elect any live replica where none in sync is left: may lose records."
        ),
    ] = False,
    log: LogOption = None,
) -> None:
    """Elect the preferred replicas as leaders of partitions."""
    wanted = [parse_partition(text) for text in partitions or ()]
    if unclean and not wanted:
        raise UsageError("--unclean may lose records, so it needs the names of partitions")
    session: Session = context.obj
    done = ask(session, log, lambda admin: admin.elect_leaders(wanted or None, unclean=unclean))
    elected = [where for where, error in done.items() if error is None]
    for where in sorted(elected):
        say(f"{where.topic}-{where.partition}: a leader was elected")
    # A partition that its preferred replica leads already is no failure.
    refused = _first_other(done.values(), ErrorCode.ELECTION_NOT_NEEDED)
    if refused is not None:
        raise refused
    if not elected:
        say("nothing to do: preferred replicas lead all partitions")


MovesThrottle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        min=1,
        help="Bytes per second that each broker copies at most; alone: for moves in progress.",
    ),
]
MovesVerify = Annotated[
    bool,
    typer.Option(
        "--verify", help="Remove the throttle if no move is in progress; else exit with 1."
    ),
]
MovesWait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        help="Wait until the moves have ended, and remove the throttle; else exit with 1.",
    ),
]


@cluster.command("reassign")
def cluster_reassign(
    context: typer.Context,
    moves: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC-PARTITION=BROKER,BROKER...]...",
            help="New replicas, the preferred leader first; nothing after '=' cancels a move."
            " 'TOPIC-*=' moves all partitions of a topic, '*=' all; leaders are spread evenly.",
        ),
    ] = None,
    *,
    throttle: MovesThrottle = None,
    verify: MovesVerify = False,
    wait: MovesWait = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the moves in progress as JSON.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Move partitions to other brokers; without arguments, show the moves in progress."""
    session: Session = context.obj
    wanted = parse_moves(
        moves or (), lambda: ask(session, log, lambda admin: admin.describe_partitions())
    )
    if verify and (wanted or throttle is not None):
        raise UsageError(
            "--verify checks moves in progress: it takes no partitions and no --throttle"
        )
    # Before the moves start: otherwise they would begin without a limit.
    if throttle is not None:
        say(_throttle(session, log, throttle, wanted), err=as_json)
    if wanted:
        _move(session, log, wanted, as_json=as_json)
    has_ended = wait is None or _wait(session, log, wanted, wait, as_json=as_json)
    if wanted and wait is None and not as_json:
        return
    is_done = _show_moves(session, log, as_json=as_json)
    if (verify and not is_done) or not has_ended:
        raise typer.Exit(1)
    # Other moves than those that were waited for may still need it.
    if is_done and (verify or wait is not None):
        for topic in ask(session, log, lambda admin: admin.remove_throttles()):
            say(f"{topic} is no longer throttled", err=as_json)


def _move(
    session: Session,
    log: str | None,
    wanted: Mapping[TopicPartition, list[int] | None],
    *,
    as_json: bool,
) -> None:
    done = ask(session, log, lambda admin: admin.alter_partition_reassignments(wanted))
    for where, error in done.items():
        if error is None:
            what = "is moving" if wanted[where] else "stays"
            # With --json, standard output has nothing but JSON.
            say(f"{where.topic}-{where.partition} {what}", err=as_json)
    refused = next((error for error in done.values() if error is not None), None)
    if refused is not None:
        raise refused


def _wait(
    session: Session,
    log: str | None,
    wanted: Mapping[TopicPartition, list[int] | None],
    wait_s: float,
    *,
    as_json: bool,
) -> bool:
    """Wait for these moves, or for all in progress; return whether they have ended."""

    async def wait(admin: Admin) -> bool:
        moves = [*wanted] or [*await admin.list_partition_reassignments()]
        return await wait_for_moves(admin, moves, wait_s, lambda text: say(text, err=as_json))

    return ask(session, log, wait)


def _throttle(
    session: Session,
    log: str | None,
    bytes_per_s: int,
    moves: Mapping[TopicPartition, list[int] | None],
) -> str:
    """Limit what brokers copy; return what was done."""
    brokers = ask(session, log, lambda admin: admin.throttle_moves(bytes_per_s, moves))
    if not brokers:
        return "no move is in progress, so nothing is throttled"
    return (
        f"brokers {numbers_of(brokers)} copy at most {bytes_per_s} bytes per second, until"
        " `streamlog cluster reassign --verify` finds no move in progress"
    )


def _show_moves(session: Session, log: str | None, *, as_json: bool) -> bool:
    """Print the moves in progress; return whether there are none."""
    under_way = ask(session, log, lambda admin: admin.list_partition_reassignments())
    if as_json:
        listed = [
            {"topic": where.topic, "partition": where.partition, **msgspec.to_builtins(move)}
            for where, move in sorted(under_way.items())
        ]
        typer.echo(json.dumps(listed))
        return not under_way
    grid = Grid("partition", "replicas", "adding", "removing")
    for where, move in sorted(under_way.items()):
        numbers = (numbers_of(each) for each in (move.replicas, move.adding, move.removing))
        grid.add_row(f"{where.topic}-{where.partition}", *numbers)
    out().print(grid)
    return not under_way


def parse_moves(
    texts: Iterable[str], described: Callable[[], Iterable[PartitionDescription]]
) -> dict[TopicPartition, list[int] | None]:
    """Return the new replicas of each partition; None cancels its move.

    Args:
        texts: moves such as `orders-3=1,2`, `orders-*=1,2,3` or `*=1,2,3`.
        described: returns all partitions; called only for a text with `*`.

    Raises:
        UsageError: a text is not a move, or names no partition that exists.
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
    """Expand `orders-*=1,2,3` or `*=1,2,3`; each broker leads the same number of partitions.

    Raises:
        UsageError: the text has neither form, or there is no such partition.
    """
    where, _, brokers = text.partition("=")
    numbers = [int(each) for each in brokers.split(",") if each.isdecimal()]
    # Without its `*`, `orders-*` ends with a hyphen, and `*` is empty. Joined again, the numbers
    # equal the text only if none was dropped, or written like 01.
    topic = where.removesuffix(EVERY)
    if brokers != ",".join(map(str, numbers)) or not numbers or not ("-" + topic).endswith("-"):
        raise UsageError(
            f"{text!r} is not a move: write 'TOPIC-*=BROKER,BROKER...' or '*=BROKER,BROKER...'"
        )
    found = [
        TopicPartition(each.topic, each.partition)
        for each in known
        if not topic or each.topic == topic.removesuffix("-")
    ]
    if not found:
        raise UsageError(f"{text!r} matches no partition")
    count = len(numbers)
    # Rotated by one for each partition, so that all brokers come first equally often.
    return {
        each: numbers[turn % count :] + numbers[: turn % count] for turn, each in enumerate(found)
    }


def parse_move(text: str) -> tuple[TopicPartition, list[int] | None]:
    """Parse `orders-3=1,2`, or `orders-3=`, which cancels a move.

    Raises:
        UsageError: the text has neither form.
    """
    where, equals, brokers = text.partition("=")
    numbers = [each for each in brokers.split(",") if each]
    if not equals or not all(each.isdecimal() for each in numbers):
        raise UsageError(f"{text!r} is not a move: write TOPIC-PARTITION=BROKER,BROKER...")
    return parse_partition(where), [int(each) for each in numbers] or None


def _first_other(errors: Iterable[LogError | None], than: int) -> LogError | None:
    return next((each for each in errors if each is not None and each.code != than), None)
