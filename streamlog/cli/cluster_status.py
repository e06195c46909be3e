"""`streamlog cluster status`: whether a cluster is well: its quorum, its brokers, its partitions.

A shell around `Admin`. It looks once, or until the cluster is proved well (`cluster_evidence`): the
next step of a rolling restart, or of a replacement of disks, has to wait for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from rich.table import Table as Grid

from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.admin import Admin
from streamlog.client.cluster_descriptions import (
    ClusterDescription,
    PartitionDescription,
    QuorumDescription,
)
from streamlog.client.cluster_evidence import Evidence, doubts, unheard
from streamlog.clock import SystemClock
from streamlog.errors import NotAuthorized, StreamlogError, UnsupportedVersion

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
class Status:
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
        controllers = self._controllers_alone()
        return sorted(wanted - {each.node_id for each in self.cluster.brokers} - controllers)

    def _controllers_alone(self) -> set[int]:
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
    status = ask(session, log, look) if wait is None else wait_for(session, log, wait)
    show(status)
    if wait is not None and not status.is_well:
        say(f"not well after {wait:g} s", err=True)
        raise typer.Exit(EXIT_NOT_WELL)


def wait_for(session: Session, log: str | None, seconds: float) -> Status:
    """Look until the cluster is well or the time is over; brokers may still be starting.

    Raises:
        StreamlogError: by then, none of the log's brokers could be asked.
    """
    clock = SystemClock()
    until_ms = clock.now_ms() + round(seconds * 1000)
    while True:
        left_s = max(0.0, (until_ms - clock.now_ms()) / 1000)
        try:
            return ask(session, log, partial(look_until, seconds=left_s))
        except StreamlogError as error:
            if not error.retriable or clock.now_ms() >= until_ms:
                raise
        time.sleep(LOOK_AGAIN_S)


async def look(admin: Admin) -> Status:
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
    return Status(described, partitions, evidence.quorum_after, least, doubts(evidence))


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
        if not unheard(before, after) or loop.time() >= until_s:
            return after
        await asyncio.sleep(FETCH_LOOK_S)


async def look_until(admin: Admin, seconds: float) -> Status:
    """Ask again and again, until all is well or the time is over."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while True:
        try:
            status = await look(admin)
            if status.is_well or loop.time() >= until_s:
                return status
        except StreamlogError as error:
            if not error.retriable or loop.time() >= until_s:
                raise
        await asyncio.sleep(LOOK_AGAIN_S)


def show(status: Status) -> None:
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


def _shares(status: Status, number: int) -> tuple[str, str, str]:
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
