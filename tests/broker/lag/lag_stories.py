"""Groups that lag, and an independent definition of their lag."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from streamlog.broker.broker import Broker
from streamlog.metrics.prometheus import exposition
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from streamlog.protocol.schema import one_buffer
from streamlog.records.batch import split_batches
from tests.broker.coordinator.driving import commit
from tests.broker.node import Node, ask, at, fetch_request

LINE = re.compile(r"^(\w+)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Inline(Executor):
    """Runs jobs in the calling thread, so that a story is the same in each run."""

    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - passed on, as by any executor
            future.set_exception(error)
        return future


async def metrics_of(broker: Broker) -> dict[tuple[str, str, str, str], float]:
    """Scrape the broker; return the metrics of groups by name, group, topic and partition."""
    found: dict[tuple[str, str, str, str], float] = {}
    for line in (await exposition(broker.directory.metrics)).decode().splitlines():
        match = LINE.match(line)
        if match is None or "consumergroup" not in match[1]:
            continue
        labels = dict(LABEL.findall(match[2]))
        key = (match[1], labels["group"], labels.get("topic", ""), labels.get("partition", ""))
        found[key] = float(match[3])
    return found


async def lag_of(broker: Broker, node: Node, metric: str, group: str, topic: str = "t") -> Any:
    """Scrape a moment later; return one metric of a partition, None if it has no series."""
    node.clock.advance(1_000)
    return (await metrics_of(broker)).get(
        (f"kafka_consumergroup_group_{metric}", group, topic, "0")
    )


async def join_consumers(broker: Broker, group_id: str, topic: str = "t") -> tuple[str, int]:
    """Join a group of the consumer protocol (KIP-848); return member id and epoch."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    response = await ask(broker, request, ConsumerGroupHeartbeatResponse)
    assert not response.error_code, response.error_message
    return response.member_id or "m", response.member_epoch


async def commit_as(broker: Broker, kind: str, offset: int, *, topic: str = "t") -> str:
    """Commit an offset for a group of this kind; return the name of the group."""
    group_id = f"of-{kind}"
    if kind == "classic":
        assert await commit(broker, offset, topic=topic, group_id=group_id) == 0
        return group_id
    member_id, epoch = await join_consumers(broker, group_id, topic)
    code = await commit(
        broker, offset, member_id=member_id, generation=epoch, topic=topic, group_id=group_id
    )
    assert code == 0
    return group_id


async def read_all(broker: Broker, topic: str = "t") -> tuple[list[tuple[int, int]], int, int]:
    """Read a partition as a consumer does.

    Returns offset and timestamp of each record, the log start offset and the high watermark.
    """
    found: list[tuple[int, int]] = []
    position = broker.directory.log(topic, 0).log_start_offset
    while True:
        (data,) = await _fetch(broker, position, topic)
        assert not data.error_code
        batches = list(split_batches(bytes(data.records or b"")))
        if not batches:
            return found, data.log_start_offset, data.high_watermark
        for each in batches:
            if not each.is_control:
                found += [
                    (r.offset, r.timestamp_ms) for r in each.records() if r.offset >= position
                ]
        position = batches[-1].next_offset


async def _fetch(broker: Broker, offset: int, topic: str) -> list[Any]:
    response = await ask(broker, fetch_request(at(offset), topic=topic), FetchResponse)
    partitions = response.responses[0].partitions
    for each in partitions:
        if each.records is not None:
            each.records = one_buffer(each.records)
    return partitions


async def expected_seconds(
    broker: Broker, node: Node, committed: int, topic: str = "t"
) -> float | None:
    """Return the age of the next record by reading the partition; None if it has no time."""
    records, _, _ = await read_all(broker, topic)
    for offset, timestamp_ms in records:
        if offset >= committed:
            if timestamp_ms < 0:
                return None
            return max(node.clock.wall_ms() - timestamp_ms, 0) / 1000
    return 0.0


async def compact(broker: Broker, node: Node) -> None:
    """Give the cleaner time to compact what it finds worth it."""
    for _ in range(60):
        node.pass_time(broker, 1_000)
        await asyncio.sleep(0)
