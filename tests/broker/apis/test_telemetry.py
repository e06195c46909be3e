"""Metrics of clients through the broker's requests (KIP-714), hostile pushes included."""

from __future__ import annotations

import asyncio
import tracemalloc
from itertools import pairwise
from random import Random

import pytest

from streamlog.broker.apis.telemetry import WAITING_MAX
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig, ConnectionConfig
from streamlog.broker.config.settings import SettingOperation
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.telemetry.client_series import CLIENT_SERIES_MAX, STEP_POINTS
from streamlog.metrics.otlp import STEP_FIELDS
from streamlog.metrics.prometheus import exposition
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from streamlog.protocol.schema import ZERO_UUID, id_text
from streamlog.records.compression import Compression, compress
from tests.broker.apis.test_configs import apply_changes
from tests.broker.node import Node, ask
from tests.broker.server.test_socket_server import peer
from tests.metrics.otlp_messages import gauge, metrics, point, total

CLIENT_METRICS = 16
SET, DELETE = SettingOperation.SET, SettingOperation.DELETE
INTERVAL_MS = 10_000
SUBSCRIPTION = (("metrics", SET, "org.apache.kafka."), ("interval.ms", SET, str(INTERVAL_MS)))
ERRORS = total("org.apache.kafka.producer.record.error.total", point(3, topic="t"))
LATENCY = gauge("org.apache.kafka.producer.request.latency.avg", point(1.5))


async def asked(
    broker: Broker, instance_id: bytes = ZERO_UUID
) -> GetTelemetrySubscriptionsResponse:
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    return await ask(broker, request, GetTelemetrySubscriptionsResponse)


async def push(
    broker: Broker,
    to: GetTelemetrySubscriptionsResponse,
    data: bytes,
    codec: int = Compression.NONE,
    *,
    terminating: bool = False,
) -> int:
    request = PushTelemetryRequest(
        client_instance_id=to.client_instance_id,
        subscription_id=to.subscription_id,
        compression_type=codec,
        metrics=data,
        terminating=terminating,
    )
    return (await ask(broker, request, PushTelemetryResponse)).error_code


async def shown(broker: Broker) -> list[str]:
    """The lines of `/metrics` that clients have caused."""
    text = (await exposition(broker.directory.metrics)).decode()
    prefixes = ("org_apache_kafka_", "client_", "streamlog_client_info")
    return [line for line in text.splitlines() if line.startswith(prefixes)]


def test_without_a_subscription_nothing_is_asked_for(node: Node) -> None:
    async def story(broker: Broker) -> None:
        answer = await asked(broker)
        assert answer.error_code == 0
        assert answer.client_instance_id not in (ZERO_UUID, bytes(15) + b"\1")
        assert answer.requested_metrics == []
        assert answer.push_interval_ms == 300_000
        assert await push(broker, answer, metrics(ERRORS)) == 0
        # What was not asked for is not read, so that it costs nothing.
        node.pass_time(broker, answer.push_interval_ms)
        assert await push(broker, answer, b"no metrics at all") == 0
        assert [line for line in await shown(broker) if "info" not in line] == []

    node.run(story)


@pytest.mark.parametrize("codec", Compression)
def test_pushed_metrics_are_shown_with_the_client(node: Node, codec: Compression) -> None:
    async def story(broker: Broker) -> None:
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        answer = await asked(broker)
        assert answer.requested_metrics == ["org.apache.kafka."]
        assert answer.push_interval_ms == INTERVAL_MS
        assert answer.telemetry_max_bytes == 1 << 20
        assert answer.delta_temporality
        assert answer.accepted_compression_types == [4, 3, 1, 2]
        data = compress(codec, metrics(ERRORS, LATENCY, group_id="g"))
        assert await push(broker, answer, data, codec) == 0
        node.pass_time(broker, INTERVAL_MS)
        assert await push(broker, answer, data, codec) == 0
        name = id_text(answer.client_instance_id)
        labels = f'client_id="tester",client_instance_id="{name}"'
        found = await shown(broker)
        assert found[0].startswith(
            f'streamlog_client_info{{{labels},client_software_name="unknown",'
            'client_software_version="unknown",client_source_address="127.0.0.1",client_rack="",'
            'group_id="g"'
        )
        assert found[1:] == [
            f'org_apache_kafka_producer_record_error_total{{{labels},topic="t"}} 6.0',
            f"org_apache_kafka_producer_request_latency_avg{{{labels}}} 1.5",
        ]
        node.pass_time(broker, 6 * INTERVAL_MS)
        assert await shown(broker) == [], "a silent client is forgotten"

    node.run(story)


def test_the_errors_are_those_of_kafka(node: Node) -> None:
    async def story(broker: Broker) -> None:
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        nobody = GetTelemetrySubscriptionsResponse(client_instance_id=ZERO_UUID)
        assert await push(broker, nobody, b"") == ErrorCode.INVALID_REQUEST
        answer = await asked(broker)
        again = await asked(broker, answer.client_instance_id)
        assert again.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert await push(broker, answer, metrics(ERRORS)) == 0
        code = await push(broker, answer, metrics(ERRORS))
        assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        node.pass_time(broker, INTERVAL_MS)
        code = await push(broker, answer, metrics(ERRORS), 5)
        assert code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        await apply_changes(broker, CLIENT_METRICS, "more", ("metrics", SET, "org.other"))
        code = await push(broker, answer, metrics(ERRORS))
        assert code == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        answer = await asked(broker, answer.client_instance_id)
        assert answer.requested_metrics == ["org.apache.kafka.", "org.other"]
        assert await push(broker, answer, metrics(ERRORS)) == 0
        assert await push(broker, answer, metrics(ERRORS), terminating=True) == 0
        code = await push(broker, answer, metrics(ERRORS), terminating=True)
        assert code == ErrorCode.INVALID_REQUEST

    node.run(story)


def test_a_deleted_subscription_asks_for_nothing_any_more(node: Node) -> None:
    async def story(broker: Broker) -> None:
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        answer = await asked(broker)
        gone = [(name, DELETE, None) for name, _, _ in SUBSCRIPTION]
        await apply_changes(broker, CLIENT_METRICS, "all", *gone)
        answer = await asked(broker, answer.client_instance_id)
        assert (answer.error_code, answer.requested_metrics) == (0, [])

    node.run(story)


def bombs() -> list[tuple[int, bytes, int]]:
    """Codec, push and error: bytes that claim or yield more than they are."""
    zeros = bytes(64 << 20)
    large = [
        (int(codec), compress(codec, zeros)[: 1 << 20], ErrorCode.TELEMETRY_TOO_LARGE)
        for codec in (Compression.GZIP, Compression.ZSTD, Compression.LZ4)
    ]
    snappy = b"\xff\xff\xff\xff\x0f" + bytes(100)
    return [
        *large,
        (int(Compression.SNAPPY), snappy, ErrorCode.TELEMETRY_TOO_LARGE),
        (int(Compression.NONE), bytes((1 << 20) + 1), ErrorCode.TELEMETRY_TOO_LARGE),
    ]


def test_bombs_are_refused_in_bounded_memory(node: Node) -> None:
    async def story(broker: Broker) -> None:
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        for codec, data, code in bombs():
            answer = await asked(broker)
            tracemalloc.start()
            found = await push(broker, answer, data, codec)
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            # Codecs that fail on damaged and on too many bytes alike are not told apart.
            assert found in (code, ErrorCode.INVALID_RECORD), (codec, found)
            assert peak_bytes < 8 << 20, (codec, peak_bytes)
        assert [line for line in await shown(broker) if "info" not in line] == []

    node.run(story)


def test_hostile_pushes_are_read_one_after_the_other_while_the_loop_serves_others(
    node: Node,
) -> None:
    """Counted in turns of the loop: a step is what runs within one turn."""
    names = [f"org.apache.kafka.g{each}" for each in range(900)]
    points = [gauge(name, *[point(1, label=str(at)) for at in range(5)]) for name in names]
    data = compress(Compression.ZSTD, metrics(*points))
    decoded: list[int] = []

    async def story(broker: Broker) -> None:
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        answers = [await asked(broker) for _ in range(3)]
        pushes = [
            asyncio.ensure_future(push(broker, each, data, Compression.ZSTD)) for each in answers
        ]
        turns = 0
        while not all(each.done() for each in pushes):
            await asyncio.sleep(0)
            turns += 1
            decoded.append(len(broker._telemetry._series))
        assert [each.result() for each in pushes] == [0, 0, 0]
        # 4,500 points: about 31,500 fields and 45 steps of points, for each push.
        assert turns >= 3 * (31_500 // STEP_FIELDS + 4_500 // STEP_POINTS)

    node.run(story)
    assert max(after - before for before, after in pairwise(decoded)) <= STEP_POINTS
    assert decoded[len(decoded) - 1] == 3 * CLIENT_SERIES_MAX


def test_pushes_beyond_those_that_wait_are_throttled(node: Node) -> None:
    data = metrics(*[gauge(f"org.apache.kafka.g{each}", point(1)) for each in range(500)])

    async def story(broker: Broker) -> None:
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        answers = [await asked(broker) for _ in range(WAITING_MAX + 2)]
        codes = await asyncio.gather(*(push(broker, each, data) for each in answers))
        throttled = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        assert codes == [0] * WAITING_MAX + [throttled] * 2
        node.pass_time(broker, INTERVAL_MS)
        assert await push(broker, answers[WAITING_MAX], data) == 0

    node.run(story)


def test_a_client_that_disconnects_is_not_read_to_the_end(node: Node) -> None:
    points = [gauge(f"org.apache.kafka.g{each}", point(1)) for each in range(4_000)]

    async def story(broker: Broker) -> None:
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        gone = asyncio.ensure_future(push(broker, await asked(broker), metrics(*points)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert await push(broker, await asked(broker), metrics(ERRORS)) == 0
        found = await shown(broker)
        assert sum("error_total" in line for line in found) == 1
        assert len(found) < 4_000 // 2

    node.run(story)


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_are_refused_as_invalid_records(node: Node, seed: int) -> None:
    async def story(broker: Broker) -> None:
        rng = Random(seed)
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        codes = set()
        for _ in range(200):
            answer = await asked(broker)
            data = rng.randbytes(rng.randint(1, 5_000))
            codes.add(await push(broker, answer, data, rng.randint(0, 4)))
        allowed = {0, ErrorCode.INVALID_RECORD, ErrorCode.TELEMETRY_TOO_LARGE}
        assert codes <= allowed, codes
        assert ErrorCode.INVALID_RECORD in codes

    node.run(story)


def test_clients_with_ever_new_labels_cost_bounded_memory(node: Node) -> None:
    async def story(broker: Broker) -> None:
        await apply_changes(broker, CLIENT_METRICS, "all", *SUBSCRIPTION)
        tracemalloc.start()
        for client in range(16):
            answer = await asked(broker)
            points = [
                gauge(f"org.apache.kafka.g{client}.{at}", point(at, label=f"{client}-{at}" * 9))
                for at in range(1_500)
            ]
            assert await push(broker, answer, metrics(*points)) == 0
        kept_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(await shown(broker)) < 21_000
        assert kept_bytes < 32 << 20

    node.run(story)


def test_the_library_of_a_client_is_known_from_its_connection() -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, Acceptor(broker) as server:
            match = "client_software_name=apache-kafka-java,client_source_address=127\\.0\\.0\\.1"
            changes = (*SUBSCRIPTION, ("match", SET, match))
            await apply_changes(broker, CLIENT_METRICS, "java", *changes)
            async with peer(server) as one, peer(server) as other:
                software = ApiVersionsRequest(
                    client_software_name="apache-kafka-java", client_software_version="4.1.0"
                )
                one.ask(software, 1)
                await one.answer(ApiVersionsRequest)
                for each, expected in ((one, ["org.apache.kafka."]), (other, [])):
                    each.ask(GetTelemetrySubscriptionsRequest(), 2)
                    _, answer = await each.answer(GetTelemetrySubscriptionsRequest)
                    assert isinstance(answer, GetTelemetrySubscriptionsResponse)
                    assert answer.requested_metrics == expected
            java = 'client_software_name="apache-kafka-java",client_software_version="4.1.0"'
            assert sum(java in line for line in await shown(broker)) == 1

    asyncio.run(main())


def test_the_limit_of_a_push_is_a_setting() -> None:
    small = BrokerConfig(connections=ConnectionConfig(telemetry_bytes_max=100))

    async def story(broker: Broker) -> None:
        answer = await asked(broker)
        assert answer.telemetry_max_bytes == 100
        assert await push(broker, answer, bytes(101)) == ErrorCode.TELEMETRY_TOO_LARGE

    Node(config=small).run(story)
