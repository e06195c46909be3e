"""Consumers that move from one broker to another, which mirrors their topics and their groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.mirroring.group_copier import GroupCopier
from streamlog.broker.mirroring.group_copy import GroupCopy, PositionChanges
from streamlog.broker.mirroring.source_groups import SourceGroups
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.log import Log
from streamlog.protocol.messages.mirror_messages import (
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
)
from streamlog.record import TopicPartition
from tests.broker.mirroring.test_mirrors import WITHIN_S, alter, link, serving, until
from tests.broker.node import ask, batch, create, produce

QUICK = {"refresh.topics.interval.ms": "20", "sync.group.offsets.interval.ms": "20"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Pair(msgspec.Struct):
    """Two brokers, the second of which mirrors the first."""

    source: Broker
    target: Broker
    there: Log
    here: Log

    async def position(self, group: str, partition: TopicPartition = T0) -> int | None:
        """Return a committed offset here."""
        async with self.here.consumer(group_id=group) as reader:
            return (await reader.committed([partition]))[partition]

    async def notices(self) -> str:
        answer = await ask(self.target, DescribeMirrorsRequest(), DescribeMirrorsResponse)
        assert not answer.links[0].trouble, "the source is reached"
        return "; ".join(answer.links[0].notices)


@asynccontextmanager
async def mirrored(partitions: int = 1, **settings: str) -> AsyncIterator[Pair]:
    """Mirror `t`, which has 20 records in each partition, and all groups unless settings differ."""
    async with (
        serving(MemoryFiles()) as (source, source_address),
        serving(MemoryFiles()) as (target, target_address),
        Log.open(f"kafka://{source_address}") as there,
        Log.open(f"kafka://{target_address}") as here,
    ):
        create(source, partitions=partitions)
        for index in range(partitions):
            for number in range(20):
                await produce(source, batch(b"%d" % number), index=index)
        given = {"topics": "t", "groups": ".*", **QUICK}
        given.update({name.replace("_", "."): value for name, value in settings.items()})
        await link(target, source_address, source, **given)
        yield Pair(source, target, there, here)


async def becomes(ask_it: Callable[[], Awaitable[object]], expected: object) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await ask_it() != expected:  # noqa: ASYNC110 - of a broker that does not tell
            await asyncio.sleep(0.01)


async def read(log: Log, count: int, *, leaves: bool = True, **settings: object) -> list[bytes]:
    """Read records as a member of a group, commit behind them, and leave."""
    found: list[bytes] = []
    async with log.consumer(auto_offset_reset="earliest", **settings) as reader:  # type: ignore[arg-type]
        await reader.subscribe(["t"])
        while len(found) < count:
            for records in (await reader.poll(timeout_ms=100, max_records=count)).values():
                found += [each.value or b"" for each in records]
        await reader.commit()
        await reader.close(leave_group=leaves)
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_moves_continues_at_its_record(protocol: str) -> None:
    async def story() -> None:
        async with mirrored() as pair:
            member = {"group_id": "shop", "group_instance_id": "i", "group_protocol": protocol}
            assert await read(pair.there, 7, **member) == [b"%d" % n for n in range(7)]
            await becomes(lambda: pair.position("shop"), 7)
            await alter(pair.target, MirrorState.PROMOTED)
            assert await read(pair.here, 13, **member) == [b"%d" % n for n in range(7, 20)]
            # What is committed after the promotion is this cluster's.
            await read(pair.there, 3, **member)
            assert await pair.position("shop") == 20

    asyncio.run(story())


def test_positions_follow_resets_with_their_metadata_and_stop_at_the_end_of_the_mirror() -> None:
    async def story() -> None:
        async with mirrored(2) as pair, pair.there.consumer(group_id="g") as there:
            await there.commit({T0: 12, T1: 5})
            await becomes(lambda: pair.position("g"), 12)
            await becomes(lambda: pair.position("g", T1), 5)
            await there.commit({T0: 3})
            await becomes(lambda: pair.position("g"), 3)
            # Further than the source itself: the mirror's end counts, and moves on.
            await there.commit({T0: 22})
            await becomes(lambda: pair.position("g"), 20)
            for value in (b"20", b"21", b"22"):
                await produce(pair.source, batch(value))
            await becomes(lambda: pair.position("g"), 22)
            assert await pair.position("g", T1) == 5

    asyncio.run(story())


def test_positions_asked_for_before_a_pause_are_not_committed_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with mirrored() as pair, pair.there.consumer(group_id="g") as there:
            await there.commit({T0: 3})
            await becomes(lambda: pair.position("g"), 3)
            plans: list[PositionChanges] = []
            positions, commit = SourceGroups.positions, GroupCopier._commit

            async def come_late(self: SourceGroups, *asked: Any) -> Any:
                found = await positions(self, *asked)
                if any(each.offset == 12 for one in found.values() for each in one.values()):
                    await pair.here.admin().pause_mirrors(["t"])
                return found

            async def noted(
                self: GroupCopier, group_id: str, copy: GroupCopy, change: PositionChanges
            ) -> None:
                await commit(self, group_id, copy, change)
                if (await there.committed([T0]))[T0] == 12:
                    plans.append(change)

            monkeypatch.setattr(SourceGroups, "positions", come_late)
            monkeypatch.setattr(GroupCopier, "_commit", noted)
            await there.commit({T0: 12})
            await until(lambda: bool(plans))
            assert not any(each.commits for each in plans)
            assert await pair.position("g") == 3

    asyncio.run(story())


def test_a_group_with_members_here_is_left_alone_and_told() -> None:
    async def story() -> None:
        async with mirrored() as pair, pair.there.consumer(group_id="shop") as there:
            await there.commit({T0: 4})
            await becomes(lambda: pair.position("shop"), 4)
            async with pair.here.consumer(group_id="shop") as member:
                await member.subscribe(["t"])
                read_here = 0
                while read_here < 16:
                    polled = await member.poll(timeout_ms=100)
                    read_here += sum(map(len, polled.values()))
                await member.commit()
                await becomes(
                    pair.notices, "groups with members in this cluster are not copied: shop"
                )
                await there.commit({T0: 6})
                await there.commit(
                    {T0: 1},
                )
                async with pair.there.consumer(group_id="later") as later:
                    await later.commit({T0: 2})
                await becomes(lambda: pair.position("later"), 2)
                assert await pair.position("shop") == 20
            await becomes(pair.notices, "")
            # It was further here, and has not been taken back since.
            async with pair.there.consumer(group_id="last") as last:
                await last.commit({T0: 2})
            await becomes(lambda: pair.position("last"), 2)
            assert await pair.position("shop") == 20

    asyncio.run(story())


@pytest.mark.parametrize("follows", ["true", "false"])
def test_what_the_source_deletes_is_deleted_here_if_the_link_says_so(follows: str) -> None:
    async def story() -> None:
        async with mirrored(sync_group_deletions_enabled=follows) as pair:
            for group in ("a", "b"):
                async with pair.there.consumer(group_id=group) as there:
                    await there.commit({T0: 4})
                await becomes(partial(pair.position, group), 4)
            async with pair.here.consumer(group_id="own") as own:
                await own.commit({T0: 9})
            await pair.there.admin().delete_groups(["a"])
            if follows == "true":
                await becomes(lambda: pair.position("a"), None)
            await pair.there.admin().alter_group_offsets("b", {T0: 5})
            await becomes(lambda: pair.position("b"), 5)
            assert await pair.position("a") == (None if follows == "true" else 4)
            assert await pair.position("own") == 9

    asyncio.run(story())


def test_offsets_in_a_transaction_are_copied_once_it_is_committed() -> None:
    async def story() -> None:
        async with (
            mirrored() as pair,
            pair.there.producer(transactional_id="p") as producer,
            pair.there.consumer(group_id="eos") as reader,
            pair.there.consumer(group_id="g") as other,
        ):
            async with producer.transaction() as transaction:
                await transaction.send_offsets({T0: 8}, reader.group_metadata())
                await other.commit({T0: 2})
                # A later commit has arrived, and this one has not.
                await becomes(lambda: pair.position("g"), 2)
                assert await pair.position("eos") is None
            await becomes(lambda: pair.position("eos"), 8)

    asyncio.run(story())


def test_only_named_groups_are_copied_under_the_names_of_the_mirrors() -> None:
    async def story() -> None:
        named = {"groups": "shop.*", "groups_exclude": ".*-test", "prefix": "eu."}
        async with mirrored(**named) as pair:
            create(pair.source, "unmirrored")
            for group in ("audit", "shop-test", "shop-1"):
                async with pair.there.consumer(group_id=group) as there:
                    await there.commit({T0: 4, TopicPartition("unmirrored", 0): 0})
            await becomes(lambda: pair.position("shop-1", TopicPartition("eu.t", 0)), 4)
            listed = {each.group_id for each in await pair.here.admin().list_groups()}
            assert listed == {"shop-1"}
            offsets = await pair.here.admin().group_offsets("shop-1")
            assert [*offsets] == [TopicPartition("eu.t", 0)]

    asyncio.run(story())


def test_a_source_that_is_down_is_told_once() -> None:
    async def described(target: Broker) -> tuple[str, list[str]]:
        answer = await ask(target, DescribeMirrorsRequest(), DescribeMirrorsResponse)
        return answer.links[0].trouble, answer.links[0].notices

    async def story() -> None:
        async with serving(MemoryFiles()) as (target, _):
            async with serving(MemoryFiles()) as (source, address):
                create(source)
                await link(target, address, source, topics="t", groups=".*", **QUICK)
                await until(lambda: "t" in target.directory.topics)
            async with asyncio.timeout(WITHIN_S):
                while "refused" not in (await described(target))[0]:  # noqa: ASYNC110 - of a broker that does not tell
                    await asyncio.sleep(0.01)
            (_, copier, _) = next(iter(target._mirrors._copiers.values()))
            await until(lambda: any("refused" in each for each in copier.notices.shown))

            async def notices() -> list[str]:
                return (await described(target))[1]

            await becomes(notices, [])

    asyncio.run(story())
