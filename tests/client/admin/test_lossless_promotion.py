"""Promotions without loss: what is waited for, and real brokers that are promoted or given up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.replication.partition import Partition
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.client.admin import (
    MirrorDescription,
    MirrorStatus,
    PromotionOutcome,
    PromotionPatience,
    SealStatus,
)
from streamlog.client.admin.lossless_promotion import missing
from streamlog.errors import LogError, PromotionGivenUp
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.mirror_messages import (
    DescribedMirror,
    DescribedMirrorPartition,
    DescribedSealPartition,
)
from streamlog.record import TopicPartition
from streamlog.records.batch import encode_batch
from streamlog.records.control_batches import COMMIT, Marker
from tests.broker.mirroring.test_mirrors import content, serving, until
from tests.broker.node import batch, create, produce

PATIENT = PromotionPatience(timeout_ms=60_000, still_ms=300)
WHERE = TopicPartition("t", 0)
BRIEF = PromotionPatience(timeout_ms=3_000)
"""Enough for the seal and for the looks, also on a busy machine: it must be the rest that lasts."""


def here(**more: int | str) -> dict[int, tuple[int, DescribedMirrorPartition]]:
    known: dict[str, object] = {"log_end_offset": 10, "high_watermark": 10, "last_epoch": 4}
    return {0: (1, DescribedMirrorPartition(partition_index=0, **(known | more)))}


def there(**more: int) -> dict[int, DescribedSealPartition]:
    known: dict[str, object] = {
        "leader_epoch": 5,
        "log_start_offset": 0,
        "log_end_offset": 10,
        "high_watermark": 10,
        "last_stable_offset": 10,
        "last_epoch": 4,
    }
    return {0: DescribedSealPartition(partition_index=0, **(known | more))}


@pytest.mark.parametrize(
    ("own", "source", "says"),
    [
        (here(), there(), ""),
        (here(), there(leader_epoch=6), ""),
        (here(last_epoch=-1), there(), ""),
        (here(), {}, "does not know yet that it is sealed"),
        (here(), there(leader_epoch=4), "does not know yet that it is sealed"),
        (here(), there(log_end_offset=11), "the source commits"),
        (here(), there(last_stable_offset=7), "a transaction is open"),
        ({}, there(), "does not answer"),
        (here(trouble="no common end"), there(), "no common end"),
        (here(log_end_offset=9), there(), "it ends at 9 here, and at 10"),
        (here(log_end_offset=11), there(), "it ends at 11 here, and at 10"),
        (here(high_watermark=9), there(), "this cluster commits"),
        (here(last_epoch=3), there(), "with other records"),
        (here(), there(last_epoch=-1), "with other records"),
    ],
)
def test_a_mirror_is_complete_if_nothing_can_come_any_more_and_all_is_committed_here(
    own: dict[int, tuple[int, DescribedMirrorPartition]],
    source: dict[int, DescribedSealPartition],
    says: str,
) -> None:
    mirror = DescribedMirror(name="t", num_partitions=1)
    found = missing(mirror, own, source, [5])
    assert says in found
    assert bool(found) == bool(says)
    assert "has 1 partitions, its source 2" in missing(mirror, own, source, [5, 5])


class Pair:
    """A source and a target, their clients, and a mirror of topic `t`."""

    def __init__(self, source: Broker, there: Log, here: Log) -> None:
        self.source, self.logs = source, (there, here)
        self.there, self.here = there.admin(), here.admin()

    async def mirrors(self) -> tuple[MirrorDescription, ...]:
        return (await self.here.describe_mirrors()).mirrors

    async def promote(
        self,
        patience: PromotionPatience = PATIENT,
        *,
        copies_groups: bool = False,
        app: str = "",
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> PromotionOutcome:
        return await self.here.promote_mirrors(
            self.there,
            await self.mirrors(),
            copies_groups=copies_groups,
            app=app,
            patience=patience,
            on_wait=on_wait,
        )

    async def seal(self) -> SealStatus | None:
        """Return the state of the source's topic; None while it takes records."""
        seals = (await self.there.describe_mirrors()).seals
        return seals[0].status if seals else None

    async def produced(self, value: bytes = b"x") -> int:
        return (await produce(self.source, batch(value))).error_code


Story = Callable[[Pair, Broker], Awaitable[None]]


async def run_pair(story: Story, **settings: str) -> None:
    """Run a story with a mirror of three records."""
    async with (
        serving(MemoryFiles()) as (source, source_at),
        serving(MemoryFiles()) as (target, target_at),
        Log.open(f"kafka://{source_at}") as there,
        Log.open(f"kafka://{target_at}") as here,
    ):
        create(source)
        await produce(source, batch(b"1", b"2", b"3"))
        given = {
            "bootstrap.servers": source_at,
            "topics": "t",
            "refresh.topics.interval.ms": "50",
            **settings,
        }
        await here.admin().create_link("east", given, source_cluster_id=source.cluster_id)
        await until(lambda: "t" in target.directory.topics)
        await story(Pair(source, there, here), target)


def begin_transaction(broker: Broker) -> Partition:
    """Write a record of a transaction, and leave that open."""
    data = encode_batch(
        [(1_000, None, b"open", ())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    partition = broker._partitions.get("t", 0)
    partition.append(data, now_ms=0, origin=AppendOrigin.TRANSACTION)
    return partition


def end_transaction(partition: Partition) -> None:
    partition.end_transaction(7, 0, Marker(COMMIT, 0), now_ms=0, wall_ms=0)


@asynccontextmanager
async def working(log: Log) -> AsyncIterator[None]:
    """Be a worker of the app `shop`."""
    async with log.consumer(group_id="shop") as consumer:
        await consumer.subscribe(["t"])
        while not consumer.assignment():
            await consumer.poll(timeout_ms=50)
        yield


def test_a_promotion_takes_everything_and_leaves_the_source_sealed() -> None:
    async def story(pair: Pair, target: Broker) -> None:
        assert await pair.produced(b"late") == 0
        outcome = await pair.promote()
        assert (outcome.promoted, outcome.is_sealed, outcome.trouble) == (("t",), True, "")
        assert content(target) == content(pair.source)
        assert await pair.seal() is SealStatus.MOVED
        refused = await produce(pair.source, batch(b"fork"))
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert f"moves to cluster {target.cluster_id}" in (refused.error_message or "")
        assert (await produce(target, batch(b"own"))).error_code == 0
        with pytest.raises(LogError, match="fail-back"):
            await pair.there.unseal_topics(["t"])
        # The log there ends where the era of this cluster begins: nothing is cut on the way back.
        log = pair.source.directory.topics["t"].partitions[0]
        assert log.log_end_offset == 4
        await pair.there.unseal_topics(["t"], force=True)
        assert await pair.produced() == 0

    asyncio.run(run_pair(story))


def test_a_promotion_that_is_given_up_changes_nothing() -> None:
    async def story(pair: Pair, target: Broker) -> None:
        partition = begin_transaction(pair.source)
        with pytest.raises(PromotionGivenUp, match=r"transaction is open.*nothing has changed"):
            await pair.promote(BRIEF)
        assert await pair.seal() is None
        (mirror,) = await pair.mirrors()
        assert mirror.status is MirrorStatus.ACTIVE
        assert await pair.produced() == 0
        # The marker ends the transaction although the topic is sealed.

        def end(what: str) -> None:
            if "transaction is open" in what:
                end_transaction(partition)

        outcome = await pair.promote(on_wait=end)
        assert outcome.promoted == ("t",)
        assert content(target) == content(pair.source)

    asyncio.run(run_pair(story))


def test_all_topics_are_named_that_another_operator_has_taken() -> None:
    async def story(pair: Pair, target: Broker) -> None:
        for topic in ("u", "v"):
            create(pair.source, topic)
        await until(lambda: {"t", "u", "v"} <= target.directory.topics.keys())
        asked: list[asyncio.Task[None]] = []

        def supersede(_: str) -> None:
            # As soon as it waits: the promotion can't be complete before the source answers.
            if not asked:
                asked.append(asyncio.ensure_future(pair.here.resume_mirrors(["t", "u", "v"])))

        with pytest.raises(PromotionGivenUp) as given_up:
            await pair.promote(on_wait=supersede)
        await asked[0]
        assert all(re.search(rf"\b{topic}\b", str(given_up.value)) for topic in "tuv")

    asyncio.run(run_pair(story, topics="[tuv]"))


def test_of_runs_at_once_one_promotes_and_the_others_break_nothing() -> None:
    async def story(pair: Pair, target: Broker) -> None:
        outcomes = await asyncio.gather(*(pair.promote() for _ in range(3)), return_exceptions=True)
        assert any(isinstance(each, PromotionOutcome) for each in outcomes)
        assert all(isinstance(each, PromotionOutcome | PromotionGivenUp) for each in outcomes)
        assert content(target) == content(pair.source)
        assert await pair.seal() is SealStatus.MOVED
        # Once more: there is nothing left to do, and nothing breaks.
        assert (await pair.promote()).noted == ()

    asyncio.run(run_pair(story))


def test_groups_stand_where_they_did_at_the_source() -> None:
    async def story(pair: Pair, target: Broker) -> None:
        await pair.there.alter_group_offsets("readers", {WHERE: 3})
        outcome = await pair.promote(copies_groups=True)
        assert outcome.promoted == ("t",)
        assert await pair.here.group_offsets("readers") == {WHERE: 3}

    asyncio.run(run_pair(story, groups="readers"))


def test_an_app_with_workers_is_not_promoted_and_nothing_begins() -> None:
    async def story(pair: Pair, target: Broker) -> None:
        waited: list[str] = []
        for log, where in zip(pair.logs, ("at the source", "in this cluster"), strict=True):
            says = rf"app shop still has 1 worker {where}.*: stop them.*Nothing has changed"
            async with working(log):
                with pytest.raises(PromotionGivenUp, match=says):
                    await pair.promote(app="shop", on_wait=waited.append)
        assert (waited, await pair.seal()) == ([], None)
        (mirror,) = await pair.mirrors()
        assert mirror.status is MirrorStatus.ACTIVE
        assert (await pair.promote(app="shop")).promoted == ("t",)

    asyncio.run(run_pair(story))


def test_a_worker_that_starts_while_an_app_is_promoted_stops_the_promotion() -> None:
    async def story(pair: Pair, target: Broker) -> None:
        partition = begin_transaction(pair.source)
        leave = asyncio.Event()

        async def come_late() -> None:
            async with working(pair.logs[0]):
                end_transaction(partition)
                await leave.wait()

        async with asyncio.TaskGroup() as group:

            def start(what: str) -> None:
                if "transaction is open" in what:
                    group.create_task(come_late())

            with pytest.raises(PromotionGivenUp, match=r"1 worker at the source.*nothing has"):
                await pair.promote(app="shop", on_wait=start)
            leave.set()
        assert await pair.seal() is None
        assert await pair.produced() == 0
        assert (await pair.promote(app="shop")).promoted == ("t",)
        assert content(target) == content(pair.source)

    asyncio.run(run_pair(story))
