"""A replica as its role changes between leader, follower and neither, and what it keeps."""

from __future__ import annotations

from streamlog.broker.replication.replica import Replica
from streamlog.broker.replication.replica_state import (
    CORRECT,
    AdvanceHighWatermark,
    BeginEpoch,
    CutOf,
    Diverging,
    LoseLeadership,
    ReplicaLog,
    ReplicaRules,
    ReplicaSettings,
    ReplicaState,
    Truncate,
)
from streamlog.replace import replace
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


CUT = CutOf(offset=7, leader_epoch=64)


def elected(replica: Replica, epoch: int = 64, cut: CutOf | None = CUT) -> None:
    """Let the controller elect a replica, in the era of a promotion that cuts at 7."""
    replica.on_registered(1, 100)
    given = replace(state(0, epoch, epoch), cut=cut, last_unclean_epoch=64)
    replica.on_metadata(given, metadata_offset=100 + epoch, now_ms=0)


def test_a_leader_of_a_cut_promotion_leads_once_its_records_are_kept_and_cut() -> None:
    replica = new_replica()
    elected(replica)
    assert (replica.leader, replica.cut_due) == (None, 7)
    # Only what is due is cut: another file than the one that was kept may lack records.
    assert replica.on_kept(8) == []
    assert replica.on_kept(7) == [Truncate(7)]
    replica.on_cut(0)
    assert (replica.log.end_offset, replica.cut_due) == (7, None)
    assert replica.leader is not None
    assert replica.leader.epoch_start == 7


def test_a_leader_with_nothing_above_the_cut_or_with_records_of_the_era_leads_at_once() -> None:
    short = new_replica()
    elected(short, cut=CutOf(offset=10, leader_epoch=64))
    assert short.leader is not None
    # Its records from 8 on are new ones: a leader that was cut has taken them.
    newer = new_replica()
    newer.log.epochs = EpochList(((3, 0), (64, 8)))
    elected(newer, epoch=65)
    assert newer.leader is not None
    assert newer.log.end_offset == 10


def test_the_next_leader_cuts_if_the_one_before_has_not() -> None:
    replica = new_replica()
    elected(replica)
    replica.on_metadata(
        replace(state(1, 65, 65), cut=CUT, last_unclean_epoch=64), metadata_offset=200, now_ms=0
    )
    assert replica.cut_due is None
    assert replica.on_kept(7) == []
    elected(replica, epoch=66)
    assert replica.cut_due == 7


def test_a_follower_cuts_what_is_committed_when_its_leader_was_cut() -> None:
    leader = new_replica()
    leader.log.high_watermark = 10
    elected(leader)
    leader.on_kept(7)
    leader.on_cut(0)
    behind = new_replica()
    behind.log.high_watermark = 10
    follower = Replica(
        1,
        behind.log,
        brokers={0: 1, 1: 1},
        settings=ReplicaSettings(lag_max_ms=1000, min_insync=1),
        incarnation=1,
    )
    follower.on_registered(1, 100)
    given = replace(state(0, 64, 64), cut=CUT, last_unclean_epoch=64)
    follower.on_metadata(given, metadata_offset=164, now_ms=0)
    assert leader.leader is not None
    assert follower.follower is not None
    asked = follower.follower.next_fetch()
    assert asked is not None
    answer, _ = leader.leader.on_fetch(asked.fetch, 0)
    assert answer == Diverging(3, 7)
    assert follower.follower.on_diverging(asked.fetch_id, answer) == [Truncate(7)]
