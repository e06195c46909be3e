"""Statuses: what the records of Kafka Connect's status topic amount to.

One status for each connector and each task, and the topics that a connector has used. Records are
Kafka Connect's (JsonConverter, schemas off). Rules: the topic's order decides what holds; before a
worker reports an end or a failure, it asks `may_write`, as it may have lost the task meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from streamlog.connect.herding.lifecycle import ConnectorState

CONNECTOR: Final = "status-connector-"
TASK: Final = "status-task-"
TOPIC: Final = "status-topic-"
_OF_CONNECTOR: Final = ":connector-"
TRACE_BYTES_MAX: Final = 16 * 1024
"""The largest trace of a failed task; what is longer loses its middle."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a connector or task, and which worker says so."""

    state: ConnectorState
    worker_id: str
    """HOST:PORT of the REST address of the worker."""
    generation: int
    """The group's generation in which the worker had the task."""
    trace: str | None = None
    version: str | None = None
    """The version of the connector's class, as `GET /connector-plugins` has it."""


class UsedTopic(msgspec.Struct, frozen=True, rename="camel"):
    """That a task of a connector has read or written a topic (KIP-558)."""

    name: str
    connector: str
    task: int
    discover_timestamp: int


class _TopicValue(msgspec.Struct):
    topic: UsedTopic


StatusKey = tuple[str, int | None]
"""A connector's name and the number of its task; None for the connector itself."""


@dataclass(slots=True)
class ConnectStatuses:
    """The state of the status topic."""

    statuses: dict[StatusKey, Status] = field(default_factory=dict)
    topics: dict[str, dict[str, UsedTopic]] = field(default_factory=dict)
    """The topics of each connector since their last reset."""
    _tasks: dict[str, set[int]] = field(default_factory=dict)
    """The numbers of the tasks in `statuses`, by connector."""

    def replay(self, key: bytes | None, value: bytes | None) -> StatusKey | None:
        """Apply one record; what is malformed or unknown is passed over.

        Returns the connector or task whose status it is; None for any other record.
        """
        name = (key or b"").decode("utf-8", "replace")
        try:
            if name.startswith(TOPIC):
                self._topic(name, value)
            elif (found := _key_of(name)) is not None:
                self._status(found, value)
                return found
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
        return None

    def may_write(self, key: StatusKey, status: Status) -> bool:
        """Return whether a status may replace the one that is known (Kafka's `putSafe`)."""
        before = self.statuses.get(key)
        # 1. Worker a has task 0 in generation 4 and hangs. 2. Worker b gets it in generation 5 and
        # writes RUNNING. 3. Worker a wakes and would write its failure of generation 4 over it.
        # A worker's own status is always replaced: generations begin at 1 again once the
        # coordinator has forgotten the group, and the topic still has those of before.
        return (
            before is None
            or before.worker_id == status.worker_id
            or before.generation <= status.generation
        )

    def connector(self, name: str) -> Status | None:
        """Return the status of a connector; None if none was written."""
        return self.statuses.get((name, None))

    def tasks_of(self, name: str) -> Iterator[tuple[int, Status]]:
        """Yield the statuses of a connector's tasks, by number."""
        numbers = sorted(self._tasks.get(name, ()))
        return iter([(number, self.statuses[name, number]) for number in numbers])

    def topics_of(self, name: str) -> list[str]:
        """Return the topics that a connector has used since their last reset."""
        return sorted(self.topics.get(name, {}))

    def _status(self, key: StatusKey, value: bytes | None) -> None:
        name, number = key
        if value is not None:
            self.statuses[key] = msgspec.json.decode(value, type=Status)
            if number is not None:
                self._tasks.setdefault(name, set()).add(number)
        elif self.statuses.pop(key, None) is not None and number is not None:
            self._tasks[name].remove(number)
            if not self._tasks[name]:
                del self._tasks[name]

    def _topic(self, key: str, value: bytes | None) -> None:
        topic, colon, connector = key.removeprefix(TOPIC).partition(_OF_CONNECTOR)
        if not colon:
            return
        if value is not None:
            used = msgspec.json.decode(value, type=_TopicValue).topic
            self.topics.setdefault(connector, {})[topic] = used
        elif topic in self.topics.get(connector, ()):
            del self.topics[connector][topic]
            if not self.topics[connector]:
                del self.topics[connector]


def status_record(
    connector: str, task: int | None, status: Status | None
) -> tuple[bytes, bytes | None]:
    """Return the record of a status; None deletes it."""
    name = f"{CONNECTOR}{connector}" if task is None else f"{TASK}{connector}-{task}"
    return name.encode(), None if status is None else msgspec.json.encode(status)


def topic_record(topic: str, connector: str, use: UsedTopic | None) -> tuple[bytes, bytes | None]:
    """Return the record of a connector's use of a topic; None forgets it."""
    key = f"{TOPIC}{topic}{_OF_CONNECTOR}{connector}".encode()
    return key, None if use is None else msgspec.json.encode({"topic": use})


def short_trace(text: str) -> str:
    """Return a trace of at most `TRACE_BYTES_MAX` bytes: its beginning and its end."""
    whole = text.encode("utf-8", "replace")
    if len(whole) <= TRACE_BYTES_MAX:
        return text
    gap = b"\n... shortened ...\n"
    half = (TRACE_BYTES_MAX - len(gap)) // 2
    return (whole[:half] + gap + whole[-half:]).decode("utf-8", "ignore")


def _key_of(name: str) -> StatusKey | None:
    if name.startswith(CONNECTOR):
        return name.removeprefix(CONNECTOR), None
    if name.startswith(TASK):
        connector, _, number = name.removeprefix(TASK).rpartition("-")
        return connector, int(number)
    return None
