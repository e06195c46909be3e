"""Commits: what a consumer has read, told to its group, by order of the owner or by itself.

Auto-commit stores what earlier polls returned, at the next poll: a crash repeats records rather
than losing them. What has not moved since its last commit is not sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from streamlog.assignors import TopicPartition
from streamlog.client.consumer_settings import ConsumerSettings
from streamlog.client.group import GroupSession
from streamlog.client.positions import Positions
from streamlog.clock import Clock
from streamlog.errors import StreamlogError

AUTO_COMMIT_TIMEOUT_MS = 5_000
"""How long an auto-commit is retried: it holds up a poll or the end."""

log = logging.getLogger(__name__)


class Commits:
    """The commits of one consumer in a group."""

    def __init__(
        self, group: GroupSession, positions: Positions, settings: ConsumerSettings, clock: Clock
    ) -> None:
        self._group = group
        self._positions = positions
        self._settings = settings
        self._clock = clock
        self._due_ms = clock.now_ms() + settings.auto_commit_interval_ms
        self._committed: dict[TopicPartition, int] = {}

    async def commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        """Store `offsets`, or the positions; see `Consumer.commit`."""
        committed = self._positions.consumed() if offsets is None else dict(offsets)
        await self._group.commit(committed)
        self._committed.update(committed)

    async def auto_commit(self) -> None:
        """What is due, if it is and the group takes it."""
        if not self._settings.auto_commit or not self._group.may_commit():
            return  # In a cooperative rebalance; then it is done afterwards.
        now_ms = self._clock.now_ms()
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._settings.auto_commit_interval_ms
            await self.commit_consumed()

    async def commit_consumed(self) -> None:
        """With auto-commit: what has moved; what the group refuses, its next owner reads again."""
        moved = {
            partition: offset
            for partition, offset in self._positions.consumed().items()
            if self._committed.get(partition) != offset
        }
        if not moved or not self._settings.auto_commit:
            return
        try:
            await self._group.commit(moved, timeout_ms=AUTO_COMMIT_TIMEOUT_MS)
            self._committed.update(moved)
        except StreamlogError as error:
            if error.fatal:
                raise
            log.warning("auto-commit: %s", error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are another member's now, and so is where they go on."""
        for partition in partitions:
            self._committed.pop(partition, None)
