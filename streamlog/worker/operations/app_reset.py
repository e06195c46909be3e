"""App reset: removes what an app has stored, so that its workers start as they did the first time.

It does what Kafka Streams' `kafka-streams-application-reset` does, and also removes the state on
this machine. `plan_reset` decides from facts, without I/O; `AppReset` collects the facts and does
what the plan says.

The order makes an interruption harmless, because a repetition finds what is left:

1. The group is deleted. Brokers refuse that while it has members, so a worker that joined since the
   plan was made ends the reset before anything was changed.
2. The version log gives up the changelogs. State of them on other machines is deleted there when a
   worker opens it, without asking again.
3. The note of the last hand-over goes, before the changelogs: a worker must not fill an empty store
   from the snapshot's files.
4. Changelogs and repartition topics are deleted, then the state on this machine.
5. For another start than the beginning, each task with state gets a changelog again, which holds
   the new positions, in one transaction with the group's offsets.

Not done here: output topics, dead letters, runs of schedules, positions of connectors, and
snapshots stay. An app that starts over writes its rows behind those of before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from streamlog.client.admin import TopicDescription
from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata
from streamlog.client.offset_targets import Target
from streamlog.client.producer import Producer
from streamlog.clock import Clock, SystemClock
from streamlog.errors import LogDirectoryLocked, LogError, UsageError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.record_columns import FieldColumns
from streamlog.tables.local_disk.task_directory import AbandonedTasks, tasks_with_state
from streamlog.tables.state.changelog import PROGRESS_KEY, SourceLog, TaskProgress
from streamlog.worker.operations.hand_over import refuse_members
from streamlog.worker.program import Program
from streamlog.worker.state.restore import OWNER_KEY
from streamlog.worker.topics.app_topics import ensure_topics, read_whole_topic
from streamlog.worker.topics.contract_log import read_contracts
from streamlog.worker.topics.version_log import (
    GIVEN_UP_MAX,
    VERSION_TOPIC_SUFFIX,
    OwnTopics,
    VersionLog,
    decode_own_topics,
    hand_over_topic,
    version_topic,
)

Offsets = Mapping[TopicPartition, int]

LOOK_MS: Final = 100
GONE_LOOKS_MAX: Final = 300
"""Half a minute: Kafka deletes topics in the background."""


class ResetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an app has stored, on its log and on this machine."""

    app_id: str
    topics: Collection[str]
    """All topics of the log."""
    own: Collection[str]
    """The changelogs and repartition topics of the program, and those that former versions have
    recorded."""
    owners: Mapping[str, str]
    """Topic to another app that has recorded it as its own, or that reads or writes it."""
    committed: Offsets
    """The group's offsets."""
    targets: Offsets
    """Where each partition of the sources begins again."""
    state_path: str
    state_tasks: tuple[str, ...]
    """The tasks with state on this machine."""


class ResetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset changes."""

    app_id: str
    before: Offsets
    """The group's offsets in sources."""
    after: Offsets
    """Where the app begins again."""
    changelogs: tuple[str, ...]
    repartitions: tuple[str, ...]
    hand_overs: str | None
    """The topic that says with which snapshot the state has begun; None if there is none."""
    state_path: str
    state_tasks: tuple[str, ...]

    @property
    def deleted(self) -> list[str]:
        """The topics that the reset deletes, in order."""
        first = [] if self.hand_overs is None else [self.hand_overs]
        return [*first, *self.repartitions, *self.changelogs]


def plan_reset(facts: ResetFacts) -> ResetPlan:
    """Return what a reset of an app changes.

    Raises:
        UsageError: a topic to delete belongs to another app as well.
    """
    # A changelog of a version from before topic ids were recorded is known by its name alone. The
    # number is all of the middle: `shop` never takes `shop-2-0-changelog` of the app `shop-2`.
    named = re.compile(re.escape(facts.app_id) + r"-\d+-changelog")
    own = {*facts.own, *(name for name in facts.topics if named.fullmatch(name))}
    there = sorted(own & {*facts.topics})
    for name in there:
        if name in facts.owners:
            raise UsageError(
                f"topic {name!r} of app {facts.app_id!r} also belongs to app "
                f"{facts.owners[name]!r}, so it is not deleted, and nothing was changed: give one "
                "of the two apps another id"
            )
    hand_overs = hand_over_topic(facts.app_id)
    changelogs = tuple(name for name in there if name.endswith("-changelog"))
    return ResetPlan(
        app_id=facts.app_id,
        before={part: at for part, at in facts.committed.items() if part.topic not in own},
        after=facts.targets,
        changelogs=changelogs,
        repartitions=tuple(name for name in there if name not in changelogs),
        hand_overs=hand_overs if hand_overs in facts.topics else None,
        state_path=facts.state_path,
        state_tasks=facts.state_tasks,
    )


def given_up_by(before: OwnTopics, present: Mapping[str, bytes], plan: ResetPlan) -> OwnTopics:
    """Return the record of topic ids after a reset; `present` has the ids of deleted topics."""
    gone = {*plan.changelogs, *plan.repartitions}
    lost = [*present.values(), *(at for name, at in before.ids.items() if name in gone)]
    # The newest come last, because the oldest are dropped.
    new = [at for at in dict.fromkeys(lost) if at not in before.given_up]
    return OwnTopics(
        ids={name: at for name, at in before.ids.items() if name not in gone},
        given_up=(*before.given_up, *new)[-GIVEN_UP_MAX:],
    )


class AppReset:
    """The reset of one app; first `plan`, then `execute`."""

    def __init__(self, program: Program, log: Log, *, clock: Clock | None = None) -> None:
        self._program = program
        self._log = log
        self._admin = log.admin()
        self._clock = clock or SystemClock()

    async def plan(self, target: Target | None) -> ResetPlan:
        """Return what a reset would change; changes nothing.

        Args:
            target: where the app begins again; None is the beginning of each source.

        Raises:
            UsageError: a topic to delete belongs to another app as well.
            UnknownTopicOrPartition: a source does not exist.
        """
        program = await self._resolved()
        app_id, topology = program.app_id, program.topology
        topics = {each.name for each in await self._admin.list_topics()}
        # Former versions of the program had other nodes, and so other topics.
        recorded = await self._recorded()
        internal = {each.name for each in topology.topics.values() if each.internal}
        changelogs = {sub.changelog_topic for sub in topology.subtopologies if sub.changelog_topic}
        path = program.state_path
        facts = ResetFacts(
            app_id=app_id,
            topics=topics,
            own=internal | changelogs | recorded.ids.keys(),
            owners=await self._owners(),
            committed=await self._admin.group_offsets(app_id),
            targets=await self._targets(program, topics, target),
            state_path=path,
            state_tasks=tuple(f"{sub}_{part}" for sub, part in tasks_with_state(path)),
        )
        return plan_reset(facts)

    async def execute(self, plan: ResetPlan, *, is_from_beginning: bool) -> None:
        """Carry a plan out. After an error, repeat it: what is done already is no obstacle.

        Raises:
            UsageError: workers of the app are running; nothing was changed.
            LogDirectoryLocked: a process on this machine has state open.
            StreamlogError: the log can't be reached, or refuses a change.
        """
        app_id = plan.app_id
        await refuse_members(self._log, app_id)
        # The brokers' own check of members: what follows can't be taken back.
        await self._delete_group()
        await self._give_up(plan)
        # One after another: the order counts if the process is killed in between.
        for name in plan.deleted:
            await self._admin.delete_topics([name])
        await self._wait_until_gone(plan.deleted)
        await asyncio.to_thread(_remove_state, plan)
        if not is_from_beginning:
            await self._begin_at(plan.after)

    async def _resolved(self) -> Program:
        """Return the program with the topics that its patterns stand for now."""
        if not self._program.patterns:
            return self._program
        names = [each.name for each in await self._admin.list_topics()]
        return self._program.resolved(self._program.match(names))

    async def _recorded(self) -> OwnTopics:
        topic = version_topic(self._program.app_id)
        return decode_own_topics(await read_whole_topic(self._log, topic))

    async def _owners(self) -> dict[str, str]:
        """Return which topics other apps have recorded as their own, or read and write."""
        found: dict[str, str] = {}
        contracts = (await read_contracts(self._log)).contracts
        for topic in await self._admin.list_topics():
            app = topic.name.removesuffix(VERSION_TOPIC_SUFFIX)
            if app in (topic.name, self._program.app_id):
                continue
            records = await read_whole_topic(self._log, topic.name)
            found |= dict.fromkeys(decode_own_topics(records).ids, app)
            contract = contracts.get(app)
            found |= dict.fromkeys(() if contract is None else contract.topics, app)
        return found

    async def _targets(
        self, program: Program, topics: Collection[str], target: Target | None
    ) -> Offsets:
        # A source that is missing has no positions; the next worker says so, or creates it.
        names = [name for name in program.outer_sources if name in topics]
        parts = _partitions(await self._admin.describe_topics(names)) if names else []
        if not parts:
            return {}
        async with self._log.consumer() as consumer:
            return await (
                consumer.begin_offsets(parts) if target is None else target(consumer, parts)
            )

    async def _delete_group(self) -> None:
        try:
            await self._admin.delete_groups([self._program.app_id])
        except LogError as error:
            # An app with state only, or a reset that was interrupted: there is nothing to delete.
            if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
                return
            if error.code == ErrorCode.NON_EMPTY_GROUP:
                await refuse_members(self._log, self._program.app_id)
            raise

    async def _give_up(self, plan: ResetPlan) -> None:
        """Record that this program's state begins anew; see the module."""
        program = await self._resolved()
        if version_topic(plan.app_id) not in {t.name for t in await self._admin.list_topics()}:
            return  # The app has never run.
        versions = VersionLog(self._log, program.declared or program.topology, program.connectors)
        # A changed program loses no state either: there is none to lose.
        await versions.settle(accept_state_loss=True)
        found = await self._admin.find_topics([*plan.changelogs, *plan.repartitions])
        present = {each.name: each.topic_id for each in found if each.topic_id != ZERO_UUID}
        before = await self._recorded()
        record = given_up_by(before, present, plan).encode()
        async with self._log.producer(linger_ms=0) as producer:
            await (await producer.send(version_topic(plan.app_id), record, partition=0))

    async def _wait_until_gone(self, names: Collection[str]) -> None:
        for _ in range(GONE_LOOKS_MAX):
            if not names or not await self._admin.find_topics(names):
                return
            await asyncio.sleep(LOOK_MS / 1000)
        raise LogError(
            f"the brokers have not deleted {', '.join(names)} yet: repeat the reset in a while"
        )

    async def _begin_at(self, offsets: Offsets) -> None:
        """Write the positions: to the group, and as the progress of each task with state."""
        program = await self._resolved()
        counts = await ensure_topics(
            self._log, program.topology, program.topics, required=program.outer_sources
        )
        found = await self._admin.find_topics(program.outer_sources)
        ids = {each.name: each.topic_id for each in found}
        async with (
            self._log.producer(linger_ms=0, transactional_id=f"{program.app_id}-reset") as producer,
            producer.transaction() as transaction,
        ):
            for sub in program.topology.subtopologies:
                for number in range(sub.tasks(counts) if sub.changelog_topic else 0):
                    own = {
                        part: at
                        for part, at in offsets.items()
                        if part.partition == number and part.topic in sub.inputs
                    }
                    changelog = TopicPartition(sub.changelog_topic or "", number)
                    await self._write_progress(producer, changelog, own, ids)
            if offsets:
                moved = {part: OffsetAndMetadata(at) for part, at in offsets.items()}
                await transaction.send_offsets(moved, GroupMetadata(group_id=program.app_id))
            # After the offsets: a worker that joins now waits for the end of the transaction.
            await refuse_members(self._log, program.app_id)

    async def _write_progress(
        self,
        producer: Producer,
        changelog: TopicPartition,
        offsets: Offsets,
        ids: Mapping[str, bytes],
    ) -> None:
        """Write the first records of a changelog: a fence, as each owner does, and positions."""
        progress = TaskProgress(
            offsets={(part.topic, part.partition): at for part, at in offsets.items()},
            logs={part: SourceLog(ids.get(part.topic, b"")) for part in offsets},
        )
        now_ms, records = self._clock.wall_ms(), FieldColumns()
        records.extend([now_ms] * 2, [OWNER_KEY, PROGRESS_KEY], [b"", progress.encode()])
        await (await producer.send_batch(*changelog, records))


def _partitions(topics: Collection[TopicDescription]) -> list[TopicPartition]:
    return [TopicPartition(each.name, n) for each in topics for n in range(each.partitions)]


def _remove_state(plan: ResetPlan) -> None:
    """Remove the tasks' state from this machine.

    Raises:
        LogDirectoryLocked: a process has some of it open.
    """
    # One look is enough to count as abandoned: the app has no members.
    AbandonedTasks(plan.state_path, delay_ms=0).remove(0)
    if left := [f"{sub}_{part}" for sub, part in tasks_with_state(plan.state_path)]:
        raise LogDirectoryLocked(
            f"state of {', '.join(left)} in {plan.state_path} is open in another process: end that "
            "process, and repeat the reset"
        )
