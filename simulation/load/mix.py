"""Mix: the load that everything is tried under: topics, clients, and what has to be in the end."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeAlias

from simulation.history import Outcome, Place
from simulation.load.readers import ask_positions, read, read_all, read_in_group
from simulation.load.room import Room
from simulation.load.transformers import transform, transform_rest
from simulation.load.writers import write, write_transactions
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.errors import StreamlogError, TopicExists

PLAIN: Final = "plain"
ATOMIC: Final = "atomic"
SOURCE: Final = "source"
TARGET: Final = "target"
PARTITIONS: Final = {PLAIN: 2, ATOMIC: 2, SOURCE: 1, TARGET: 1}
GROUP: Final = "readers"
WATCHERS: Final = "watchers"
"""A group whose coordinator assigns (KIP-848)."""
TRANSFORMERS: Final = "transformers"
BUSY: Final = ("w1", "w2", "t2")
"""Clients that have to write something once all is healed."""
ZOMBIE_SHARE: Final = 0.3
"""Of loads have two producers of one transactional id, which shut each other out."""
SEGMENT_BYTES: Final = (2_000, 20_000, 1_000_000)
EVERY_TIME: Final = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""The clocks of brokers are set back by hours, and no record may be refused for it."""
Program: TypeAlias = Coroutine[Any, Any, None]


def places(*topics: str) -> list[Place]:
    """All partitions of these topics."""
    return [(topic, number) for topic in topics for number in range(PARTITIONS[topic])]


async def create(room: Room, *, replication_factor: int = 1) -> None:
    """The topics, however often that has to be tried."""
    configs = {"segment.bytes": str(room.chance.choice(SEGMENT_BYTES)), **EVERY_TIME}
    for topic, partitions in PARTITIONS.items():
        wanted = NewTopic(topic, partitions, replication_factor, configs)
        while True:
            try:
                await room.log.admin().create_topics([wanted])
            except TopicExists:
                break
            except StreamlogError as error:
                await room.after_error("create", error)
            else:
                break


def programs(room: Room) -> list[Program]:
    """The clients, each to be run by itself."""
    made = [
        write(room, "w1", places(PLAIN, SOURCE)),
        write(room, "w2", places(PLAIN)),
        write_transactions(room, "t1", places(ATOMIC, SOURCE)),
        write_transactions(room, "t2", places(ATOMIC)),
        read(room, "r1", places(PLAIN, ATOMIC), committed=False),
        read(room, "r2", places(PLAIN, ATOMIC, TARGET), committed=True),
        read_in_group(room, "g1", GROUP, [PLAIN, ATOMIC]),
        read_in_group(room, "g2", GROUP, [PLAIN, ATOMIC]),
        ask_positions(room, GROUP, places(PLAIN, ATOMIC)),
        read_in_group(room, "g3", WATCHERS, [PLAIN, ATOMIC], protocol="consumer"),
        read_in_group(room, "g4", WATCHERS, [PLAIN, TARGET], protocol="consumer"),
        ask_positions(room, WATCHERS, places(PLAIN, ATOMIC, TARGET)),
        transform(room, "x1", TRANSFORMERS, SOURCE, TARGET),
        transform(room, "x2", TRANSFORMERS, SOURCE, TARGET),
    ]
    if room.chance.random() < ZOMBIE_SHARE:
        made.append(write_transactions(room, "t1", places(ATOMIC)))
    return made


def standing_still(room: Room, healed_ms: int) -> list[str]:
    """Who has written nothing since all was healed."""
    busy = {
        send.producer.partition(".")[0].partition("/")[0]
        for send in room.history.sends
        if send.outcome is Outcome.OK and send.began_ms >= healed_ms
    }
    # A client that aborts one transaction after the other by choice is not stuck.
    busy |= {
        each.name.partition("/")[0]
        for each in room.history.transactions
        if each.is_planned and each.decided_ms >= healed_ms
    }
    return [
        f"stuck: {name} has written nothing after all was healed"
        for name in BUSY
        if name not in busy
    ]


async def finish(room: Room) -> None:
    """When all is quiet: transform what is left, and read everything to its end."""
    await transform_rest(room, TRANSFORMERS, SOURCE, TARGET, PARTITIONS[SOURCE])
    everything = places(*PARTITIONS)
    room.history.final = await read_all(room, everything, committed=False)
    room.history.final_committed = await read_all(room, everything, committed=True)
    room.history.transforms = {SOURCE: TARGET}
