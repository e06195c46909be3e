"""Topics: the port through which partitions and groups see which topics there are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Topics(Protocol):
    """All topics of the cluster, as they are now."""

    def names(self) -> Collection[str]:
        """Every topic."""
        ...

    def topic_id(self, name: str) -> bytes | None:
        """Its identity; None if there is no such topic."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this identity."""
        ...

    def leader(self, name: str, partition: int) -> tuple[int, int] | None:
        """Who leads a partition, and in which leader epoch; None if nobody does."""
        ...

    def partitions(self, name: str) -> int:
        """How many it has; 0 if there is no such topic."""
        ...
