"""BrokerLifecycle: a broker's registration and heartbeats, from its start to its end (KIP-631).

    STARTING --registered--> RECOVERING --caught up, unfenced--> RUNNING
    RUNNING --asked to stop--> SHUTTING_DOWN --may end, or no answer--> NOT_RUNNING

Pure: `on_tick` returns what to send, and the time is an argument. The broker repeats its
registration until it is accepted, sends heartbeats, one at a time, and reports damaged partitions
until the report is answered. It registers again when the controller does not know its epoch.

Rules of this module: a broker acts on partitions only by metadata that includes its own
registration (rule R1, `may_act`).

Not done here: which node is the controller, and how to reach it (the shell's); the controller's
side (`controller/broker_control`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import Enum

import msgspec

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
"""The pause in milliseconds before a refused request is repeated."""
REQUEST_MS = 4_500
"""The time-out of a request in milliseconds: half of a default session."""
SHUTDOWN_MS = 30_000
"""How long in milliseconds a broker waits for permission to end. Then it ends without permission,
which the cluster takes for a crash."""
NO_EPOCH = -1

PartitionKey = tuple[bytes, int]
"""The topic id and the number of a partition."""
Request = BrokerRegistrationRequest | BrokerHeartbeatRequest


class State(Enum):
    """The state of a broker process."""

    STARTING = "starting"
    """Not registered yet."""
    RECOVERING = "recovering"
    """Registered, and fenced."""
    RUNNING = "running"
    """Registered, and unfenced."""
    SHUTTING_DOWN = "shutting down"
    """Other brokers take over its leaderships."""
    NOT_RUNNING = "not running"
    """The process may end."""


class SendRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the active controller; its answer goes to `on_registered` or `on_heard`."""

    request: Request
    number: int
    """Identifies the request when its answer, or its loss, is reported."""


@dataclass(slots=True, kw_only=True)
class BrokerLifecycle:
    """One process of a broker."""

    registration: BrokerRegistrationRequest
    """The registration request, with the broker epoch of the last clean shutdown, if any."""
    heartbeat_interval_ms: int
    request_timeout_ms: int = REQUEST_MS
    """The time after which a request without an answer counts as lost."""
    state: State = State.STARTING
    epoch: int = NO_EPOCH
    """The broker epoch of the registration. A clean shutdown writes it to disk."""
    is_full: bool = False
    """Whether the disk is full, so that this broker asks to be fenced."""
    _next_at_ms: int = 0
    _number: int = 0
    _open_number: int | None = None
    """The number of the open request."""
    _sent_ms: int = 0
    _damaged: dict[PartitionKey, int] = field(default_factory=dict)
    _reported: Mapping[PartitionKey, int] = field(default_factory=dict)
    """The damage in the open request."""
    _offline: set[PartitionKey] = field(default_factory=set)
    """The partitions whose disk has failed."""
    _unreported: set[PartitionKey] = field(default_factory=set)
    """Those that the controller has not heard of in this registration."""
    _reporting: frozenset[PartitionKey] = frozenset()
    """Those in the open request."""
    _leave_by_ms: int | None = None
    _is_ending: bool = False

    def may_act(self, metadata_offset: int) -> bool:
        """Return whether metadata up to an offset includes the registration (rule R1)."""
        # The broker epoch is the offset of the registration record.
        return self.epoch != NO_EPOCH and metadata_offset >= self.epoch

    def on_damage(self, partitions: Mapping[PartitionKey, int]) -> None:
        """Report replicas that lack records which they confirmed, with their leader epochs.

        The report counts in these leader epochs only: repeated after a lost answer, it must not
        remove a replica from the in-sync set that is complete again.
        """
        self._damaged.update(partitions)
        self._next_at_ms = 0

    def on_offline(self, partitions: Iterable[PartitionKey]) -> None:
        """Report replicas whose disk has failed: other brokers have to lead them."""
        self._offline.update(partitions)
        self._unreported.update(self._offline)
        self._next_at_ms = 0

    def on_stop(self, now_ms: int) -> None:
        """Begin a controlled shutdown; a broker that is not registered may end at once."""
        self._is_ending = True
        if self._leave_by_ms is None:
            self._leave_by_ms = now_ms + SHUTDOWN_MS
        if self.state is State.STARTING:
            self.state = State.NOT_RUNNING
        elif self.state is not State.NOT_RUNNING:
            self.state = State.SHUTTING_DOWN
            self._next_at_ms = 0

    def on_tick(self, now_ms: int, metadata_offset: int) -> SendRegistration | None:
        """Return the request to send now; None if none is due, or one is open."""
        if self._leave_by_ms is not None and now_ms >= self._leave_by_ms:
            self.state = State.NOT_RUNNING
        if self.state is State.NOT_RUNNING:
            return None
        if self._open_number is not None and now_ms - self._sent_ms >= self.request_timeout_ms:
            self._open_number = None  # `_takes` drops its answer, should it still arrive.
        if self._open_number is not None or now_ms < self._next_at_ms:
            return None
        self._number += 1
        self._open_number, self._sent_ms = self._number, now_ms
        self._reported = dict(self._damaged)
        self._reporting = frozenset(self._unreported)
        return SendRegistration(request=self._request(metadata_offset), number=self._number)

    def next_deadline_ms(self) -> int | None:
        """Return when `on_tick` next has something to do; None for never again."""
        if self.state is State.NOT_RUNNING:
            return None
        due = (
            self._next_at_ms
            if self._open_number is None
            else self._sent_ms + self.request_timeout_ms
        )
        return due if self._leave_by_ms is None else min(due, self._leave_by_ms)

    def on_registered(
        self, response: BrokerRegistrationResponse, number: int, now_ms: int
    ) -> ErrorCode | None:
        """Handle the answer to a registration; return its error, if it was refused.

        INCONSISTENT_CLUSTER_ID does not go away by repetition: the process has to end.
        """
        if not self._takes(number):
            return None
        if response.error_code:
            self._next_at_ms = now_ms + RETRY_MS
            return ErrorCode(response.error_code)
        self.epoch = response.broker_epoch
        # A broker that was asked to stop meanwhile is NOT_RUNNING, and stays so.
        if self.state is State.STARTING:
            self.state = State.RECOVERING
        self._drop_reported()
        self._next_at_ms = now_ms
        return None

    def on_heard(
        self, response: BrokerHeartbeatResponse, number: int, now_ms: int
    ) -> ErrorCode | None:
        """Handle the answer to a heartbeat; return its error, if it was refused."""
        if not self._takes(number):
            return None
        self._next_at_ms = now_ms + self.heartbeat_interval_ms
        if response.error_code:
            self._refused(response.error_code, now_ms)
            return ErrorCode(response.error_code)
        self._drop_reported()
        if self.state is State.SHUTTING_DOWN:
            if response.should_shut_down:
                self.state = State.NOT_RUNNING
            else:
                self._next_at_ms = now_ms + RETRY_MS
        elif response.is_fenced:
            self.state = State.RECOVERING
            # The next heartbeat after it has caught up unfences the broker: send it soon.
            if not response.is_caught_up:
                self._next_at_ms = now_ms + RETRY_MS
        else:
            self.state = State.RUNNING
        return None

    def on_lost(self, number: int, now_ms: int) -> None:
        """Repeat a request that was not delivered, or whose answer was lost."""
        if self._takes(number):
            self._next_at_ms = now_ms + RETRY_MS

    def _takes(self, number: int) -> bool:
        if number != self._open_number:
            return False  # The answer to a request that counts as lost.
        self._open_number = None
        return True

    def _drop_reported(self) -> None:
        """Drop what the answered request reported, unless it was found again."""
        self._unreported -= self._reporting
        for key, epoch in self._reported.items():
            # Damage in a later leader epoch was found after the request was sent.
            if self._damaged.get(key) == epoch:
                del self._damaged[key]

    def _refused(self, code: int, now_ms: int) -> None:
        self._next_at_ms = now_ms + RETRY_MS
        if code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            # The controller has forgotten this process: register again, unless it is to end.
            self.epoch = NO_EPOCH
            self._unreported.update(self._offline)
            self.state = State.NOT_RUNNING if self._is_ending else State.STARTING

    def _request(self, metadata_offset: int) -> Request:
        damaged = _by_topic(self._damaged)
        if self.state is State.STARTING:
            registration = copy(self.registration)  # The shell may still hold an earlier one.
            registration.damaged = damaged
            registration.offline = _by_topic(dict.fromkeys(self._unreported, NO_EPOCH))
            return registration
        return BrokerHeartbeatRequest(
            broker_id=self.registration.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=metadata_offset,
            want_fence=self.is_full,
            want_shut_down=self.state is State.SHUTTING_DOWN,
            damaged=damaged,
            offline=_by_topic(dict.fromkeys(self._unreported, NO_EPOCH)),
        )


def _by_topic(partitions: Mapping[PartitionKey, int]) -> list[DamagedTopic]:
    topics: dict[bytes, list[DamagedPartition]] = {}
    for (topic_id, number), epoch in sorted(partitions.items()):
        partition = DamagedPartition(partition_index=number, leader_epoch=epoch)
        topics.setdefault(topic_id, []).append(partition)
    return [DamagedTopic(topic_id=topic_id, partitions=own) for topic_id, own in topics.items()]
