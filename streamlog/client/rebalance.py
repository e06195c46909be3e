"""Rebalance: changes of what a member has, carried out with its owner's callbacks.

Everything here runs in the owner's task, from within `poll` or at the end, so the callbacks never
run beside the owner's own work; and the consumer joins the group again only after they are done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from streamlog import repeated
from streamlog.assignors import TopicPartition
from streamlog.client.commits import Commits
from streamlog.client.group import GroupSession
from streamlog.client.positions import Positions

OnRebalance: TypeAlias = Callable[[frozenset[TopicPartition]], Awaitable[None]]

log = repeated.logger(__name__)


class Rebalance:
    """What a consumer is given and has to give up."""

    def __init__(self, group: GroupSession, positions: Positions, commits: Commits) -> None:
        self._group = group
        self._positions = positions
        self._commits = commits
        self._on_assigned: OnRebalance | None = None
        self._on_revoked: OnRebalance | None = None
        self._on_lost: OnRebalance | None = None

    def listen(
        self,
        *,
        on_assigned: OnRebalance | None,
        on_revoked: OnRebalance | None,
        on_lost: OnRebalance | None,
    ) -> None:
        """Await these from now on; without `on_lost`, `on_revoked` takes its place."""
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._on_lost = on_revoked if on_lost is None else on_lost

    async def settle(self) -> bool:
        """Carry out what is due; returns whether there is a new part."""
        member = self._group.member
        if member is None:
            return False
        # The coordinator may ask for more while the owner finishes.
        while revoked := member.revoking:
            await self._revoke(revoked, lost=member.is_lost)
            self._group.on_revoked(revoked)
        if member.offered is None:
            return False
        added = self._group.on_assigned()
        log.info("%s", member)
        self._positions.assign(member.assignment)
        if self._on_assigned is not None:
            # The owner may know better where to begin.
            self._positions.hold(added)
            try:
                await self._on_assigned(added)
            finally:
                self._positions.let_go()
        return True

    async def finish(self) -> None:
        """Hand back in good order what is assigned."""
        member = self._group.member
        if member is not None and member.assignment:
            await self._revoke(member.assignment, lost=member.is_lost)
        else:
            await self._commits.commit_consumed()
        await self._commits.drain()

    async def _revoke(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        told = self._on_lost if lost else self._on_revoked
        if told is not None:
            await told(partitions)
        if not lost:
            await self._commits.commit_consumed()
        self._positions.assign(self._positions.assigned() - partitions)
        self._commits.forget(partitions)
