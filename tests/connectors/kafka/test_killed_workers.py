"""Workers killed at the steps of commits and flushes: each record once, out of a cluster and in."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from tests.broker.process import BrokerProcess
from tests.connectors.kafka.other_cluster import OtherCluster
from tests.worker.commit_steps import IS_THOROUGH, write_program
from tests.worker.processes import STREAMLOG, Process, read_whole, running

PROGRAM = """
import os
import sys

from mortal import run
from streamlog import App
from streamlog.connectors.kafka import KafkaClusterSink, KafkaClusterSource
from streamlog.worker import worker
from streamlog.worker.connect import sink_group

for room in (worker, sink_group):
    room.SESSION_TIMEOUT_MS, room.HEARTBEAT_INTERVAL_MS = 2_000, 300
app = App("bridge", state_dir="state", commit_interval="50ms")
numbers = app.topic("numbers", key=bytes, value=bytes, partitions=2)
cluster = os.environ["CLUSTER"]
app.source(numbers, KafkaClusterSource(bootstrap_servers=cluster, topics=("in",)), name="in")
sink = KafkaClusterSink(
    bootstrap_servers=cluster, topic="out", transactional_id="bridge", transaction_timeout="5s"
)
app.sink(numbers, sink, name="out")
run(app, sys.argv[1], sys.argv[2], int(sys.argv[3]), "one")
"""
STEPS = (
    *("checkpointed", "begun", "sinks written", "offsets sent", "committed", "stored"),
    *("sink: begin", "sink: write", "sink: target committed", "sink: group committed"),
)
COUNT = 100


@pytest.mark.skipif(not IS_THOROUGH, reason="starts a worker for each step, and kills it")
def test_every_record_once(tmp_path: Path) -> None:
    write_program(tmp_path, "bridge.py", PROGRAM)
    listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
    with (
        BrokerProcess(tmp_path / "other", flush="os") as other,
        running(*STREAMLOG, *listen, cwd=tmp_path) as broker,
    ):
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)
        asyncio.run(bridged(tmp_path, url, other))


async def bridged(path: Path, url: str, other: BrokerProcess) -> None:
    written = 0

    async def write_some(cluster: OtherCluster) -> None:
        nonlocal written
        for number in range(written, written + 4):
            await cluster.write("in", number % 2, b"%d" % number)
        written += 4

    async def live(cluster: OtherCluster, step: str, times: int) -> None:
        command = (sys.executable, "bridge.py", url, step, str(times))
        with running(*command, cwd=path, CLUSTER=other.address) as process:
            await asyncio.to_thread(process.line, "^up$")
            if step == "none":
                await until_all_are_out(cluster, process)
                assert await asyncio.to_thread(process.stop) == 0, process.output
                return
            ended = asyncio.ensure_future(asyncio.to_thread(process.wait))
            while not ended.done():
                await write_some(cluster)
                # Spread over several commits.
                await asyncio.wait([ended], timeout=0.02)
            assert await ended == -9, process.output

    async def until_all_are_out(cluster: OtherCluster, process: Process) -> None:
        async with asyncio.timeout(60):
            while len(await read_whole(cluster.log, "out")) < written:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async with Log.open(f"kafka://{other.address}") as log:
        cluster = OtherCluster(log, other.address)
        await log.admin().create_topics([NewTopic("in", 2), NewTopic("out", 2)])
        for step in STEPS:
            for times in (0, 3):
                await live(cluster, step, times)
        await live(cluster, "none", 0)
        out = Counter(record.value for _, record in await read_whole(log, "out"))
        assert out == Counter(b"%d" % number for number in range(written))
        assert written >= COUNT
