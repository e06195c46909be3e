"""Decision: what a request to the controller leads to; and what all of its parts decide by.

Rule of the room: a decision changes nothing. Its records are appended as one batch, which is there
as a whole or not at all, are replayed when they are committed, and only then `answer` makes the
response, from the metadata that has come of it. What was never committed has never been said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol, TypeAlias

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.config.cluster import ClusterConfig
from streamlog.broker.quorum.controller.leader_elections import CORRECT, ElectionRules, Terms
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
)
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.quorum.metadata.registrations import PartitionRegistration
from streamlog.protocol.schema import ZERO_UUID, Message

MIN_INSYNC = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
_DECISIVE = (MIN_INSYNC, UNCLEAN_ELECTION)
"""The settings of topics that elections depend on; under the same names they are the broker's."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a request, or time, leads to."""

    records: tuple[MetadataRecord, ...] = ()
    answer: Callable[[], Message] | None = None
    """Makes the response, after the records have been replayed; None if nobody has asked."""


Handler: TypeAlias = Callable[..., Decision]
"""Decides on a request, given its version and the time (`now_ms`)."""


def respond(response: Message, records: Iterable[MetadataRecord] = ()) -> Decision:
    """A decision whose response does not depend on what comes of it."""
    return Decision(tuple(records), lambda: response)


class ControllerChance(Protocol):
    """Where ids and starting points come from: `random.SystemRandom`, or a seeded one."""

    def randbytes(self, n: int, /) -> bytes:
        """So many bytes."""
        ...

    def randrange(self, stop: int, /) -> int:
        """A number from 0 on, below `stop`."""
        ...


@dataclass(slots=True, kw_only=True)
class ControllerContext:
    """What the parts of a controller decide by: the metadata that is committed, and settings."""

    metadata: ClusterMetadata
    cluster_id: str
    node_id: int
    """Of this controller."""
    chance: ControllerChance
    config: BrokerConfig = field(default_factory=BrokerConfig)
    """As this node was started."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    internal_topics: frozenset[str] = frozenset()
    rules: ElectionRules = CORRECT
    inherited: Callable[[], Iterable[MetadataRecord]] = tuple
    """What the log begins with, if there is nothing in it."""

    def active(self) -> frozenset[int]:
        """Brokers that can lead."""
        return frozenset(
            broker.broker_id for broker in self.metadata.brokers.values() if broker.is_active
        )

    def brokers_expected(self, topic: str) -> int:
        """How many brokers there are to hold a topic, those that are away now included.

        An internal topic waits for the voters that are to come: nobody would make more copies of it
        later.
        """
        known, quorum = len(self.metadata.brokers), self.config.quorum
        if topic not in self.internal_topics or not quorum.is_broker:
            return known
        return max(known, len(quorum.voter_ids(self.node_id)))

    def terms(self, topic: str, partition: PartitionRegistration, active: frozenset[int]) -> Terms:
        """By what is decided on a partition while these brokers can lead."""
        config = self.decisive_config(topic)
        return Terms(
            active=active,
            min_insync=config.min_insync(partition.replication_factor),
            allows_unclean=config.unclean_leader_election,
            directories=self.directories(),
            rules=self.rules,
        )

    def unclean_terms(self, terms: Terms) -> Terms:
        """The same, where somebody orders that whoever lives may lead."""
        return replace(terms, allows_unclean=True, is_ordered=True)

    def directories(self) -> Mapping[int, bytes]:
        """The log directory that each registered broker has, of those that say so."""
        return {
            broker.broker_id: broker.directories[0]
            for broker in self.metadata.brokers.values()
            if broker.directories
        }

    def directory(self, broker_id: int) -> bytes:
        """Where a broker puts a new replica; all zero if it does not say."""
        broker = self.metadata.brokers.get(broker_id)
        return ZERO_UUID if broker is None or not broker.directories else broker.directories[0]

    def min_insync(self, topic: str, replication_factor: int) -> int:
        """How many replicas of a topic's partition have to be in sync."""
        return self.decisive_config(topic).min_insync(replication_factor)

    def node_config(self) -> BrokerConfig:
        """The settings as this node was started, with what was altered since."""
        default = self.metadata.config(BROKER_RESOURCE, ALL_BROKERS)
        own = self.metadata.config(BROKER_RESOURCE, str(self.node_id))
        return self.config.override(default).override(own)

    def decisive_config(self, topic: str) -> TopicConfig:
        """The topic's own settings, else those of all brokers, else as this node was started.

        Of those alone that matter here: it is asked for each partition.
        """
        texts: dict[str, str] = {}
        for resource in ((BROKER_RESOURCE, ALL_BROKERS), (TOPIC_RESOURCE, topic)):
            own = self.metadata.config(*resource)
            texts |= {name: own[name] for name in _DECISIVE if name in own}
        return _overridden(self.config.topic, tuple(texts.items())) if texts else self.config.topic


@lru_cache(maxsize=64)
def _overridden(config: TopicConfig, texts: tuple[tuple[str, str], ...]) -> TopicConfig:
    """A table of settings is checked as a whole when it is made; few are different."""
    return config.override(dict(texts))
