"""LeaderEpochs: the newest known election wins over older answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.cluster import NO_NODE, LeaderEpochs
from streamlog.client.offset_metadata import NO_EPOCH
from streamlog.protocol.messages.cluster_metadata import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from streamlog.record import TopicPartition

T0 = TopicPartition("t", 0)
ONE, OTHER = b"1" * 16, b"2" * 16


def topic_metadata(leader: int, epoch: int, topic_id: bytes = ONE) -> MetadataResponseTopic:
    """Return a broker's metadata of a topic with one partition."""
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    return MetadataResponseTopic(name="t", topic_id=topic_id, partitions=[partition])


def test_an_answer_with_an_older_leader_epoch_is_stale() -> None:
    known = LeaderEpochs()
    assert known.epoch(T0) == NO_EPOCH
    assert known.learn(topic_metadata(1, 4)) == ({0: 1}, False)
    assert known.learn(topic_metadata(2, 3)) == ({0: 1}, True)
    assert known.learn(topic_metadata(NO_NODE, 5)) == ({0: NO_NODE}, False)
    assert known.learn(topic_metadata(1, 4)) == ({0: NO_NODE}, True)
    assert known.epoch(T0) == 5


def test_a_recreated_topic_starts_a_new_epoch_history() -> None:
    known = LeaderEpochs()
    known.learn(topic_metadata(1, 4))
    assert known.learn(topic_metadata(2, 0, OTHER)) == ({0: 2}, False)
    assert known.epoch(T0) == 0


def test_brokers_without_leader_epochs_are_believed() -> None:
    known = LeaderEpochs()
    known.learn(topic_metadata(1, 4))
    assert known.learn(topic_metadata(2, NO_EPOCH)) == ({0: 2}, False)
    assert known.epoch(T0) == NO_EPOCH
    assert not known.note(T0, 7)


@pytest.mark.parametrize(("epoch", "is_news"), [(3, False), (4, False), (5, True)])
def test_a_newer_epoch_in_fetched_data_reveals_an_election(epoch: int, is_news: bool) -> None:
    known = LeaderEpochs()
    assert not known.note(T0, epoch)  # The topic is still unknown.
    known.learn(topic_metadata(1, 4))
    assert known.note(T0, epoch) is is_news
    leader = NO_NODE if is_news else 1
    assert known.learn(topic_metadata(1, 4)) == ({0: leader}, is_news)
    assert known.learn(topic_metadata(2, 5)) == ({0: 2}, False)


@given(
    st.lists(
        st.tuples(st.sampled_from([ONE, OTHER]), st.integers(NO_NODE, 2), st.integers(0, 5)),
        min_size=1,
    )
)
def test_the_epochs_of_a_topic_never_decrease(answers: list[tuple[bytes, int, int]]) -> None:
    known = LeaderEpochs()
    before: tuple[bytes, int] | None = None
    replaced: set[bytes] = set()
    for topic_id, leader, epoch in answers:
        leaders, is_behind = known.learn(topic_metadata(leader, epoch, topic_id))
        now = known.epoch(T0)
        if topic_id in replaced:
            # A deleted topic never returns: a broker that names it is behind.
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
