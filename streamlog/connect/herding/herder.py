"""Herder: the decisions of a group that runs connectors, as one machine in each worker.

In come the records of the configs and status topics, rounds of the group, requests, discovered
parts, and what became of tasks; out come effects (`herder_requests`). Rules: what a group wants is
what its configs topic says, and it counts when it is read back; only the leader writes there, so a
request is answered once its records have been read back. Time is passed in.

Not done here: which worker gets which slot (the worker's placement), and tasks at work
(`connect_tasks`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, cast

import msgspec

from streamlog.connect.herding.configs import (
    COMMIT,
    CONNECTOR,
    CONNECTOR_BYTES_MAX,
    CONNECTORS_MAX,
    LOGGER,
    RESTART,
    TARGET_STATE,
    TASK_PARTS,
    TASKS_MAX,
    ConfigRecord,
    ConnectConfigs,
    RestartRequest,
    connector_record,
    deletion_records,
    level_record,
    restart_record,
    target_record,
    task_records,
)
from streamlog.connect.herding.dealing import deal
from streamlog.connect.herding.herder_requests import (
    BAD_REQUEST,
    CONFLICT,
    INTERNAL_ERROR,
    NOT_FOUND,
    AskRound,
    ConnectorSlot,
    ConnectRefusal,
    DeleteConnector,
    Discover,
    Effect,
    LevelChanged,
    PatchConnector,
    PutConnector,
    Request,
    RequestAnswer,
    RestartConnector,
    RestartTask,
    SetLevel,
    SetTarget,
    Write,
    WriteStatus,
)
from streamlog.connect.herding.lifecycle import VERSION, ConnectorState, TargetState
from streamlog.connect.herding.own_tasks import OwnTasks, RestartWaits, StartCounts
from streamlog.connect.herding.statuses import ConnectStatuses, Status, StatusKey, short_trace
from streamlog.errors import ConfigError

REQUEST_TIMEOUT_MS: Final = 30_000
"""How long a request waits until its records have been read back."""
REQUESTS_MAX: Final = 256
"""How many requests wait at a time; one more is refused."""
DISCOVER_MS: Final = 30_000
"""How often the leader looks for new parts, by default."""
DISCOVER_EVERY: Final = "discover.every.ms"
"""Ours: the setting of a connector that changes it."""
TASKS_MAX_SETTING: Final = "tasks.max"

ConnectorType: TypeAlias = Literal["source", "sink", "unknown"]
Part: TypeAlias = Mapping[str, object]


class Plugins(Protocol):
    """What the herder needs to know of the connectors that are installed."""

    def kind(self, settings: Mapping[str, str]) -> ConnectorType:
        """Return whether settings are those of a source or a sink; unknown: no such class."""

    def faults(self, settings: Mapping[str, str]) -> Sequence[str]:
        """Return a sentence for each setting that is wrong."""


@dataclass(slots=True)
class _Waiting:
    """A request whose records are on their way."""

    request: int
    last: ConfigRecord
    deadline_ms: int
    status: int
    name: str
    has_body: bool


@dataclass(slots=True)
class _Discovery:
    """When the leader looks for a source's parts again."""

    due_ms: int
    is_asked: bool = False
    is_start: bool = False
    """Whether the source starts: it was not asked with these settings before."""


class Herder:
    """The decisions of one worker, and of the group while it leads."""

    def __init__(self, worker_id: str, plugins: Plugins) -> None:
        """`worker_id` is HOST:PORT of the worker's REST address."""
        self.configs = ConnectConfigs()
        self.statuses = ConnectStatuses()
        self.own = OwnTasks(worker_id, self.configs, self.statuses)
        self.is_leader = False
        self.generation = 0
        """The generation of the group in the last round."""
        self.starts = StartCounts()
        """Of connectors: the leader starts all of them."""
        self._worker_id = worker_id
        self._plugins = plugins
        self._has_round = False
        self._waiting: list[_Waiting] = []
        self._discoveries: dict[str, _Discovery] = {}
        self._slot_counts: Mapping[str, int] = {}
        self._slots_until = -1
        """The offset of the configs behind which these slots are."""

    # ---------------------------------------------------------------------------- events

    def replayed(
        self, key: bytes | None, value: bytes | None, offset: int, now_ms: int
    ) -> list[Effect]:
        """Apply a record of the configs topic.

        Args:
            key: the record's key.
            value: its value.
            offset: its offset.
            now_ms: the time.
        """
        name = self.configs.replay(key, value, offset)
        text = (key or b"").decode("utf-8", "replace")
        if name is not None and text.startswith(COMMIT):
            self.own.dealt(name, offset)
        elif name is not None and name not in self.configs.connectors:
            # A connector that is created again under this name begins without a dealing.
            self.own.forget(name)
        effects: list[Effect] = []
        # Until the first round, records are the past: an old wish to restart restarts nothing.
        if self._has_round:
            if text.startswith(LOGGER):
                logger = text.removeprefix(LOGGER)
                # None: the record deletes the level, or is malformed and no earlier one was not.
                level = self.configs.levels.get(logger)
                effects += [] if level is None else [LevelChanged(logger, level)]
            elif name is not None:
                effects += self._changed(name, text, now_ms)
        effects += self._answers(key, value)
        return effects

    def status_replayed(self, key: bytes | None, value: bytes | None) -> list[Effect]:
        """Apply a record of the status topic."""
        changed = self.statuses.replay(key, value)
        if changed is None or changed[1] is None:
            return []
        status = self.statuses.statuses.get(changed)
        slot = ConnectorSlot(changed[0], changed[1])
        return [] if status is None else list(self.own.contradicted(slot, status))

    def on_round(
        self,
        slots: Collection[ConnectorSlot],
        *,
        until: int,
        generation: int,
        is_leader: bool,
        now_ms: int,
    ) -> list[Effect]:
        """Take the outcome of a round of the group.

        Args:
            slots: the slots of this worker.
            until: the offset of the configs up to which dealings count; it has been replayed.
            generation: the group's generation.
            is_leader: whether this worker leads the group.
            now_ms: the time.
        """
        effects: list[Effect] = []
        was_leader, self.is_leader = self.is_leader, is_leader
        self.generation = generation
        if not self._has_round:
            self._has_round = True
            effects += [LevelChanged(*level) for level in self.configs.levels.items()]
        effects += self.own.on_round(slots, until, generation)
        if not is_leader:
            # 1. The leader's transaction with the records of a request is refused, as the group
            # has gone to the next generation. 2. Nothing of it is ever read back. So the request
            # is answered here; the client looks before it repeats it.
            effects += self._refuse_waiting("a rebalance has given the group another leader")
            self._discoveries.clear()
        elif not was_leader:
            # The leader before may have ended between a change and the dealing that follows it.
            for name in sorted(self.configs.connectors):
                effects += self._plan(name, now_ms)
        return effects

    def asked(self, number: int, request: Request, now_ms: int) -> list[Effect]:
        """Take a request; only the leader decides about those that write.

        Args:
            number: the request's number, for the `RequestAnswer`.
            request: what is asked.
            now_ms: the time.

        Raises:
            ConnectRefusal: the request is refused at once.
        """
        if isinstance(request, RestartTask):
            return [*self._restart_task(request.slot), RequestAnswer(number, 204)]
        if not self.is_leader:
            raise ConnectRefusal(
                CONFLICT, "Cannot complete request momentarily: this worker does not lead the group"
            )
        if len(self._waiting) >= REQUESTS_MAX:
            raise ConnectRefusal(CONFLICT, f"{REQUESTS_MAX} requests wait already; try again later")
        name, records, status, has_body = self._decide(request)
        deadline_ms = now_ms + REQUEST_TIMEOUT_MS
        self._waiting.append(_Waiting(number, records[-1], deadline_ms, status, name, has_body))
        return [Write(tuple(records))]

    def found(
        self, connector: str, settings: Mapping[str, str], parts: Sequence[Part], now_ms: int
    ) -> list[Effect]:
        """Take the parts of a source that a `Discover` has found.

        Args:
            connector: its name.
            settings: the settings with which it was asked.
            parts: the parts that there are.
            now_ms: the time.
        """
        # 1. `Discover` asks for the tables of a database. 2. Meanwhile the settings name another
        # one. 3. The tables that arrive now are not those of the connector any more.
        if not self._is_current(connector, settings):
            return []
        is_start = self._discovered(connector, settings, now_ms)
        before = [_parts_of(task) for task in self.configs.tasks.get(connector, ())]
        try:
            dealt = deal(
                dict.fromkeys(map(_canonical, parts)), before, tasks_max=_tasks_max(settings)
            )
        except ConfigError as error:
            self.starts.failures += is_start
            return self._connector_status(connector, ConnectorState.FAILED, str(error))
        self.starts.successes += is_start
        tasks = [{**settings, TASK_PARTS: f"[{','.join(task)}]"} for task in dealt]
        running = self._connector_status(connector, ConnectorState.RUNNING)
        return [*running, *self._deal(connector, tasks)]

    def not_found(
        self, connector: str, settings: Mapping[str, str], trace: str, now_ms: int
    ) -> list[Effect]:
        """Note that a `Discover` has failed; it is repeated, and tasks keep what they read.

        Args:
            connector: its name.
            settings: the settings with which it was asked.
            trace: the error with its traceback.
            now_ms: the time.
        """
        if not self._is_current(connector, settings):
            return []
        self.starts.failures += self._discovered(connector, settings, now_ms)
        return self._connector_status(connector, ConnectorState.FAILED, trace)

    def task_began(self, slot: ConnectorSlot, now_ms: int) -> list[Effect]:
        """Note that a task of this worker runs."""
        return list(self.own.began(slot, now_ms))

    def task_failed(
        self, slot: ConnectorSlot, trace: str, now_ms: int, waits: RestartWaits | None
    ) -> list[Effect]:
        """Note that a task of this worker has ended with an error.

        Args:
            slot: the task.
            trace: the error with its traceback.
            now_ms: the time.
            waits: how long to wait for a restart; None if none helps.
        """
        return list(self.own.failed(slot, trace, now_ms, waits))

    def tick(self, now_ms: int) -> list[Effect]:
        """Return what is due: restarts, discoveries, and answers to requests that took too long."""
        effects: list[Effect] = list(self.own.tick(now_ms))
        for waiting in [each for each in self._waiting if now_ms >= each.deadline_ms]:
            self._waiting.remove(waiting)
            effects.append(_refusal(waiting.request, INTERNAL_ERROR, "Request timed out"))
        for name, discovery in self._discoveries.items():
            if not discovery.is_asked and now_ms >= discovery.due_ms:
                discovery.is_asked = True
                effects.append(Discover(name, self.configs.connectors[name]))
        return effects

    # ---------------------------------------------------------------------------- reads

    def slot_counts(self) -> Mapping[str, int]:
        """Return how many slots of each connector the group has to place, by the last dealings."""
        # Looked at several times a second, with up to 10,000 slots that seldom change.
        if self._slots_until != self.configs.next_offset:
            self._slots_until = self.configs.next_offset
            self._slot_counts = {
                name: len(tasks)
                for name, tasks in sorted(self.configs.tasks.items())
                if tasks and self.configs.target(name) is not TargetState.STOPPED
            }
        return self._slot_counts

    def is_at_rest(self, name: str) -> bool:
        """Return whether no worker can commit for a connector: it is stopped, and a round says so.

        A worker that has not heard of that round can commit nothing, as the group has gone on.
        """
        is_stopped = self.configs.target(name) is TargetState.STOPPED
        return is_stopped and not self.configs.tasks.get(name) and self.own.is_counted(name)

    def kind(self, name: str) -> ConnectorType:
        """Return whether a connector is a source or a sink."""
        return self._plugins.kind(self.configs.connectors[name])

    def info(self, name: str) -> dict[str, object]:
        """Return a connector as `GET /connectors/NAME` shows it.

        Raises:
            ConnectRefusal: 404, there is none of this name.
        """
        if name not in self.configs.connectors:
            raise ConnectRefusal(NOT_FOUND, f"Connector {name} not found")
        tasks = range(len(self.configs.tasks.get(name, ())))
        return {
            "name": name,
            "config": self.configs.connectors[name],
            "tasks": [{"connector": name, "task": task} for task in tasks],
            "type": self.kind(name),
        }

    # ---------------------------------------------------------------------------- requests

    def _decide(self, request: Request) -> tuple[str, list[ConfigRecord], int, bool]:
        """Return the connector, the records, and the status and shape of the answer."""
        known = self.configs.connectors
        match request:
            case PutConnector(name, settings, is_new, target):
                exists = name in known
                self._check(name, settings, exists=exists)
                if is_new and exists:
                    raise ConnectRefusal(CONFLICT, f"Connector {name} already exists")
                states = [] if target is None or exists else [target_record(name, target)]
                record = connector_record(name, settings)
                return name, [*states, record], 200 if exists else 201, True
            case PatchConnector(name, changes):
                _require(name in known, f"Connector {name} not found")
                merged = {**known.get(name, {}), **changes}
                settings = {each: text for each, text in merged.items() if text is not None}
                self._check(name, settings, exists=True)
                return name, [connector_record(name, settings)], 200, True
            case DeleteConnector(name):
                _require(name in known, f"Connector {name} not found")
                return name, list(deletion_records(name)), 204, False
            case SetTarget(name, target):
                _require(name in known, f"Unknown connector {name}")
                status = 204 if target is TargetState.STOPPED else 202
                return name, [target_record(name, target)], status, False
            case RestartConnector(name, include_tasks, only_failed):
                _require(name in known, f"Unknown connector: {name}")
                wish = RestartRequest(include_tasks, only_failed)
                is_plain = not include_tasks and not only_failed
                return name, [restart_record(name, wish)], 204 if is_plain else 202, not is_plain
            case SetLevel(logger, level):
                return "", [level_record(logger, level)], 204, False
        raise ConnectRefusal(BAD_REQUEST, f"{type(request).__name__} is not for the leader")

    def _check(self, name: str, settings: Mapping[str, str], *, exists: bool) -> None:
        """Raise ConnectRefusal if settings are wrong, or too large."""
        if not exists and len(self.configs.connectors) >= CONNECTORS_MAX:
            raise ConnectRefusal(
                BAD_REQUEST, f"the group has {CONNECTORS_MAX} connectors, its limit"
            )
        size = len(connector_record(name, settings)[1] or b"")
        if size > CONNECTOR_BYTES_MAX:
            raise ConnectRefusal(
                BAD_REQUEST,
                f"the configuration of {name} has {size} bytes; the limit is {CONNECTOR_BYTES_MAX}",
            )
        if not settings.get("connector.class"):
            raise ConnectRefusal(BAD_REQUEST, "Connector config contains no connector type")
        if faults := self._plugins.faults(settings):
            listed = "\n".join(faults)
            raise ConnectRefusal(
                BAD_REQUEST,
                f"Connector configuration is invalid and contains the following {len(faults)}"
                f" error(s):\n{listed}\nYou can also find the above list of errors at the endpoint"
                " `/connector-plugins/{connectorType}/config/validate`",
            )

    def _restart_task(self, slot: ConnectorSlot) -> list[Effect]:
        _require(slot.connector in self.configs.connectors, f"Unknown connector: {slot.connector}")
        tasks = self.configs.tasks.get(slot.connector, ())
        _require(slot.task < len(tasks), f"Unknown task: {slot.connector}-{slot.task}")
        if not self.own.has(slot):
            raise ConnectRefusal(
                CONFLICT,
                f"Cannot complete request: another worker has {slot.connector}-{slot.task}",
            )
        return list(self.own.restart(slot))

    def _answers(self, key: bytes | None, value: bytes | None) -> Iterator[Effect]:
        """Yield the answer to the oldest request whose last record has been read back."""
        # Bytes decide, not a number: another leader may have written the same meanwhile, and
        # then what was asked for holds just as well.
        waiting = next((each for each in self._waiting if each.last == (key, value)), None)
        if waiting is None:
            return
        self._waiting.remove(waiting)
        body: object = None
        name = waiting.name
        if waiting.has_body and name in self.configs.connectors:
            if not (key or b"").startswith(RESTART.encode()):
                body = self.info(name)
            elif self.statuses.connector(name) is not None:
                body = self._restarting(name)
        yield RequestAnswer(waiting.request, waiting.status, body)

    def _restarting(self, name: str) -> dict[str, object]:
        """Return a connector's state, with that to which a wish to restart it leads."""
        wish = self.configs.restarts[name][1]
        body = self.status(name)
        own = cast("dict[str, object]", body["connector"])
        tasks = cast("list[dict[str, object]]", body["tasks"]) if wish.include_tasks else []
        for each in (own, *tasks):
            if not wish.only_failed or each["state"] == ConnectorState.FAILED.value:
                each["state"] = ConnectorState.RESTARTING.value
        return body

    def _refuse_waiting(self, why: str) -> Iterator[Effect]:
        for waiting in self._waiting:
            yield _refusal(
                waiting.request,
                CONFLICT,
                f"Cannot complete request momentarily: {why}; whether it took effect is unknown",
            )
        self._waiting.clear()

    def status(self, name: str) -> dict[str, object]:
        """Return a connector's state as `GET /connectors/NAME/status` shows it.

        Raises:
            ConnectRefusal: 404, nothing is known of it.
        """
        found = self.statuses.connector(name)
        if found is None or name not in self.configs.connectors:
            raise ConnectRefusal(NOT_FOUND, f"No status found for connector {name}")
        return {
            "name": name,
            "connector": status_body(found),
            "tasks": [
                {"id": task, **status_body(each)} for task, each in self.statuses.tasks_of(name)
            ],
            "type": self.kind(name),
        }

    # ---------------------------------------------------------------------------- the leader

    def _changed(self, name: str, key: str, now_ms: int) -> Iterator[Effect]:
        """Yield what follows from a record about a connector."""
        if key.startswith(RESTART):
            yield from self._restart(name, self.configs.restarts[name][1], now_ms)
            return
        yield from self.own.settle(name)
        if not self.is_leader:
            return
        if key.startswith(COMMIT):
            yield from self._forget_tasks(name, len(self.configs.tasks.get(name, ())))
            yield AskRound()
        elif key.startswith((CONNECTOR, TARGET_STATE)):
            yield from self._plan(name, now_ms)

    def _restart(self, name: str, wish: RestartRequest, now_ms: int) -> Iterator[Effect]:
        if wish.include_tasks:
            # Each worker restarts its own tasks as it reads the wish: no round is needed, and
            # no call between workers.
            for slot in self.own.of(name):
                if not wish.only_failed or self.own.state(slot) is ConnectorState.FAILED:
                    yield from self.own.restart(slot)
        found = self.statuses.connector(name)
        has_failed = found is not None and found.state is ConnectorState.FAILED
        if self.is_leader and (has_failed or not wish.only_failed):
            yield from self._plan(name, now_ms)

    def _plan(self, name: str, now_ms: int) -> Iterator[Effect]:
        """Yield what gives a connector the tasks that its settings and target state ask for."""
        settings = self.configs.connectors.get(name)
        self._discoveries.pop(name, None)
        if settings is None:
            yield from self._forget_tasks(name, 0)
            if self.statuses.connector(name) is not None:
                yield WriteStatus((name, None), None)
            yield AskRound()
            return
        target = self.configs.target(name)
        if target is TargetState.STOPPED:
            yield from self._connector_status(name, ConnectorState.STOPPED)
            yield from self._deal(name, [])
            return
        self.starts.attempts += 1
        kind = self._plugins.kind(settings)
        if kind == "unknown":
            self.starts.failures += 1
            missing = settings.get("connector.class", "")
            yield from self._connector_status(
                name,
                ConnectorState.FAILED,
                f"no connector of the class {missing!r} is installed here",
            )
            return
        state = ConnectorState.PAUSED if target is TargetState.PAUSED else ConnectorState.RUNNING
        if kind == "sink":
            self.starts.successes += 1
            yield from self._connector_status(name, state)
            yield from self._deal(name, [dict(settings)] * _tasks_max(settings))
            return
        if state is ConnectorState.PAUSED:
            yield from self._connector_status(name, state)
        self._discoveries[name] = _Discovery(now_ms, is_asked=True, is_start=True)
        yield Discover(name, settings)

    def _deal(self, name: str, tasks: Sequence[Mapping[str, str]]) -> list[Effect]:
        """Return the write of a dealing, unless it is the one that there is."""
        before = self.configs.tasks.get(name, [])
        # Written again all the same where a worker that starts would replay it otherwise, and have
        # no tasks at all.
        if list(tasks) == before and name not in self.configs.inconsistent:
            return []
        if self.configs.task_count() - len(before) + len(tasks) > TASKS_MAX:
            why = f"the group would have more than {TASKS_MAX} tasks, its limit"
            return self._connector_status(name, ConnectorState.FAILED, why)
        return [Write(tuple(task_records(name, tasks)))]

    def _forget_tasks(self, name: str, count: int) -> Iterator[Effect]:
        """Yield the deletion of the statuses of tasks that no longer exist."""
        for task, _ in list(self.statuses.tasks_of(name)):
            if task >= count:
                yield WriteStatus((name, task), None)

    def _connector_status(
        self, name: str, state: ConnectorState, trace: str | None = None
    ) -> list[Effect]:
        key: StatusKey = (name, None)
        if state is ConnectorState.RUNNING and self.configs.target(name) is TargetState.PAUSED:
            state = ConnectorState.PAUSED
        status = Status(
            state=state,
            worker_id=self._worker_id,
            generation=self.generation,
            trace=None if trace is None else short_trace(trace),
            version=VERSION
            if name in self.configs.connectors and self.kind(name) != "unknown"
            else None,
        )
        return [] if self.statuses.statuses.get(key) == status else [WriteStatus(key, status)]

    def _is_current(self, name: str, settings: Mapping[str, str]) -> bool:
        """Return whether what was found is still asked for."""
        return (
            self.is_leader
            and self.configs.connectors.get(name) == settings
            and self.configs.target(name) is not TargetState.STOPPED
        )

    def _discovered(self, name: str, settings: Mapping[str, str], now_ms: int) -> bool:
        """Plan the next discovery; returns whether this one has started the source."""
        before = self._discoveries.get(name)
        every = settings.get(DISCOVER_EVERY, "")
        every_ms = int(every) if every.isdecimal() and len(every) <= 12 else DISCOVER_MS  # noqa: PLR2004 - 30 years
        self._discoveries[name] = _Discovery(now_ms + every_ms)
        return before is not None and before.is_start


def status_body(status: Status) -> dict[str, object]:
    """Return a status as the REST API shows it; what it lacks, it has no field for."""
    body: dict[str, object] = {"state": status.state.value, "worker_id": status.worker_id}
    if status.version is not None:
        body["version"] = status.version
    return body if status.trace is None else {**body, "trace": status.trace}


def _require(holds: bool, why_not: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise ConnectRefusal(NOT_FOUND, why_not)


def _refusal(request: int, status: int, message: str) -> RequestAnswer:
    return RequestAnswer(request, status, {"error_code": status, "message": message})


def _tasks_max(settings: Mapping[str, str]) -> int:
    text = settings.get(TASKS_MAX_SETTING, "1").strip()
    # Validation has seen it; a record of another writer may still have anything here.
    return min(int(text), TASKS_MAX) if text.isdecimal() and 0 < len(text) < 10 else 1  # noqa: PLR2004 - of int32


def _canonical(part: Part) -> str:
    """Return a part as JSON text; equal as JSON is equal as text."""
    return msgspec.json.encode(part, order="sorted").decode()


def _parts_of(task: Mapping[str, str]) -> list[str]:
    """Return the parts that a task was dealt, as texts; none if the record is malformed."""
    try:
        parts = msgspec.json.decode(task.get(TASK_PARTS, "[]"), type=list[dict[str, object]])
    except (msgspec.MsgspecError, RecursionError):
        return []
    return [_canonical(part) for part in parts]
