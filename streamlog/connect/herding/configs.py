"""Configs: what the records of Kafka Connect's configs topic amount to.

`ConnectConfigs` follows the topic record by record; the functions below it make the records that
say so. Records are Kafka Connect's own (JsonConverter, schemas off), so a Connect cluster's topic
can be taken over, and the reverse. Rules: state comes from replay alone, and what is malformed or
unknown is passed over, as a record of a newer version must not stop a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

import msgspec

from streamlog.connect.herding.lifecycle import TargetState

TASK_PARTS: Final = "task.parts"
"""The setting of a source's task that has its parts, as a JSON array."""
JAVA_TASK: Final = "task.class"
"""A setting of each task that Kafka Connect has dealt; nothing reads it here."""
CONNECTOR: Final = "connector-"
TASK: Final = "task-"
COMMIT: Final = "commit-"
TARGET_STATE: Final = "target-state-"
RESTART: Final = "restart-connector-"
LOGGER: Final = "logger-cluster-"
TASKS_FENCING: Final = "tasks-fencing-"
SESSION_KEY: Final = "session-key"
CONNECTOR_BYTES_MAX: Final = 256 * 1024
"""The largest configuration of one connector."""
CONNECTORS_MAX: Final = 1_000
TASKS_MAX: Final = 10_000
"""The largest number of tasks of all connectors of a group."""

T = TypeVar("T")
ConfigRecord: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of a record of the topic; None deletes what the key names."""


class _Properties(msgspec.Struct):
    properties: dict[str, str | None]


class _TaskCount(msgspec.Struct):
    tasks: int


class _Target(msgspec.Struct, rename={"state_v2": "state.v2"}, omit_defaults=True):
    state: str
    state_v2: str | None = None


class RestartRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """An operator's wish to restart a connector, and which of its tasks (KIP-745)."""

    include_tasks: bool = False
    only_failed: bool = False


class SessionKey(msgspec.Struct, frozen=True, rename="kebab"):
    """The key with which workers sign requests to each other (KIP-507)."""

    key: str
    """The bytes, in base64."""
    algorithm: str
    creation_timestamp: int


class _Level(msgspec.Struct):
    level: str


@dataclass(slots=True)
class ConnectConfigs:
    """The state of the configs topic up to an offset."""

    next_offset: int = 0
    """Behind the last record that was replayed."""
    connectors: dict[str, dict[str, str]] = field(default_factory=dict)
    targets: dict[str, TargetState] = field(default_factory=dict)
    tasks: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """The settings of each task, by connector, as the last complete commit has them."""
    inconsistent: set[str] = field(default_factory=set)
    """Connectors to deal anew: their last commit lacks tasks, as compaction or a crash cut it, or
    lies before their settings."""
    restarts: dict[str, tuple[int, RestartRequest]] = field(default_factory=dict)
    """The last request to restart each connector, with its offset."""
    levels: dict[str, str] = field(default_factory=dict)
    """The levels of loggers that hold on all workers (KIP-976)."""
    session_key: SessionKey | None = None
    _uncommitted: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)

    def replay(self, key: bytes | None, value: bytes | None, offset: int) -> str | None:
        """Apply one record; returns the connector that it is about, None for none.

        Args:
            key: the key of the record; None is passed over.
            value: its value; None deletes.
            offset: its offset.
        """
        self.next_offset = offset + 1
        name = (key or b"").decode("utf-8", "replace")
        try:
            return self._apply(name, value, offset)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None

    def target(self, connector: str) -> TargetState:
        """Return what an operator wants a connector to be."""
        return self.targets.get(connector, TargetState.STARTED)

    def task_count(self) -> int:
        """Return the number of tasks of all connectors."""
        return sum(map(len, self.tasks.values()))

    def _apply(self, key: str, value: bytes | None, offset: int) -> str | None:
        if key == SESSION_KEY:
            self.session_key = None if value is None else _decode(value, SessionKey)
            return None
        if key.startswith(LOGGER):
            self._set_level(key.removeprefix(LOGGER), value)
            return None
        # The longer prefixes first: `restart-connector-x` does not begin with `connector-`, but a
        # connector may be called `target-state-x`, whose key is `connector-target-state-x`.
        for prefix, apply in (
            (TARGET_STATE, self._set_target),
            (CONNECTOR, self._set_connector),
            (COMMIT, self._commit),
        ):
            if key.startswith(prefix):
                return apply(key.removeprefix(prefix), value)
        if key.startswith(RESTART) and value is not None:
            name = key.removeprefix(RESTART)
            self.restarts[name] = (offset, _decode(value, RestartRequest))
            return name
        if key.startswith(TASK) and value is not None:
            name, _, number = key.removeprefix(TASK).rpartition("-")
            self._uncommitted.setdefault(name, {})[int(number)] = _settings(value)
            return name
        return None

    def _set_level(self, logger: str, value: bytes | None) -> None:
        if value is None:
            self.levels.pop(logger, None)
        else:
            self.levels[logger] = _decode(value, _Level).level

    def _set_target(self, name: str, value: bytes | None) -> str:
        if value is None:
            self.targets.pop(name, None)
            return name
        found = _decode(value, _Target)
        # Workers before KIP-875 read `state` alone, where STOPPED is written as PAUSED.
        self.targets[name] = TargetState(found.state_v2 or found.state)
        return name

    def _set_connector(self, name: str, value: bytes | None) -> str:
        if value is not None:
            self.connectors[name] = _settings(value)
            # 1. A dealing is committed. 2. The same settings are put again: their record has the
            # same key, and lies behind the dealing. 3. Compaction drops the first one. A worker
            # that joins then reads a dealing of no connector, passes it over, and runs no task of
            # it. So each record of a connector has a dealing of its own behind it.
            if self.tasks.get(name):
                self.inconsistent.add(name)
            return name
        # The target state goes as well: a connector that is created again under this name starts.
        for kept in (self.connectors, self.targets, self.tasks, self.restarts, self._uncommitted):
            kept.pop(name, None)
        self.inconsistent.discard(name)
        return name

    def _commit(self, name: str, value: bytes | None) -> str:
        dealt = self._uncommitted.pop(name, {})
        if value is None:
            return name
        count = _decode(value, _TaskCount).tasks
        # 1. A leader writes task-x-0, task-x-1 and commit-x of 2. 2. A later leader writes the
        # same keys again, and is killed before its commit. 3. Compaction drops the first two
        # records. Commit 1 is then replayed with no tasks before it: nothing of it may count.
        # More tasks than the commit has are no fault: of a dealing of two that one of a single
        # task follows, compaction keeps task-x-1, as no later record has its key.
        if not 0 <= count <= len(dealt) or any(number not in dealt for number in range(count)):
            self.inconsistent.add(name)
            return name
        self.inconsistent.discard(name)
        if name in self.connectors:
            self.tasks[name] = [dealt[number] for number in range(count)]
        return name


def connector_record(name: str, settings: Mapping[str, str] | None) -> ConfigRecord:
    """Return the record of a connector's configuration; None deletes the connector."""
    value = None if settings is None else _encode({"properties": dict(settings)})
    return f"{CONNECTOR}{name}".encode(), value


def task_records(name: str, tasks: Sequence[Mapping[str, str]]) -> list[ConfigRecord]:
    """Return the records of a dealing, the commit last; they belong into one transaction."""
    return [
        *(
            (f"{TASK}{name}-{number}".encode(), _encode({"properties": dict(settings)}))
            for number, settings in enumerate(tasks)
        ),
        (f"{COMMIT}{name}".encode(), _encode({"tasks": len(tasks)})),
    ]


def target_record(name: str, target: TargetState | None) -> ConfigRecord:
    """Return the record of a target state; None forgets it."""
    if target is None:
        return f"{TARGET_STATE}{name}".encode(), None
    before_kip_875 = TargetState.PAUSED if target is TargetState.STOPPED else target
    states = {"state": before_kip_875.value, "state.v2": target.value}
    return f"{TARGET_STATE}{name}".encode(), _encode(states)


def restart_record(name: str, request: RestartRequest) -> ConfigRecord:
    """Return the record of a request to restart a connector."""
    return f"{RESTART}{name}".encode(), _encode(request)


def level_record(logger: str, level: str) -> ConfigRecord:
    """Return the record of a logger's level on all workers."""
    return f"{LOGGER}{logger}".encode(), _encode({"level": level})


def session_key_record(key: SessionKey) -> ConfigRecord:
    """Return the record of a new session key."""
    return SESSION_KEY.encode(), _encode(key)


def deletion_records(name: str) -> Iterable[ConfigRecord]:
    """Return the records that delete a connector, its target state first, as Kafka Connect does."""
    return target_record(name, None), connector_record(name, None)


def _settings(value: bytes) -> dict[str, str]:
    found = _decode(value, _Properties).properties
    return {name: text for name, text in found.items() if text is not None}


def _decode(value: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(value, type=kind)


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)
