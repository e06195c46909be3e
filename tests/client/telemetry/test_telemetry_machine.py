"""TelemetryMachine: requests come when the broker's answers allow them (KIP-714)."""

from __future__ import annotations

from random import Random

import pytest

from streamlog.client.metrics.client_metrics import ClientMetrics, Reading
from streamlog.client.metrics.metric_names import MetricName
from streamlog.client.telemetry.telemetry_machine import (
    FIRST_ASK_MS,
    RETRY_MS,
    AskSubscription,
    PushMetrics,
    TelemetryMachine,
    TelemetryPoints,
    TelemetrySubscription,
    WaitToReport,
    telemetry_name,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.telemetry import GetTelemetrySubscriptionsResponse
from streamlog.protocol.schema import ZERO_UUID
from streamlog.records.compression import Compression

ID = bytes(range(16))
INTERVAL_MS = 10_000


def answer(*prefixes: str, error: int = 0) -> GetTelemetrySubscriptionsResponse:
    return GetTelemetrySubscriptionsResponse(
        error_code=error,
        client_instance_id=ID,
        subscription_id=7,
        accepted_compression_types=[Compression.GZIP, Compression.ZSTD],
        push_interval_ms=INTERVAL_MS,
        telemetry_max_bytes=1 << 20,
        delta_temporality=True,
        requested_metrics=[*prefixes],
    )


def subscribed(seed: int = 0) -> TelemetryMachine:
    machine = TelemetryMachine(0, Random(seed))
    machine.on_subscription(answer("*"), FIRST_ASK_MS)
    return machine


def test_a_client_that_lives_for_a_moment_asks_nothing() -> None:
    machine = TelemetryMachine(0, Random(0))
    assert machine.next(0) == WaitToReport(FIRST_ASK_MS)
    action = machine.next(FIRST_ASK_MS)
    assert isinstance(action, AskSubscription)
    assert action.request.client_instance_id == ZERO_UUID
    assert machine.end() is None


@pytest.mark.parametrize("seed", range(20))
def test_the_first_push_is_spread_and_later_ones_keep_the_interval(seed: int) -> None:
    machine = subscribed(seed)
    waits = machine.next(FIRST_ASK_MS)
    assert isinstance(waits, WaitToReport)
    assert waits.until_ms is not None
    assert 0.5 * INTERVAL_MS <= waits.until_ms - FIRST_ASK_MS <= 1.5 * INTERVAL_MS
    push = machine.next(waits.until_ms)
    assert isinstance(push, PushMetrics)
    assert push.subscription.codec is Compression.ZSTD
    machine.on_pushed(0, 100_000)
    assert machine.next(100_000) == WaitToReport(100_000 + INTERVAL_MS)


def test_without_requested_metrics_only_questions_are_sent() -> None:
    machine = TelemetryMachine(0, Random(0))
    machine.on_subscription(answer(), 0)
    assert machine.next(0) == WaitToReport(INTERVAL_MS)
    action = machine.next(INTERVAL_MS)
    assert isinstance(action, AskSubscription)
    assert action.request.client_instance_id == ID, "the client keeps its id"
    assert machine.end() is None


def test_a_changed_subscription_is_asked_for_at_once() -> None:
    machine = subscribed()
    machine.on_pushed(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 50_000)
    assert isinstance(machine.next(50_000), AskSubscription)


def test_other_errors_wait_for_an_interval() -> None:
    machine = subscribed()
    machine.on_pushed(ErrorCode.TELEMETRY_TOO_LARGE, 50_000)
    assert machine.next(50_000) == WaitToReport(50_000 + INTERVAL_MS)
    assert isinstance(machine.next(50_000 + INTERVAL_MS), AskSubscription)
    fresh = TelemetryMachine(0, Random(0))
    fresh.on_unreachable(1_000)
    assert fresh.next(1_000) == WaitToReport(1_000 + RETRY_MS)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD])
def test_a_client_that_a_broker_does_not_understand_is_silent(code: ErrorCode) -> None:
    machine = subscribed()
    machine.on_pushed(code, 50_000)
    assert machine.next(10**9) == WaitToReport(None)
    assert machine.end() is None


def test_the_last_push_is_for_the_present_subscription() -> None:
    machine = subscribed()
    last = machine.end()
    assert last is not None
    assert (last.instance_id, last.subscription_id) == (ID, 7)
    assert machine.end() is None


def test_an_error_that_comes_after_the_end_does_not_begin_anew() -> None:
    machine = subscribed()
    machine.end()
    machine.on_pushed(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, INTERVAL_MS)
    assert machine.is_over


def test_names_are_those_of_kafkas_clients() -> None:
    name = MetricName("consumer-fetch-manager-metrics", "records-lag-max", ())
    assert telemetry_name(name) == "org.apache.kafka.consumer.fetch.manager.records.lag.max"


def test_sums_count_from_push_to_push_and_unknown_values_are_left_out() -> None:
    def metrics(total: float) -> ClientMetrics:
        readings = [
            Reading("producer-topic-metrics", "record-send-total", total, (("topic", "t"),)),
            Reading("producer-metrics", "batch-size-avg", float("nan")),
            Reading("producer-metrics", "requests-in-flight", 2),
        ]
        return ClientMetrics.of("c", readings)

    points = TelemetryPoints()
    everything = TelemetrySubscription.of(answer("*"))
    first, in_flight = points.of(metrics(5), everything)
    assert (first.value, first.is_delta, first.attributes) == (5, True, (("topic", "t"),))
    assert (in_flight.value, in_flight.is_sum) == (2, False)
    assert points.of(metrics(12), everything)[0].value == 7
    topics = TelemetrySubscription.of(answer("org.apache.kafka.producer.topic."))
    assert [each.name for each in points.of(metrics(12), topics)] == [
        "org.apache.kafka.producer.topic.record.send.total"
    ]
