"""Herder requests: what operators ask of a group of connectors, and the events and effects around.

Values only. A request has one answer: a status of HTTP and a body, or a `ConnectRefusal`. An effect
is what the herder asks its shell to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from streamlog.connect.herding.configs import ConfigRecord
from streamlog.connect.herding.lifecycle import TargetState
from streamlog.connect.herding.statuses import Status, StatusKey
from streamlog.errors import StreamlogError

BAD_REQUEST = 400
NOT_FOUND = 404
CONFLICT = 409
INTERNAL_ERROR = 500
BAD_GATEWAY = 502


class ConnectRefusal(StreamlogError):
    """A request that is answered with an error; `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ConnectorSlot(NamedTuple):
    """A task of a connector: what the group places on its workers."""

    connector: str
    task: int


# -------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class PutConnector:
    """Create a connector, or replace its settings."""

    name: str
    settings: Mapping[str, str]
    is_new: bool = False
    """Whether it is refused if the connector exists."""
    target: TargetState | None = None
    """The state of a new connector; None: STARTED."""


@dataclass(frozen=True, slots=True)
class PatchConnector:
    """Change some settings of a connector (KIP-477); None removes one."""

    name: str
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DeleteConnector:
    """Delete a connector."""

    name: str


@dataclass(frozen=True, slots=True)
class SetTarget:
    """Pause, resume or stop a connector."""

    name: str
    target: TargetState


@dataclass(frozen=True, slots=True)
class RestartConnector:
    """Restart a connector, and its tasks if asked for (KIP-745)."""

    name: str
    include_tasks: bool = False
    only_failed: bool = False


@dataclass(frozen=True, slots=True)
class RestartTask:
    """Restart one task, wherever it runs."""

    slot: ConnectorSlot


@dataclass(frozen=True, slots=True)
class SetLevel:
    """Set the level of a logger on all workers (KIP-976)."""

    logger: str
    level: str


Request: TypeAlias = (
    PutConnector
    | PatchConnector
    | DeleteConnector
    | SetTarget
    | RestartConnector
    | RestartTask
    | SetLevel
)

# -------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Write:
    """Write records to the configs topic, in one transaction that only a leader can commit."""

    records: tuple[ConfigRecord, ...]


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write a status; None deletes it."""

    key: StatusKey
    status: Status | None


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """Answer a request."""

    request: int
    """The number under which it was asked."""
    status: int
    body: object = None


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task of this worker; it is not running."""

    slot: ConnectorSlot
    settings: Mapping[str, str]
    """The settings of the connector, with those of the task."""
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class StopTask:
    """Stop a task of this worker, after its last commit."""

    slot: ConnectorSlot


@dataclass(frozen=True, slots=True)
class PauseTask:
    """Pause a running task of this worker, or let it continue."""

    slot: ConnectorSlot
    is_paused: bool


@dataclass(frozen=True, slots=True)
class Discover:
    """Find the parts of a source now, and report them to `found`."""

    connector: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AskRound:
    """Ask for a round of the group, so that a new dealing takes effect."""


@dataclass(frozen=True, slots=True)
class LevelChanged:
    """Set the level of a logger in this process."""

    logger: str
    level: str


Effect: TypeAlias = (
    Write
    | WriteStatus
    | RequestAnswer
    | StartTask
    | StopTask
    | PauseTask
    | Discover
    | AskRound
    | LevelChanged
)
Effects: TypeAlias = Sequence[Effect]
