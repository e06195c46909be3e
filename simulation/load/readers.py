"""Readers: consumers alone and in groups, of either isolation level, and those that read it all."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal

from simulation.history import Outcome, Place, Poll, Position, Seen
from simulation.load.room import Room, partition_of
from streamlog.client.consumer import Consumer
from streamlog.errors import StreamlogError
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord

POLL_MS = 1_000
POLLS_MAX = 60
"""Then the consumer is closed, and another one goes on."""
COMMITTED: Final = "read_committed"
SESSION_MS = 6_000
HEARTBEAT_MS = 1_500
STATIC_SHARE = 0.2
"""Of a group's consumers are static members (KIP-345)."""


class Reader:
    """One client that reads."""

    def __init__(self, room: Room, name: str, *, committed: bool) -> None:
        self.room = room
        self.name = name
        self.committed = committed
        self.session = 0

    @property
    def isolation(self) -> Literal["read_committed", "read_uncommitted"]:
        """As consumers call it."""
        return COMMITTED if self.committed else "read_uncommitted"

    async def poll(self, consumer: Consumer) -> dict[TopicPartition, list[LogRecord]]:
        """One poll, written down."""
        began_ms = self.room.now_ms()
        session = self.session
        polled = await consumer.poll(timeout_ms=POLL_MS)
        if polled:
            self.room.history.polls.append(
                Poll(
                    consumer=self.name,
                    # Whoever was assigned anew meanwhile has not got this before.
                    session=max(session, self.session),
                    committed=self.committed,
                    began_ms=began_ms,
                    ended_ms=self.room.now_ms(),
                    records=tuple(seen_of(polled)),
                )
            )
        return polled

    def assigned_anew(self, _: Collection[TopicPartition]) -> None:
        """What follows may be read for the second time."""
        self.session += 1

    async def on_rebalance(self, partitions: Collection[TopicPartition]) -> None:
        """The same, as consumers want it."""
        self.assigned_anew(partitions)


def seen_of(polled: dict[TopicPartition, list[LogRecord]]) -> Iterable[Seen]:
    """Records as they are written down."""
    for partition, records in polled.items():
        for record in records:
            value = (record.value or b"").decode(errors="replace")
            yield Seen(
                place=(partition.topic, partition.partition), offset=record.offset, value=value
            )


async def read(room: Room, name: str, places: Sequence[Place], *, committed: bool) -> None:
    """From the beginning, or from anywhere, over and over."""
    reader = Reader(room, name, committed=committed)
    partitions = [partition_of(place) for place in places]
    while room.goes_on:
        reader.session += 1
        try:
            async with room.log.consumer(
                isolation_level=reader.isolation, auto_offset_reset="earliest"
            ) as consumer:
                consumer.assign(partitions)
                if room.chance.random() < 0.5:
                    await consumer.seek_to_beginning()
                for _ in range(room.chance.randint(1, POLLS_MAX)):
                    await reader.poll(consumer)
                    await room.pause()
                    if not room.goes_on:
                        break
        except StreamlogError as error:
            await room.after_error("read", error)


async def read_in_group(
    room: Room,
    name: str,
    group: str,
    topics: Sequence[str],
    *,
    protocol: Literal["classic", "consumer"] = "classic",
) -> None:
    """As a member, static at times, with commits that are written down."""
    reader = Reader(room, name, committed=True)
    while room.goes_on:
        reader.session += 1
        try:
            async with room.log.consumer(
                group_id=group,
                group_protocol=protocol,
                group_instance_id=name if room.chance.random() < STATIC_SHARE else None,
                group_remote_assignor=_assignor(room) if protocol == "consumer" else None,
                isolation_level=reader.isolation,
                auto_offset_reset="earliest",
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
            ) as consumer:
                await consumer.subscribe(
                    topics,
                    on_assigned=reader.on_rebalance,
                    on_revoked=reader.on_rebalance,
                    on_lost=reader.on_rebalance,
                )
                for _ in range(room.chance.randint(1, POLLS_MAX)):
                    polled = await reader.poll(consumer)
                    places = {each: records[-1].offset + 1 for each, records in polled.items()}
                    if places:
                        await commit(room, consumer, group, places)
                    await room.pause()
                    if not room.goes_on:
                        break
        except StreamlogError as error:
            await room.after_error("group", error)


def _assignor(room: Room) -> str | None:
    return room.chance.choice((None, "uniform", "range"))


async def commit(
    room: Room, consumer: Consumer, group: str, places: dict[TopicPartition, int]
) -> None:
    """Commit, and write down what has become of it."""
    began_ms, outcome = room.now_ms(), Outcome.UNKNOWN
    try:
        await consumer.commit(places)
        outcome = Outcome.OK
    finally:
        for partition, offset in places.items():
            _note(room, group, partition, offset, began_ms, outcome=outcome)


async def ask_positions(room: Room, group: str, places: Sequence[Place]) -> None:
    """Ask over and over what a group has committed."""
    partitions = [partition_of(place) for place in places]
    while room.goes_on:
        try:
            async with room.log.consumer(group_id=group) as consumer:
                while room.goes_on:
                    began_ms = room.now_ms()
                    for partition, offset in (await consumer.committed(partitions)).items():
                        _note(room, group, partition, offset, began_ms, is_commit=False)
                    await room.pause(2.0)
        except StreamlogError as error:
            await room.after_error("positions", error)


def _note(
    room: Room,
    group: str,
    partition: TopicPartition,
    offset: int | None,
    began_ms: int,
    *,
    is_commit: bool = True,
    outcome: Outcome = Outcome.OK,
) -> None:
    room.history.positions.append(
        Position(
            group=group,
            place=(partition.topic, partition.partition),
            offset=offset,
            is_commit=is_commit,
            outcome=outcome,
            began_ms=began_ms,
            ended_ms=room.now_ms(),
        )
    )


async def read_all(
    room: Room, places: Sequence[Place], *, committed: bool
) -> dict[Place, list[Seen]]:
    """What is there, from the beginning to the end that there is now; until it has come there."""
    reader = Reader(room, "final", committed=committed)
    while True:
        try:
            async with room.log.consumer(
                isolation_level=reader.isolation, auto_offset_reset="earliest"
            ) as consumer:
                found: dict[Place, list[Seen]] = {place: [] for place in places}
                partitions = [partition_of(place) for place in places]
                consumer.assign(partitions)
                async with room.log.consumer() as asking:
                    ends = await asking.end_offsets(partitions)
                while True:
                    reached = [await consumer.position(each) >= ends[each] for each in partitions]
                    if all(reached):
                        return found
                    for seen in seen_of(await consumer.poll(timeout_ms=POLL_MS)):
                        found[seen.place].append(seen)
        except StreamlogError as error:
            room.counts[f"final: {type(error).__name__}"] += 1
            await asyncio.sleep(1)
