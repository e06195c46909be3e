"""`streamlog cluster`: brokers of one log, and where its partitions are.

`init` (`cluster_init`) makes data directories, `grow` (`cluster_grow`) more for one that is alone,
`status` (`cluster_status`) shows how they are; the others are shells around `Admin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import typer
from rich.table import Table as Grid

from streamlog.assignors import TopicPartition
from streamlog.cli.cluster_grow import cluster_grow
from streamlog.cli.cluster_init import cluster_init
from streamlog.cli.cluster_status import cluster_status, numbers_of
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.cluster_descriptions import PartitionDescription
from streamlog.errors import LogError, UsageError
from streamlog.protocol.error_codes import ErrorCode

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
    wanted = wanted_moves(
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


def wanted_moves(
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
