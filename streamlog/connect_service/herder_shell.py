"""ConnectService: the shell of the herder: its topics, its tasks, and the answers to requests.

Three compacted topics hold what Kafka Connect's hold: configurations, offsets, statuses. The topic
of configs is written by one transactional producer for the whole group. A process that opens it
fences the one before, which ends with its next write: so one process runs a group at a time.

Rule: an effect of the herder is performed in the order in which it came; nothing is answered before
its records are read back.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
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
from streamlog.connect.herding.statuses import status_record
from streamlog.connect.parts import OffsetBook
from streamlog.connect_service.configured import InstalledPlugins, configured, with_secrets
from streamlog.connect_service.task_keeper import COMMIT_MS, KeeperDeps, TaskKeeper
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.records.batch import LogRecord
from streamlog.worker.connect.compacted_topic import CompactedTopic
from streamlog.worker.connect.source_slots import LoopClock

logger = repeated.logger(__name__)

TICK_MS: Final = 250
ANSWER_MS: Final = 30_000
"""How long a request waits for its answer; the herder's own limit comes first."""


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
    others: Mapping[str, str] = field(default_factory=dict)
    """All settings as they were given, for converters."""


@dataclass(frozen=True, slots=True)
class _OffsetWrite:
    """Offsets that an operator sets."""

    records: tuple[tuple[bytes, bytes | None], ...]
    written: asyncio.Future[None]


class ConnectService:
    """The service of one process; `open_service` opens it."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        settings: ServiceSettings,
        *,
        worker_id: str,
        resolve: Callable[[str], str],
        set_level: Callable[[str, str], None],
    ) -> None:
        """Create a service that has read nothing yet; see `open_service`."""
        self.settings, self.log = settings, log
        self.worker_id = worker_id
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
        self._answers: dict[int, asyncio.Future[RequestAnswer]] = {}
        self._writes: asyncio.Queue[Write | WriteStatus | _OffsetWrite] = asyncio.Queue()
        self._keeper: TaskKeeper | None = None
        self._background: asyncio.TaskGroup | None = None
        self._generation = 0
        self._wants_round = asyncio.Event()
        self._asked = 0
        self.ready = asyncio.Event()
        """Set once everything that the topics say has been read and begun."""

    # ---------------------------------------------------------------------------- requests

    async def ask(self, request: Request) -> RequestAnswer:
        """Return the answer to a request.

        Raises:
            ConnectRefusal: it is refused.
        """
        if not self.ready.is_set():
            raise ConnectRefusal(503, "The service starts: its topics are not read yet")
        # Numbers only tell answers apart; a client that has left gets none.
        self._asked += 1
        number, waiting = self._asked, asyncio.get_running_loop().create_future()
        self._answers[number] = waiting
        try:
            self._perform(self.herder.asked(number, request, self._clock.now_ms()))
            async with asyncio.timeout(ANSWER_MS / 1000):
                answer: RequestAnswer = await waiting
        except TimeoutError:
            raise ConnectRefusal(500, "Request timed out") from None
        finally:
            del self._answers[number]
        return answer

    # ---------------------------------------------------------------------------- tasks

    def began(self, slot: ConnectorSlot) -> None:
        """Tell the herder that a task runs."""
        self._perform(self.herder.task_began(slot, self._clock.now_ms()))

    def failed(self, slot: ConnectorSlot, trace: str, *, may_pass: bool) -> None:
        """Tell the herder that a task has ended with an error."""
        now_ms = self._clock.now_ms()
        self._perform(self.herder.task_failed(slot, trace, now_ms, may_pass=may_pass))

    def declare(self, name: str, settings: Mapping[str, str]) -> SourceConnector | SinkConnector:
        """Return the connector of a configuration, its secrets resolved.

        Raises:
            ConfigError: a setting is wrong, or a secret can't be found.
        """
        connector = configured(name, settings, self.settings.others)
        if (idle := without_effect(settings)) and self._warned.get(name) != idle:
            self._warned[name] = idle
            logger.warning("connector %r: %s: without effect here", name, ", ".join(idle))
        return with_secrets(connector, self._resolve)

    # ---------------------------------------------------------------------------- offsets

    @property
    def task_clock(self) -> LoopClock:
        """The clock of connectors."""
        return LoopClock(self._clock)

    async def write_offsets(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write offsets of a stopped source, as an operator sets them; all of them or none.

        Raises:
            ProducerFenced: another process has taken the group over.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes.put_nowait(_OffsetWrite(tuple(records), written))
        await written

    # ---------------------------------------------------------------------------- running

    async def run(self, background: asyncio.TaskGroup, leader: Producer, plain: Producer) -> None:
        """Read the topics, begin what they say, and go on until cancelled.

        Args:
            background: runs tasks and discoveries.
            leader: the group's transactional producer; it is open, so others are fenced.
            plain: writes statuses and dead letters.
        """
        self._background = background
        self._keeper = TaskKeeper(self._keeper_deps(plain), self, background)
        topics = (self.configs_log, self.status_log, self.offsets_log)
        for topic in topics:
            await topic.open()
        async with asyncio.TaskGroup() as group:
            for topic in topics:
                group.create_task(topic.run(), name="connect topic")
            # The leader's producer is open, so no process before writes any more: the end of
            # the topics is the whole of what it has written.
            await self.status_log.catch_up()
            await self.configs_log.catch_up()
            group.create_task(self._keeper.run(), name="connect tasks")
            group.create_task(self._write(leader, plain), name="connect writer")
            self._round()
            self.ready.set()
            while True:
                await self._wait_for_round()
                # Time passes for the herder whether or not there was a round.
                self._perform(self.herder.tick(self._clock.now_ms()))

    def _keeper_deps(self, plain: Producer) -> KeeperDeps:
        return KeeperDeps(
            log=self.log,
            clock=self._clock,
            group_id=self.settings.group_id,
            offsets=self.offsets,
            offsets_topic=self.settings.offsets_topic,
            follower=self.offsets_log,
            letters=plain,
            declare=self.declare,
            commit_ms=self.settings.commit_ms,
        )

    async def _wait_for_round(self) -> None:
        """Make a round if the herder asks for one within a tick."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK_MS / 1000):
                await self._wants_round.wait()
        # Dealings that follow each other closely are one round.
        if self._wants_round.is_set():
            self._round()

    def _round(self) -> None:
        """Make a round: the group is this process, so it ends at once."""
        self._wants_round.clear()
        self._generation += 1
        self._perform(
            self.herder.on_round(
                self.herder.slots(),
                until=self.herder.configs.next_offset,
                generation=self._generation,
                is_leader=True,
                now_ms=self._clock.now_ms(),
            )
        )

    async def _write(self, leader: Producer, plain: Producer) -> None:
        while True:
            write = await self._writes.get()
            if isinstance(write, WriteStatus):
                key, value = status_record(*write.key, write.status)
                sent = await plain.send(self.settings.status_topic, value, key=key)
                # A status that is lost is written again with the next change; nothing waits for it.
                sent.add_done_callback(lambda done: done.cancelled() or done.exception())
                continue
            topic = self.settings.configs_topic
            if isinstance(write, _OffsetWrite):
                topic = self.settings.offsets_topic
            async with leader.transaction():
                for key, value in write.records:
                    sent = await leader.send(topic, value, key=key)
                    # The commit fails if it is lost.
                    sent.add_done_callback(lambda done: done.cancelled() or done.exception())
            if isinstance(write, _OffsetWrite) and not write.written.done():
                write.written.set_result(None)

    # An effect is data, and this is the one function that acts: it must not wait, since records are
    # replayed meanwhile. What takes time goes into a queue, in the order in which it was asked for.
    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write() | WriteStatus():
                    self._writes.put_nowait(effect)
                case RequestAnswer(number):
                    waiting = self._answers.get(number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(effect)
                case AskRound():
                    self._wants_round.set()
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

    def _on_status(self, record: LogRecord) -> None:
        self.herder.status_replayed(record.key, record.value)

    def _on_offset(self, record: LogRecord) -> None:
        self.offsets.replay(record.key, record.value)


@asynccontextmanager
async def open_service(
    log: Log,
    clock: Clock,
    settings: ServiceSettings,
    *,
    worker_id: str,
    resolve: Callable[[str], str],
    set_level: Callable[[str, str], None],
) -> AsyncIterator[ConnectService]:
    """Run a service in the block.

    Args:
        log: the log, open.
        clock: the time.
        settings: the worker's settings.
        worker_id: HOST:PORT of its REST address.
        resolve: replaces references to secrets in a text.
        set_level: sets the level of a logger.

    Raises:
        ProducerFenced: another process has taken the group over.
        StreamlogError: the log can't be used.
    """
    service = ConnectService(
        log, clock, settings, worker_id=worker_id, resolve=resolve, set_level=set_level
    )
    identity = f"{settings.group_id}-leader"
    async with (
        log.producer() as plain,
        log.producer(transactional_id=identity) as leader,
        asyncio.TaskGroup() as background,
    ):
        running = background.create_task(service.run(background, leader, plain), name="connect")
        try:
            yield service
        finally:
            running.cancel()
