"""Records that an agent has handled out of order are not repeated after a kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.agents.offsets import AgentPosition, positions_of
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.worker.processes import STREAMLOG, attached, running

APP = """
import asyncio
import os
from streamlog import App, Stream

app = App("hasty", log="embedded:./log", state_dir="./state", commit_interval="20ms")
numbers = app.topic("numbers", key=str, value=str, partitions=1)

@app.agent(numbers, concurrency=4, ordered="none")
async def handle(stream: Stream[str, str]) -> None:
    async for number in stream:
        # The third is handled only once the file exists.
        while number == "3" and not os.path.exists("open"):
            await asyncio.sleep(0.01)
        print("handled", number)
"""
WORKER = (*STREAMLOG, "-A", "hasty", "worker")
READY = "rebalance: this worker has 1 partition"
PART = TopicPartition("numbers", 0)


async def feed(log: Log, numbers: range) -> None:
    async with log.producer() as producer:
        for number in numbers:
            await producer.send("numbers", b"%d" % number)
        await producer.flush()


async def committed(log: Log, wanted: AgentPosition) -> None:
    """Wait until the group has committed this position."""
    async with asyncio.timeout(120), log.consumer(group_id="hasty") as reader:
        while True:
            found = (await reader.committed_metadata([PART]))[PART]
            if found is not None and positions_of(*found[:2]).get("handle") == wanted:
                return
            await asyncio.sleep(0.01)


def test_a_slow_record_does_not_cause_others_to_repeat(tmp_path: Path) -> None:
    (tmp_path / "hasty.py").write_text(APP)
    log_url = f"embedded:{tmp_path / 'log'}"
    with running(*WORKER, cwd=tmp_path) as worker:
        worker.line(READY)

        async def all_but_one(log: Log) -> None:
            await feed(log, range(20))
            await committed(log, AgentPosition(3, [(4, 20)]))

        attached(log_url, all_but_one)
        before = worker.output
        worker.kill()
    (tmp_path / "open").touch()
    with running(*WORKER, cwd=tmp_path) as worker:
        worker.line(READY)
        attached(log_url, lambda log: feed(log, range(20, 22)))
        worker.line("handled 3$")
        worker.line("handled 21$")
        assert worker.stop() == 0
        after = worker.output

    def handled(output: str) -> list[int]:
        lines = [line.split() for line in output.splitlines() if line.startswith("handled ")]
        return sorted(int(number) for _, number in lines)

    assert handled(before) == [number for number in range(20) if number != 3]
    assert handled(after) == [3, 20, 21]
