"""Lifecycle: the states of connectors and tasks, by Kafka Connect's names, and their changes.

A rule of the module: what is not in the table changes nothing, so an event that comes late or twice
is harmless.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

VERSION: Final = "4.4.0"
"""The version of Kafka Connect whose API and records these are, and of connectors."""


class ConnectorState(StrEnum):
    """The state of a connector or task, as the status topic and the REST API name it."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    DESTROYED = "DESTROYED"


class TargetState(StrEnum):
    """What an operator wants a connector to be (KIP-52, KIP-875)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"

    @property
    def initial(self) -> ConnectorState:
        """The state of a connector that was created with this one and has not run yet."""
        return (
            ConnectorState.UNASSIGNED if self is TargetState.STARTED else ConnectorState(self.value)
        )


TASK_EVENTS: Final = {
    ("begun", ConnectorState.UNASSIGNED): ConnectorState.RUNNING,
    ("begun", ConnectorState.RESTARTING): ConnectorState.RUNNING,
    ("begun", ConnectorState.PAUSED): ConnectorState.RUNNING,
    ("begun", ConnectorState.FAILED): ConnectorState.RUNNING,
    ("begun", ConnectorState.STOPPED): ConnectorState.RUNNING,
    ("failed", ConnectorState.RUNNING): ConnectorState.FAILED,
    ("failed", ConnectorState.UNASSIGNED): ConnectorState.FAILED,
    ("failed", ConnectorState.PAUSED): ConnectorState.FAILED,
    ("failed", ConnectorState.RESTARTING): ConnectorState.FAILED,
    ("paused", ConnectorState.RUNNING): ConnectorState.PAUSED,
    ("paused", ConnectorState.UNASSIGNED): ConnectorState.PAUSED,
    ("paused", ConnectorState.RESTARTING): ConnectorState.PAUSED,
    ("resumed", ConnectorState.PAUSED): ConnectorState.RUNNING,
    ("restarting", ConnectorState.FAILED): ConnectorState.RESTARTING,
    ("restarting", ConnectorState.RUNNING): ConnectorState.RESTARTING,
    ("restarting", ConnectorState.PAUSED): ConnectorState.RESTARTING,
    ("revoked", ConnectorState.RUNNING): ConnectorState.UNASSIGNED,
    ("revoked", ConnectorState.PAUSED): ConnectorState.UNASSIGNED,
    ("revoked", ConnectorState.RESTARTING): ConnectorState.UNASSIGNED,
}
"""The state that follows an event in a state; what is not listed changes nothing."""


def next_state(event: str, state: ConnectorState) -> ConnectorState:
    """Return the state of a task after an event; the state it was in if the event says nothing.

    A failed task that is revoked stays FAILED, so that an operator sees the trace after a move.
    """
    return TASK_EVENTS.get((event, state), state)
