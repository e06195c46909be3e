"""Committed offsets of deleted topics: never returned, and removed by any coordinator."""

from __future__ import annotations

import pytest

from streamlog.broker.coordinator.group.group_coordinator import GONE_CHECK_MS, GroupCoordinator
from streamlog.broker.coordinator.group.group_records import (
    OffsetChange,
    decode_change,
    encode_change,
)
from streamlog.broker.coordinator.shard import CoordinatorRecord
from streamlog.protocol.messages.classic_groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from streamlog.protocol.schema import ZERO_UUID
from tests.broker.coordinator.group.test_consumer_group import Catalog, Driver

WANTED = [("t", [0]), ("u", [0])]


def committed() -> Driver:
    """Return a driver whose group has committed offset 5 in two topics."""
    driver = Driver(topics=Catalog(t=1, u=1))
    entry = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topics = [OffsetCommitRequestTopic(name=name, partitions=[entry]) for name in "tu"]
    driver.ask(OffsetCommitRequest(group_id="g", topics=topics), version=8)
    return driver


def offsets_of(coordinator: GroupCoordinator) -> dict[str, int]:
    found = coordinator.positions("g", WANTED)
    assert sum(len(topic.partitions) for topic in coordinator.positions("g", None)) == sum(
        each.partitions[0].committed_offset >= 0 for each in found
    )
    return {topic.name: topic.partitions[0].committed_offset for topic in found}


def recreate_topic(driver: Driver) -> None:
    driver.topics.delete("t")
    driver.topics.create("t", 1)


def kept(driver: Driver) -> list[str]:
    return sorted(topic for topic, _ in driver.coordinator._offsets.of("g"))


def tick(driver: Driver, after_ms: int = 0) -> int:
    """Run one tick; return the number of records that it wrote."""
    driver.now_ms += after_ms
    outcome = driver.coordinator.on_tick(driver.at)
    driver.take(outcome)
    return len(outcome.records)


def test_a_recreated_topic_has_no_committed_offset() -> None:
    driver = committed()
    recreate_topic(driver)
    assert offsets_of(driver.coordinator) == {"t": -1, "u": 5}
    driver.coordinator.on_deletion(driver.now_ms)
    assert driver.coordinator.next_deadline_ms() == driver.now_ms
    tick(driver)
    assert kept(driver) == ["u"]


@pytest.mark.parametrize("is_back", [False, True])
def test_a_new_coordinator_forgets_offsets_of_deleted_topics(is_back: bool) -> None:
    """The former leader's tombstones were truncated, and the deletion is not announced again."""
    driver = committed()
    driver.topics.delete("t")
    if is_back:
        driver.topics.create("t", 1)
    driver.coordinator = GroupCoordinator(driver.config, topics=driver.topics)
    driver.now_ms += 1_000
    for record in list(driver.log):
        driver.coordinator.replay(record, now_ms=driver.now_ms)
    assert offsets_of(driver.coordinator) == {"t": -1, "u": 5}
    assert driver.coordinator.next_deadline_ms() == driver.now_ms
    assert tick(driver) == 1
    assert kept(driver) == ["u"]
    assert tick(driver, GONE_CHECK_MS) == 0


def test_tombstones_that_could_not_be_appended_are_retried() -> None:
    driver = committed()
    tick(driver)
    recreate_topic(driver)
    driver.coordinator.on_deletion(driver.now_ms)
    assert len(driver.coordinator.on_tick(driver.at).records) == 1  # Refused: too few in sync.
    assert tick(driver) == 0
    assert tick(driver, GONE_CHECK_MS) == 1
    assert kept(driver) == ["u"]
    tick(driver, GONE_CHECK_MS)
    assert driver.coordinator._deletion_check_ms is None


def test_an_offset_staged_in_a_transaction_is_forgotten_after_its_end() -> None:
    driver = committed()
    driver.coordinator.stage(driver.log[0], 7, now_ms=0)
    recreate_topic(driver)
    driver.coordinator.on_deletion(driver.now_ms)
    assert tick(driver) == 0
    driver.coordinator.end_transaction(7, committed=True)
    assert offsets_of(driver.coordinator) == {"t": -1, "u": 5}
    interval_ms = driver.config.offsets_retention_check_interval_ms
    assert tick(driver, interval_ms) == 1
    assert kept(driver) == ["u"]


def test_offsets_without_a_topic_id_belong_to_the_existing_topic() -> None:
    driver = committed()
    older: list[CoordinatorRecord] = []
    for record in driver.log:
        change = decode_change(record)
        assert isinstance(change, OffsetChange)
        assert change.value is not None
        change.value.topic_id = ZERO_UUID
        older.append(encode_change(change))
    driver.coordinator = GroupCoordinator(driver.config, topics=driver.topics)
    for record in older:
        driver.coordinator.replay(record, now_ms=0)
    assert offsets_of(driver.coordinator) == {"t": 5, "u": 5}
    driver.topics.delete("t")
    tick(driver)
    assert kept(driver) == ["u"]
