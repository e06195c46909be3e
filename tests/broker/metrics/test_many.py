"""A look at a broker with many partitions and groups: how long it takes, and how long it holds."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.metrics.prometheus import exposition
from streamlog.protocol.messages.classic_groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.broker.node import ask, batch, create, produce

TOPICS, PARTITIONS, GROUPS = 100, 100, 1_000
ANSWER_S, HOLD_S = 0.5, 0.005


async def hold_s(work: asyncio.Task[bytes]) -> float:
    """Return the most CPU time of the thread between two turns of this task."""
    longest_s, before_s = 0.0, time.thread_time()
    while not work.done():
        await asyncio.sleep(0)
        now_s = time.thread_time()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return longest_s


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="measures CPU time: with STREAMLOG_PROFILE=thorough",
)
def test_metrics_of_10_000_partitions_and_1_000_groups_answer_fast_and_hold_the_loop_briefly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def main() -> tuple[float, float, int]:
        async with Broker.open("data", files=MemoryFiles()) as broker:
            for number in range(TOPICS):
                create(broker, f"topic-{number}", PARTITIONS)
                broker.tick()  # The broker's heartbeat is due meanwhile.
                await produce(broker, batch(b"x"), topic=f"topic-{number}")
            for number in range(GROUPS):
                partitions = [
                    OffsetCommitRequestPartition(partition_index=each, committed_offset=1)
                    for each in range(10)
                ]
                topic = OffsetCommitRequestTopic(name="topic-0", partitions=partitions)
                request = OffsetCommitRequest(
                    group_id=f"group-{number}", generation_id_or_member_epoch=-1, topics=[topic]
                )
                await ask(broker, request, OffsetCommitResponse, 8)
            # The least of some looks: others use this machine, too.
            looks = []
            for _ in range(5):
                began_s = time.thread_time()
                work = asyncio.create_task(exposition(broker.directory.metrics))
                longest_s = await hold_s(work)
                looks.append((time.thread_time() - began_s, longest_s, len(work.result())))
            return min(took for took, *_ in looks), min(hold for _, hold, _ in looks), looks[0][2]

    took_s, longest_s, size_bytes = asyncio.run(main())
    with capsys.disabled():
        sys.stdout.write(
            f"\n/metrics of {TOPICS * PARTITIONS} partitions and {GROUPS} groups:"
            f" {took_s * 1000:.0f} ms, longest hold {longest_s * 1000:.2f} ms,"
            f" {size_bytes // 1024} KiB\n"
        )
    assert took_s < ANSWER_S
    assert longest_s < HOLD_S
