"""A broker process with several directories: placed, described, killed and started again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess

PARTITIONS = 6


def test_a_killed_broker_has_all_records_on_all_disks(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in "abc"]

    async def write(address: str) -> None:
        async with Log.open(f"kafka://{address}") as log, log.producer() as producer:
            await log.admin().create_topics([NewTopic("t", PARTITIONS)])
            for number in range(PARTITIONS):
                await (await producer.send("t", b"%d" % number, partition=number))

    async def read(address: str) -> None:
        async with Log.open(f"kafka://{address}") as log:
            for number in range(PARTITIONS):
                found = await log.read_range(TopicPartition("t", number))
                assert list(found.values) == [b"%d" % number]
            described = {Path(each.path): each for each in await log.admin().describe_log_dirs()}
            assert list(described) == dirs
            for number in range(PARTITIONS):
                at = described[dirs[number % 3]]
                assert at.error is None
                assert at.sizes[TopicPartition("t", number)] > 0
                assert 0 < at.usable_bytes <= at.total_bytes

    with BrokerProcess(dirs[0], others=dirs[1:]) as process:
        asyncio.run(write(process.address))
        process.kill()
    with BrokerProcess(dirs[0], others=dirs[1:]) as process:
        asyncio.run(read(process.address))
