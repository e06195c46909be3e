"""BrokerLifecycle: registration and heartbeats of a broker process, from start to shutdown."""

from __future__ import annotations

import pytest

from streamlog.broker.quorum.broker_lifecycle import (
    NO_EPOCH,
    REQUEST_MS,
    RETRY_MS,
    SHUTDOWN_MS,
    BrokerLifecycle,
    SendRegistration,
    State,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    DamagedPartition,
    DamagedTopic,
)

INTERVAL_MS = 2000


@pytest.fixture
def broker() -> BrokerLifecycle:
    registration = BrokerRegistrationRequest(broker_id=1)
    return BrokerLifecycle(registration=registration, heartbeat_interval_ms=INTERVAL_MS)


def next_request(broker: BrokerLifecycle, now_ms: int = 0, offset: int = 99) -> SendRegistration:
    send = broker.on_tick(now_ms, offset)
    assert send is not None
    return send


def damaged_topics(epochs: dict[int, int]) -> list[DamagedTopic]:
    partitions = [
        DamagedPartition(partition_index=number, leader_epoch=epoch)
        for number, epoch in epochs.items()
    ]
    return [DamagedTopic(topic_id=bytes(16), partitions=partitions)]


def register(broker: BrokerLifecycle, epoch: int = 7) -> None:
    broker.on_registered(
        BrokerRegistrationResponse(broker_epoch=epoch), next_request(broker).number, 0
    )


def make_running(broker: BrokerLifecycle) -> None:
    register(broker)
    heard = BrokerHeartbeatResponse(is_fenced=False, is_caught_up=True)
    broker.on_heard(heard, next_request(broker).number, 0)
    assert broker.state is State.RUNNING


def test_a_broker_registers_catches_up_and_runs(broker: BrokerLifecycle) -> None:
    assert not broker.may_act(99)
    assert isinstance(next_request(broker).request, BrokerRegistrationRequest)
    assert broker.on_tick(0, 0) is None
    broker.on_registered(BrokerRegistrationResponse(broker_epoch=7), 1, 10)
    assert (broker.state, broker.may_act(6), broker.may_act(7)) == (State.RECOVERING, False, True)
    first = next_request(broker, 10, 5)
    request = first.request
    assert isinstance(request, BrokerHeartbeatRequest)
    assert (request.broker_epoch, request.current_metadata_offset) == (7, 5)
    broker.on_heard(BrokerHeartbeatResponse(is_fenced=True), first.number, 20)
    assert broker.next_deadline_ms() == 20 + RETRY_MS
    second = next_request(broker, 20 + RETRY_MS, 7)
    heard = BrokerHeartbeatResponse(is_fenced=False, is_caught_up=True)
    broker.on_heard(heard, second.number, 300)
    assert broker.state is State.RUNNING
    assert broker.next_deadline_ms() == 300 + INTERVAL_MS


def test_a_refused_or_lost_registration_is_retried(broker: BrokerLifecycle) -> None:
    refused = BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    code = broker.on_registered(refused, next_request(broker).number, 0)
    assert code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert broker.on_tick(RETRY_MS - 1, 0) is None
    broker.on_lost(next_request(broker, RETRY_MS).number, RETRY_MS)
    registered_at = 2 * RETRY_MS
    assert isinstance(next_request(broker, registered_at).request, BrokerRegistrationRequest)


def test_a_late_registration_response_is_ignored(broker: BrokerLifecycle) -> None:
    first = next_request(broker)
    second = next_request(broker, REQUEST_MS)
    assert second.number != first.number
    broker.on_registered(BrokerRegistrationResponse(broker_epoch=7), first.number, REQUEST_MS)
    broker.on_lost(first.number, REQUEST_MS)
    assert broker.state is State.STARTING
    broker.on_registered(BrokerRegistrationResponse(broker_epoch=8), second.number, REQUEST_MS)
    assert broker.epoch == 8


def test_a_fenced_broker_starts_to_recover(broker: BrokerLifecycle) -> None:
    make_running(broker)
    fenced = BrokerHeartbeatResponse(is_fenced=True, is_caught_up=True)
    broker.on_heard(fenced, next_request(broker, INTERVAL_MS).number, INTERVAL_MS)
    assert broker.state is State.RECOVERING


def test_a_stale_broker_epoch_leads_to_a_new_registration(broker: BrokerLifecycle) -> None:
    make_running(broker)
    stale = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    code = broker.on_heard(stale, next_request(broker, INTERVAL_MS).number, INTERVAL_MS)
    assert code is ErrorCode.STALE_BROKER_EPOCH
    assert (broker.state, broker.may_act(99)) == (State.STARTING, False)
    again = next_request(broker, INTERVAL_MS + RETRY_MS)
    assert isinstance(again.request, BrokerRegistrationRequest)


def test_a_heartbeat_is_retried_after_not_controller(broker: BrokerLifecycle) -> None:
    make_running(broker)
    other = BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)
    broker.on_heard(other, next_request(broker, INTERVAL_MS).number, INTERVAL_MS)
    assert broker.state is State.RUNNING
    assert broker.next_deadline_ms() == INTERVAL_MS + RETRY_MS


def test_a_broker_with_a_full_disk_asks_to_be_fenced(broker: BrokerLifecycle) -> None:
    make_running(broker)
    for is_full in (True, False):
        broker.is_full = is_full
        broker.on_damage({})  # a report is sent at once
        send = next_request(broker, INTERVAL_MS)
        assert isinstance(send.request, BrokerHeartbeatRequest)
        assert send.request.want_fence is is_full
        broker.on_heard(BrokerHeartbeatResponse(is_fenced=is_full), send.number, INTERVAL_MS)


def test_damage_is_reported_until_it_is_acknowledged(broker: BrokerLifecycle) -> None:
    make_running(broker)
    topic = bytes(16)
    broker.on_damage({(topic, 2): 5, (topic, 1): 4})
    first = next_request(broker, 1)
    assert first.request.damaged == damaged_topics({1: 4, 2: 5})
    broker.on_lost(first.number, 1)
    second = next_request(broker, 1 + RETRY_MS)
    assert second.request.damaged == first.request.damaged
    broker.on_damage({(topic, 3): 1, (topic, 1): 6})
    heard = BrokerHeartbeatResponse(is_fenced=False, is_caught_up=True)
    broker.on_heard(heard, second.number, 500)
    third = next_request(broker, 500 + INTERVAL_MS)
    assert third.request.damaged == damaged_topics({1: 6, 3: 1})


def test_new_damage_does_not_change_a_sent_registration(broker: BrokerLifecycle) -> None:
    first = next_request(broker)
    broker.on_damage({(bytes(16), 0): 3})
    second = next_request(broker, REQUEST_MS)
    assert second.request.damaged == damaged_topics({0: 3})
    assert first.request.damaged == []


def test_a_broker_stops_once_the_controller_allows_it(broker: BrokerLifecycle) -> None:
    make_running(broker)
    broker.on_stop(100)
    asked = next_request(broker, 100)
    assert isinstance(asked.request, BrokerHeartbeatRequest)
    assert asked.request.want_shut_down
    not_yet = BrokerHeartbeatResponse(is_fenced=False)
    broker.on_heard(not_yet, asked.number, 110)
    assert broker.next_deadline_ms() == 110 + RETRY_MS
    now = BrokerHeartbeatResponse(is_fenced=False, should_shut_down=True)
    broker.on_heard(now, next_request(broker, 110 + RETRY_MS).number, 400)
    assert (broker.state, broker.epoch) == (State.NOT_RUNNING, 7)
    assert broker.next_deadline_ms() is None
    assert broker.on_tick(10_000, 0) is None


def test_a_broker_stops_after_a_timeout_without_permission(broker: BrokerLifecycle) -> None:
    make_running(broker)
    broker.on_stop(100)
    broker.on_stop(200)
    next_request(broker, 200)
    assert broker.on_tick(100 + SHUTDOWN_MS, 0) is None
    assert broker.state is State.NOT_RUNNING


def test_an_unregistered_broker_stops_at_once(broker: BrokerLifecycle) -> None:
    broker.on_stop(0)
    assert (broker.state, broker.epoch) == (State.NOT_RUNNING, NO_EPOCH)
