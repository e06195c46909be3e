"""Step: a node at work. Gets batches from its parents, hands batches to its children.

A step is made from a frozen node of the topology once per task. Rule of the file: a step
hands on what it made before it returns, and never an empty batch, so the order of effects is
that of the records. What steps put into the task's outbox goes through the `Collector`.
"""

from __future__ import annotations

from streamlog.processing.columns import Batch
from streamlog.processing.outbox import Drop, Outbox, Reason, SinkBatch


class Collector:
    """The outbox in the making, shared by the steps of a task."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self._drops: dict[tuple[str, Reason], Drop] = {}

    def send(self, batch: SinkBatch) -> None:
        """To be written by the runner, in this order."""
        self.outbox.writes.append(batch)

    def drop(self, node: str, reason: Reason, count: int = 1, *, late_by_ms: int = 0) -> None:
        """Count records that a node leaves out; none is fine."""
        if not count:
            return
        drop = self._drops.get((node, reason))
        if drop is None:
            drop = self._drops[node, reason] = Drop(node, reason)
            self.outbox.drops.append(drop)
        drop.count += count
        drop.late_by_ms_max = max(drop.late_by_ms_max, late_by_ms)

    def take(self) -> Outbox:
        """The outbox; a new one begins."""
        outbox, self.outbox = self.outbox, Outbox()
        self._drops.clear()
        return outbox


class Step:
    """A node at work."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: list[Step] = []

    def process(self, batch: Batch) -> None:
        """Take in a batch; hand on what comes of it. This one hands on the batch itself."""
        self.forward(batch)

    def forward(self, batch: Batch) -> None:
        """Hand a batch to all children, unless it is empty."""
        if batch.rows:
            for child in self.children:
                child.process(batch)
