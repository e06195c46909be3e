"""BrokerSession: this process as the controller knows it: registered, alive, allowed to lead.

What is sent, and when, is decided by `quorum/broker_lifecycle`; this sends it by way of the quorum.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.future_responses import Answer
from streamlog.broker.quorum.broker_lifecycle import (
    NO_EPOCH,
    BrokerLifecycle,
    Place,
    SendRegistration,
    State,
)
from streamlog.errors import ConfigError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    RegisteredListener,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock

_DOUBLE = (
    " (the process that had another log directory under this number counts as alive until it has"
    " sent no heartbeat for broker.session.timeout.ms)"
)
_log = repeated.logger(__name__)


class BrokerSession:
    """One process of a broker."""

    def __init__(
        self,
        directory: LogDirectory,
        metadata: ClusterMetadata,
        submit: Callable[[Message], Answer],
        *,
        clock: Clock,
        on_changed: Callable[[StreamlogError | None], None],
    ) -> None:
        """`on_changed` is told when the controller has answered, and if that is the end, why."""
        self._directory = directory
        self._metadata = metadata
        self._submit = submit
        self._clock = clock
        self._on_changed = on_changed
        self._look_ms = 0
        self._refused: ErrorCode | None = None
        """As it was told."""
        cluster = directory.config.cluster
        is_counted_on = bool(directory.config.quorum.voters)
        self._life = BrokerLifecycle(
            registration=BrokerRegistrationRequest(
                broker_id=directory.node_id,
                cluster_id=directory.cluster_id,
                incarnation_id=uuid.uuid4().bytes,
                rack=directory.config.rack or None,
                log_dirs=[id_bytes(directory.directory_id)],
                previous_broker_epoch=directory.previous_broker_epoch,
                directory_lives=directory.lives.begin() if is_counted_on else [],
            ),
            heartbeat_interval_ms=cluster.heartbeat_interval_ms,
        )

    @property
    def epoch(self) -> int:
        """Of this process, by the controller; -1 while it is not registered."""
        return self._life.epoch

    @property
    def state(self) -> State:
        """Where this process is in its life."""
        return self._life.state

    @property
    def may_act(self) -> bool:
        """Whether what the metadata says of partitions is of this process (rule R1)."""
        return self._life.may_act(self._metadata.offset)

    def listens_at(self, listeners: Iterable[RegisteredListener]) -> None:
        """The broker is reached there; counts for registrations from now on."""
        self._life.registration.listeners = list(listeners)

    @property
    def may_end(self) -> bool:
        """Whether a process that was told to `stop` has handed over what it led."""
        return self._life.state is State.NOT_RUNNING

    def stop(self) -> None:
        """The process is about to end: others are to lead what it leads."""
        self._life.on_stop(self._clock.now_ms())

    def configure(self, heartbeat_interval_ms: int) -> None:
        """Go by other settings."""
        self._life.heartbeat_interval_ms = heartbeat_interval_ms

    def on_damage(self, places: Mapping[Place, int]) -> None:
        """Replicas have turned out to lack records that they had counted."""
        self._life.on_damage(places)

    def tick(self) -> None:
        """Send what is due."""
        self._look_for_room()
        while (send := self._life.on_tick(self._clock.now_ms(), self._metadata.offset)) is not None:
            answer = self._submit(send.request)
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(partial(self._on_done, send))
                return
            self._on_answer(send, answer)

    def _look_for_room(self) -> None:
        """Others lead while this disk is full, unless a partition has nobody else to lead it."""
        now_ms = self._clock.now_ms()
        if now_ms < self._look_ms or not self._directory.config.quorum.voters:
            return
        self._look_ms = now_ms + self._life.heartbeat_interval_ms
        was_full, node_id = self._life.is_full, self._directory.node_id
        self._life.is_full = self._directory.lacks_room() and not any(
            partition.needs(node_id) for _, _, partition in self._metadata.partitions()
        )
        if self._life.is_full and not was_full:
            _log.error(
                "the disk of broker %d (%s) is full: other brokers lead its partitions until"
                " you free some space",
                *(node_id, self._directory.path),
            )
        elif was_full and not self._life.is_full:
            repeated.forget(__name__)
            _log.warning("the disk of broker %d has room again", node_id)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        return self._life.next_deadline_ms()

    def _on_done(self, send: SendRegistration, done: asyncio.Future[Message]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._life.on_lost(send.number, self._clock.now_ms())
            self._on_changed(None)
        else:
            self._on_answer(send, done.result())

    def _on_answer(self, send: SendRegistration, answer: Message) -> None:
        now_ms, refusal = self._clock.now_ms(), None
        match answer:
            case BrokerRegistrationResponse():
                refusal = self._life.on_registered(answer, send.number, now_ms)
                self._directory.broker_epoch = self._life.epoch
                if refusal is None and self._life.epoch != NO_EPOCH:
                    self._directory.lives.keep()
            case BrokerHeartbeatResponse():
                refusal = self._life.on_heard(answer, send.number, now_ms)
        self._tell(type(send.request).__name__, refusal)
        if refusal is ErrorCode.INCONSISTENT_CLUSTER_ID:
            own = self._directory
            self._on_changed(
                ConfigError(
                    f"{own.path} belongs to cluster {own.cluster_id}, but the controller to"
                    " another one: check controller.quorum.voters, or use the right directory"
                )
            )
        else:
            self._on_changed(None)

    def _tell(self, what: str, refusal: ErrorCode | None) -> None:
        """Once, and not with every attempt; that there is no controller yet says its log."""
        if refusal is not None and refusal not in (self._refused, ErrorCode.NOT_CONTROLLER):
            is_double = refusal is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            _log.warning(
                "%s of broker %d was refused: %s%s",
                *(what, self._directory.node_id, refusal.name, _DOUBLE if is_double else ""),
            )
        self._refused = refusal


def id_bytes(text: str) -> bytes:
    """The 16 bytes of an id that is written as Kafka writes them."""
    return base64.urlsafe_b64decode(f"{text}==")
