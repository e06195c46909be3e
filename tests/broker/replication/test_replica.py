"""A replica as its role changes: leader, follower, neither; and what survives the change."""

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


def made(*, replicated: bool = True, rules: ReplicaRules = CORRECT) -> Replica:
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
    everybody = tuple(range(replicas))
    return ReplicaState(
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
        replicas=everybody,
        isr=everybody,
    )


def test_alone_it_commits_what_is_synced() -> None:
    replica = made(replicated=False)
    replica.on_registered(1, 100)
    effects = replica.on_metadata(state(0, 5, 1, replicas=1), metadata_offset=100, now_ms=0)
    assert effects == [BeginEpoch(5, 10), AdvanceHighWatermark(10)]
    assert replica.on_appended(12) == []
    assert replica.on_flushed(0, 12) == [AdvanceHighWatermark(12)]


def test_what_is_older_than_its_registration_is_ignored() -> None:
    replica = made()
    assert replica.on_metadata(state(0, 5, 1), metadata_offset=50, now_ms=0) == []
    replica.on_registered(7, 100)
    assert replica.on_metadata(state(0, 5, 1), metadata_offset=99, now_ms=0) == []
    assert replica.leader is None
    replica.on_metadata(state(0, 5, 1), metadata_offset=100, now_ms=0)
    assert replica.leader is not None
    planted = made(rules=ReplicaRules(takes_old_metadata=True))
    planted.on_metadata(state(0, 5, 1), metadata_offset=50, now_ms=0)
    assert planted.leader is not None


def test_a_new_registration_ends_what_was_done_under_the_old_one() -> None:
    replica = made()
    replica.on_registered(7, 100)
    replica.on_metadata(state(0, 5, 1), metadata_offset=100, now_ms=0)
    assert replica.on_registered(8, 120) == [LoseLeadership(5, ())]
    assert replica.leader is None


def test_a_sync_that_began_before_a_cut_proves_nothing() -> None:
    # A sync begins with 10 records; the log is cut to 8 and gets two others; the sync ends. Power
    # that is lost now takes the two, so they must not be counted.
    for rules, flushed in ((CORRECT, 8), (ReplicaRules(ignores_generations=True), 10)):
        replica = made(rules=rules)
        generation = replica.log.generation
        replica.log.cut(8)
        replica.on_appended(10)
        replica.on_flushed(generation, 10)
        assert replica.log.flushed_offset == flushed


def test_whoever_waits_is_told_that_it_leads_no_more() -> None:
    replica = made()
    replica.on_registered(7, 100)
    replica.on_metadata(state(0, 5, 1), metadata_offset=100, now_ms=0)
    assert replica.leader is not None
    assert replica.leader.wait(1, 12) == replica.leader.wait(2, 11) == []
    effects = replica.on_metadata(state(1, 6, 2), metadata_offset=101, now_ms=0)
    assert effects == [LoseLeadership(5, (2, 1))]
    assert replica.follower is not None
    assert replica.follower.leader == 1


def test_its_high_watermark_outlives_its_roles() -> None:
    replica = made()
    replica.on_registered(7, 100)
    replica.on_metadata(state(1, 5, 1), metadata_offset=100, now_ms=0)
    replica.on_metadata(state(-1, 6, 2), metadata_offset=101, now_ms=0)
    assert replica.follower is None
    replica.on_metadata(state(0, 7, 3), metadata_offset=102, now_ms=0)
    assert replica.log.high_watermark == 4
    assert replica.leader_epoch == 7


def test_fetches_are_numbered_over_all_roles_and_lives() -> None:
    replica = made()
    replica.on_registered(7, 100)
    seen = []
    for epoch in (5, 6, 7):
        replica.on_metadata(state(1, epoch, epoch), metadata_offset=100 + epoch, now_ms=0)
        assert replica.follower is not None
        outstanding = replica.follower.next_fetch()
        assert outstanding is not None
        seen.append(outstanding.fetch_id)
    assert seen == [(1, 0), (1, 1), (1, 2)]


def test_news_of_the_same_epoch_changes_who_is_in_sync_and_nothing_else() -> None:
    replica = made()
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
