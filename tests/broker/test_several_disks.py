"""A broker process with several directories: placed, described, killed, started again, moved."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from streamlog.cli.cluster_command import cluster as cluster_command
from streamlog.cli.operate.log_dirs_command import move_replicas
from streamlog.client.admin import NewTopic
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess
from tests.cli.console import console

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

    async def move(address: str) -> None:
        moved = TopicPartition("t", 0)
        async with Log.open(f"kafka://{address}") as log, log.admin() as admin:
            with pytest.raises(LogError, match="LOG_DIR_NOT_FOUND"):
                await move_replicas(admin, [moved], broker=1, to=str(tmp_path))
            for target in (dirs[2], dirs[0]):
                assert await move_replicas(admin, [moved], broker=1, to=str(target), wait_s=60)
                found = {Path(each.path): each for each in await admin.describe_log_dirs()}
                assert [each for each in dirs if moved in found[each].sizes] == [target]
                assert list((await log.read_range(moved)).values) == [b"0"]

    with BrokerProcess(dirs[0], others=dirs[1:]) as process:
        asyncio.run(read(process.address))
        asyncio.run(move(process.address))
        run = console(cluster_command, dirs[0])
        (*_, last) = json.loads(run("log-dirs", "describe", "--json"))
        assert (last["directory"], len(last["partitions"])) == (str(dirs[2]), 2)
        assert str(dirs[1]) in run("log-dirs", "describe")
