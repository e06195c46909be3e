"""BrokerSession: registers this process with the controller, and sends its heartbeats.

`quorum/broker_lifecycle` decides what to send, and when; this module sends it to the controller.
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
    PartitionKey,
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

_DUPLICATE_HINT = (
    " (the process that had another log directory under this id counts as alive until it has"
    " sent no heartbeat for broker.session.timeout.ms)"
)
_log = repeated.logger(__name__)


class BrokerSession:
    """The registration and heartbeats of one broker process."""

    def __init__(
        self,
        directory: LogDirectory,
        metadata: ClusterMetadata,
        submit: Callable[[Message], Answer],
        *,
        clock: Clock,
        on_changed: Callable[[StreamlogError | None], None],
    ) -> None:
        """`on_changed` is called after each response; with an error if the broker must stop."""
        self._directory = directory
        self._metadata = metadata
        self._submit = submit
        self._clock = clock
        self._on_changed = on_changed
        self._look_ms = 0
        self._last_error: ErrorCode | None = None
        """The last error that was logged."""
        cluster = directory.config.cluster
        has_cluster = bool(directory.config.quorum.voters)
        self._lifecycle = BrokerLifecycle(
            registration=BrokerRegistrationRequest(
                broker_id=directory.node_id,
                cluster_id=directory.cluster_id,
                incarnation_id=uuid.uuid4().bytes,
                rack=directory.config.rack or None,
                log_dirs=[id_bytes(each.directory_id) for each in directory.volumes],
                previous_broker_epoch=directory.previous_broker_epoch,
                directory_lives=directory.directory_ids.begin() if has_cluster else [],
            ),
            heartbeat_interval_ms=cluster.heartbeat_interval_ms,
        )

    @property
    def epoch(self) -> int:
        """The broker epoch of this process; -1 while it is not registered."""
        return self._lifecycle.epoch

    @property
    def state(self) -> State:
        """The state of this process in its life cycle."""
        return self._lifecycle.state

    @property
    def may_act(self) -> bool:
        """Whether the metadata about partitions applies to this process (rule R1)."""
        return self._lifecycle.may_act(self._metadata.offset)

    def listens_at(self, listeners: Iterable[RegisteredListener]) -> None:
        """Set the endpoints for registrations from now on."""
        self._lifecycle.registration.listeners = list(listeners)

    @property
    def may_end(self) -> bool:
        """Whether a process that called `stop` has handed over its leaderships."""
        return self._lifecycle.state is State.NOT_RUNNING

    def stop(self) -> None:
        """Begin to shut down: others take over the leaderships of this process."""
        self._lifecycle.on_stop(self._clock.now_ms())

    def configure(self, heartbeat_interval_ms: int) -> None:
        """Use another heartbeat interval."""
        self._lifecycle.heartbeat_interval_ms = heartbeat_interval_ms

    def on_damage(self, partitions: Mapping[PartitionKey, int]) -> None:
        """Report replicas that lack records which they have counted as theirs."""
        self._lifecycle.on_damage(partitions)

    def on_offline(self, partitions: Iterable[PartitionKey]) -> None:
        """Report replicas whose disk has failed."""
        self._lifecycle.on_offline(partitions)

    def tick(self) -> None:
        """Send registrations and heartbeats that are due."""
        self._check_space()
        while (
            send := self._lifecycle.on_tick(self._clock.now_ms(), self._metadata.offset)
        ) is not None:
            answer = self._submit(send.request)
            # One request at a time. In the controller's own process the answer is there at once,
            # and may make the next request due.
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(partial(self._on_done, send))
                return
            self._on_answer(send, answer)

    def _check_space(self) -> None:
        """Check whether the disk is full, at most once per heartbeat.

        A broker with a full disk asks others to lead, unless a partition depends on this broker:
        then that partition would have no leader.
        """
        now_ms = self._clock.now_ms()
        if now_ms < self._look_ms or not self._directory.config.quorum.voters:
            return
        self._look_ms = now_ms + self._lifecycle.heartbeat_interval_ms
        was_full, node_id = self._lifecycle.is_full, self._directory.node_id
        self._lifecycle.is_full = self._directory.lacks_room() and not any(
            partition.needs(node_id) for _, _, partition in self._metadata.partitions()
        )
        if self._lifecycle.is_full and not was_full:
            _log.error(
                "the disk of broker %d (%s) is full: other brokers lead its partitions until"
                " you free some space",
                *(node_id, self._directory.path),
            )
        elif was_full and not self._lifecycle.is_full:
            # So that the next full disk is logged at once, as the first one was.
            repeated.forget(__name__)
            _log.warning("the disk of broker %d has space again", node_id)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        return self._lifecycle.next_deadline_ms()

    def _on_done(self, send: SendRegistration, done: asyncio.Future[Message]) -> None:
        # No response: the controller may or may not have handled the request. It is sent again,
        # under another number, so that a late response to this one is not taken for the next one's.
        if done.cancelled() or done.exception() is not None:
            self._lifecycle.on_lost(send.number, self._clock.now_ms())
            self._on_changed(None)
        else:
            self._on_answer(send, done.result())

    def _on_answer(self, send: SendRegistration, answer: Message) -> None:
        now_ms, refusal = self._clock.now_ms(), None
        match answer:
            case BrokerRegistrationResponse():
                refusal = self._lifecycle.on_registered(answer, send.number, now_ms)
                self._directory.broker_epoch = self._lifecycle.epoch
                if refusal is None and self._lifecycle.epoch != NO_EPOCH:
                    # Registered: earlier ids of this directory are no longer needed (see
                    # `DirectoryIds`).
                    self._directory.directory_ids.keep()
            case BrokerHeartbeatResponse():
                refusal = self._lifecycle.on_heard(answer, send.number, now_ms)
        self._log_refusal(type(send.request).__name__, refusal)
        if refusal is ErrorCode.INCONSISTENT_CLUSTER_ID:
            own = self._directory
            self._on_changed(
                ConfigError(
                    f"{own.path} belongs to cluster {own.cluster_id}, but the controller belongs"
                    " to another one: check controller.quorum.voters, or use the right directory"
                )
            )
        else:
            self._on_changed(None)

    def _log_refusal(self, what: str, refusal: ErrorCode | None) -> None:
        """Log an error once, and not for every attempt.

        A missing controller is not an error here.
        """
        if refusal is not None and refusal not in (self._last_error, ErrorCode.NOT_CONTROLLER):
            is_duplicate = refusal is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            _log.warning(
                "%s of broker %d was refused: %s%s",
                *(
                    what,
                    self._directory.node_id,
                    refusal.name,
                    _DUPLICATE_HINT if is_duplicate else "",
                ),
            )
        self._last_error = refusal


def id_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id in Kafka's notation."""
    return base64.urlsafe_b64decode(f"{text}==")
