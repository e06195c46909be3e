"""CommittedOffsets: how far every group has read every partition.

Pure: a commit gives the change to append; `replay` of such a change alters the state. A
position is the *next* offset to read. Who may commit is the group's business, and whether the
partition exists is the shard's. A position that has served nobody for `offsets.retention.minutes`
is over (KIP-211): since when it has, the group knows. One that is in a transaction is staged, and
kept, until that has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.coordinator.records import OffsetChange
from streamlog.broker.coordinator.staged_offsets import StagedOffsets
from streamlog.protocol.messages.coordination import OffsetCommitKey, OffsetCommitValue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping


class CommittedOffsets:
    """The positions of all groups of one shard."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], OffsetCommitValue]] = {}
        self._staged = StagedOffsets()

    def of(self, group_id: str) -> Mapping[tuple[str, int], OffsetCommitValue]:
        """All positions of a group, by topic and partition."""
        return self._groups.get(group_id, {})

    def groups(self) -> Collection[str]:
        """Groups that have a position somewhere."""
        return self._groups.keys()

    def unused(
        self, since_ms: Callable[[str, str, int], int | None], *, wall_ms: int, retention_ms: int
    ) -> Iterator[OffsetCommitKey]:
        """Positions that are over.

        Args:
            since_ms: since when the position of a group in a topic, committed then, has served
                nobody; None while it does.
            wall_ms: now.
            retention_ms: how long they are kept then, unless the commit has said otherwise.
        """
        for group_id, positions in self._groups.items():
            for (topic, partition), value in positions.items():
                unused_ms = since_ms(group_id, topic, value.commit_timestamp)
                if unused_ms is None or (group_id, topic, partition) in self._staged:
                    continue
                asked_ms = value.expire_timestamp
                if wall_ms >= (unused_ms + retention_ms if asked_ms < 0 else asked_ms):
                    yield OffsetCommitKey(group=group_id, topic=topic, partition=partition)

    def gone(self, is_there: Callable[[str, OffsetCommitValue], bool]) -> Iterator[OffsetCommitKey]:
        """Positions in topics that are no more, but for those that a transaction may set."""
        for group_id, positions in self._groups.items():
            for (topic, partition), value in positions.items():
                if is_there(topic, value) or (group_id, topic, partition) in self._staged:
                    continue
                yield OffsetCommitKey(group=group_id, topic=topic, partition=partition)

    def is_stable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether no transaction is open that may set the position."""
        return (group_id, topic, partition) not in self._staged

    def replay(self, change: OffsetChange) -> None:
        """Take one change into account."""
        self._staged.overtake(change.key)
        self._set(change)

    def stage(self, producer_id: int, change: OffsetChange) -> None:
        """Take one change into account that is in a transaction of this producer."""
        self._staged.stage(producer_id, change)

    def decide(self, producer_id: int, *, committed: bool) -> None:
        """The producer's transaction has ended."""
        for change in self._staged.decide(producer_id, committed=committed):
            self._set(change)

    def _set(self, change: OffsetChange) -> None:
        key = change.key
        if change.value is not None:
            positions = self._groups.setdefault(key.group, {})
            positions[key.topic, key.partition] = change.value
            return
        positions = self._groups.get(key.group, {})
        positions.pop((key.topic, key.partition), None)
        if not positions:
            self._groups.pop(key.group, None)
