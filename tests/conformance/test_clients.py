"""Every client writes with every codec, and every client reads what every other has written."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.protocol.messages.classic_groups import DescribeGroupsRequest, DescribeGroupsResponse
from streamlog.records.compression import Compression
from streamlog.stored_log import StoredLog
from streamlog.transport.client_connection import TcpTransport
from tests.broker.process import BrokerProcess
from tests.conformance.clients import (
    CLIENTS,
    CODECS,
    PARTITIONS,
    PATIENCE_S,
    Client,
    Enough,
    Sent,
)

START_MS = 1_356_998_400_000

RECORDS = [
    Sent(0, None, b"no key", START_MS),
    Sent(0, b"key", None, START_MS + 1),
    Sent(0, b"", b"", START_MS + 2),
    Sent(0, b"\0\xff", bytes(range(256)), START_MS + 3, (("h", b"\0"), ("h", b"again"))),
    *(
        Sent(n % PARTITIONS, b"k%d" % n, b"value of some length %d " % n * 10, START_MS + n)
        for n in range(4, 400)
    ),
]

by_name = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def topic_of(client: Client, codec: str) -> str:
    return f"{client.name}.{codec}"


TOPICS = [topic_of(client, codec) for client, codec in itertools.product(CLIENTS, CODECS)]


def by_partition(records: list[Sent]) -> list[list[Sent]]:
    """Return the records by partition, in order: there is no order between partitions."""
    return [[r for r in records if r.partition == number] for number in range(PARTITIONS)]


@pytest.fixture(scope="session")
def filled_broker(broker: BrokerProcess) -> BrokerProcess:
    """Return a broker with the records of every client and codec."""
    for client, codec in itertools.product(CLIENTS, CODECS):
        client.produce(broker.address, topic_of(client, codec), codec, RECORDS)
    return broker


@by_name
@pytest.mark.parametrize("codec", CODECS)
def test_a_client_writes_with_the_chosen_codec(
    filled_broker: BrokerProcess, data: Path, client: Client, codec: str
) -> None:
    assert filled_broker.port
    with StoredLog(str(data)) as stored:
        topic = topic_of(client, codec)
        batches = list(stored.read(topic, 0, *stored.offsets(topic, 0)))
    # A client may send a batch uncompressed if it would not shrink; each topic has one that does.
    assert Compression.parse(codec) in {batch.codec for batch in batches}
    assert sum(batch.record_count for batch in batches) == len(by_partition(RECORDS)[0])


def at_least(count: int) -> Enough:
    return lambda got: got >= count


@by_name
def test_every_client_reads_the_records_of_every_writer(
    filled_broker: BrokerProcess, client: Client
) -> None:
    group, count = f"all by {client.name}", len(TOPICS) * len(RECORDS)
    found = client.consume(filled_broker.address, TOPICS, group, at_least(count))
    for topic in TOPICS:
        assert by_partition(found[topic]) == by_partition(RECORDS), topic


COMPRESSED = {codec: f"as.{codec}" for codec in CODECS}


@pytest.fixture(scope="session")
def recompressed(broker: BrokerProcess) -> BrokerProcess:
    """Return a broker that recompresses: each client writes with the next codec."""

    async def create() -> None:
        async with Log.open(f"kafka://{broker.address}") as log, log.admin() as admin:
            for codec, topic in COMPRESSED.items():
                kind = "uncompressed" if codec == "none" else codec
                configs = {"compression.type": kind}
                await admin.create_topics([NewTopic(topic, PARTITIONS, configs=configs)])

    asyncio.run(create())
    writers = itertools.cycle(CLIENTS[:-1])  # Ours creates its topics explicitly.
    for number, topic in enumerate(COMPRESSED.values()):
        codec = CODECS[(number + 1) % len(CODECS)]
        next(writers).produce(broker.address, topic, codec, RECORDS)
    return broker


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_is_stored_with_its_own_codec(
    recompressed: BrokerProcess, data: Path, codec: str
) -> None:
    assert recompressed.port
    with StoredLog(str(data)) as stored:
        topic = COMPRESSED[codec]
        batches = list(stored.read(topic, 0, *stored.offsets(topic, 0)))
    assert {batch.codec for batch in batches} == {Compression.parse(codec)}


@by_name
def test_every_client_reads_batches_that_the_broker_recompressed(
    recompressed: BrokerProcess, client: Client
) -> None:
    topics = [*COMPRESSED.values()]
    count = len(topics) * len(RECORDS)
    found = client.consume(
        recompressed.address, topics, f"compressed, by {client.name}", at_least(count)
    )
    for topic in topics:
        assert by_partition(found[topic]) == by_partition(RECORDS), topic


@by_name
def test_every_client_resumes_where_another_has_committed(
    broker: BrokerProcess, client: Client
) -> None:
    topic, group = f"more.{client.name}", f"more by {client.name}"
    for reader in (client, *CLIENTS):
        CLIENTS[0].produce(broker.address, topic, "none", RECORDS)
        found = reader.consume(broker.address, [topic], group, at_least(len(RECORDS)))
        assert by_partition(found[topic]) == by_partition(RECORDS), reader.name


async def wait_until_settled(address: str, group: str, members: int) -> None:
    """Wait until the group has this many members, each with partitions."""
    host, _, port = address.partition(":")
    transport = await TcpTransport.connect(
        host, int(port), client_id="test", timeout_ms=PATIENCE_S * 1000
    )
    async with asyncio.timeout(PATIENCE_S):
        while True:
            request = DescribeGroupsRequest(groups=[group])
            response = await transport.call(request, timeout_ms=PATIENCE_S * 1000)
            assert isinstance(response, DescribeGroupsResponse)
            described = response.groups[0]
            if described.group_state == "Stable" and len(described.members) == members:
                break
            await asyncio.sleep(0.05)
    await transport.close()


def test_all_clients_share_one_group(broker: BrokerProcess) -> None:
    """The leader has to understand the others; each partition goes to one member."""
    topic, group = "shared", "of all kinds"
    CLIENTS[-1].produce(broker.address, topic, "none", [])
    got: dict[str, int] = {}

    def enough_in_all(client: Client) -> Enough:
        def enough(count: int) -> bool:
            got[client.name] = count
            return sum(got.values()) >= len(RECORDS)

        return enough

    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        members = [
            threads.submit(client.consume, broker.address, [topic], group, enough_in_all(client))
            for client in CLIENTS
        ]
        asyncio.run(wait_until_settled(broker.address, group, len(CLIENTS)))
        CLIENTS[0].produce(broker.address, topic, "none", RECORDS)
        shares = [member.result()[topic] for member in members]
    assert by_partition([r for share in shares for r in share]) == by_partition(RECORDS)
    assert all(len({record.partition for record in share}) == 1 for share in shares)
