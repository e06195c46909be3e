"""Random batches, valid and damaged: other clients read exactly what the broker accepts."""

from __future__ import annotations

import asyncio
from random import Random

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from streamlog.records.batch import encode_batch
from streamlog.records.compression import Compression
from tests.broker.apis.test_produce import recoded
from tests.broker.process import BrokerProcess
from tests.conformance.clients import Client, Confluent, KafkaPython, Sent
from tests.records.slow_reader import Malformed, SlowRecord, read_plain_batch
from tests.records.test_record_scan import damaged

BATCHES = 200
TOPIC = "random-batches"
START_MS = 1_700_000_000_000


def random_batch(chance: Random) -> bytes:
    rows = []
    for _ in range(chance.randint(1, 5)):
        key, value = (chance.choice([None, b"", chance.randbytes(20)]) for _ in range(2))
        headers = (("h", chance.choice([None, b"x"])),) * chance.randrange(3)
        rows.append((START_MS + chance.randrange(10**6), key, value, headers))
    data = encode_batch(rows)
    return damaged(data, chance) if chance.random() < 0.6 else data


def expected(data: bytes) -> list[SlowRecord] | None:
    try:
        return read_plain_batch(data)
    except Malformed:
        return None


async def sent(address: str, batches: list[tuple[bytes, Compression]]) -> list[int]:
    codes = []
    async with Log.open(f"kafka://{address}") as log:
        any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        await log.admin().create_topics([NewTopic(TOPIC, 1, configs=any_time)])
        cluster = log._cluster()
        await cluster.find(timeout_ms=5_000)
        for data, codec in batches:
            records = PartitionProduceData(index=0, records=recoded(data, codec))
            topics = [TopicProduceData(name=TOPIC, partition_data=[records])]
            request = ProduceRequest(acks=1, timeout_ms=5_000, topic_data=topics)
            answer = await cluster.call_any(request, ProduceResponse)
            codes.append(answer.responses[0].partition_responses[0].error_code)
        await cluster.close()
    return codes


def test_other_clients_read_exactly_the_accepted_batches(broker: BrokerProcess) -> None:
    chance = Random(36)
    batches = [(random_batch(chance), chance.choice(list(Compression))) for _ in range(BATCHES)]
    codes = asyncio.run(sent(broker.address, batches))
    readable: list[Sent] = []
    newest: list[int] = []
    for (data, _), code in zip(batches, codes, strict=True):
        records = expected(data)
        assert code == (ErrorCode.INVALID_RECORD if records is None else ErrorCode.NONE)
        readable += [Sent(0, r.key, r.value, r.timestamp_ms, r.headers) for r in records or ()]
        newest += [max(r.timestamp_ms for r in records)] * len(records) if records else []
    assert BATCHES // 4 < codes.count(ErrorCode.NONE) < BATCHES
    found = read(KafkaPython(), broker.address, len(readable))
    assert found == readable
    found = read(Confluent(), broker.address, len(readable))
    assert [each._replace(timestamp_ms=0) for each in found] == [
        each._replace(timestamp_ms=0) for each in readable
    ]
    # librdkafka shows the batch's largest timestamp for a record whose unused attributes contain
    # the bit that means log append time in a batch.
    for each, exact, newest_ms in zip(found, readable, newest, strict=True):
        assert each.timestamp_ms in (exact.timestamp_ms, newest_ms)


def read(client: Client, address: str, count: int) -> list[Sent]:
    found = client.consume(address, [TOPIC], f"random by {client.name}", lambda got: got >= count)
    return found[TOPIC]
