"""Sinks: the way of sink records from tasks to the log, refused records included.

At least once, records are sent immediately. Exactly once, they are held until the transaction of
their commit. The policies of nodes decide about refused records (`refused_sinks`), which are
counted and logged; the rest is sent again. Not done here: state, offsets, and the time of commits
(`tasks`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from streamlog.client.producer import Producer
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.processing.outbox import SinkBatch
from streamlog.topology import Topology
from streamlog.worker.commit.commit import HeldSinks, Packs, SinkWriter
from streamlog.worker.commit.exactly_once import RefusedCommit
from streamlog.worker.commit.refused_sinks import RefusedSinks, Settlement
from streamlog.worker.health.worker_health import DropLog
from streamlog.worker.health.worker_metrics import WorkerMetrics


class Sinks:
    """The sink records of this worker's tasks."""

    def __init__(
        self,
        topology: Topology,
        producer: Producer,
        metrics: WorkerMetrics,
        drops: DropLog,
        *,
        holds: bool,
        sources: Sequence[SourceConnector] = (),
    ) -> None:
        """Create the sinks; with `holds`, records wait for `take`, else they are sent at once."""
        self._writer = SinkWriter(producer)
        self._held = HeldSinks(producer)
        self._holds = holds
        self._refused = RefusedSinks(topology, sources)
        self._metrics = metrics
        self._drops = drops

    @property
    def held_bytes(self) -> int:
        """The size in memory of the records that wait for their commit."""
        return self._held.held_bytes

    async def write(self, batches: Iterable[SinkBatch]) -> None:
        """Send the records, or hold them.

        Raises:
            StreamlogError, TypeError: a record can't be encoded, or a topic not be looked up.
        """
        await (self._held if self._holds else self._writer).write(batches)

    async def flush(self) -> None:
        """Wait until every record is acknowledged, or dropped by a policy.

        Raises:
            ProcessingError: a record is refused, and its node's policy is `FAIL`.
            StreamlogError: a record could not be written.
        """
        await self._writer.flush()
        # Dead letters and records that are sent again can be refused as well, so repeat.
        while refusals := self._writer.take_refusals():
            settlement = self._settle(refusals)
            await self._writer.write_packs(settlement.rest)
            await self._writer.write(settlement.letters)
            await self._writer.flush()

    async def take(self) -> Packs:
        """Return all held records, and hold none of them any longer.

        Raises:
            ProcessingError: a record is refused, and its node's policy is `FAIL`.
        """
        while refusals := self._held.take_refusals():
            await self._held.write(self._settle(refusals).letters)
        return self._held.take()

    async def commit(
        self, packs: Packs, write: Callable[[Packs], Awaitable[list[int]]]
    ) -> list[int]:
        """Call `write` until no record is refused; returns its result.

        Args:
            packs: the records of the commit; each further attempt leaves out refused ones.
            write: writes a commit; raises `RefusedCommit` for refused records.

        Raises:
            ProcessingError: a record is refused, and its node's policy is `FAIL`.
        """
        while True:
            try:
                return await write(packs)
            except RefusedCommit as refused:
                # The loop ends: each attempt leaves out a record, or sends the suspects in batches
                # of their own, so that the next refusal names one.
                packs = await self._without(packs, refused.refusals)

    def forget(self) -> None:
        """Discard the held records."""
        self._held.take()
        self._held.take_refusals()

    async def _without(self, packs: Packs, refusals: Sequence[RefusedRecord]) -> Packs:
        """Return the records without the refused ones, and with their dead letters."""
        settlement = self._settle(refusals)
        await self._held.write(settlement.letters)
        kept = settlement.without_dropped(packs)
        # Only the letters of these refusals: everything else was taken when the commit began.
        for part, some in (await self.take()).items():
            kept.setdefault(part, []).extend(some)
        return kept

    def _settle(self, refusals: Sequence[RefusedRecord]) -> Settlement:
        """Decide about refused records, and count them."""
        settlement = self._refused.settle(refusals)
        self._metrics.count_drops(settlement.drops)
        self._drops.count(settlement.drops)
        return settlement
