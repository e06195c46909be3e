"""Sinks: the way of sink records from tasks to the log, refused records included.

At least once, records are sent immediately. Exactly once, they are held until the transaction of
their commit. The policies of nodes decide about refused records (`refused_sinks`), which are
counted and logged; the rest is sent again. An output topic that is deleted, created again or
withheld by an ACL while the worker runs is noticed and logged. Not done here: state, offsets, and
the time of commits (`tasks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.clock import Clock
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.errors import StreamlogError, UnknownTopicOrPartition, quantity
from streamlog.log import Log
from streamlog.processing.outbox import SinkBatch
from streamlog.protocol.schema import id_text
from streamlog.topology import Topology
from streamlog.worker.commit.commit import HeldSinks, Packs, SinkWriter
from streamlog.worker.commit.exactly_once import RefusedCommit
from streamlog.worker.commit.refused_sinks import RefusedSinks, Settlement
from streamlog.worker.health.worker_health import DropLog
from streamlog.worker.health.worker_metrics import WorkerMetrics

LOOK_MS: Final = 5_000
"""How often a worker looks whether its outputs are the topics that it has written to."""
RETURN_MS: Final = 60_000
"""How long a worker waits for a deleted output to be created again."""
RETURN_POLL_MS: Final = 200

logger = repeated.logger(__name__)


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

    def recount(self, counts: Mapping[str, int]) -> bool:
        """Take in the partition counts of topics; returns whether held records have other ones."""
        # Both, whichever holds the records: a dead letter may go either way.
        differ = self._writer.recount(counts), self._held.recount(counts)
        return self._holds and any(differ)

    async def forget(self) -> None:
        """Discard the held records, and the outcome of those that were sent."""
        if not self._holds:
            await self._writer.forget()
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


class Output(NamedTuple):
    """An output topic, as the log has it."""

    topic_id: bytes
    """Zero if the brokers have no topic ids."""
    partitions: int


class OutputTopics:
    """The outputs of a worker, as the log had them when it was last asked. Pure."""

    def __init__(self) -> None:
        self.gone: frozenset[str] = frozenset()
        """The topics that existed, and do not exist now."""
        self.withheld: frozenset[str] = frozenset()
        """The topics that existed, and that this worker may not see now."""
        self._known: dict[str, Output] = {}

    def learn(
        self, found: Mapping[str, Output], hidden: AbstractSet[str] = frozenset()
    ) -> dict[str, tuple[Output, Output]]:
        """Take in the outputs that exist; returns those created again, as they were and are.

        `hidden` are those that this worker may not see: nothing is known of their existence.
        """
        others = {
            name: (known, output)
            for name, output in found.items()
            if (known := self._known.get(name, output)).topic_id != output.topic_id
        }
        self.gone = frozenset(self._known.keys() - found.keys() - hidden)
        self.withheld = frozenset(self._known.keys() & hidden)
        self._known.update(found)
        return others


class OutputWatch:
    """Watches that the outputs of a worker are the topics that it has written to.

    Producers write by the name of a topic. So one that was deleted and created again between two
    requests takes the rows from then on, and no answer of a broker says so.
    """

    def __init__(self, log: Log, clock: Clock, app_id: str, outputs: Mapping[str, bool]) -> None:
        """Watch the outputs of an app; each says whether agents write to it."""
        self._log = log
        self._clock = clock
        self._app_id = app_id
        self._names = sorted(outputs)
        self._of_agents = {name for name, is_sink_of_agent in outputs.items() if is_sink_of_agent}
        self._topics = OutputTopics()
        self._others: dict[str, int] = {}

    async def run(self) -> None:
        """Look every `LOOK_MS`, until cancelled."""
        while self._names:
            await asyncio.sleep(LOOK_MS / 1000)
            try:
                await self.look()
            except StreamlogError as error:
                logger.debug("the outputs can't be looked up: %s", error)

    async def look(self) -> None:
        """Ask the log for the outputs, and log which are gone, created again or withheld."""
        if not self._names:
            return
        hidden: set[str] = set()
        topics = await self._log.admin().find_topics(self._names, hidden=hidden)
        gone, withheld = self._topics.gone, self._topics.withheld
        found = {each.name: Output(each.topic_id, each.partitions) for each in topics}
        for name, (old, new) in self._topics.learn(found, hidden).items():
            self._others[name] = new.partitions
            logger.warning("%s", describe_other(name, old, new))
        for name in sorted(self._topics.gone - gone):
            logger.warning("%s: deleted while this worker writes to it", name)
        for name in sorted(self._topics.withheld - withheld):
            logger.warning(
                "%s: this worker may no longer describe the topic that it writes to: an ACL was"
                " removed, or one denies it. The next write fails unless an ACL allows it again"
                " (streamlog acls add PRINCIPAL write --topic %s)",
                name,
                name,
            )

    def take_others(self) -> dict[str, int]:
        """Return the partition counts of outputs that were created again since the last call."""
        taken, self._others = self._others, {}
        return taken

    async def explain(self, error: UnknownTopicOrPartition) -> bool:
        """Return whether a write has failed because an output of tasks is gone, or is another.

        Raises:
            UnknownTopicOrPartition: an output of agents is gone.
        """
        await self.look()
        # Tasks compute their rows again from the last commit; an agent's function does not run
        # again for a record in this process, so only the next start repeats it.
        for name in sorted(self._topics.gone & self._of_agents):
            raise self._deleted(name) from error
        return bool(self._topics.gone or self._others)

    async def has_waited(self, stop: asyncio.Event) -> bool:
        """Wait until no output is gone, or `stop` is set; returns whether any was gone.

        Raises:
            UnknownTopicOrPartition: an output was not created again within `RETURN_MS`.
        """
        await self.look()
        if not self._topics.gone:
            return False
        names, wait_s = ", ".join(sorted(self._topics.gone)), RETURN_MS // 1000
        logger.warning("waiting %d s for outputs to be created again: %s", wait_s, names)
        deadline_ms = self._clock.now_ms() + RETURN_MS
        while self._topics.gone and not stop.is_set():
            if self._clock.now_ms() >= deadline_ms:
                raise self._deleted(min(self._topics.gone))
            await asyncio.sleep(RETURN_POLL_MS / 1000)
            await self.look()
        return True

    def _deleted(self, name: str) -> UnknownTopicOrPartition:
        return UnknownTopicOrPartition(
            f"topic {name!r}, which app {self._app_id!r} writes to, was deleted while this worker"
            f" ran. Create it (streamlog topics create {name} --partitions N --log URL), and start"
            " the worker again; without that, the worker creates it with the partitions that the"
            " app or the broker sets. What was processed since the last commit is processed again",
            retriable=False,
        )


def describe_other(name: str, old: Output, new: Output) -> str:
    """Return what a user has to know of an output that was created again."""
    counts = (
        ""
        if old.partitions == new.partitions
        else f", with {quantity(new.partitions, 'partition')} instead of {old.partitions}"
    )
    return (
        f"{name}: deleted and created again while this worker writes to it (id"
        f" {id_text(old.topic_id)}, now {id_text(new.topic_id)}){counts}. It gets the rows from now"
        " on; earlier ones went with the old topic. To write those again, stop the workers and"
        " start the app over: streamlog -A MODULE reset"
    )


def lacks_topic(error: BaseException | None) -> bool:
    """Return whether a topic that does not exist has led to an error."""
    while error is not None and not isinstance(error, UnknownTopicOrPartition):
        error = error.__cause__
    return error is not None
