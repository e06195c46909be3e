"""GroupOffsets: replay of commits, and removal with a deleted topic."""

from __future__ import annotations

from streamlog.broker.coordinator.group.committed_offsets import GroupOffsets
from streamlog.broker.coordinator.group.group_records import OffsetChange
from streamlog.protocol.messages.classic_groups import OffsetCommitKey, OffsetCommitValue


def change(group: str, topic: str, partition: int, offset: int | None) -> OffsetChange:
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    return OffsetChange(key, None if offset is None else OffsetCommitValue(offset=offset))


def offsets_of(offsets: GroupOffsets, group: str) -> dict[tuple[str, int], int]:
    return {where: value.offset for where, value in offsets.of(group).items()}


def test_the_last_commit_of_a_partition_counts() -> None:
    offsets = GroupOffsets()
    for offset in (3, 7):
        offsets.replay(change("g", "t", 0, offset))
    offsets.replay(change("g", "t", 1, 5))
    assert offsets_of(offsets, "g") == {("t", 0): 7, ("t", 1): 5}
    assert offsets_of(offsets, "other") == {}


def test_a_group_without_offsets_is_not_listed() -> None:
    offsets = GroupOffsets()
    offsets.replay(change("g", "t", 0, 3))
    offsets.replay(change("g", "t", 0, None))
    offsets.replay(change("g", "t", 0, None))
    assert not offsets.groups()


def test_offsets_are_removed_with_their_topic() -> None:
    offsets = GroupOffsets()
    for group in ("g", "h"):
        for topic in ("t", "u"):
            offsets.replay(change(group, topic, 0, 3))
    staged = change("h", "t", 0, 4)
    offsets.stage(7, staged)
    gone = list(offsets.of_deleted_topics(lambda topic, _: topic != "t"))
    assert [(each.group, each.topic) for each in gone] == [("g", "t")]  # h has a staged offset
    offsets.decide(7, committed=False)
    for key in list(offsets.of_deleted_topics(lambda topic, _: topic != "t")):
        offsets.replay(OffsetChange(key, None))
    assert offsets_of(offsets, "g") == offsets_of(offsets, "h") == {("u", 0): 3}
