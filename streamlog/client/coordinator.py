"""Coordinator: the broker that a group's members talk to, found again when it has moved.

All requests of one consumer to it share one connection, since a commit must not overtake the join
that ends its generation; only leaving takes another, so that it need not wait behind a join.
"""

from __future__ import annotations

from typing import TypeVar

from streamlog.client.cluster import Cluster, Lane
from streamlog.errors import ConnectionLost, RequestTimedOut
from streamlog.protocol.schema import Message

M = TypeVar("M", bound=Message)


class Coordinator:
    """Where one group is coordinated."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.group_id = group_id
        self._cluster = cluster
        self._node_id: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether it has been found."""
        return self._node_id is not None

    async def find(self) -> None:
        """Look it up.

        Raises:
            LogError: retriable while there is none.
        """
        self._node_id = await self._cluster.coordinator(self.group_id)

    def forget(self) -> None:
        """It is another by now: look it up before the next request."""
        self._node_id = None

    async def ask(self, request: Message, answer: type[M]) -> M:
        """Ask it, wherever it is.

        Raises:
            ConnectionLost, RequestTimedOut: retriable; it is looked up again then.
        """
        if self._node_id is None:
            await self.find()
        try:
            return await self.call(request, answer)
        except (ConnectionLost, RequestTimedOut):
            self.forget()
            raise

    async def call(
        self,
        request: Message,
        answer: type[M],
        *,
        lane: Lane = Lane.GROUP,
        timeout_ms: int | None = None,
    ) -> M:
        """Ask it where it was last found.

        Raises:
            ConnectionLost, RequestTimedOut: it does not answer.
        """
        if self._node_id is None:
            raise ConnectionLost(f"the coordinator of group {self.group_id} was lost")
        return await self._cluster.call(
            self._node_id, request, answer, lane=lane, timeout_ms=timeout_ms
        )
