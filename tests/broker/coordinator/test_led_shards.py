"""LedShards: a coordinator exists while this broker leads its partition."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.coordinator import led_shards
from streamlog.broker.coordinator.group.group_runtime import OFFSETS_TOPIC, CoordinatorRuntime
from streamlog.broker.coordinator.led_shards import LedShards
from streamlog.broker.replication.group_flush import GroupFlush
from streamlog.broker.replication.partition import Partitions
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
)
from streamlog.protocol.schema import Message
from streamlog.records.batch import RecordBatch
from tests.broker.coordinator.driving import commit, joining
from tests.broker.node import Node, create


class Topics:
    """The topics of a log directory."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory

    def names(self) -> Collection[str]:
        return self._directory.topics.keys()

    def topic_id(self, name: str) -> bytes | None:
        state = self._directory.topics.get(name)
        return None if state is None else state.topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        return next((n for n in self.names() if self.topic_id(n) == topic_id), None)

    def leader(self, name: str, partition: int) -> tuple[int, int] | None:
        return None

    def partitions(self, name: str) -> int:
        state = self._directory.topics.get(name)
        return 0 if state is None else len(state.partitions)


class NoListener:
    """An append listener that ignores its calls."""

    def on_append(self, topic: str, partition: int, size_bytes: int) -> None:
        """See `AppendListener`."""

    def on_gone(self, topic: str, partition: int) -> None:
        """See `AppendListener`."""


def partitions_of(broker: Broker) -> Partitions:
    """Return the broker's partitions; it leads those of the offsets topic."""
    topics, flush = Topics(broker.directory), GroupFlush(broker.directory)
    partitions = Partitions(
        broker.directory, topics=topics, listener=NoListener(), flush=flush, mode="always"
    )
    for index in range(topics.partitions(OFFSETS_TOPIC)):
        partitions.lead(OFFSETS_TOPIC, index)
    return partitions


def shards_of(broker: Broker, replayed: list[int]) -> LedShards[list[int]]:
    def replay(batch: RecordBatch, shard: list[int]) -> None:
        shard.append(batch.base_offset)
        replayed.append(batch.base_offset)

    return LedShards(OFFSETS_TOPIC, partitions_of(broker), make=list, replay=replay)


def code_of(shards: LedShards[list[int]], key: str = "g") -> int:
    with pytest.raises(LogError) as refusal:
        shards.of(key)
    return refusal.value.code


def test_a_shard_answers_after_its_load_until_leadership_is_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Load one batch per step.
    monkeypatch.setattr(led_shards, "LOAD_BYTES", 1)
    replayed: list[int] = []

    async def story(broker: Broker) -> None:
        assert code_of(shards_of(broker, replayed)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        create(broker)
        for offset in range(3):
            await commit(broker, offset)
        shards = shards_of(broker, replayed)
        index = shards.index_of("g")
        assert code_of(shards) == ErrorCode.NOT_COORDINATOR
        assert not shards.lead(index)
        assert code_of(shards) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert shards.next_deadline_ms(7) == 7
        assert [shards.load_on(), shards.load_on()] == [[], [index]]
        led = shards.of("g")
        assert led.shard == replayed == [0, 1, 2]
        assert shards.has(led)
        assert shards.next_deadline_ms(7) is None
        shards.resign(index)
        assert not shards.has(led)
        assert code_of(shards) == ErrorCode.NOT_COORDINATOR
        # After the next election the load starts from the beginning.
        shards.lead(index)
        shards.load_on()
        shards.load_on()
        assert shards.of("g").shard == [0, 1, 2]
        assert not shards.has(led)

    node.run(story)


def test_losing_leadership_redirects_a_waiting_member(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await commit(broker, 1)
        partitions, flush = partitions_of(broker), GroupFlush(broker.directory)
        config = GroupConfig(initial_rebalance_delay_ms=10_000)
        runtime = CoordinatorRuntime(
            partitions, config=config, clock=node.clock, overrides=lambda _: {}
        )
        index = runtime.partition_of("new")[1]

        def ask(request: Message) -> Message | asyncio.Future[Message]:
            return runtime.begin("new", request, version=3, client_id="c", client_host="h")

        def beat() -> int:
            answer = ask(HeartbeatRequest(group_id="new", generation_id=1, member_id="m"))
            assert isinstance(answer, HeartbeatResponse)
            return answer.error_code

        assert beat() == ErrorCode.NOT_COORDINATOR
        runtime.lead(index)
        assert beat() == ErrorCode.UNKNOWN_MEMBER_ID
        waiting = ask(joining(group_id="new"))
        assert isinstance(waiting, asyncio.Future)
        runtime.resign(index)
        answer = await waiting
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert beat() == ErrorCode.NOT_COORDINATOR
        flush.close()

    node.run(story)
