"""Group looks: a group as it is now, and where a reset would move it.

A shell around `Admin`. A page of one group asks it directly, because the page has to be newer than
the last look at the whole log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from streamlog.client.admin import (
    Admin,
    GroupDescription,
    PartitionLagDescription,
)
from streamlog.client.consumer import Consumer
from streamlog.client.offset_targets import Target, at_offset, at_time, earliest, latest, shifted
from streamlog.console.pages.group_pages import (
    RESET_ROWS_MAX,
    GroupLook,
    MemberRow,
    Move,
    PartitionRow,
    ResetForm,
)
from streamlog.console.pages.message_pages import time_of
from streamlog.errors import UnknownTopicOrPartition, UnsupportedVersion, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition

SHIFT_DIGITS_MAX: Final = 15
Offsets = Mapping[TopicPartition, int]


async def look_at_group(log: Log, name: str) -> GroupLook:
    """Return a group with its members, and its lag in each partition.

    Raises:
        LogError: there is no such group (GROUP_ID_NOT_FOUND).
        StreamlogError: the log does not answer.
    """
    admin = log.admin()
    (found,) = await admin.describe_groups([name])
    committed = await admin.group_offsets(name)
    lags = await _lags(admin, name)
    readers = {part: member for member in found.members for part in member.assignment}
    parts = sorted({*readers, *committed})
    # The brokers of streamlog tell the ends with the lag; others are asked.
    async with log.consumer() as consumer:
        ends = await _ends(consumer, [part for part in parts if part not in lags])
    return GroupLook(
        group_id=name,
        state=found.state,
        kind=found.kind,
        assignor=found.assignor,
        coordinator=found.coordinator,
        members=_members(found),
        partitions=tuple(
            _row(
                part,
                committed.get(part),
                ends.get(part),
                lags.get(part),
                readers[part].client_id or readers[part].member_id if part in readers else "",
            )
            for part in parts
        ),
    )


def _members(found: GroupDescription) -> tuple[MemberRow, ...]:
    return tuple(
        MemberRow(
            each.instance_id or each.member_id,
            each.client_id,
            each.client_host.removeprefix("/"),
            len(each.assignment),
        )
        for each in found.members
    )


def _row(
    part: TopicPartition,
    committed: int | None,
    end: int | None,
    lag: PartitionLagDescription | None,
    member: str,
) -> PartitionRow:
    end = end if lag is None else lag.end_offset
    behind = None if committed is None or end is None else max(0, end - committed)
    return PartitionRow(
        topic=part.topic,
        partition=part.partition,
        committed=committed,
        end=end,
        lag=behind if lag is None else lag.lag,
        lag_ms=None if lag is None else lag.lag_ms,
        lost=None if lag is None else lag.lost,
        consume_rate=None if lag is None else lag.consume_rate,
        catch_up_s=None if lag is None else lag.catch_up_s,
        member=member,
    )


async def _lags(admin: Admin, name: str) -> Mapping[TopicPartition, PartitionLagDescription]:
    try:
        return await admin.describe_group_lag(name)
    except UnsupportedVersion:
        # The brokers are not streamlog's: the ends of the log tell the lag in records.
        return {}


async def _ends(consumer: Consumer, parts: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic in sorted({part.topic for part in parts}):
        try:
            found |= await consumer.end_offsets([part for part in parts if part.topic == topic])
        except UnknownTopicOrPartition:
            continue  # A deleted topic has no end, and its row says so.
    return found


async def plan_reset(log: Log, name: str, asked: ResetForm) -> list[Move]:
    """Return where a reset would move a group; it changes nothing.

    Raises:
        UsageError: the form is malformed, or there is nothing to reset.
        StreamlogError: the log does not answer.
    """
    committed = await log.admin().group_offsets(name)
    target = _target(asked, committed)
    parts = await _chosen(log, asked.topic.strip(), committed)
    if not parts:
        raise UsageError("the group has committed no offset: name a topic")
    # A longer list can't be read before it is confirmed, which is what a dry run is for.
    if len(parts) > RESET_ROWS_MAX:
        raise UsageError(
            f"a page resets {RESET_ROWS_MAX} partitions at most, not {len(parts)}: use"
            " streamlog groups reset-offsets"
        )
    async with log.consumer() as consumer:
        after = await target(consumer, parts)
    return [
        Move(part.topic, part.partition, committed.get(part), offset)
        for part, offset in sorted(after.items())
    ]


def _target(asked: ResetForm, committed: Offsets) -> Target:
    at = asked.at.strip()
    # int() alone would take underscores, digits of other scripts, and numbers of any length.
    digits = at.lstrip("+-")
    is_whole = digits.isascii() and digits.isdecimal() and len(digits) <= SHIFT_DIGITS_MAX
    match asked.target:
        case "earliest":
            return earliest
        case "latest":
            return latest
        case "time":
            return at_time(time_of(at))
        case "offset" if is_whole and at == digits:
            return at_offset(int(at))
        case "shift" if is_whole and at.count("-") + at.count("+") <= 1:
            return shifted(committed, int(at))
        case "offset" | "shift":
            raise UsageError(f"{at[:40]!r} is not a whole number of offsets, such as 100 or -100")
        case _:
            raise UsageError("choose where the group is to continue")


async def _chosen(log: Log, topic: str, committed: Offsets) -> list[TopicPartition]:
    if not topic:
        return sorted(committed)
    (found,) = await log.admin().describe_topics([topic])
    return [TopicPartition(topic, number) for number in range(found.partitions)]


def offsets_of(text: str) -> dict[TopicPartition, int]:
    """Return the new offsets that a form carries.

    Raises:
        UsageError: the text is none that a page of this console made.
    """
    try:
        # By its types, and strictly: the text was in a browser, and may be anything by now.
        rows = msgspec.json.decode(text, type=list[tuple[str, int, int]])
    except msgspec.MsgspecError as error:
        raise UsageError("the form carries no offsets: make a dry run again") from error
    fit = all(0 <= number < 2**31 and 0 <= offset < 2**63 for _, number, offset in rows)
    if not rows or len(rows) > RESET_ROWS_MAX or not fit:
        raise UsageError("the form carries offsets that no dry run makes: make one again")
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}
