"""When clients may ask for subscriptions and push metrics (KIP-714)."""

from __future__ import annotations

from streamlog.broker.telemetry.client_instances import (
    SILENT_MIN_MS,
    ClientInstance,
    ClientInstances,
    Push,
)
from streamlog.broker.telemetry.subscriptions import Subscriptions, TelemetryClient
from streamlog.protocol.error_codes import ErrorCode
from streamlog.replace import replace

INTERVAL_MS = 30_000
OK, EARLY, UNKNOWN = (
    ErrorCode.NONE,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
)


def subscriptions(interval_ms: int = INTERVAL_MS) -> Subscriptions:
    return Subscriptions.read({"all": {"metrics": "*", "interval.ms": str(interval_ms)}})


def client(number: int = 2) -> TelemetryClient:
    return TelemetryClient(number.to_bytes(16), f"c{number}")


class World:
    def __init__(self, instances_max: int = 100) -> None:
        self.forgotten: list[str] = []
        self.instances = ClientInstances(
            lambda each: self.forgotten.append(each.client.client_id), instances_max
        )
        self.subscriptions = subscriptions()

    def find(self, now_ms: int, number: int = 2) -> ClientInstance:
        return self.instances.find(client(number), self.subscriptions, now_ms)

    def ask(self, now_ms: int, number: int = 2) -> ErrorCode:
        return self.find(now_ms, number).ask(now_ms)

    def push(self, now_ms: int, number: int = 2, **changes: int) -> ErrorCode:
        found = self.find(now_ms, number)
        push = Push(found.subscribed.subscription_id, 0, 10, 100)
        return found.push(replace(push, **changes), now_ms)


def test_a_client_asks_pushes_soon_and_then_once_in_an_interval() -> None:
    world = World()
    assert world.ask(0) is OK
    assert world.push(INTERVAL_MS // 2) is OK, "the first push is spread by the client"
    assert world.push(INTERVAL_MS) is EARLY
    assert world.push(INTERVAL_MS // 2 + INTERVAL_MS) is OK
    assert world.ask(2 * INTERVAL_MS) is EARLY
    assert world.ask(INTERVAL_MS // 2 + 2 * INTERVAL_MS) is OK


def test_a_client_may_push_to_a_broker_that_it_has_not_asked() -> None:
    world = World()
    assert world.push(0) is OK
    assert world.push(1) is EARLY


def test_changed_subscriptions_are_told_at_once_and_pushed_afterwards() -> None:
    world = World()
    assert world.ask(0) is OK
    old = world.find(0).subscribed.subscription_id
    world.subscriptions = subscriptions(10_000)
    assert world.push(100, subscription_id=old) is UNKNOWN
    assert world.ask(101) is OK
    assert world.push(102) is OK
    assert world.push(103) is EARLY


def test_an_answer_mends_an_unknown_compression_as_well() -> None:
    world = World()
    assert world.ask(0) is OK
    assert world.push(1, compression=5) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert world.ask(2) is OK
    assert world.push(3, compression=4) is OK


def test_a_push_that_is_too_large_is_refused_and_counts_as_one() -> None:
    world = World()
    assert world.push(0, size_bytes=101) is ErrorCode.TELEMETRY_TOO_LARGE
    assert world.ask(1) is EARLY
    assert world.push(2) is EARLY
    assert world.push(INTERVAL_MS) is OK


def test_the_last_push_comes_early_and_nothing_comes_after_it() -> None:
    world = World()
    assert world.ask(0) is OK
    assert world.push(1) is OK
    assert world.push(2, is_terminating=True) is OK
    assert world.push(3 * INTERVAL_MS) is ErrorCode.INVALID_REQUEST
    assert world.push(3 * INTERVAL_MS, is_terminating=True) is ErrorCode.INVALID_REQUEST


def test_clients_are_forgotten_after_three_silent_intervals_and_not_before_a_minute() -> None:
    world = World()
    world.ask(0)
    world.instances.expire(3 * INTERVAL_MS - 1)
    assert not world.forgotten
    world.instances.expire(3 * INTERVAL_MS + 1_000)
    assert world.forgotten == ["c2"]
    world.subscriptions = subscriptions(100)
    world.ask(200_000)
    world.instances.expire(200_000 + SILENT_MIN_MS - 1)
    assert len(world.instances) == 1
    world.instances.expire(200_000 + SILENT_MIN_MS + 1_000)
    assert not len(world.instances)


def test_the_client_that_was_silent_for_longest_makes_room() -> None:
    world = World(instances_max=2)
    world.ask(0, 2)
    world.ask(1, 3)
    world.push(2, 2)
    world.ask(3, 4)
    assert world.forgotten == ["c3"]
    assert [each.client.client_id for each in world.instances] == ["c2", "c4"]


def test_another_client_can_not_take_the_name_of_an_instance() -> None:
    world = World()
    world.ask(0)
    thief = replace(client(), client_id="thief")
    assert world.instances.find(thief, world.subscriptions, 1).client.client_id == "c2"
    assert world.instances.find(thief, subscriptions(), 2).client.client_id == "c2"
