"""BrokerLifecycle: how a broker process keeps in touch with the controller, from start to end.

    STARTING --registered--> RECOVERING --caught up, unfenced--> RUNNING
    RUNNING --asked to stop--> SHUTTING_DOWN --may go, or nobody answers--> NOT_RUNNING

It registers until it is taken, with another controller if one does not decide; sends heartbeats,
one at a time; says which partitions it has found damaged until that has been heard; and registers
anew when the controller does not know its epoch. A broker acts on partitions only from metadata
that has come to its own registration (rule R1): `may_act`. What it has to send comes out of
`on_tick`; time is an argument. Who the controller is, and how to reach it, is the shell's.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import Enum

from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    DamagedPartition,
    DamagedTopic,
)

RETRY_MS = 200
"""Until a registration that was not taken is tried again."""
REQUEST_MS = 4_500
"""Half of a usual session."""
SHUTDOWN_MS = 30_000
"""How long a broker waits for its leave; then it goes without, as if it had crashed."""
NO_EPOCH = -1

Place = tuple[bytes, int]
"""Topic id and number of a partition."""
Request = BrokerRegistrationRequest | BrokerHeartbeatRequest


class State(Enum):
    """Where a broker is in its life."""

    STARTING = "starting"
    """Not registered yet."""
    RECOVERING = "recovering"
    """Registered, and fenced."""
    RUNNING = "running"
    SHUTTING_DOWN = "shutting down"
    """Its partitions are being given to others."""
    NOT_RUNNING = "not running"
    """It may end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRegistration:
    """A request for the active controller; the answer goes to the method of its kind."""

    request: Request
    number: int
    """To be given back with the answer."""


@dataclass(slots=True, kw_only=True)
class BrokerLifecycle:
    """One process of a broker."""

    registration: BrokerRegistrationRequest
    """What it registers with: who it is, and as clean as its last end was."""
    heartbeat_interval_ms: int
    request_timeout_ms: int = REQUEST_MS
    """Until a request that was not answered counts as lost."""
    state: State = State.STARTING
    epoch: int = NO_EPOCH
    """Of the registration; what is written down when all is on disk at the end of the process."""
    is_full: bool = False
    """Whether others are to lead what this one leads, for its disk takes nothing."""
    _next_at_ms: int = 0
    _number: int = 0
    _out: int | None = None
    """The number of the request under way."""
    _sent_ms: int = 0
    _damaged: dict[Place, int] = field(default_factory=dict)
    _told: Mapping[Place, int] = field(default_factory=dict)
    _leave_by_ms: int | None = None
    _wants_to_go: bool = False

    def may_act(self, metadata_offset: int) -> bool:
        """Whether partitions may be led and followed by metadata up to an offset (rule R1)."""
        return self.epoch != NO_EPOCH and metadata_offset >= self.epoch

    def on_damage(self, places: Mapping[Place, int]) -> None:
        """Replicas of partitions have turned out to lack records that they had counted.

        The leader epochs are those that are known here. What is said of damage counts in these
        alone: said again, as its answer was lost, it would put out a replica that is whole again.
        """
        self._damaged.update(places)
        self._next_at_ms = 0

    def on_stop(self, now_ms: int) -> None:
        """The process is asked to end."""
        self._wants_to_go = True
        if self._leave_by_ms is None:
            self._leave_by_ms = now_ms + SHUTDOWN_MS
        if self.state is State.STARTING:
            self.state = State.NOT_RUNNING
        elif self.state is not State.NOT_RUNNING:
            self.state = State.SHUTTING_DOWN
            self._next_at_ms = 0

    def on_tick(self, now_ms: int, metadata_offset: int) -> SendRegistration | None:
        """What is to be sent now; None for nothing, or while an answer is awaited."""
        if self._leave_by_ms is not None and now_ms >= self._leave_by_ms:
            self.state = State.NOT_RUNNING
        if self.state is State.NOT_RUNNING:
            return None
        if self._out is not None and now_ms - self._sent_ms >= self.request_timeout_ms:
            self._out = None
        if self._out is not None or now_ms < self._next_at_ms:
            return None
        self._number += 1
        self._out, self._sent_ms = self._number, now_ms
        self._told = dict(self._damaged)
        return SendRegistration(request=self._request(metadata_offset), number=self._number)

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do at the earliest; None: never again."""
        if self.state is State.NOT_RUNNING:
            return None
        due = self._next_at_ms if self._out is None else self._sent_ms + self.request_timeout_ms
        return due if self._leave_by_ms is None else min(due, self._leave_by_ms)

    def on_registered(
        self, response: BrokerRegistrationResponse, number: int, now_ms: int
    ) -> ErrorCode | None:
        """The controller has answered; returns why it has not taken the broker, if it has not.

        Of what it refuses INCONSISTENT_CLUSTER_ID will never change: the process has to end.
        """
        if not self._takes(number):
            return None
        if response.error_code:
            self._next_at_ms = now_ms + RETRY_MS
            return ErrorCode(response.error_code)
        self.epoch = response.broker_epoch
        if self.state is State.STARTING:
            self.state = State.RECOVERING
        self._forget_told()
        self._next_at_ms = now_ms
        return None

    def on_heard(
        self, response: BrokerHeartbeatResponse, number: int, now_ms: int
    ) -> ErrorCode | None:
        """A heartbeat was answered; returns why it does not count, if it does not."""
        if not self._takes(number):
            return None
        self._next_at_ms = now_ms + self.heartbeat_interval_ms
        if response.error_code:
            self._refused(response.error_code, now_ms)
            return ErrorCode(response.error_code)
        self._forget_told()
        if self.state is State.SHUTTING_DOWN:
            if response.should_shut_down:
                self.state = State.NOT_RUNNING
            else:
                self._next_at_ms = now_ms + RETRY_MS
        elif response.is_fenced:
            self.state = State.RECOVERING
            if not response.is_caught_up:
                self._next_at_ms = now_ms + RETRY_MS
        else:
            self.state = State.RUNNING
        return None

    def on_lost(self, number: int, now_ms: int) -> None:
        """A request was not delivered, or its answer was not."""
        if self._takes(number):
            self._next_at_ms = now_ms + RETRY_MS

    def _takes(self, number: int) -> bool:
        if number != self._out:
            return False  # Of a request that counts as lost.
        self._out = None
        return True

    def _forget_told(self) -> None:
        """What was told has been heard."""
        for place, epoch in self._told.items():
            if self._damaged.get(place) == epoch:
                del self._damaged[place]

    def _refused(self, code: int, now_ms: int) -> None:
        self._next_at_ms = now_ms + RETRY_MS
        if code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            # The controller knows nothing of this process any more: all over again, if it goes on.
            self.epoch = NO_EPOCH
            self.state = State.NOT_RUNNING if self._wants_to_go else State.STARTING

    def _request(self, metadata_offset: int) -> Request:
        damaged = _by_topic(self._damaged)
        if self.state is State.STARTING:
            registration = copy(self.registration)  # One that is under way stays as it is.
            registration.damaged = damaged
            return registration
        return BrokerHeartbeatRequest(
            broker_id=self.registration.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=metadata_offset,
            want_fence=self.is_full,
            want_shut_down=self.state is State.SHUTTING_DOWN,
            damaged=damaged,
        )


def _by_topic(places: Mapping[Place, int]) -> list[DamagedTopic]:
    topics: dict[bytes, list[DamagedPartition]] = {}
    for (topic_id, number), epoch in sorted(places.items()):
        partition = DamagedPartition(partition_index=number, leader_epoch=epoch)
        topics.setdefault(topic_id, []).append(partition)
    return [DamagedTopic(topic_id=topic_id, partitions=own) for topic_id, own in topics.items()]
