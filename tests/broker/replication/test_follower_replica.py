"""The follower's side of a partition: its fetches, appends and truncations."""

from __future__ import annotations

from streamlog.broker.replication.follower_replica import Follower
from streamlog.broker.replication.replica_state import (
    CORRECT,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BrokerIdentity,
    Diverging,
    ReplicaLog,
    ReplicaRules,
    ReplicaState,
    StartAt,
    StopReplica,
    Truncate,
)
from tests.broker.replication.epoch_list import EpochList


def new_follower(
    *,
    epochs: tuple[tuple[int, int], ...] = ((3, 0),),
    start: int = 0,
    end: int = 10,
    flushed: int | None = None,
    high_watermark: int = 0,
    last_unclean_epoch: int = -1,
    rules: ReplicaRules = CORRECT,
) -> tuple[Follower, ReplicaLog]:
    log = ReplicaLog(
        epochs=EpochList(epochs),
        start_offset=start,
        end_offset=end,
        flushed_offset=end if flushed is None else flushed,
        high_watermark=high_watermark,
    )
    state = ReplicaState(
        leader=1,
        leader_epoch=5,
        partition_epoch=7,
        replicas=(0, 1),
        isr=(0, 1),
        last_unclean_epoch=last_unclean_epoch,
    )
    follower = Follower(BrokerIdentity(0, 10), log, state, first_fetch_id=(1, 0), rules=rules)
    return follower, log


def next_fetch_id(follower: Follower) -> tuple[int, int]:
    outstanding = follower.next_fetch()
    assert outstanding is not None
    return outstanding.fetch_id


def test_a_fetch_starts_at_the_end_of_the_log() -> None:
    follower, _ = new_follower()
    outstanding = follower.next_fetch()
    assert outstanding is not None
    assert outstanding.leader == 1
    assert (outstanding.fetch.offset, outstanding.fetch.last_epoch) == (10, 3)
    assert follower.next_fetch() is None


def test_a_follower_fetches_only_once_its_log_is_synced() -> None:
    assert new_follower(flushed=9)[0].next_fetch() is None
    assert (
        new_follower(flushed=9, rules=ReplicaRules(fetches_before_flush=True))[0].next_fetch()
        is not None
    )


def test_fetched_batches_are_appended_and_committed_to_their_end() -> None:
    follower, log = new_follower()
    effects = follower.on_fetched(
        next_fetch_id(follower), end_offset=12, high_watermark=20, log_start=2
    )
    assert effects == [AppendBatches(12), AdvanceLogStart(2), AdvanceHighWatermark(12)]
    assert follower.next_fetch() is None
    log.flushed_offset = 12
    assert follower.next_fetch() is not None


def test_an_answer_is_applied_once() -> None:
    follower, _ = new_follower()
    fetch_id = next_fetch_id(follower)
    assert follower.on_fetched(fetch_id, end_offset=12, high_watermark=0, log_start=0)
    assert follower.on_fetched(fetch_id, end_offset=14, high_watermark=0, log_start=0) == []


def test_an_answer_to_a_failed_fetch_is_ignored() -> None:
    follower, _ = new_follower()
    fetch_id = next_fetch_id(follower)
    follower.on_failed(fetch_id)
    assert next_fetch_id(follower) != fetch_id
    assert follower.on_fetched(fetch_id, end_offset=12, high_watermark=0, log_start=0) == []


def test_a_diverging_follower_truncates_to_the_common_offset() -> None:
    follower, log = new_follower(epochs=((2, 0), (3, 4), (4, 8)))
    assert follower.on_diverging(next_fetch_id(follower), Diverging(3, 6)) == [Truncate(6)]
    assert (log.end_offset, log.flushed_offset, log.generation) == (6, 6, 1)


def test_an_unknown_epoch_truncates_to_the_last_common_epoch() -> None:
    follower, _ = new_follower(epochs=((1, 0), (4, 8)))
    assert follower.on_diverging(next_fetch_id(follower), Diverging(3, 9)) == [Truncate(8)]


def test_a_follower_stops_rather_than_truncate_committed_records() -> None:
    follower, log = new_follower(high_watermark=8)
    (stopped,) = follower.on_diverging(next_fetch_id(follower), Diverging(3, 6))
    assert isinstance(stopped, StopReplica)
    assert "offset 6" in stopped.reason
    assert log.end_offset == 10
    assert follower.next_fetch() is None


def test_after_an_unclean_election_committed_records_are_truncated() -> None:
    follower, log = new_follower(high_watermark=8, last_unclean_epoch=5)
    assert follower.on_diverging(next_fetch_id(follower), Diverging(3, 6)) == [Truncate(6)]
    assert log.high_watermark == 6


def test_a_follower_out_of_range_restarts_at_the_leaders_log_start() -> None:
    follower, log = new_follower(high_watermark=8)
    assert follower.on_out_of_range(next_fetch_id(follower), 15) == [StartAt(15)]
    assert (log.start_offset, log.end_offset, log.high_watermark) == (15, 15, 15)
    outstanding = follower.next_fetch()
    assert outstanding is not None
    assert outstanding.fetch.last_epoch == -1


def test_old_followers_truncate_to_their_high_watermark() -> None:
    follower, _ = new_follower(
        high_watermark=8, rules=ReplicaRules(truncates_to_high_watermark=True)
    )
    assert follower.truncate_to_high_watermark() == [Truncate(8)]


def test_a_trimmed_log_ends_earlier_epochs_at_its_start() -> None:
    _, log = new_follower(epochs=((5, 4),), start=4)
    assert log.end_of(3) == (3, 4)
    assert log.end_of(5) == log.end_of(7) == (5, 10)
