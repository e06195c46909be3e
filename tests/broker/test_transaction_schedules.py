"""Random transactions with power cuts: each is visible in whole or not at all.

Producers of transactions v1 and v2 share the broker, and take over from each other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest
from crc32c import crc32c

from streamlog.broker.broker import Broker
from streamlog.errors import LogDirectoryError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.produce_and_fetch import ProduceResponse
from streamlog.protocol.messages.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from streamlog.protocol.schema import Message
from tests.broker.node import Node, ask, context, create, produce_request, v1
from tests.broker.storage.log.test_transactions import committed
from tests.broker.test_isolation import on_disk, transactional
from tests.broker.test_power_cut import torn_by

LIVES = 4
IDS = ("first", "second")
PARTITIONS = (0, 1)


class PowerCut(Exception):
    """The machine is down."""


@dataclass
class Promises:
    """What clients may rely on."""

    committed: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    """Values whose commit was requested but not answered."""
    written: int = 0


@dataclass
class Writer:
    """A producer with a transactional id, in one life of the broker."""

    broker: Broker
    name: str
    is_v2: bool
    """Whether it has transactions v2: leaders add partitions, and the epoch is raised."""
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[int, int] = field(default_factory=dict)

    async def init(self) -> None:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        while True:
            response = await ask(self.broker, request, InitProducerIdResponse)
            if response.error_code == ErrorCode.NONE:
                break
            assert response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            await on_disk(self.broker)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self.sequences = dict.fromkeys(PARTITIONS, 0)

    def version(self, request: Message) -> int | None:
        return None if self.is_v2 else v1(request)

    async def add(self) -> bool:
        if self.is_v2:
            return True
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[*PARTITIONS])],
        )
        response = await ask(self.broker, request, AddPartitionsToTxnResponse)
        results = response.results_by_topic_v3_and_below[0].results_by_partition
        return {each.partition_error_code for each in results} == {ErrorCode.NONE}

    async def write(self, value: bytes, index: int) -> bool:
        sequence = self.sequences[index]
        data = bytearray(transactional(sequence, value, producer_id=self.producer_id))
        data[51:53] = self.epoch.to_bytes(2)
        data[17:21] = crc32c(data[21:]).to_bytes(4)
        request = produce_request(bytes(data), index=index)
        request.transactional_id = self.name
        response = await ask(self.broker, request, ProduceResponse, self.version(request))
        done = response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        self.sequences[index] += done
        return done

    def learn(self, response: EndTxnResponse) -> None:
        if response.producer_id >= 0:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences = dict.fromkeys(PARTITIONS, 0)

    def ending(self, *, commits: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commits,
        )


async def transact(writer: Writer, promises: Promises, chance: Random) -> None:
    """Run one transaction over all partitions, committed, aborted or left open."""
    promises.written += 1
    value = b"%d" % promises.written
    whole = await writer.add()
    for index in PARTITIONS:
        whole = whole and await writer.write(value, index)
    commits = chance.random() < 0.6
    if chance.random() < 0.15:
        if chance.random() < 0.5:
            raise PowerCut
        await writer.init()  # a new instance; the transaction of the old one is open
        return
    if commits and whole:
        promises.unknown.add(value)
    request = writer.ending(commits=commits and whole)
    if chance.random() < 0.1:
        answer = writer.broker.begin(request, context(request, writer.version(request)))
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(asyncio.Future.exception)
        raise PowerCut
    response = await ask(writer.broker, request, EndTxnResponse, writer.version(request))
    writer.learn(response)
    if commits and whole:
        promises.unknown.discard(value)
        if response.error_code == ErrorCode.NONE:
            promises.committed.add(value)


def live(node: Node, promises: Promises, chance: Random) -> None:
    """Run transactions until the power is cut."""

    async def story(broker: Broker) -> None:
        if "t" not in broker.directory.topics:
            create(broker, partitions=len(PARTITIONS))
        broker.tick()
        writers = [Writer(broker, name, chance.random() < 0.5) for name in IDS]
        for writer in writers:
            await writer.init()
        try:
            for _ in range(chance.randint(1, 12)):
                writer = chance.choice(writers)
                if chance.random() < 0.1:
                    writers.append(Writer(broker, writer.name, chance.random() < 0.5))
                    await writers[-1].init()
                await transact(writer, promises, chance)
        except PowerCut:
            pass
        node.files.crash(torn=torn_by(chance))

    with suppress(OSError, LogDirectoryError):
        node.run(story)


@pytest.mark.parametrize("seed", range(25))
def test_a_transaction_is_visible_in_whole_or_not_at_all(seed: int) -> None:
    chance, node, promises = Random(seed), Node(), Promises()
    for _ in range(LIVES):
        live(node, promises, chance)

    async def look(broker: Broker) -> list[list[bytes]]:
        broker.tick()
        for name in IDS:
            await Writer(broker, name, is_v2=True).init()
        await on_disk(broker)
        logs = [broker._partitions.get("t", index).log for index in PARTITIONS]
        assert [log.producers.transactions.first_open_offset for log in logs] == [None, None]
        return [[value for _, value in committed(log)] for log in logs]

    first, second = node.run(look)
    assert sorted(first) == sorted(second)
    assert len(set(first)) == len(first)
    assert promises.committed <= set(first) <= promises.committed | promises.unknown
