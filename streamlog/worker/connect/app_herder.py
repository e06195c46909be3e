"""AppHerder: the shell of the herder in an app, whose connectors are declared in its code.

Operators pause, resume, stop and restart them, and set their offsets, as in a service: by records
in `<app>-connect-configs`, which every worker follows, with states in `<app>-connect-status`.
The herder decides (`connect/herding`); what it writes goes into the worker's own commit, which the
group takes from a member of the present generation only.

Rule: nothing is answered before its records are read back, and what was decided under one
leadership is not written under another. Not done here: tasks at work (`connect_room`), and HTTP
(`connect_service`).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamlog.connect.connector_errors import ConnectError
from streamlog.connect.declared_connectors import Connector, SinkConnector, SourceConnector
from streamlog.connect.herding.configs import CONNECTOR
from streamlog.connect.herding.herder import (
    DISCOVER_EVERY,
    TASKS_MAX_SETTING,
    ConnectorType,
    Herder,
)
from streamlog.connect.herding.herder_requests import (
    CONFLICT,
    AskRound,
    ConnectorSlot,
    ConnectRefusal,
    Discover,
    Effect,
    LevelChanged,
    PauseTask,
    Request,
    RequestAnswer,
    StartTask,
    StopTask,
    Write,
    WriteStatus,
)
from streamlog.connect.herding.lifecycle import TargetState
from streamlog.connect.parts import OffsetBook, part_id
from streamlog.connect.source import SourcePartition
from streamlog.processing.outbox import SinkBatch
from streamlog.records.batch import LogRecord
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.connect.compacted_topic import CompactedTopic
from streamlog.worker.connect.connector_topics import ConnectorTopics
from streamlog.worker.connect.herder_callers import Callers, WriteCaller, not_written, written
from streamlog.worker.connect.logger_levels import set_level
from streamlog.worker.connect.session_keys import SessionKeys
from streamlog.worker.connect.source_slots import LoopClock
from streamlog.worker.connect.status_writer import StatusWrite, StatusWriter
from streamlog.worker.program import Program
from streamlog.worker.task_deps import TaskDeps

OFFSETS_PARTITIONS: Final = 5
"""The partitions of an app's new offsets topic."""
TICK_MS: Final = 250
MOVED_ON_S: Final = 0.05
PREFIX: Final = "/connect"
"""Where the REST API is on a worker's HTTP server."""
TaskCommand = StartTask | StopTask | PauseTask


class DeclaredPlugins:
    """The connectors of an app, as the herder asks for them; a `Plugins`."""

    def __init__(self, connectors: Sequence[Connector]) -> None:
        self._by_name = {each.name: each for each in connectors}

    def kind(self, settings: Mapping[str, str]) -> ConnectorType:
        """Return whether settings are those of a source or a sink."""
        found = self._by_name.get(settings.get("name", ""))
        if found is None:
            return "unknown"
        return "source" if isinstance(found, SourceConnector) else "sink"

    def faults(self, settings: Mapping[str, str]) -> Sequence[str]:
        """Return no faults: what is declared was checked then."""
        del settings
        return ()


def shown_settings(connector: Connector, partitions: int) -> dict[str, str]:
    """Return what Kafka Connect's configuration of a declared connector would begin with.

    Args:
        connector: the connector.
        partitions: of a sink, the partitions of its topics; a task without one is not started.
    """
    shown = {"name": connector.name}
    if isinstance(connector, SourceConnector):
        topics = sorted({spec.name for spec in connector.topics.values()})
        return {
            **shown,
            "connector.class": type(connector.source).__name__,
            TASKS_MAX_SETTING: str(connector.tasks),
            DISCOVER_EVERY: str(connector.discover_every_ms),
            "topic": ",".join(topics),
        }
    return {
        **shown,
        "connector.class": type(connector.sink).__name__,
        TASKS_MAX_SETTING: str(min(connector.tasks, partitions)),
        "topics": ",".join(spec.name for spec in connector.topics),
    }


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Records for the next commit, and the caller that waits for it."""

    batch: SinkBatch
    caller: WriteCaller = None


class AppGroup:
    """The workers of an app, as the REST API asks for them."""

    def __init__(self, exchange: StreamsAssignor, is_settled: Callable[[], bool]) -> None:
        self._exchange, self._is_settled = exchange, is_settled

    @property
    def is_settled(self) -> bool:
        """Whether this worker is a member, and the last round is carried out."""
        return self._is_settled()

    @property
    def peers(self) -> Sequence[str]:
        """HOST:PORT of all workers of the last round."""
        return [each.endpoint for each in self._exchange.peers.all]

    @property
    def leader_endpoint(self) -> str:
        """HOST:PORT of the leader; empty if it is not known, or has no HTTP server."""
        leader = self._exchange.peers.leader
        return "" if leader is None else leader.endpoint

    async def moved_on(self) -> None:
        """Wait a moment: the worker polls the group all the time."""
        await asyncio.sleep(MOVED_ON_S)


class AppHerder:
    """The decisions about an app's connectors on one worker, and what operators ask."""

    is_declared = True
    """The code of the app is the configuration: the REST API can't change it."""
    prefix = PREFIX
    """Where the REST API is on the workers' HTTP servers."""
    others: Mapping[str, str] = {}
    """A worker's settings for converters: an app has none."""

    def __init__(
        self,
        program: Program,
        counts: Mapping[str, int],
        deps: TaskDeps,
        exchange: StreamsAssignor,
        *,
        do: Callable[[TaskCommand], None],
        discover: Callable[[str], None],
        is_settled: Callable[[], bool],
    ) -> None:
        """Create a herder that has read nothing yet.

        Args:
            program: the app.
            counts: the partitions of its topics.
            deps: the objects of the worker.
            exchange: the worker's view of the group.
            do: starts, stops and pauses tasks; called in the order of the effects.
            discover: asks a source for its parts.
            is_settled: returns whether the last round of the group is carried out.
        """
        self._program, self._deps, self._exchange = program, deps, exchange
        self._do, self._discover, self._is_settled = do, discover, is_settled
        self.declared = {each.name: each for each in program.connectors}
        self.worker_id = exchange.endpoint or exchange.peers.process
        """HOST:PORT of the worker's HTTP server; its name if it has none."""
        self.herder = Herder(self.worker_id, DeclaredPlugins(program.connectors))
        self._declare(counts)
        self.offsets = OffsetBook()
        app_id, follow, self.log = program.app_id, CompactedTopic, deps.log
        self.configs_topic = f"{app_id}-connect-configs"
        self.offsets_topic = f"{app_id}-connect-offsets"
        self._status_topic = f"{app_id}-connect-status"
        self.configs_log = follow(deps.log, self.configs_topic, 1, self._on_config)
        self.status_log = follow(deps.log, self._status_topic, 1, self._on_status)
        self.offsets_log = follow(deps.log, self.offsets_topic, OFFSETS_PARTITIONS, self._on_offset)
        self.group = AppGroup(exchange, is_settled)
        self.keys = SessionKeys(deps.clock)
        self.connector_topics = ConnectorTopics(self.herder, self._status_topic, deps.clock, {})
        self.connector_topics.write_with(deps.producer, self.status_log)
        self.ready = asyncio.Event()
        """Set once the group has given this worker its tasks."""
        self._callers = Callers()
        self._ticked_ms = deps.clock.now_ms()
        self._writes: list[_Waiting] = []
        self._in_flight: list[_Waiting] = []
        self._statuses: asyncio.Queue[StatusWrite] = asyncio.Queue()

    def _declare(self, counts: Mapping[str, int]) -> None:
        # Sinks need no dealing until an operator stops one, so a new app starts them in its first
        # round. Records of the topic replace what is set here.
        configs = self.herder.configs
        for name, each in self.declared.items():
            partitions = (
                sum(counts[spec.name] for spec in each.topics)
                if isinstance(each, SinkConnector)
                else 0
            )
            settings = shown_settings(each, partitions)
            configs.connectors[name] = settings
            if isinstance(each, SinkConnector):
                tasks = min(each.tasks, partitions)
                configs.tasks[name] = [dict(settings) for _ in range(tasks)]
                self.herder.own.dealt(name, -1)

    @property
    def has_sources(self) -> bool:
        """Whether the app has sources."""
        return bool(self._program.source_connectors)

    # ---------------------------------------------------------------------------- requests

    async def ask(self, request: Request) -> RequestAnswer:
        """Return the answer to a request.

        Raises:
            ConnectRefusal: it is refused.
        """
        return await self._callers.ask(
            lambda number: self._perform(
                self.herder.asked(number, request, self._deps.clock.now_ms())
            )
        )

    def declare(self, name: str, settings: Mapping[str, str]) -> Connector:
        """Return a connector of the app."""
        del settings
        return self.declared[name]

    @property
    def group_id(self) -> str:
        """The group of the workers."""
        return self._program.app_id

    @property
    def own_topics(self) -> Mapping[str, str]:
        """What the names of the app's own topics begin with, those of connectors included."""
        return {f"{self._program.app_id}-": "the app's own topics"}

    @property
    def shared_ids(self) -> str:
        """What the transactional ids of the workers begin with; "" without transactions."""
        return f"{self._program.app_id}-" if self._program.is_transactional else ""

    def sink_group(self, name: str) -> str:
        """Return the consumer group of a sink."""
        return f"{self._program.app_id}-{name}"

    @property
    def task_clock(self) -> LoopClock:
        """The clock of connectors."""
        return LoopClock(self._deps.clock)

    async def write_offsets(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write offsets of a stopped source, as an operator sets them; all of them or none.

        Raises:
            ConnectRefusal: this worker does not lead the group any more.
        """
        if not self.herder.is_leader:
            why = "Cannot complete request momentarily: this worker does not lead the group"
            raise ConnectRefusal(CONFLICT, why)
        if not records:
            return
        caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(self.offsets_topic, None, records, caller)
        await caller

    # ---------------------------------------------------------------------------- running

    async def open(self) -> list[asyncio.Task[None]]:
        """Create the topics, read them, and return what follows them."""
        topics = [self.configs_log, self.status_log]
        if self.has_sources:
            topics.append(self.offsets_log)
        begin = self._deps.background.create_task
        running = []
        for topic in topics:
            await topic.open()
            running.append(begin(topic.run(), name="connect topic"))
        # Before the worker joins: a leader without the dealing would deal everything anew.
        await self.configs_log.catch_up()
        await self.status_log.catch_up()
        running.append(begin(self._write_statuses(), name="connect statuses"))
        return running

    def close(self) -> None:
        """Refuse what still waits."""
        self._refuse([*self._in_flight, *self._writes])

    def on_round(
        self, slots: Collection[ConnectorSlot], *, until: int, generation: int, is_leader: bool
    ) -> None:
        """Take the outcome of a round of the group; see `Herder.on_round`."""
        if not is_leader:
            # Another worker leads, and decides by what the topic says.
            waiting, self._writes = self._writes, []
            self._refuse(waiting)
        now_ms = self._deps.clock.now_ms()
        self._perform(
            self.herder.on_round(
                slots, until=until, generation=generation, is_leader=is_leader, now_ms=now_ms
            )
        )

    def tick(self) -> None:
        """Do what is due, once the last round is carried out."""
        now_ms = self._deps.clock.now_ms()
        if now_ms - self._ticked_ms < TICK_MS or not self._is_settled():
            return
        self._ticked_ms = now_ms
        self._perform(self.herder.tick(now_ms))
        # Workers without an HTTP server are asked nothing, so they need no key.
        if self.herder.is_leader and self._program.web is not None:
            record = self.keys.renewal(self.herder.configs.session_key)
            if record is not None:
                self._perform([Write((record,))])

    def slot_counts(self) -> tuple[Mapping[str, int], int]:
        """Return the number of tasks of each connector, and the offset of the configs behind."""
        # By the newest dealing, together with the offset behind it: members count up to there.
        return self.herder.slot_counts(), self.herder.configs.next_offset

    # ---------------------------------------------------------------------------- tasks

    def began(self, slot: ConnectorSlot) -> None:
        """Note that a task runs."""
        self._perform(self.herder.task_began(slot, self._deps.clock.now_ms()))

    def on_parts(self, connector: SourceConnector, parts: Sequence[SourcePartition]) -> None:
        """Deal the parts that a source has now, unless they are dealt already.

        Raises:
            ConnectError: the source names a part twice.
        """
        if len({part_id(part) for part in parts}) != len(parts):
            raise ConnectError(f"source {connector.name!r} names a part twice in its partitions()")
        settings = self.herder.configs.connectors[connector.name]
        now_ms = self._deps.clock.now_ms()
        found = [dict(part) for part in parts]
        self._perform(self.herder.found(connector.name, settings, found, now_ms))

    def on_no_parts(self, connector: SourceConnector, error: Exception) -> bool:
        """Show that a source can't be reached; returns whether its parts are still wanted."""
        settings = self.herder.configs.connectors[connector.name]
        trace = "".join(traceback.format_exception(error))
        now_ms = self._deps.clock.now_ms()
        self._perform(self.herder.not_found(connector.name, settings, trace, now_ms))
        is_stopped = self.herder.configs.target(connector.name) is TargetState.STOPPED
        return self.herder.is_leader and not is_stopped

    # ---------------------------------------------------------------------------- commits

    @property
    def has_writes(self) -> bool:
        """Whether something waits for a commit, which need not wait for its time then."""
        return bool(self._writes)

    @property
    def is_writing(self) -> bool:
        """Whether the commit under way has records of the herder."""
        return bool(self._in_flight)

    def take(self) -> list[SinkBatch]:
        """Return what belongs to the present commit."""
        self._in_flight += self._writes
        self._writes = []
        return [each.batch for each in self._in_flight]

    def counted(self) -> None:
        """Note that the commit has succeeded."""
        for each in self._in_flight:
            written(each.caller)
        self._in_flight = []

    def undone(self) -> None:
        """Note that the commit was undone: what it had is written by the next one."""
        # A dealing that is written twice is harmless: the later one counts, with equal tasks.
        self._writes, self._in_flight = [*self._in_flight, *self._writes], []

    # ---------------------------------------------------------------------------- inside

    # An effect is data, and this is the one function that acts: it must not wait, since records are
    # replayed meanwhile.
    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write(records):
                    self._put(self.configs_topic, 0, records)
                case WriteStatus():
                    self._statuses.put_nowait(effect)
                case RequestAnswer():
                    self._callers.answer(effect)
                case AskRound():
                    self._deps.consumer.enforce_rebalance()
                case LevelChanged(name, level):
                    set_level(name, level)
                case Discover(name):
                    self._discover(name)
                case _:
                    self._do(effect)

    def _put(
        self,
        topic: str,
        partition: int | None,
        records: Sequence[tuple[bytes, bytes | None]],
        caller: WriteCaller = None,
    ) -> None:
        times = [self._deps.clock.wall_ms()] * len(records)
        keys: list[bytes | None] = [key for key, _ in records]
        values = [value for _, value in records]
        self._writes.append(_Waiting(SinkBatch(topic, partition, times, keys, values), caller))
        # The worker's loop may be in a poll that has nothing to return.
        self._deps.consumer.wakeup()

    def _refuse(self, waiting: Sequence[_Waiting]) -> None:
        for each in waiting:
            not_written(each.caller)

    async def _write_statuses(self) -> None:
        writer = StatusWriter(self._deps.producer, self._status_topic, self._statuses.put_nowait)
        while True:
            await writer.write(await self._statuses.get())

    def _on_config(self, record: LogRecord) -> None:
        key, value = record.key, record.value
        if key is not None and key.startswith(CONNECTOR.encode()):
            # The code is the configuration, whatever someone has written here.
            key, value = None, None
        now_ms = self._deps.clock.now_ms()
        self._perform(self.herder.replayed(key, value, record.offset, now_ms))
        self.keys.follow(self.herder.configs.session_key)

    def _on_status(self, record: LogRecord) -> None:
        self._perform(self.herder.status_replayed(record.key, record.value))

    def _on_offset(self, record: LogRecord) -> None:
        self.offsets.replay(record.key, record.value)
