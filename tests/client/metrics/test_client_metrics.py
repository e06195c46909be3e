"""Client metrics: names are Kafka's, and values are those that the broker and the caller count."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest

from streamlog.client.admin import AclFilter, NewTopic
from streamlog.client.metrics.client_metrics import ClientMetrics
from streamlog.client.metrics.metric_names import CLIENT_ID, DEFINITIONS, HELP
from streamlog.client.metrics.network_metrics import NetworkMetrics
from streamlog.errors import NotAuthorized, RequestTimedOut
from streamlog.log import Log
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.protocol.messages.cluster_metadata import MetadataRequest
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import TcpTransport
from tests.broker.process import BrokerProcess
from tests.servers.secured_broker import access, allowed, secured_broker

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0 = TopicPartition("t", 0)
KAFKA_NAMES = Path(__file__).parent / "kafka_metrics.tsv"
"""Client, group, name and tags of all metrics of Apache Kafka's Java clients 4.4, as their own
`metrics()` has listed them."""


def kafka_names() -> set[tuple[str, str, tuple[str, ...]]]:
    lines = KAFKA_NAMES.read_text().splitlines()
    return {
        (group, name, tuple(sorted(tags.split(","))))
        for group, name, tags in (line.split("\t") for line in lines)
    }


def test_every_metric_has_a_name_and_the_tags_that_kafkas_clients_give_it() -> None:
    ours = {(each.group, each.name, tuple(sorted(each.tags))) for each in DEFINITIONS}
    assert len(ours) == len(DEFINITIONS)
    assert ours <= kafka_names()


def check_defined(metrics: ClientMetrics, groups: Iterable[str]) -> None:
    """Check that all metrics are defined, and all defined metrics of these groups are there."""
    found = {(each.group, each.name, each.tag_names) for each in metrics}
    assert found <= HELP.keys()
    assert {each for each in HELP if each[0] in groups} <= found
    assert {each.tags[0][0] for each in metrics} == {CLIENT_ID}


def test_producer_and_consumer_count_what_was_sent_and_read(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer(linger_ms=0) as producer:
                for number in range(100):
                    await producer.send("t", b"v" * number, key=b"k")
                await producer.flush()
                sent = producer.metrics()
            check_defined(
                sent, ("producer-metrics", "producer-topic-metrics", "producer-node-metrics")
            )
            assert sent.value("record-send-total") == 100
            assert sent.value("record-send-total", topic="t") == 100
            assert sent.value("record-error-total") == sent.value("record-retry-total") == 0
            assert 100 / 60 < sent.value("record-send-rate") < 100 / 30
            assert sent.value("batch-size-max") <= sent.value("byte-total", topic="t")
            assert sent.value("buffer-available-bytes") == sent.value("buffer-total-bytes")
            assert sent.value("requests-in-flight") == 0
            assert sent.value("request-latency-max") >= sent.value("request-latency-avg") >= 0
            assert sent.value("request-total") >= 100 / sent.value("records-per-request-avg")

            options = {"group_id": "g", "auto_offset_reset": "earliest"}
            async with log.consumer(**options) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe(["t"])
                count = 0
                while count < 40:
                    polled = await consumer.poll(timeout_ms=5_000, max_records=40 - count)
                    count += sum(map(len, polled.values()))
                read = consumer.metrics()
                await consumer.commit()
                committed = consumer.metrics()
            check_defined(
                read,
                (
                    "consumer-metrics",
                    "consumer-fetch-manager-metrics",
                    "consumer-coordinator-metrics",
                    "consumer-node-metrics",
                ),
            )
            assert read.value("records-consumed-total") == 40
            assert read.value("records-consumed-total", topic="t") == 40
            assert read.value("records-lag", topic="t", partition=0) == 60
            assert read.value("records-lead", topic="t", partition=0) == 40
            assert read.value("records-lag-max") == 60
            assert read.value("bytes-consumed-total") == sent.value("byte-total", topic="t")
            assert read.value("rebalance-total") == 1
            assert read.value("assigned-partitions") == 1
            assert 0 <= read.value("last-rebalance-seconds-ago") < 60
            assert read.value("commit-total") == 0
            assert math.isnan(read.value("commit-latency-avg"))
            assert committed.value("commit-total") == 1

    asyncio.run(main())


def test_bytes_are_those_of_the_socket(tmp_path: Path) -> None:
    passed = {"to broker": 0, "to client": 0}

    async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter, way: str) -> None:
        while data := await source.read(65_536):
            passed[way] += len(data)
            target.write(data)
        target.close()

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as log:
            assert log.address is not None
            host, broker_port = log.address

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                from_broker, to_broker = await asyncio.open_connection(host, broker_port)
                async with asyncio.TaskGroup() as both:
                    both.create_task(pipe(reader, to_broker, "to broker"))
                    both.create_task(pipe(from_broker, writer, "to client"))

            async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                transport = await TcpTransport.connect(
                    "127.0.0.1", port, client_id="c", timeout_ms=10_000
                )
                network = NetworkMetrics(0)
                network.adopt(1, transport)
                for _ in range(3):
                    await transport.call(MetadataRequest(topics=[]), timeout_ms=10_000)
                await transport.close()
        node = network.node(1)
        assert (node.sent.count, node.received.count) == (4, 4)  # ApiVersions was the first.
        assert (node.sent.total, node.received.total) == (passed["to broker"], passed["to client"])

    asyncio.run(main())


def test_connections_are_counted_until_they_close(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as served:
            assert served.address is not None
            host, port = served.address
            async with Log.open(f"kafka://{host}:{port}") as log:
                await log.admin().create_topics([NewTopic("t", 1)])
                async with log.consumer(auto_offset_reset="earliest") as consumer:
                    consumer.assign([T0])
                    await consumer.poll(timeout_ms=0)
                    await consumer.end_offsets([T0])
                    opened = consumer.metrics()
                closed = consumer.metrics()
                admin = log.admin().metrics()
        check_defined(admin, ("admin-client-metrics", "admin-client-node-metrics"))
        assert admin.value("connection-count") == 1
        assert opened.value("connection-count") >= 1
        assert closed.value("connection-count") == 0
        assert closed.value("connection-close-total") == closed.value("connection-creation-total")

    asyncio.run(main())


def test_a_stopped_broker_shows_as_retries_then_as_errors(tmp_path: Path) -> None:
    async def main(broker: BrokerProcess, freeze: Callable[[signal.Signals], None]) -> None:
        async with (
            Log.open(f"kafka://{broker.address}") as log,
            log.producer(request_timeout_ms=400, delivery_timeout_ms=1_500) as producer,
        ):
            await log.admin().create_topics([NewTopic("t", 1)])
            await (await producer.send("t", b"before"))
            freeze(signal.SIGSTOP)
            sent = [await producer.send("t", b"meanwhile") for _ in range(7)]
            while (seen := producer.metrics()).value("record-retry-total") < 7:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            # None, unless this process was not run for a second: then as many as have failed.
            assert seen.value("record-error-total") == sum(each.done() for each in sent)
            # Long before the attempt to connect to the frozen broker is given up, after 10 s.
            async with asyncio.timeout(9):
                failures = await asyncio.gather(*sent, return_exceptions=True)
            assert all(isinstance(each, RequestTimedOut) for each in failures)
            freeze(signal.SIGCONT)
            failed = producer.metrics()
            assert failed.value("record-error-total") == 7
            assert failed.value("record-error-total", topic="t") == 7
            assert failed.value("record-error-rate") > 0
            assert failed.value("record-retry-rate", topic="t") > 0
            assert failed.value("buffer-available-bytes") == failed.value("buffer-total-bytes")

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(asyncio.wait_for(main(broker, broker.signal), 60))


def test_each_record_of_a_producer_that_loses_its_right_is_counted_once(tmp_path: Path) -> None:
    """The broker refuses the first one; the next one needs another producer id, which it refuses.

    Without an id the producer is at its end, before it is closed.
    """

    async def main() -> None:
        async with (
            secured_broker(tmp_path) as url,
            Log.open(url, security=access("root")) as root,
            Log.open(url, security=access("shop")) as log,
        ):
            await root.admin().create_topics([NewTopic("t", 1)])
            await root.admin().create_acls(
                allowed(ResourceType.TOPIC, "t", each)
                for each in (Operation.WRITE, Operation.DESCRIBE)
            )
            async with log.producer() as producer:
                await (await producer.send("t", b"allowed"))
                await root.admin().delete_acls([AclFilter(operation=Operation.WRITE)])
                for number in (1, 2):
                    refused = await producer.send("t", b"refused")
                    with pytest.raises(NotAuthorized):
                        await refused
                    assert producer.metrics().value("record-error-total") == number
                with pytest.raises(NotAuthorized):
                    await producer.send("t", b"refused")
            assert producer.metrics().value("record-error-total") == 2

    asyncio.run(main())


def test_a_caller_that_waits_for_the_buffer_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as log:
            await log.admin().create_topics([NewTopic("t", 1)])
            async with log.producer(linger_ms=60_000, buffer_bytes=1_000) as producer:
                await producer.send("t", b"v" * 800)
                waiting = asyncio.create_task(producer.send("t", b"v" * 800))
                await asyncio.sleep(0)
                assert producer.metrics().value("waiting-threads") == 1
                assert producer.metrics().value("buffer-available-bytes") < 200
                receipt = await waiting
                await producer.flush()
                await receipt
                done = producer.metrics()
            assert done.value("waiting-threads") == 0
            assert done.value("batch-split-total") == 0

    asyncio.run(main())


def test_transactions_and_rebalances_are_timed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as log:
            await log.admin().create_topics([NewTopic("t", 2)])
            async with log.producer(transactional_id="x") as producer:
                async with producer.transaction():
                    await producer.send("t", b"v")
                with suppress(ZeroDivisionError):
                    async with producer.transaction():
                        await producer.send("t", b"v")
                        raise ZeroDivisionError
                metrics = producer.metrics()
            assert metrics.value("txn-init-time-ns-total") >= 0
            assert metrics.value("txn-commit-time-ns-total") > 0
            assert metrics.value("txn-abort-time-ns-total") >= 0

            heard: list[str] = []

            async def slow(_: frozenset[TopicPartition]) -> None:
                heard.append("callback")
                await asyncio.sleep(0.02)

            async with log.consumer(group_id="g") as first:
                await first.subscribe(["t"], on_assigned=slow, on_revoked=slow)
                while len(first.assignment()) != 2:
                    await first.poll(timeout_ms=50)
                async with log.consumer(group_id="g") as second:
                    await second.subscribe(["t"])
                    while len(first.assignment()) != 1 or len(second.assignment()) != 1:
                        await asyncio.gather(first.poll(timeout_ms=50), second.poll(timeout_ms=50))
                    joined = first.metrics()
            assert joined.value("rebalance-total") == joined.value("sync-total") == 2
            assert joined.value("assigned-partitions") == 1
            assert joined.value("rebalance-rate-per-hour") > 60
            assert joined.value("rebalance-latency-total") >= joined.value("rebalance-latency-max")
            assert joined.value("partition-assigned-latency-max") >= 15
            assert joined.value("partition-revoked-latency-max") >= 15
            assert len(heard) >= 3

    asyncio.run(main())


def test_a_group_of_the_new_protocol_is_measured(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as log:
            await log.admin().create_topics([NewTopic("t", 2)])
            async with log.consumer(group_id="g", group_protocol="consumer") as consumer:
                await consumer.subscribe(["t"])
                while len(consumer.assignment()) != 2:
                    await consumer.poll(timeout_ms=50)
                metrics = consumer.metrics()
            assert metrics.value("rebalance-total") == 1
            assert metrics.value("heartbeat-total") >= 2
            assert metrics.value("last-heartbeat-seconds-ago") >= 0
            assert metrics.value("join-total") == 0

    asyncio.run(main())


def test_an_unknown_name_is_an_error_that_says_so() -> None:
    with pytest.raises(KeyError, match="no metric 'record-sends' with the tags"):
        ClientMetrics({}).value("record-sends", topic="t")
