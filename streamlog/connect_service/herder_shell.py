"""ConnectService: the shell of the herder: its topics, its tasks, and the answers to requests.

Three compacted topics hold what Kafka Connect's hold: configurations, offsets, statuses. Workers
with one `group.id` share the connectors (`service_group`); their leader decides about changes and
writes them, and every worker follows what the topics say.

Rule: an effect of the herder is performed in the order in which it came; nothing is answered before
its records are read back.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.connect.common_settings import without_effect
from streamlog.connect.declared_connectors import SinkConnector, SourceConnector
from streamlog.connect.herding.herder import Herder
from streamlog.connect.herding.herder_requests import (
    AskRound,
    ConnectorSlot,
    ConnectRefusal,
    Discover,
    Effect,
    LevelChanged,
    Request,
    RequestAnswer,
    Write,
    WriteStatus,
)
from streamlog.connect.herding.own_tasks import RestartWaits, outlook
from streamlog.connect.parts import OffsetBook
from streamlog.connect_service.configured import (
    InstalledPlugins,
    configured,
    strange_settings,
)
from streamlog.connect_service.service_group import (
    GroupRound,
    GroupTimes,
    ServiceGroup,
    ServiceWriter,
    leader_id,
)
from streamlog.connect_service.task_keeper import COMMIT_MS, KeeperDeps, TaskKeeper
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.metrics.process import process_metrics
from streamlog.metrics.registry import Registry
from streamlog.records.batch import LogRecord
from streamlog.replace import replace
from streamlog.worker.connect.compacted_topic import CompactedTopic
from streamlog.worker.connect.connect_metrics import ConnectMetrics
from streamlog.worker.connect.connector_topics import ConnectorTopics
from streamlog.worker.connect.herder_callers import Callers
from streamlog.worker.connect.session_keys import KEY_TTL_MS, SessionKeys
from streamlog.worker.connect.source_slots import LoopClock

logger = repeated.logger(__name__)

TICK_MS: Final = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """A worker's settings, by Kafka Connect's names."""

    group_id: str = "connect-cluster"
    configs_topic: str = "connect-configs"
    offsets_topic: str = "connect-offsets"
    status_topic: str = "connect-status"
    offsets_partitions: int = 25
    status_partitions: int = 5
    commit_ms: int = COMMIT_MS
    times: GroupTimes = field(default_factory=GroupTimes)
    key_ttl_ms: int = KEY_TTL_MS
    """How long workers sign their requests with one key (`inter.worker.key.ttl.ms`)."""
    others: Mapping[str, str] = field(default_factory=dict)
    """All settings as they were given, for converters."""


class ConnectService:
    """The service of one process; `open_service` opens it."""

    is_declared = False
    """Connectors are configurations, which clients create and change."""
    prefix = ""
    """The REST API has the HTTP server for itself."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        settings: ServiceSettings,
        *,
        worker_id: str,
        resolve: Callable[[str], str],
        set_level: Callable[[str, str], None],
        instance_id: str | None = None,
    ) -> None:
        """Create a service that has read nothing yet; see `open_service`."""
        self.settings, self.log, self.worker_id = settings, log, worker_id
        self.herder = Herder(worker_id, InstalledPlugins(settings.others))
        self.offsets = OffsetBook()
        self._warned: dict[str, list[str]] = {}
        """By connector, its settings without effect that the log has named."""
        self._clock, self._resolve, self._set_level = clock, resolve, set_level
        follow = CompactedTopic
        self.configs_log = follow(log, settings.configs_topic, 1, self._on_config)
        self.status_log = follow(
            log, settings.status_topic, settings.status_partitions, self._on_status
        )
        self.offsets_log = follow(
            log, settings.offsets_topic, settings.offsets_partitions, self._on_offset
        )
        self.group = ServiceGroup(
            log,
            settings.group_id,
            settings.configs_topic,
            clock=clock,
            endpoint=worker_id,
            instance_id=instance_id,
            times=settings.times,
            slot_counts=self._slot_counts,
            on_round=self._on_round,
        )
        self.keys = SessionKeys(clock, ttl_ms=settings.key_ttl_ms)
        """The keys with which the workers sign their requests to each other."""
        self._writer = ServiceWriter(
            log,
            self.group,
            group_id=settings.group_id,
            configs_topic=settings.configs_topic,
            status_topic=settings.status_topic,
        )
        self.connector_topics = ConnectorTopics(
            self.herder, settings.status_topic, clock, settings.others
        )
        self._callers, self._wants_round = Callers(), False
        self._keeper: TaskKeeper | None = None
        self._background: asyncio.TaskGroup | None = None
        self.registry, self.ready = Registry(), asyncio.Event()
        """Set once the topics have been read, and the group has given this worker its tasks."""

    # ---------------------------------------------------------------------------- requests

    async def ask(self, request: Request) -> RequestAnswer:
        """Return the answer to a request.

        Raises:
            ConnectRefusal: it is refused.
        """
        if not self.ready.is_set():
            raise ConnectRefusal(503, "The service starts: its topics are not read yet")
        return await self._callers.ask(
            lambda number: self._perform(self.herder.asked(number, request, self._clock.now_ms()))
        )

    # ---------------------------------------------------------------------------- tasks

    def began(self, slot: ConnectorSlot) -> None:
        """Tell the herder that a task runs."""
        self._perform(self.herder.task_began(slot, self._clock.now_ms()))

    def failed(
        self, slot: ConnectorSlot, error: Exception, trace: str, waits: RestartWaits | None
    ) -> None:
        """Tell the herder that a task has ended with an error.

        Args:
            slot: the task.
            error: why, for the log.
            trace: the same for the status.
            waits: how long to wait for a restart; None if none helps.
        """
        now_ms = self._clock.now_ms()
        self._perform(self.herder.task_failed(slot, trace, now_ms, waits))
        wait_ms = self.herder.own.restart_in_ms(slot, now_ms)
        logger.warning("task %s-%d failed: %s; %s", *slot, error, outlook(slot.connector, wait_ms))

    def declare(self, name: str, settings: Mapping[str, str]) -> SourceConnector | SinkConnector:
        """Return the connector of a configuration, its secrets resolved.

        Raises:
            ConfigError: a setting is wrong, or a secret can't be found.
        """
        connector = configured(name, settings, self.settings.others, self._resolve)
        idle, strange = without_effect(settings), strange_settings(settings)
        if (named := [*idle, *strange]) and self._warned.get(name) != named:
            self._warned[name] = named
            if idle:
                logger.warning("connector %r: %s: without effect here", name, ", ".join(idle))
            if strange:
                logger.warning("connector %r: no such settings: %s", name, ", ".join(strange))
        return connector

    # ---------------------------------------------------------------------------- offsets

    @property
    def others(self) -> Mapping[str, str]:
        """The worker's settings, as they were given."""
        return self.settings.others

    @property
    def group_id(self) -> str:
        """The group of the workers."""
        return self.settings.group_id

    @property
    def own_topics(self) -> Mapping[str, str]:
        """The topics of the group, and what they hold."""
        return {
            self.settings.configs_topic: "configurations",
            self.settings.offsets_topic: "offsets of sources",
            self.settings.status_topic: "statuses",
        }

    @property
    def shared_ids(self) -> str:
        """The transactional id of the worker that leads."""
        return leader_id(self.settings.group_id)

    def sink_group(self, name: str) -> str:
        """Return the consumer group of a sink."""
        return f"connect-{name}"

    @property
    def task_clock(self) -> LoopClock:
        """The clock of connectors."""
        return LoopClock(self._clock)

    async def write_offsets(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write offsets of a stopped source, as an operator sets them; all of them or none.

        Raises:
            ConnectRefusal: this worker does not lead the group any more.
        """
        await self._writer.write_offsets(self.settings.offsets_topic, records)

    # ---------------------------------------------------------------------------- running

    async def read_stored(self) -> None:
        """Take over what the topics say now, as no member of the group.

        Nothing runs and nothing is written: what acts on effects begins with `run`.

        Raises:
            ConfigError: the topics do not exist.
            StreamlogError: they can't be read.
        """
        for topic in (self.status_log, self.configs_log):
            await topic.read_once()

    async def run(
        self, background: asyncio.TaskGroup, statuses: Producer, letters: Producer
    ) -> None:
        """Read the topics, join the group, and do what it says until cancelled.

        Args:
            background: runs tasks and discoveries.
            statuses: writes statuses.
            letters: writes dead letters. Another producer, because `flush` raises the first error
                of any record: a status that is refused would fail a sink.
        """
        self._background = background
        self.connector_topics.write_with(statuses, self.status_log)
        self._keeper = keeper = TaskKeeper(self._keeper_deps(letters), self, background)
        connectors = ConnectMetrics(keeper.figures, self._clock)
        for collector in (connectors.collect, self.group.metrics, process_metrics):
            self.registry.collect(collector)
        topics = (self.configs_log, self.status_log, self.offsets_log)
        for topic in topics:
            await topic.open()
        # The group outlives the tasks: their last commits are those of a member.
        async with self.group, asyncio.TaskGroup() as group:
            for topic in topics:
                group.create_task(topic.run(), name="connect topic")
            await self.status_log.catch_up()
            await self.configs_log.catch_up()
            group.create_task(keeper.run(), name="connect tasks")
            group.create_task(self._writer.run(statuses), name="connect writer")
            group.create_task(self.group.run(), name="connect group")
            await self.ready.wait()
            while True:
                await asyncio.sleep(TICK_MS / 1000)
                self._tick()

    def _tick(self) -> None:
        # Between two rounds nothing is started: it may be another worker's by now.
        if not self.group.is_settled:
            return
        self._perform(self.herder.tick(self._clock.now_ms()))
        if not self.herder.is_leader:
            return
        # Dealings that follow each other closely are one round. What a leader before has dealt and
        # no round has counted is found here as well.
        herder = self.herder
        if self._wants_round or herder.own.has_uncounted or self.group.is_outdated():
            self._wants_round = False
            self.group.ask_round()
        elif (record := self.keys.renewal(herder.configs.session_key)) is not None:
            self._perform([Write((record,))])

    def _slot_counts(self) -> tuple[Mapping[str, int], int]:
        return self.herder.slot_counts(), self.herder.configs.next_offset

    async def _on_round(self, given: GroupRound) -> None:
        """Carry out a round: tasks that another worker gets have ended when it returns."""
        if self._keeper is None:
            raise RuntimeError("a round before the service runs")
        if given.has_missed:
            # Nothing that was read meanwhile may count: others had these tasks.
            self._take(replace(given, slots=frozenset(), is_leader=False))
            self._writer.depose()
        await self.configs_log.read_to(given.until)
        if given.is_leader and not self.herder.is_leader:
            # 1. The producer opens, which aborts what the leader before has left open. 2. Then the
            # end of the topics is the whole of what it has written: the group refuses the rest.
            await self._writer.lead()
            await self.status_log.catch_up()
            await self.configs_log.catch_up()
            logger.info("this worker leads the group %s", self.settings.group_id)
        elif not given.is_leader and self.herder.is_leader:
            self._writer.depose()
        self._take(given)
        await self._keeper.settled()
        self.ready.set()

    def _take(self, given: GroupRound) -> None:
        effects = self.herder.on_round(
            given.slots,
            until=given.until,
            generation=given.generation,
            is_leader=given.is_leader,
            now_ms=self._clock.now_ms(),
        )
        # First: what ends now and is still this worker's makes its last commit as of this round.
        if self._keeper is not None:
            confirmed = self.herder.own.confirmed if not given.has_missed else frozenset()
            self._keeper.confirm(given.generation, confirmed)
        self._perform(effects)

    def _keeper_deps(self, letters: Producer) -> KeeperDeps:
        return KeeperDeps(
            log=self.log,
            clock=self._clock,
            group_id=self.settings.group_id,
            group=self.group,
            offsets=self.offsets,
            offsets_topic=self.settings.offsets_topic,
            follower=self.offsets_log,
            letters=letters,
            declare=self.declare,
            commit_ms=self.settings.commit_ms,
            topics=self.connector_topics,
            herder=self.herder,
        )

    # An effect is data, and this is the one function that acts: it must not wait, since records are
    # replayed meanwhile. What takes time goes into a queue, in the order in which it was asked for.
    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write() | WriteStatus():
                    self._writer.put(effect)
                case RequestAnswer():
                    self._callers.answer(effect)
                case AskRound():
                    self._wants_round = True
                case LevelChanged(logger_name, level):
                    self._set_level(logger_name, level)
                case Discover():
                    if self._background is not None:
                        self._background.create_task(self._discover(effect), name="discover")
                case _:
                    if self._keeper is not None:
                        self._keeper.do(effect)

    async def _discover(self, asked: Discover) -> None:
        name, herder = asked.connector, self.herder
        try:
            parts = await self._parts_of(name, asked.settings)
        except Exception as error:  # noqa: BLE001 - any error of a connector is its status
            logger.warning("source %s can't name its parts: %s", name, error)
            trace = "".join(traceback.format_exception(error))
            now_ms = self._clock.now_ms()
            self._perform(herder.not_found(name, asked.settings, trace, now_ms))
        else:
            self._perform(herder.found(name, asked.settings, parts, self._clock.now_ms()))

    async def _parts_of(self, name: str, settings: Mapping[str, str]) -> list[dict[str, object]]:
        connector = self.declare(name, settings)
        if not isinstance(connector, SourceConnector):
            raise ConfigError(f"connector {name} is no source")
        context = ConnectorContext(name, 0, LoopClock(self._clock))
        try:
            return [dict(part) for part in await connector.source.partitions(context)]
        finally:
            context.close()

    # ---------------------------------------------------------------------------- topics

    def _on_config(self, record: LogRecord) -> None:
        now_ms = self._clock.now_ms()
        self._perform(self.herder.replayed(record.key, record.value, record.offset, now_ms))
        self.keys.follow(self.herder.configs.session_key)

    def _on_status(self, record: LogRecord) -> None:
        self._perform(self.herder.status_replayed(record.key, record.value))

    def _on_offset(self, record: LogRecord) -> None:
        self.offsets.replay(record.key, record.value)


async def stored_service(log: Log, clock: Clock, settings: ServiceSettings) -> ConnectService:
    """Return a service as its topics describe it, to ask while no worker runs.

    References to secrets stay as they are: this machine may not have them.

    Raises:
        ConfigError: the topics do not exist.
        StreamlogError: they can't be read.
    """

    def keep_level(_logger: str, _level: str) -> None:
        """Leave the loggers of this process alone."""

    service = ConnectService(
        log, clock, settings, worker_id="", resolve=lambda text: text, set_level=keep_level
    )
    await service.read_stored()
    return service


@asynccontextmanager
async def open_service(
    log: Log,
    clock: Clock,
    settings: ServiceSettings,
    *,
    worker_id: str,
    resolve: Callable[[str], str],
    set_level: Callable[[str, str], None],
    instance_id: str | None = None,
) -> AsyncIterator[ConnectService]:
    """Run a worker of a service in the block.

    Args:
        log: the log, open.
        clock: the time.
        settings: the worker's settings.
        worker_id: HOST:PORT of its REST address, by which the others reach it.
        resolve: replaces references to secrets in a text.
        set_level: sets the level of a logger.
        instance_id: makes the worker a static member of the group: a later one with this id has its
            tasks without a rebalance.

    Raises:
        StreamlogError: the log can't be used, or the group not be joined.
    """
    service = ConnectService(
        log,
        clock,
        settings,
        worker_id=worker_id,
        resolve=resolve,
        set_level=set_level,
        instance_id=instance_id,
    )
    async with (
        log.producer() as statuses,
        log.producer() as letters,
        asyncio.TaskGroup() as background,
    ):
        work = service.run(background, statuses, letters)
        running = background.create_task(work, name="connect")
        try:
            yield service
        finally:
            running.cancel()
