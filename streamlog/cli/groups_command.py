"""`streamlog groups`: consumer groups, their committed offsets and lag, and how to move them.

A shell around `Admin`. `reset-offsets` shows what it would change and changes it only with
`--execute`, as Kafka's tool does; an offset outside of a partition becomes its nearest end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.cli.session import LogOption, ask, complete_groups, with_log
from streamlog.cli.terminal import JsonOption, out, print_grid, say
from streamlog.client.admin.group_admin import (
    GroupDescription,
    GroupMemberDescription,
    PartitionLagDescription,
)
from streamlog.client.offset_targets import (
    Offsets,
    Target,
    at_offset,
    at_time,
    earliest,
    latest,
)
from streamlog.errors import UnknownTopicOrPartition, UnsupportedVersion, UsageError, quantity
from streamlog.log import Log
from streamlog.record import TopicPartition

groups = typer.Typer(help="The consumer groups of a log.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The group.", autocompletion=complete_groups)]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:0,1]",
        help="A topic or some of its partitions; repeatable. Default: all committed partitions.",
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        metavar="TIME",
        help="To the first record at or after this time; ISO 8601, UTC without an offset.",
    ),
]


@groups.command("list")
def groups_list(
    context: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only groups in this state (Stable, Empty, ...); repeatable."),
    ] = None,
    *,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """List consumer groups with their protocol and state."""
    listed = ask(context.obj, log, lambda admin: admin.list_groups(states=state or []))
    grid = Grid("group", "kind", "state")
    for each in listed:
        grid.add_row(each.group_id, each.kind, each.state)
    print_grid(grid, as_json=as_json)


class _Described(msgspec.Struct, frozen=True):
    """A group, its committed offsets, and its lag as far as the brokers know it."""

    group: GroupDescription
    committed: Offsets
    ends: Offsets
    lags: Mapping[TopicPartition, PartitionLagDescription]

    @property
    def readers(self) -> dict[TopicPartition, GroupMemberDescription]:
        """The member that reads each assigned partition."""
        return {part: member for member in self.group.members for part in member.assignment}

    def lag(self, part: TopicPartition) -> int | None:
        """Return the lag in records; None if it is not known."""
        offset, end = self.committed.get(part), self.ends.get(part)
        # A log that was truncated or created again may end before the committed offset.
        return None if offset is None or end is None else max(end - offset, 0)


@groups.command("describe")
def groups_describe(
    context: typer.Context,
    name: Name,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    log: LogOption = None,
) -> None:
    """Show a group's committed offset, lag and member for each partition.

    Rates are measured between two looks: the time to catch up is known from the second on.
    """

    async def look(opened: Log) -> _Described:
        admin = opened.admin()
        (described,) = await admin.describe_groups([name])
        committed = await admin.group_offsets(name)
        read = {part for member in described.members for part in member.assignment}
        async with opened.consumer() as consumer:
            ends = await _of_existing_topics(consumer.end_offsets, {*read, *committed})
        return _Described(described, committed, ends, await _lags(opened, name))

    found = with_log(context.obj, log, look)
    if as_json:
        typer.echo(json.dumps(_as_object(found)))
        return
    described = found.group
    say(
        f"group {name}: {described.state}, {described.kind}, assignor {described.assignor or '-'}, "
        f"{quantity(len(described.members), 'member')}"
    )
    out().print(_partitions(found))
    if described.members:
        out().print(_members(described))


def _partitions(found: _Described) -> Grid:
    """Return a table of partitions; members are numbers in it, which `_members` explains.

    With their ids, which are long, the table would not fit a terminal.
    """
    grid = Grid("partition", "offset", "end", "lag", "seconds", "lost", "catch-up", "member")
    numbers = {
        part: str(number)
        for number, member in enumerate(found.group.members, 1)
        for part in member.assignment
    }
    for part in sorted({*numbers, *found.committed}):
        offsets = (found.committed.get(part), found.ends.get(part), found.lag(part))
        cells = (*map(_format_offset, offsets), *_format_lag(found.lags.get(part)))
        grid.add_row(f"{part.topic}-{part.partition}", *cells, numbers.get(part, ""))
    return grid


def _members(group: GroupDescription) -> Grid:
    grid = Grid("member", "id", "client", "host", "partitions")
    for number, each in enumerate(group.members, 1):
        own = each.instance_id or each.member_id
        count = str(len(each.assignment))
        grid.add_row(str(number), own, each.client_id, each.client_host, count)
    return grid


async def _lags(log: Log, name: str) -> Mapping[TopicPartition, PartitionLagDescription]:
    """Return what the brokers know of a group's lag; nothing if they are not streamlog's."""
    try:
        return await log.admin().describe_group_lag(name)
    except UnsupportedVersion:
        return {}


def _format_lag(lag: PartitionLagDescription | None) -> tuple[str, str, str]:
    """Return the lag in seconds, what is lost, and the time to catch up in seconds."""
    if lag is None:
        return "-", "-", "-"
    seconds = "-" if lag.lag_ms is None else f"{lag.lag_ms / 1000:.1f}"
    catch_up = "-" if lag.catch_up_s is None else f"{lag.catch_up_s:.0f} s"
    if lag.catch_up_s == math.inf:
        catch_up = "never"
    return seconds, _format_offset(lag.lost), catch_up


def _as_object(found: _Described) -> dict[str, object]:
    group, readers = found.group, found.readers
    return {
        "group": group.group_id,
        "kind": group.kind,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "members": len(group.members),
        "partitions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "offset": found.committed.get(part),
                "end_offset": found.ends.get(part),
                "lag": found.lag(part),
                **_lag_object(found.lags.get(part)),
                **_member_object(readers.get(part)),
            }
            for part in sorted({*readers, *found.committed})
        ],
    }


def _member_object(member: GroupMemberDescription | None) -> dict[str, object]:
    return {
        "member": None if member is None else member.member_id,
        "instance": None if member is None else member.instance_id,
        "client": None if member is None else member.client_id,
        "host": None if member is None else member.client_host,
    }


def _lag_object(lag: PartitionLagDescription | None) -> dict[str, object]:
    known_s = None if lag is None else lag.catch_up_s
    return {
        "lag_ms": None if lag is None else lag.lag_ms,
        "lost": None if lag is None else lag.lost,
        "consume_rate": None if lag is None else lag.consume_rate,
        "produce_rate": None if lag is None else lag.produce_rate,
        # JSON has no infinity.
        "catch_up_s": "never" if known_s == math.inf else known_s,
    }


@groups.command("delete")
def groups_delete(context: typer.Context, name: Name, log: LogOption = None) -> None:
    """Delete a group without members, and its committed offsets."""
    ask(context.obj, log, lambda admin: admin.delete_groups([name]))
    say(f"deleted group {name}")


@groups.command("reset-offsets")
def groups_reset_offsets(
    context: typer.Context,
    name: Name,
    topic: TopicsOption = None,
    *,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first offset.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="To the end, after the last record.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="To this offset.")
    ] = None,
    to_datetime: TimeOption = None,
    execute: Annotated[
        bool,
        typer.Option("--execute/--dry-run", help="Change the offsets, or only show the change."),
    ] = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Move the committed offsets of a group without members; without --execute, only show it."""
    given: dict[Target, bool] = {
        earliest: to_earliest,
        latest: to_latest,
        at_offset(to_offset or 0): to_offset is not None,
        at_time(0 if to_datetime is None else _milliseconds(to_datetime)): to_datetime is not None,
    }
    targets = [target for target, is_given in given.items() if is_given]
    if len(targets) != 1:
        raise UsageError(
            "reset-offsets needs one of --to-earliest, --to-latest, --to-offset and --to-datetime"
        )

    async def reset(opened: Log) -> tuple[Offsets, Offsets]:
        admin = opened.admin()
        before = await admin.group_offsets(name)
        parts = await _chosen(opened, topic or [], before)
        async with opened.consumer() as consumer:
            after = await targets[0](consumer, parts)
        if execute:
            await admin.alter_group_offsets(name, after)
        return before, after

    before, after = with_log(context.obj, log, reset)
    _show_moves(before, after, as_json=as_json)
    say(
        f"group {name} continues at the new offsets"
        if execute
        else "nothing was changed: repeat with --execute to change the offsets",
        err=as_json,
    )


def _show_moves(before: Offsets, after: Offsets, *, as_json: bool) -> None:
    grid = Grid("topic", "partition", "offset", "new offset")
    for part in sorted(after):
        numbers = (before.get(part), after[part])
        grid.add_row(part.topic, str(part.partition), *map(_format_offset, numbers))
    print_grid(grid, as_json=as_json)


async def _chosen(
    log: Log, given: list[str], committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Return the partitions that the options name, else those that the group has committed."""
    if not given and not committed:
        raise UsageError("the group has committed no offsets: name its topics by --topic")
    parts = set() if given else set(committed)
    for text in given:
        name, colon, numbers = text.partition(":")
        if colon and not all(each.isdecimal() for each in numbers.split(",")):
            raise UsageError(f"--topic takes TOPIC or TOPIC:0,1, not {text!r}")
        if colon:
            parts.update(TopicPartition(name, int(each)) for each in numbers.split(","))
        else:
            (described,) = await log.admin().describe_topics([name])
            parts.update(TopicPartition(name, n) for n in range(described.partitions))
    return sorted(parts)


async def _of_existing_topics(
    look_up: Callable[[list[TopicPartition]], Awaitable[Offsets]], parts: set[TopicPartition]
) -> Offsets:
    """Look offsets up topic by topic, and leave out topics that no longer exist."""
    found: Offsets = {}
    for topic in sorted({part.topic for part in parts}):
        try:
            found |= await look_up([part for part in sorted(parts) if part.topic == topic])
        except UnknownTopicOrPartition as error:
            say(f"topic {topic}: {error}", err=True)
    return found


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--to-datetime takes a time like 2026-01-31T12:00:00, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _format_offset(number: int | None) -> str:
    return "-" if number is None else str(number)
