"""A replica as its role changes between leader, follower and neither, and what it keeps."""

from __future__ import annotations

from streamlog.broker.replication.replica import Replica
from streamlog.broker.replication.replica_state import (
    CORRECT,
    AdvanceHighWatermark,
    BeginEpoch,
    LoseLeadership,
    ReplicaLog,
    ReplicaRules,
    ReplicaSettings,
    ReplicaState,
)
from tests.broker.replication.epoch_list import EpochList


def new_replica(*, replicated: bool = True, rules: ReplicaRules = CORRECT) -> Replica:
    log = ReplicaLog(
        epochs=EpochList(((3, 0),)),
        start_offset=0,
        end_offset=10,
        flushed_offset=10,
        high_watermark=4,
    )
    settings = ReplicaSettings(lag_max_ms=1000, min_insync=2 if replicated else 1)
    return Replica(0, log, brokers={}, settings=settings, incarnation=1, rules=rules)


def state(leader: int, epoch: int, partition_epoch: int, replicas: int = 2) -> ReplicaState:
    numbers = tuple(range(replicas))
    return ReplicaState(
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
        replicas=numbers,
        isr=numbers,
    )


def test_a_single_replica_commits_what_it_has_synced() -> None:
    replica = new_replica(replicated=False)
    replica.on_registered(1, 100)
    effects = replica.on_metadata(state(0, 5, 1, replicas=1), metadata_offset=100, now_ms=0)
    assert effects == [BeginEpoch(5, 10), AdvanceHighWatermark(10)]
    assert replica.on_appended(12) == []
    assert replica.on_flushed(0, 12) == [AdvanceHighWatermark(12)]


def test_metadata_older_than_the_registration_is_ignored() -> None:
    replica = new_replica()
    assert replica.on_metadata(state(0, 5, 1), metadata_offset=50, now_ms=0) == []
    replica.on_registered(7, 100)
    assert replica.on_metadata(state(0, 5, 1), metadata_offset=99, now_ms=0) == []
    assert replica.leader is None
    replica.on_metadata(state(0, 5, 1), metadata_offset=100, now_ms=0)
    assert replica.leader is not None
    planted = new_replica(rules=ReplicaRules(takes_old_metadata=True))
    planted.on_metadata(state(0, 5, 1), metadata_offset=50, now_ms=0)
    assert planted.leader is not None


def test_a_new_registration_ends_the_leadership() -> None:
    replica = new_replica()
    replica.on_registered(7, 100)
    replica.on_metadata(state(0, 5, 1), metadata_offset=100, now_ms=0)
    assert replica.on_registered(8, 120) == [LoseLeadership(5, ())]
    assert replica.leader is None


def test_a_sync_that_began_before_a_truncation_is_ignored() -> None:
    # 1. A sync begins with 10 records.
    # 2. The log is truncated to 8, and 2 other records are appended.
    # 3. The sync ends. A power cut would lose the 2 records, so they must not count as flushed.
    for rules, flushed in ((CORRECT, 8), (ReplicaRules(ignores_generations=True), 10)):
        replica = new_replica(rules=rules)
        generation = replica.log.generation
        replica.log.cut(8)
        replica.on_appended(10)
        replica.on_flushed(generation, 10)
        assert replica.log.flushed_offset == flushed


def test_losing_the_leadership_refuses_pending_acknowledgements() -> None:
    replica = new_replica()
    replica.on_registered(7, 100)
    replica.on_metadata(state(0, 5, 1), metadata_offset=100, now_ms=0)
    assert replica.leader is not None
    assert replica.leader.wait(1, 12) == replica.leader.wait(2, 11) == []
    effects = replica.on_metadata(state(1, 6, 2), metadata_offset=101, now_ms=0)
    assert effects == [LoseLeadership(5, (2, 1))]
    assert replica.follower is not None
    assert replica.follower.leader == 1


def test_the_high_watermark_survives_a_change_of_role() -> None:
    replica = new_replica()
    replica.on_registered(7, 100)
    replica.on_metadata(state(1, 5, 1), metadata_offset=100, now_ms=0)
    replica.on_metadata(state(-1, 6, 2), metadata_offset=101, now_ms=0)
    assert replica.follower is None
    replica.on_metadata(state(0, 7, 3), metadata_offset=102, now_ms=0)
    assert replica.log.high_watermark == 4
    assert replica.leader_epoch == 7


def test_fetch_ids_are_unique_across_roles() -> None:
    replica = new_replica()
    replica.on_registered(7, 100)
    seen = []
    for epoch in (5, 6, 7):
        replica.on_metadata(state(1, epoch, epoch), metadata_offset=100 + epoch, now_ms=0)
        assert replica.follower is not None
        outstanding = replica.follower.next_fetch()
        assert outstanding is not None
        seen.append(outstanding.fetch_id)
    assert seen == [(1, 0), (1, 1), (1, 2)]


def test_new_metadata_of_the_current_epoch_changes_only_the_isr() -> None:
    replica = new_replica()
    replica.on_registered(7, 100)
    replica.on_metadata(state(0, 5, 1, replicas=3), metadata_offset=100, now_ms=0)
    leader = replica.leader
    assert leader is not None
    smaller = ReplicaState(
        leader=0, leader_epoch=5, partition_epoch=2, replicas=(0, 1, 2), isr=(0, 1)
    )
    assert replica.on_metadata(smaller, metadata_offset=101, now_ms=0) == []
    assert replica.leader is leader
    assert leader.isr == {0, 1}
    assert replica.on_metadata(smaller, metadata_offset=102, now_ms=0) == []
