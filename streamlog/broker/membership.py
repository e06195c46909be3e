"""Membership: a broker's part in its cluster, of one broker or of many.

Requests that change the cluster go to the controller; what is committed is applied to this broker;
and the controller knows that the broker is there. What the metadata says is acted upon from the
broker's own registration on (rule R1): what is older may be of the process before this one, or of a
cluster that this node has not heard of for long.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

from streamlog.broker.applying import Applying, Observers, damaged_places
from streamlog.broker.cluster_config import REPLICAS_MAX
from streamlog.broker.figures import (
    BrokerStanding,
    ClusterFigures,
    counted,
    counted_by_controller,
)
from streamlog.broker.forwarding import Deciding, Forwarding
from streamlog.broker.quorum.decision import Realm
from streamlog.broker.quorum.member import QuorumMember
from streamlog.broker.quorum.metadata import ClusterMetadata
from streamlog.broker.quorum.predecessor import records_of
from streamlog.broker.quorum.raft_state import Timeouts
from streamlog.broker.sessions import BrokerSession
from streamlog.errors import ConnectionLost, StreamlogError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from streamlog.broker.answers import Answer
    from streamlog.broker.cluster_config import ClusterConfig
    from streamlog.broker.quorum.broker_lifecycle import Place
    from streamlog.broker.quorum.metadata_changes import MetadataChange
    from streamlog.broker.quorum.quorum_view import QuorumView
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.storage.files import Files
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock
    from streamlog.protocol.messages.brokers import Listener
    from streamlog.protocol.schema import Message
    from streamlog.transport.connection import Transport

_log = logging.getLogger(__name__)


class Quorum(Deciding, Protocol):
    """The member of the quorum in this process."""

    @property
    def metadata(self) -> ClusterMetadata:
        """What is committed, as far as it knows."""
        ...

    @property
    def requests(self) -> frozenset[type[Message]]:
        """What can be submitted."""
        ...

    def watch(self, watcher: Callable[[list[MetadataChange]], None]) -> None:
        """Have it told of what each batch has changed, once it is committed."""
        ...

    @property
    def deciding_ms(self) -> int | None:
        """For how long the controller here has been at what is told to watchers; None: another."""
        ...

    def replicas(self) -> QuorumView:
        """How far everybody is."""
        ...

    def configure(self, cluster: ClusterConfig) -> None:
        """Go by other settings."""
        ...

    def tick(self) -> None:
        """Do what is due."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        ...

    def close(self) -> None:
        """Take part no longer."""
        ...


class Membership:
    """One broker in its cluster."""

    @classmethod
    def open(
        cls,
        directory: LogDirectory,
        *,
        files: Files,
        clock: Clock,
        internal_topics: Collection[str],
    ) -> Self:
        """Read the metadata log of a directory; a broker that is alone knows all of it then.

        Raises:
            CorruptData: the log, or a file from before there was one, is damaged.
            LogDirectoryError: the disk refused.
        """
        config = directory.config
        quorum = config.quorum
        realm = Realm(
            metadata=ClusterMetadata(),
            cluster_id=directory.cluster_id,
            node_id=directory.node_id,
            chance=random.SystemRandom(),
            config=config,
            cluster=config.cluster,
            internal_topics=frozenset(internal_topics),
            inherited=partial(records_of, directory),
        )
        member = QuorumMember.open(
            files,
            directory.path,
            realm,
            voters=quorum.voter_ids(directory.node_id),
            clock=clock,
            timeouts=Timeouts(
                election_ms=quorum.election_timeout_ms,
                election_backoff_ms=quorum.election_backoff_ms,
                fetch_ms=quorum.fetch_timeout_ms,
                request_ms=quorum.request_timeout_ms,
                retry_ms=quorum.retry_backoff_ms,
            ),
            snapshot_bytes=quorum.snapshot_bytes,
            snapshot_interval_ms=quorum.snapshot_interval_ms,
        )
        try:
            directory.predecessors().remove()
        except BaseException:
            member.close()
            raise
        return cls(member, directory, clock=clock)

    def __init__(self, quorum: Quorum, directory: LogDirectory, *, clock: Clock) -> None:
        self._quorum = quorum
        self._directory = directory
        self._clock = clock
        self._forwarding = Forwarding(quorum, clock=clock)
        self._session = BrokerSession(
            directory,
            quorum.metadata,
            self.submit,
            listeners=(),
            clock=clock,
            on_registered=self._act,
        )
        self._applying: Applying | None = None
        self._is_acting = False
        self.figures = ClusterFigures(directory.node_id)
        """What has happened in the cluster."""

    @property
    def metadata(self) -> ClusterMetadata:
        """What is committed, as far as this broker knows."""
        return self._quorum.metadata

    @property
    def requests(self) -> frozenset[type[Message]]:
        """What can be submitted."""
        return self._quorum.requests

    def standing(self, follower_lag: Mapping[int, int]) -> BrokerStanding:
        """Where this broker stands; `follower_lag` is that of who follows it."""
        directory, metadata = self._directory, self.metadata
        least = {
            name: topic.config.min_insync(REPLICAS_MAX) for name, topic in directory.topics.items()
        }
        return BrokerStanding(
            node_id=directory.node_id,
            state=self._session.state,
            is_broker=directory.config.quorum.is_broker,
            quorum=self._quorum.replicas(),
            partitions=counted(metadata, directory.node_id, least),
            cluster=counted_by_controller(metadata) if self._quorum.is_active else None,
            follower_lag=follower_lag,
        )

    def identity(self) -> tuple[int, int]:
        """The broker's id, and its epoch."""
        return self._directory.node_id, self._session.epoch

    def begin(self, partitions: Partitions, replicas: Replicas, observers: Observers) -> None:
        """Register this broker, and be what the metadata says from then on.

        Raises:
            ConfigError: a setting of the cluster is unknown here or out of range.
            LogDirectoryError: the disk refused.
        """
        self._applying = Applying(self.metadata, self._directory, partitions, replicas, observers)
        self._quorum.watch(self._on_changes)
        self._session.on_damage(damaged_places(self.metadata, self._directory))
        self._session.tick()

    def listens_at(self, listeners: Sequence[Listener]) -> None:
        """This broker is reached there: as what it registers from now on."""
        self._session.listens_at(listeners)

    def submit(self, request: Message, version: int | None = None) -> Answer:
        """Have the controller decide on a request; in its newest version unless one is given."""
        newest = type(request).__versions__.last
        return self._forwarding.submit(request, newest if version is None else version)

    async def ask(self, request: Message) -> Message:
        """The controller's decision on a request of this broker's own, once it is there."""
        answer = self.submit(request)
        return await answer if isinstance(answer, asyncio.Future) else answer

    async def connect(self, node_id: int) -> Transport:
        """A connection to another broker, which nobody else uses.

        Raises:
            ConnectionLost: it can't be reached.
        """
        raise ConnectionLost(f"this broker knows no others, and no broker {node_id}")

    def on_damage(self, places: Iterable[Place]) -> None:
        """Replicas have turned out to lack records that they had counted."""
        self._session.on_damage(places)

    def on_settings(self) -> None:
        """Other settings of the broker hold."""
        cluster = self._directory.config.cluster
        self._session.configure(cluster.heartbeat_interval_ms)
        self._quorum.configure(cluster)

    def tick(self) -> None:
        """Do what is due."""
        # Before the controller looks who is silent: after a long pause of this process, it is not.
        self._session.tick()
        self._quorum.tick()
        if self._applying is not None:
            self._applying.tick(self._clock.now_ms())

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        deadlines = [self._session.next_deadline_ms(), self._quorum.next_deadline_ms()]
        if self._applying is not None:
            deadlines.append(self._applying.next_deadline_ms())
        return min((each for each in deadlines if each is not None), default=None)

    def close(self) -> None:
        """Nothing is decided any more. Raises what the log's `close` raises."""
        self._quorum.close()

    def _on_changes(self, changes: list[MetadataChange]) -> None:
        self.figures.on_changes(changes, self._quorum.deciding_ms)
        if self._applying is not None and self._is_acting:
            self._applying.apply(changes)
        else:
            self._act()

    def _act(self) -> None:
        """Begin to act on the metadata, if it has come to this broker's registration."""
        if self._is_acting or self._applying is None or not self._session.may_act:
            return
        self._is_acting = True
        try:
            self._applying.begin(self._session.epoch)
        except StreamlogError:
            _log.critical("broker %d can't be what the metadata says", self._directory.node_id)
            raise
