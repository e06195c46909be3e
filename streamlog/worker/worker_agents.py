"""Agents: what a worker does for its agents, besides calling them (`agents.run`).

One run per agent and worker, over all partitions that the worker has. Records wait in a
bounded feed; when it is full the partitions are held back. Only what is handled is committed,
and what it has yielded is acknowledged before: after a crash the records in hand come again.
What was handled out of order is told beside the offset (`agents.offsets`) and does not. Rule of
the file: an error that an agent's policy does not settle (`agents.failures`) ends the worker,
with the record's coordinates.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from streamlog import repeated
from streamlog.agents.asks import Answer, no_answer
from streamlog.agents.offsets import AgentPosition
from streamlog.agents.rows import AgentRows
from streamlog.agents.run import AgentRun
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.dsl.agent import Agent
from streamlog.processing.outbox import Drop, Outbox
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.worker.commit.commit import SinkWriter
from streamlog.worker.health.drop_log import DropLog
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_figures import Figures
from streamlog.worker.inputs.pauses import Pauses

logger = repeated.logger(__name__)

FEED_RECORDS_MAX = 10_000
"""A feed with more than this takes no more until it is half empty. What one poll has brought
is taken whole, on top."""
HANDLE_WAIT_MS = 30_000
"""How long a rebalance or a stop waits for the records in hand."""


class WorkerAgents:
    """The agents of this worker."""

    def __init__(
        self,
        agents: Sequence[Agent[Any, Any]],
        pauses: Pauses,
        producer: Producer,
        clock: Clock,
        figures: Figures,
        *,
        rows: AgentRows,
        answer: Answer = no_answer,
    ) -> None:
        """`rows` are those of tables that they have at hand."""
        self.rows = rows
        self._pauses = pauses
        self._sinks = SinkWriter(producer)
        self._clock = clock
        self._figures = figures
        self._drops = DropLog()
        alarm = LoopAlarm(clock)
        write, drop = self._sinks.write, self._left_out
        self._runs = [
            AgentRun(agent, write, alarm, drop=drop, answer=answer, rows=rows) for agent in agents
        ]
        self._held: set[AgentRun] = set()
        """Those whose feed is full."""
        for run in self._runs:
            run.on_taken = lambda run=run: self._make_room(run)  # type: ignore[misc]

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run every agent in the group, until it ends with an error or `finish` is called."""
        for run in self._runs:
            group.create_task(run.run(), name=f"agent {run.agent.name}")

    def take(self, polled: Mapping[TopicPartition, Iterable[LogRecord]]) -> None:
        """Hand records to the agents that read them."""
        self._drops.tell(self._clock.now_ms())
        for run in self._runs:
            for partition in run.partitions:
                if partition in polled:
                    run.take(partition, list(polled[partition]))
            if run.waiting > FEED_RECORDS_MAX:
                self._held.add(run)
                self._pauses.hold(run, run.partitions)

    async def leave_out(self, outbox: Outbox) -> None:
        """Write and count what becomes of records that were passed."""
        await self._sinks.write(outbox.writes)
        for drop in outbox.drops:
            self._left_out(drop)

    @property
    def places(self) -> dict[TopicPartition, dict[str, AgentPosition]]:
        """What every agent has handled of each partition that it reads, by its name."""
        found: defaultdict[TopicPartition, dict[str, AgentPosition]] = defaultdict(dict)
        for run in self._runs:
            for partition, place in run.places.items():
                found[partition][run.agent.name] = place
        return dict(found)

    def sights(
        self, ends: Callable[[TopicPartition], int | None], read: Mapping[TopicPartition, int]
    ) -> dict[str, Sight]:
        """Where each agent stands, given the ends of its inputs and how far they have been read."""
        found: dict[str, Sight] = {}
        for run in self._runs:
            positions = {part: place.position for part, place in run.places.items()}
            if run.is_idle:
                # What has been read and not handled is no records: gaps, ends of transactions.
                positions = {part: max(at, read.get(part, at)) for part, at in positions.items()}
            lags = {part: max((ends(part) or 0) - at, 0) for part, at in positions.items()}
            found[f"agent {run.agent.name}"] = Sight(positions, lags)
        return found

    def reason(self, who: str) -> str:
        """What an agent that does not get on has in hand."""
        hands = [run.in_hand for run in self._runs if who == f"agent {run.agent.name}"]
        return f"it has {hands[0]}" if hands else ""

    async def flush(self) -> None:
        """Wait until everything that agents have yielded until now is acknowledged.

        Raises:
            StreamlogError: something could not be written: no offset may be committed.
        """
        for run in self._runs:
            await run.results.drain()
        await self._sinks.flush()
        for refusal in self._sinks.take_refusals():
            raise refusal.error

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        ahead: Mapping[TopicPartition, Mapping[str, AgentPosition]],
        kept: Collection[TopicPartition] = (),
    ) -> None:
        """Read these partitions, each from its offset on, and go on with those that are kept.

        `ahead` has, by name, the agents that have handled something behind it.
        """
        for run in self._runs:
            name = run.agent.name
            own = {part: place for part, place in run.places.items() if part in kept}
            fresh = {
                part: ahead.get(part, {}).get(name, AgentPosition(at))
                for part, at in starts.items()
            }
            run.assign({**own, **fresh})
            if run in self._held:
                self._pauses.hold(run, run.partitions)

    async def revoke(self) -> None:
        """Drop what waits, and let every agent finish the records in hand."""
        await asyncio.gather(*(self._suspend(run) for run in self._runs))

    async def wait_for_tasks(self) -> None:
        """Those that work on tables finish what they have in hand: their tasks are being dropped.

        `go_on` follows, when the tasks are opened again.
        """
        await asyncio.gather(*(self._suspend(run) for run in self._on_tables))

    def go_on(self) -> None:
        """They go on behind what they have handled; what came after it has to be read again."""
        for run in self._on_tables:
            run.assign(run.places)

    @property
    def _on_tables(self) -> list[AgentRun]:
        return [run for run in self._runs if self.rows.worked_on(run.agent.name)]

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """These are committed by others from now on."""
        for run in self._runs:
            run.give_up(partitions)
            numbers = {at.partition for at in partitions if at.topic == run.agent.topic.name}
            self.rows.forget(numbers, self.rows.worked_on(run.agent.name))

    async def finish(self) -> None:
        """End the streams: no record is begun any more, the loops of the users end."""
        for run in self._runs:
            run.end()
        await self.revoke()

    async def _suspend(self, run: AgentRun) -> None:
        self._pauses.let_go(run, run.partitions)
        self._held.discard(run)
        try:
            async with asyncio.timeout(HANDLE_WAIT_MS / 1000):
                await run.suspend()
        except TimeoutError:
            logger.warning(
                "agent %s: still at work on %s after %d s: another worker will repeat it",
                run.agent.name,
                run.in_hand,
                HANDLE_WAIT_MS // 1000,
            )

    def _left_out(self, drop: Drop) -> None:
        self._figures.left_out([drop])
        self._drops.count([drop])

    def _make_room(self, run: AgentRun) -> None:
        if run in self._held and run.waiting <= FEED_RECORDS_MAX // 2:
            self._held.discard(run)
            self._pauses.let_go(run, run.partitions)


class LoopAlarm:
    """The time of the event loop and the worker's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def now_ms(self) -> int:
        """The worker's clock."""
        return self._clock.now_ms()

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._clock.wall_ms()

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        """Call it then, unless what is returned has been called before."""
        delay_ms = max(due_ms - self._clock.now_ms(), 0)
        return asyncio.get_running_loop().call_later(delay_ms / 1000, call).cancel
