"""The broker is killed while our consumers rebalance and commit, and they recover.

Acknowledged commits hold: none is lost, every record is read, and at the end every partition has
one owner.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from streamlog.assignors import CooperativeStickyAssignor, RangeAssignor
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerOptions
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
RECORDS = 50
"""Records per partition."""
POLLS = (0, 1, 2, 4, 8) if os.environ.get("STREAMLOG_PROFILE") == "thorough" else (2,)
"""How far each rebalance gets before the broker is killed."""
QUICK: ConsumerOptions = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 100,
}
BEATS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "10000",
}
KINDS: dict[str, ConsumerOptions] = {
    "eager": {"assignor": RangeAssignor()},
    "cooperative": {"assignor": CooperativeStickyAssignor()},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture
def killable_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", flush="os") as running:
        yield running


class Member:
    """A consumer that reads, and that commits its position in the background."""

    def __init__(self, consumer: Consumer, acknowledged: dict[TopicPartition, int]) -> None:
        self.consumer = consumer
        self.read: dict[TopicPartition, set[int]] = {partition: set() for partition in PARTITIONS}
        self._acknowledged = acknowledged

    async def poll(self) -> None:
        for partition, records in (await self.consumer.poll(timeout_ms=20)).items():
            self.read[partition] |= {int(record.value or b"") for record in records}
        if not self.consumer.is_member:
            return
        offsets = self.consumer.positions()
        soon = self.consumer.commit_soon()

        def remember(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._acknowledged.update(offsets)

        soon.add_done_callback(remember)


async def until(condition: Callable[[], bool], *members: Member) -> None:
    async with asyncio.timeout(60):
        while not condition():
            for member in members:
                await member.poll()


@pytest.mark.parametrize("kind", KINDS)
def test_members_recover_and_acknowledged_commits_hold(
    killable_broker: BrokerProcess, kind: str
) -> None:
    async def main() -> None:
        acknowledged: dict[TopicPartition, int] = {}
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(Log.open(f"kafka://{killable_broker.address}"))
            await log.admin().create_topics([NewTopic("t", len(PARTITIONS))])
            await log.admin().alter_configs(BEATS)
            async with log.producer() as producer:
                for partition in PARTITIONS:
                    records = [(n, None, b"%d" % n, ()) for n in range(RECORDS)]
                    await producer.send_batch("t", partition.partition, records)
            consumers = [log.consumer(**QUICK, **KINDS[kind], max_poll_records=7) for _ in range(2)]
            first, second = (Member(each, acknowledged) for each in consumers)
            one, two = consumers
            await stack.enter_async_context(one)
            await one.subscribe(["t"])
            await until(lambda: len(one.assignment()) == 4, first)
            await stack.enter_async_context(two)
            for polls in POLLS:
                await two.subscribe(["t"])
                for _ in range(polls):
                    await first.poll()
                    await second.poll()
                await asyncio.to_thread(killable_broker.kill_and_restart)
                shared = lambda: len(one.assignment()) == len(two.assignment()) == 2  # noqa: E731
                await until(shared, first, second)
                assert not one.assignment() & two.assignment()
                await two.unsubscribe()
                await until(lambda: len(one.assignment()) == 4, first)
            # Records that could not be committed before a rebalance are read again.
            ends = dict.fromkeys(PARTITIONS, RECORDS)
            await until(lambda: one.positions() == ends, first)
            assert all(len(first.read[at] | second.read[at]) == RECORDS for at in PARTITIONS)
            await one.commit()
            found = await one.committed(PARTITIONS)
            assert found == ends
            assert all((found[each] or 0) >= at for each, at in acknowledged.items())

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["eager", "consumer"])
def test_a_commit_succeeds_despite_a_broker_restart(
    killable_broker: BrokerProcess, kind: str
) -> None:
    async def main() -> None:
        async with Log.open(f"kafka://{killable_broker.address}") as log:
            await log.admin().create_topics([NewTopic("t", len(PARTITIONS))])
            await log.admin().alter_configs(BEATS)
            async with log.consumer(**QUICK, **KINDS[kind]) as consumer:
                await consumer.subscribe(["t"])
                async with asyncio.timeout(60):
                    while len(consumer.assignment()) < len(PARTITIONS):
                        await consumer.poll(timeout_ms=20)
                orders = [consumer.commit_soon({PARTITIONS[0]: n}) for n in range(1, 100)]
                await orders[20]
                await asyncio.to_thread(killable_broker.kill_and_restart)
                results = await asyncio.gather(*orders, return_exceptions=True)
                refused = [each for each in results if each is not None]
                # A rebalance may interrupt a commit; no other error is allowed.
                assert all(isinstance(each, LogError) for each in refused), refused
                last = max(n for n, each in enumerate(results, start=1) if each is None)
                assert await consumer.committed(PARTITIONS[:1]) == {PARTITIONS[0]: last}

    asyncio.run(main())
