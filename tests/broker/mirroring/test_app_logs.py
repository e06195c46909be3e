"""The source's logs of transactions and positions, mirrored for apps, and marks of them."""

from __future__ import annotations

import asyncio

from streamlog.broker.broker import Broker
from streamlog.broker.mirroring.link_plan import APP_LOGS
from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin import Admin
from streamlog.log import Log
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition
from tests.broker.mirroring.test_mirrors import content, link, serving, until
from tests.broker.node import create


def mirror_names(link_id: bytes) -> dict[str, str]:
    """Return the mirrors of the source's logs here."""
    return {each: f"{MIRRORED_LOGS}{id_text(link_id)}.{each[2:]}" for each in APP_LOGS}


async def commit(log: Log, count: int) -> None:
    """Read `count` records of `in`, as an app does, and write as many."""
    async with (
        log.producer(transactional_id="shop-0") as producer,
        log.consumer(group_id="shop") as reader,
    ):
        for number in range(count):
            async with producer.transaction() as transaction:
                await producer.send("shop-0-changelog", b"x")
                await transaction.send_offsets(
                    {TopicPartition("in", 0): number + 1}, reader.group_metadata()
                )


def mark(broker: Broker, link_id: bytes) -> dict[tuple[str, int], tuple[int, int]]:
    """Return from where on partitions have to be read, and below what they are whole."""
    found = broker._member.metadata.app_marks.get(link_id)
    parts = [] if found is None else found.partitions
    return {(each.topic, each.partition): (each.scan_from, each.whole_below) for each in parts}


def test_a_link_with_apps_mirrors_the_logs_of_transactions_and_positions_and_marks_them() -> None:
    async def story() -> None:
        there, here = MemoryFiles(), MemoryFiles()
        async with (
            serving(there) as (source, address),
            Log.open(f"kafka://{address}") as log,
        ):
            for name in ("in", "shop-0-changelog"):
                create(source, name)
            async with log.producer() as producer:
                for _ in range(3):
                    await producer.send("in", b"x")
            await commit(log, 3)
            async with serving(here) as (target, port):
                link_id = await link(target, address, source, apps="shop")
                names = mirror_names(link_id)
                await until(lambda: mark(target, link_id) != {})
                assert mark(target, link_id)["shop-0-changelog", 0] == (6, 6)
                for theirs, ours in names.items():
                    for number in source.directory.topics[theirs].partitions:
                        assert content(target, number, ours) == content(source, number, theirs)
                async with Log.open(f"kafka://{port}") as near:
                    await check_hidden(near.admin(), names)
            async with serving(here) as (target, _):
                # It survives the broker that has taken it.
                assert mark(target, link_id)["shop-0-changelog", 0] == (6, 6)

    asyncio.run(story())


async def check_hidden(admin: Admin, names: dict[str, str]) -> None:
    shown = {each.name for each in await admin.list_topics()}
    every = {each.name for each in await admin.list_topics(internal=True)}
    assert not shown & {*names.values()}
    assert {*names.values()} <= every
