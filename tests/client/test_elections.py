"""Elections: the newest election that was heard of counts, whoever tells of older ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.cluster import NOBODY, LeaderEpochs
from streamlog.client.offset_metadata import NO_EPOCH
from streamlog.protocol.messages.cluster_metadata import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from streamlog.record import TopicPartition

T0 = TopicPartition("t", 0)
ONE, OTHER = b"1" * 16, b"2" * 16


def said(leader: int, epoch: int, topic_id: bytes = ONE) -> MetadataResponseTopic:
    """What a broker says about a topic of one partition."""
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    return MetadataResponseTopic(name="t", topic_id=topic_id, partitions=[partition])


def test_who_tells_of_an_older_leader_is_behind_and_not_believed() -> None:
    known = LeaderEpochs()
    assert known.epoch(T0) == NO_EPOCH
    assert known.learn(said(1, 4)) == ({0: 1}, False)
    assert known.learn(said(2, 3)) == ({0: 1}, True)
    assert known.learn(said(NOBODY, 5)) == ({0: NOBODY}, False)
    assert known.learn(said(1, 4)) == ({0: NOBODY}, True)
    assert known.epoch(T0) == 5


def test_a_topic_that_was_made_again_begins_anew() -> None:
    known = LeaderEpochs()
    known.learn(said(1, 4))
    assert known.learn(said(2, 0, OTHER)) == ({0: 2}, False)
    assert known.epoch(T0) == 0


def test_brokers_that_tell_no_epochs_are_believed() -> None:
    known = LeaderEpochs()
    known.learn(said(1, 4))
    assert known.learn(said(2, NO_EPOCH)) == ({0: 2}, False)
    assert known.epoch(T0) == NO_EPOCH
    assert not known.note(T0, 7)


@pytest.mark.parametrize(("epoch", "is_news"), [(3, False), (4, False), (5, True)])
def test_what_was_read_tells_of_an_election(epoch: int, is_news: bool) -> None:
    known = LeaderEpochs()
    assert not known.note(T0, epoch)  # Of what topic?
    known.learn(said(1, 4))
    assert known.note(T0, epoch) is is_news
    leader = NOBODY if is_news else 1
    assert known.learn(said(1, 4)) == ({0: leader}, is_news)
    assert known.learn(said(2, 5)) == ({0: 2}, False)


@given(
    st.lists(
        st.tuples(st.sampled_from([ONE, OTHER]), st.integers(NOBODY, 2), st.integers(0, 5)),
        min_size=1,
    )
)
def test_epochs_of_one_topic_never_go_down(answers: list[tuple[bytes, int, int]]) -> None:
    known = LeaderEpochs()
    before: tuple[bytes, int] | None = None
    replaced: set[bytes] = set()
    for topic_id, leader, epoch in answers:
        leaders, is_behind = known.learn(said(leader, epoch, topic_id))
        now = known.epoch(T0)
        if topic_id in replaced:
            # A topic that was deleted never comes back: the broker that names it is behind.
            assert before == (known.topic_id("t"), now)
            assert is_behind
            continue
        if before is not None and before[0] != topic_id:
            replaced.add(before[0])
        if before is not None and before[0] == topic_id:
            assert now == max(before[1], epoch)
            assert is_behind == (epoch < before[1])
        else:
            assert (now, is_behind) == (epoch, False)
        assert is_behind or leaders == {0: leader}
        before = topic_id, now
