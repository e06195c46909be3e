"""Sinks: what tasks give to be written, on its way to the log, and what the log refuses of it.

At least once, records go as they come; exactly once they are held until the transaction of their
commit. What is refused is settled by the policies of the nodes (`refused`), counted and told, and
the rest is sent again. Not done here: state, offsets, and when to commit (`tasks`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from streamlog.client.producer import Producer
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.processing.outbox import SinkBatch
from streamlog.topology import Topology
from streamlog.worker.commit.commit import HeldSinks, Packs, SinkWriter
from streamlog.worker.commit.exactly_once import RefusedCommit
from streamlog.worker.commit.refused_sinks import RefusedSinks, Settlement
from streamlog.worker.health.worker_health import DropLog, Figures


class Sinks:
    """The sink records of this worker's tasks."""

    def __init__(
        self,
        topology: Topology,
        producer: Producer,
        figures: Figures,
        drops: DropLog,
        *,
        holds: bool,
    ) -> None:
        """`holds`: everything waits for `take`; else it is written as it comes."""
        self._writer = SinkWriter(producer)
        self._held = HeldSinks(producer)
        self._holds = holds
        self._refused = RefusedSinks(topology)
        self._figures = figures
        self._drops = drops

    @property
    def held_bytes(self) -> int:
        """What waits for its commit takes in memory."""
        return self._held.held_bytes

    async def write(self, batches: Iterable[SinkBatch]) -> None:
        """Hand the records over, or keep them.

        Raises:
            StreamlogError, TypeError: a record can't be written down.
        """
        await (self._held if self._holds else self._writer).write(batches)

    async def flush(self) -> None:
        """Wait until all that was written is acknowledged, or given up by a policy.

        Raises:
            ProcessingError: a record is refused, and its node's policy is `FAIL`.
            StreamlogError: a record could not be written.
        """
        await self._writer.flush()
        while refusals := self._writer.take_refusals():
            settlement = self._settled(refusals)
            await self._writer.write_packs(settlement.rest)
            await self._writer.write(settlement.letters)
            await self._writer.flush()

    async def take(self) -> Packs:
        """All that is held.

        Raises:
            ProcessingError: as `flush`.
        """
        while refusals := self._held.take_refusals():
            await self._held.write(self._settled(refusals).letters)
        return self._held.take()

    async def committed(
        self, packs: Packs, write: Callable[[Packs], Awaitable[list[int]]]
    ) -> list[int]:
        """What `write` gives, once it has been asked for a commit that is not refused.

        Raises:
            ProcessingError: as `flush`.
        """
        while True:
            try:
                return await write(packs)
            except RefusedCommit as refused:
                packs = await self._without(packs, refused.refusals)

    def forget(self) -> None:
        """None of what is held will be written."""
        self._held.take()
        self._held.take_refusals()

    async def _without(self, packs: Packs, refusals: Sequence[RefusedRecord]) -> Packs:
        """The same commit without those records, and with what stands for them."""
        settlement = self._settled(refusals)
        await self._held.write(settlement.letters)
        kept = settlement.without(packs)
        for place, some in (await self.take()).items():
            kept.setdefault(place, []).extend(some)
        return kept

    def _settled(self, refusals: Sequence[RefusedRecord]) -> Settlement:
        """What becomes of records that the log does not take; counted."""
        settlement = self._refused.settled(refusals)
        self._figures.left_out(settlement.drops)
        self._drops.count(settlement.drops)
        return settlement
