"""LagRounds: the lag of all groups that this broker coordinates, computed at each look.

A round takes the committed offsets from the coordinator, the ends of partitions from the logs on
this broker or from their leaders, and then the next records. Nothing runs between looks.

Where the ends come from:

- A partition that this broker leads: from its log, exactly.
- A follower on this broker that is in touch with its leader: from its log. Its high watermark
  follows the leader's by one fetch.
- Any other partition: from its leader (`leader_questions`).

Rules of this module: the event loop is held for about `SLICE_S` at a time, logs are read in a
thread, and a round ends after its budget. What it does not know by then stays unknown, and is
reported as such; the searches continue with the next look, from what is remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from streamlog.broker.lag.group_lag import Ends, GroupLag, GroupTotals, RateWindow, partition_lag
from streamlog.broker.lag.next_records import NextRecord, Wanted
from streamlog.errors import LogError

if TYPE_CHECKING:
    from streamlog.broker.coordinator.group.group_coordinator import GroupCoordinator, GroupSummary
    from streamlog.broker.coordinator.group.group_runtime import CoordinatorRuntime
    from streamlog.broker.lag.leader_questions import LeaderQuestions
    from streamlog.broker.lag.next_records import NextRecords, Position
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.clock import Clock

SLICE_S = 0.002
"""How long a round works until the event loop may serve others."""
STEPS_PER_LOOK = 32
"""Steps of a round between two looks at the clock."""
BUDGET_MS = 300
"""How long in milliseconds a round may wait for logs and leaders."""
FRESH_MS = 1_000
"""Looks within this time share a round."""
WATCHED_MAX = 200_000
"""Positions of groups whose rates are measured."""

Where = tuple[str, int]
"""Topic and partition number."""


class LoopSlices:
    """Lets the event loop run whenever a slice is used up."""

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        self._now_s = now_s
        self._deadline_s = now_s() + SLICE_S
        self._steps = 0

    async def step(self) -> None:
        """Note a step of some microseconds."""
        self._steps += 1
        if self._steps % STEPS_PER_LOOK == 0 and self._now_s() >= self._deadline_s:
            await asyncio.sleep(0)
            self._deadline_s = self._now_s() + SLICE_S


@dataclass(slots=True)
class _Draft:
    """What a round knows of one group so far."""

    summary: GroupSummary
    committed: dict[Where, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Findings:
    """What a round has found out about partitions."""

    ends: dict[Where, Ends | None] = field(default_factory=dict)
    records: dict[Position, NextRecord] = field(default_factory=dict)
    searches: dict[Position, Wanted] = field(default_factory=dict)
    asked: dict[int, dict[Where, set[int]]] = field(default_factory=dict)
    """The committed offsets to ask leaders about, by broker."""


class LagRounds:
    """Computes the lag of groups."""

    def __init__(
        self,
        groups: CoordinatorRuntime,
        partitions: Partitions,
        records: NextRecords,
        leaders: LeaderQuestions,
        *,
        node_id: int,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._partitions = partitions
        self._records = records
        self._leaders = leaders
        self._node_id = node_id
        self._clock = clock
        self._one_round = asyncio.Lock()
        self._rates: dict[tuple[str, str, int], RateWindow] = {}
        self._looked_ms: int | None = None
        self.latest: tuple[GroupLag, ...] = ()
        """The lag of all groups, sorted by id, as of the last `look`."""

    async def look(self) -> None:
        """Compute the lag of all groups, unless that was done just now."""
        # Two scrapers at once, or a scrape and a command, share one round: the second waits for the
        # first, and then finds it fresh.
        async with self._one_round:
            now_ms = self._clock.now_ms()
            if self._looked_ms is not None and now_ms - self._looked_ms < FRESH_MS:
                return
            pace = LoopSlices()
            drafts: list[_Draft] = []
            for shard in self._groups.served():
                for group_id in shard.group_ids():
                    await self._take(group_id, shard, drafts, pace)
            drafts.sort(key=lambda each: each.summary.group_id)
            self.latest = tuple(await self._compute(drafts, BUDGET_MS))
            self._looked_ms = self._clock.now_ms()
            await self._forget_rates(pace)

    async def look_at(self, group_ids: Collection[str], budget_ms: int) -> list[GroupLag]:
        """Return the lag of these groups; groups that do not exist are left out.

        Raises:
            LogError: the coordinator of one of the groups is another broker, or is loading.
        """
        pace = LoopSlices()
        # Not under the lock: a command asks for a few groups, and must not wait for a round over
        # all.
        drafts: list[_Draft] = []
        for group_id in dict.fromkeys(group_ids):
            await self._take(group_id, self._groups.groups_of(group_id), drafts, pace)
        return await self._compute(drafts, budget_ms)

    async def _take(
        self, group_id: str, shard: GroupCoordinator, drafts: list[_Draft], pace: LoopSlices
    ) -> None:
        """Copy the committed offsets of a group, if it exists."""
        summary = shard.summary(group_id)
        if summary is None:
            return
        draft = _Draft(summary)
        drafts.append(draft)
        await pace.step()
        for (topic, partition), value in shard.committed(group_id).items():
            # Offsets of a deleted topic are deleted soon, and have no partition to lag behind.
            if shard.is_current(topic, value):
                draft.committed[topic, partition] = value.offset
            await pace.step()

    async def _compute(self, drafts: list[_Draft], budget_ms: int) -> list[GroupLag]:
        pace = LoopSlices()
        findings = _Findings()
        for draft in drafts:
            for where, committed in draft.committed.items():
                self._look_up(where, committed, findings)
                await pace.step()
        await self._find_out(findings, budget_ms)
        pace = LoopSlices()
        return [await self._finish(draft, findings, pace) for draft in drafts]

    def _look_up(self, where: Where, committed: int, findings: _Findings) -> None:
        """Look one position up in memory; note what has to be read or asked."""
        partition = self._local(where)
        if partition is None:
            leader = self._partitions.leader(*where)
            # A leader that was just elected does not know the end itself.
            if leader is not None and leader[0] != self._node_id:
                asked = findings.asked.setdefault(leader[0], {})
                asked.setdefault(where, set()).add(committed)
            return
        # The end is taken once per round, so that all groups of a partition are compared with the
        # same end, and a sum over groups fits together.
        ends = findings.ends.get(where)
        if ends is None:
            ends = findings.ends[where] = ends_of(partition)
        offset = ends.next_offset(committed)
        if offset is None:
            return
        # By position and not by group: groups that have committed the same offset, such as many
        # that have caught up to one end, cost one search.
        wanted = Wanted((*where, offset), partition, ends.end_offset)
        if wanted.position in findings.records:
            return
        known = self._records.known(wanted)
        if known is None:
            findings.searches[wanted.position] = wanted
        else:
            findings.records[wanted.position] = known

    def _local(self, where: Where) -> Partition | None:
        """Return a partition whose end is known here."""
        partition = self._partitions.hosted(*where)
        return partition if partition is not None and is_usable(partition) else None

    async def _find_out(self, findings: _Findings, budget_ms: int) -> None:
        """Read logs and ask leaders, as far as that is possible in time."""

        def note(wanted: Wanted, found: NextRecord) -> None:
            findings.records[wanted.position] = found

        def note_answer(where: Where, ends: Ends, found: dict[int, NextRecord]) -> None:
            findings.ends[where] = ends
            for offset, record in found.items():
                findings.records[*where, offset] = record

        if not findings.searches and not findings.asked:
            return
        # What is not found in time is unknown in this round and has no series: a number of an
        # earlier round would look like a group that has stopped.
        with suppress(TimeoutError):
            async with asyncio.timeout(budget_ms / 1000), asyncio.TaskGroup() as together:
                together.create_task(self._records.find([*findings.searches.values()], note))
                for node_id, asked in findings.asked.items():
                    together.create_task(
                        self._leaders.ask(node_id, asked, note_answer, timeout_ms=budget_ms)
                    )

    async def _finish(self, draft: _Draft, findings: _Findings, pace: LoopSlices) -> GroupLag:
        group = draft.summary
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        partitions, totals = [], GroupTotals()
        for where, committed in draft.committed.items():
            ends = findings.ends.get(where)
            rates = next_ms = None
            if ends is not None:
                rates = self._measure((group.group_id, *where), committed, ends, now_ms)
                next_ms = _timestamp_of(where, committed, ends, findings, wall_ms)
            lag = partition_lag(
                where, committed, ends, next_ms=next_ms, now_ms=wall_ms, rates=rates
            )
            partitions.append(lag)
            totals.add(lag)
            await pace.step()
        return GroupLag(
            group.group_id, group.kind, group.state, group.members, tuple(partitions), totals
        )

    def _measure(
        self, key: tuple[str, str, int], committed: int, ends: Ends, now_ms: int
    ) -> tuple[float, float] | None:
        window = self._rates.get(key)
        if window is None:
            # Beyond the bound, lag is known and its rate is not: catch-up is left out, not wrong.
            if len(self._rates) >= WATCHED_MAX:
                return None
            window = self._rates[key] = RateWindow()
        window.note(now_ms, committed, ends.end_offset)
        return window.rates(now_ms, committed, ends.end_offset)

    async def _forget_rates(self, pace: LoopSlices) -> None:
        """Forget positions that no group has any more."""
        # As many windows as positions, or fewer: at most as much memory as the groups themselves
        # have, so the walk over all windows can wait.
        if len(self._rates) <= sum(len(each.partitions) for each in self.latest):
            return
        kept: dict[tuple[str, str, int], RateWindow] = {}
        for group in self.latest:
            for each in group.partitions:
                key = (group.group_id, each.topic, each.partition)
                window = self._rates.get(key)
                if window is not None:
                    kept[key] = window
                await pace.step()
        self._rates = kept


def is_usable(partition: Partition) -> bool:
    """Whether the end of a partition, as this broker knows it, is the end for readers."""
    if not partition.is_leader:
        return partition.is_copy
    try:
        partition.check_end_known()
    except LogError:
        return False
    return True


def ends_of(partition: Partition) -> Ends:
    """Return the ends of a partition with a log on this broker."""
    return Ends(partition.log.log_start_offset, partition.high_watermark)


def _timestamp_of(
    where: Where, committed: int, ends: Ends, findings: _Findings, wall_ms: int
) -> int | None:
    """Return the timestamp of the next record, now if there is none, None if it is not known."""
    offset = ends.next_offset(committed)
    record = None if offset is None else findings.records.get((*where, offset))
    if record is None:
        return None
    # There is no record up to the end: markers and compacted offsets only. The next record is one
    # that is written from now on, so its age is 0.
    if record.offset is None:
        return wall_ms
    return record.timestamp_ms if record.timestamp_ms >= 0 else None
