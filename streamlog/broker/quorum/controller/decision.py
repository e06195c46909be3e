"""Decision: the outcome of a request to the controller; ControllerContext: what it depends on.

Rules of this module: a decision changes nothing. Its records are appended as one atomic batch and
replayed when they are committed. Only then `answer` makes the response, from the metadata after
the replay. So no response reports anything that was not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec

from streamlog.broker.config.broker import ALL_DIRECTORIES, BrokerConfig, TopicConfig
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
from streamlog.protocol.schema import ZERO_UUID, Message, RequestType
from streamlog.replace import replace

MIN_INSYNC = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
CORDONED: Final = "cordoned.log.dirs"
_DECISIVE = (MIN_INSYNC, UNCLEAN_ELECTION)
"""The topic settings that elections depend on; brokers have defaults under the same names."""


Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Response_co = TypeVar("Response_co", bound=Message, covariant=True)


class Decision(msgspec.Struct, Generic[Response_co], frozen=True):
    """The records and the answer of a request or of a timed decision."""

    records: tuple[MetadataRecord, ...] = ()
    answer: Callable[[], Response_co] | None = None
    """Makes the response, after the records were replayed; None for a timed decision."""


DecisionHandler: TypeAlias = Callable[[Request, int, int], Decision[Response]]
"""Decides on a request, given its version and the time (`now_ms`)."""
DecisionHandlers: TypeAlias = dict[type[Message], DecisionHandler[Any, Message]]
"""What decides on requests, by request type."""


def decides(
    kind: RequestType[Request, Response], handler: DecisionHandler[Request, Response]
) -> tuple[type[Message], DecisionHandler[Any, Message]]:
    """Return the entry of a handler that decides on requests of this type.

    Type checkers compare the handler with the request type and the response that it declares.
    """
    return cast("type[Message]", kind), handler


def respond(response: Response, records: Iterable[MetadataRecord] = ()) -> Decision[Response]:
    """Return a decision whose response does not depend on the replay of its records."""
    return Decision(tuple(records), lambda: response)


class ControllerChance(Protocol):
    """Port: the source of ids and starting points: `random.SystemRandom`, or a seeded one."""

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return a random number from 0 to below `stop`."""
        ...


@dataclass(slots=True, kw_only=True)
class ControllerContext:
    """What the parts of a controller decide by: the committed metadata and the settings."""

    metadata: ClusterMetadata
    cluster_id: str
    node_id: int
    """The node of this controller."""
    chance: ControllerChance
    config: BrokerConfig = field(default_factory=BrokerConfig)
    """The settings with which this node was started."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    internal_topics: frozenset[str] = frozenset()
    rules: ElectionRules = CORRECT
    inherited: Callable[[], Iterable[MetadataRecord]] = tuple
    """The first records of an empty log."""

    def active(self) -> frozenset[int]:
        """Return the brokers that can lead: unfenced and not shutting down."""
        return frozenset(
            broker.broker_id for broker in self.metadata.brokers.values() if broker.is_active
        )

    def cordoned(self) -> frozenset[int]:
        """Return the brokers that get no new replicas (KIP-1066); they keep those that they have.

        One with some of its directories cordoned by their paths chooses another one itself.
        Only the settings in the metadata count: what the file of another broker says is not known.
        """
        default = self.metadata.config(BROKER_RESOURCE, ALL_BROKERS).get(CORDONED, "")
        return frozenset(
            number
            for number in self.metadata.brokers
            if self.metadata.config(BROKER_RESOURCE, str(number)).get(CORDONED, default)
            == ALL_DIRECTORIES
        )

    def brokers_expected(self, topic: str) -> int:
        """Return the number of brokers that can have replicas of a topic, live or not.

        For an internal topic, voters that have not registered yet count too: it gets its final
        number of replicas at its creation.
        """
        cordoned = self.cordoned()
        known, quorum = len(self.metadata.brokers) - len(cordoned), self.config.quorum
        if topic not in self.internal_topics or not quorum.is_broker:
            return known
        return max(known, len({*quorum.voter_ids(self.node_id)} - cordoned))

    def terms(self, topic: str, partition: PartitionRegistration, active: frozenset[int]) -> Terms:
        """Return the conditions of a decision on a partition, while these brokers can lead."""
        config = self.decisive_config(topic)
        return Terms(
            active=active,
            min_insync=config.min_insync(partition.replication_factor),
            allows_unclean=config.unclean_leader_election,
            directories=self.directories(),
            rules=self.rules,
        )

    def unclean_terms(self, terms: Terms) -> Terms:
        """Return these conditions with an unclean election that an administrator orders."""
        return replace(terms, allows_unclean=True, is_ordered=True)

    def directories(self) -> Mapping[int, bytes]:
        """Return the log directory of each registered broker that has reported one."""
        return {
            broker.broker_id: broker.directories[0]
            for broker in self.metadata.brokers.values()
            if broker.directories
        }

    def directory(self, broker_id: int) -> bytes:
        """Return the directory of a broker's new replicas; all zero if it is not known."""
        broker = self.metadata.brokers.get(broker_id)
        return ZERO_UUID if broker is None or not broker.directories else broker.directories[0]

    def min_insync(self, topic: str, replication_factor: int) -> int:
        """Return the effective `min.insync.replicas` of a topic."""
        return self.decisive_config(topic).min_insync(replication_factor)

    def node_config(self) -> BrokerConfig:
        """Return the settings of this node's start, with the dynamic ones applied."""
        default = self.metadata.config(BROKER_RESOURCE, ALL_BROKERS)
        own = self.metadata.config(BROKER_RESOURCE, str(self.node_id))
        return self.config.override(default).override(own)

    def decisive_config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic that elections depend on.

        The topic's own settings come first, then those of all brokers, then those with which this
        node was started. Other settings are left out, because this runs for every partition.
        """
        texts: dict[str, str] = {}
        for resource in ((BROKER_RESOURCE, ALL_BROKERS), (TOPIC_RESOURCE, topic)):
            # The topic is second, and its settings replace those of all brokers.
            own = self.metadata.config(*resource)
            texts |= {name: own[name] for name in _DECISIVE if name in own}
        return _overridden(self.config.topic, tuple(texts.items())) if texts else self.config.topic


@lru_cache(maxsize=64)
def _overridden(config: TopicConfig, texts: tuple[tuple[str, str], ...]) -> TopicConfig:
    """Return the settings with these texts applied; cached, because the check is slow."""
    return config.override(dict(texts))
