"""The settings of a cluster: its controller quorum, sessions, replication, inter-broker access.

Rule of the file: that of `config`. Names are Kafka's on the wire, except those of the inter-broker
user and password, which in Kafka are part of a JAAS text. The types of fields are those of
`settings`. The settings of the quorum don't change while a broker runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    NamedSetting,
    check_table,
    choice,
    password,
    text,
    truth,
    whole,
    words,
)
from streamlog.errors import ConfigError

BY_CLUSTER = 0
"""A number that follows from how many brokers there are."""
REPLICAS_MAX = 100
"""Of one partition: each is a copy of all of it."""
DAY_S = 24 * 60 * 60
_REPLICAS_USUAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Replicas, and the sessions of brokers.

    Raises:
        ConfigError: a value is out of range.
    """

    replication_factor: int = whole(
        BY_CLUSTER,
        NamedSetting(
            "default.replication.factor",
            "Copies of each partition of a topic that is created without a number of its own; 0:"
            " 3, or as many as there are brokers if they are fewer.",
        ),
        most=REPLICAS_MAX,
    )
    session_timeout_ms: int = whole(
        9_000,
        NamedSetting(
            "broker.session.timeout.ms",
            "A broker whose last heartbeat is so long ago leads nothing any more.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    heartbeat_interval_ms: int = whole(
        2_000,
        NamedSetting(
            "broker.heartbeat.interval.ms",
            "How often a broker tells the controller that it lives.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    leader_rebalance: bool = truth(
        NamedSetting(
            "auto.leader.rebalance.enable",
            "Whether partitions go back to their preferred leaders by themselves.",
        ),
        default=True,
    )
    imbalance_check_interval_s: int = whole(
        300,
        NamedSetting(
            "leader.imbalance.check.interval.seconds",
            "How often the controller looks for partitions that their preferred leader could"
            " lead and does not, in seconds.",
        ),
        least=1,
        most=DAY_S,
    )

    def __post_init__(self) -> None:
        check_table(self)

    def copies(self, brokers: int) -> int:
        """Replicas of a partition whose creator leaves them to the cluster."""
        return self.replication_factor or max(1, min(_REPLICAS_USUAL, brokers))


PEER_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """How brokers come to each other.

    Raises:
        ConfigError: a value is out of range.
    """

    listener: str = text(
        "",
        NamedSetting(
            "inter.broker.listener.name",
            "By which of its listeners other brokers come to this one; empty: the first. The same"
            " on all brokers.",
            is_dynamic=False,
        ),
    )
    controller_listener: str = text(
        "",
        NamedSetting(
            "controller.listener.names",
            "By which of its listeners other nodes come to this one as a controller, at the address"
            " in controller.quorum.voters; empty: that of other brokers. One, and the same on all"
            " nodes, those that are only brokers included.",
            is_dynamic=False,
        ),
    )
    mechanism: str = choice(
        "SCRAM-SHA-512",
        NamedSetting(
            "sasl.mechanism.inter.broker.protocol",
            "How a broker proves to others who it is, if that listener has SASL.",
            is_dynamic=False,
        ),
        PEER_MECHANISMS,
    )
    user: str = text(
        "",
        NamedSetting(
            "sasl.inter.broker.username",
            "As which user. Brokers know it from here, before they know any other, and it may do"
            " everything: no client should be it. The same on all brokers.",
            is_dynamic=False,
        ),
    )
    password: str = password(
        NamedSetting("sasl.inter.broker.password", "With which password.", is_dynamic=False)
    )
    checks_name: str = choice(
        "https",
        NamedSetting(
            "ssl.endpoint.identification.algorithm",
            "https: the certificate of another broker has to be for the name that it is reached"
            " by. none: any from an authority that is trusted.",
            is_dynamic=False,
        ),
        ("https", "none"),
    )

    def __post_init__(self) -> None:
        check_table(self)
        if bool(self.user) != bool(self.password):
            raise ConfigError(
                "sasl.inter.broker.username and sasl.inter.broker.password belong together:"
                " set both or neither"
            )


NO_SELECTOR = "none"
BY_RACK = "rack"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """How followers fetch, and when they lag.

    Raises:
        ConfigError: a value is out of range.
    """

    lag_time_max_ms: int = whole(
        30_000,
        NamedSetting(
            "replica.lag.time.max.ms",
            "A follower that has not had all that its leader has for so long is not in sync any"
            " more.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    fetch_wait_max_ms: int = whole(
        500,
        NamedSetting(
            "replica.fetch.wait.max.ms",
            "For how long a leader keeps a follower waiting that has everything. Less than"
            " replica.lag.time.max.ms.",
            "ms",
            is_dynamic=False,
        ),
        most=INT_MAX,
    )
    fetch_max_bytes: int = whole(
        1024 * 1024,
        NamedSetting(
            "replica.fetch.max.bytes",
            "What a follower asks for of one partition at a time; a larger batch comes alone.",
            "bytes",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    fetch_response_max_bytes: int = whole(
        10 * 1024 * 1024,
        NamedSetting(
            "replica.fetch.response.max.bytes",
            "What a follower asks for of all partitions together.",
            "bytes",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    socket_timeout_ms: int = whole(
        30_000,
        NamedSetting(
            "replica.socket.timeout.ms",
            "A leader that has not answered a follower for so long is connected to anew.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    leader_throttled_rate: int = whole(
        LONG_MAX,
        NamedSetting(
            "leader.replication.throttled.rate",
            "Bytes a second that followers may fetch from this broker of replicas in"
            " leader.replication.throttled.replicas. Who is in sync is not held back, and does not"
            " count.",
            "bytes",
        ),
        least=1,
    )
    follower_throttled_rate: int = whole(
        LONG_MAX,
        NamedSetting(
            "follower.replication.throttled.rate",
            "Bytes a second that this broker may fetch for replicas in"
            " follower.replication.throttled.replicas that are not in sync.",
            "bytes",
        ),
        least=1,
    )
    selector: str = choice(
        NO_SELECTOR,
        NamedSetting(
            "replica.selector.class",
            "Whom a leader sends readers to that say where they stand (client.rack): to a replica"
            " in sync in the same broker.rack, the fullest one (rack, or Kafka's name for it);"
            " none: to nobody else.",
            is_dynamic=False,
        ),
        (NO_SELECTOR, BY_RACK, "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    )

    def __post_init__(self) -> None:
        check_table(self)

    @property
    def sends_readers_near(self) -> bool:
        """Whether readers are sent to a replica in their rack."""
        return self.selector != NO_SELECTOR


BROKER_ROLE = "broker"
CONTROLLER_ROLE = "controller"
VOTERS_MAX = 9
"""Each decision waits for a majority of them."""
_PORT_MAX = 2**16 - 1
_NODE_ID_MAX = INT_MAX

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """The quorum of controllers.

    Raises:
        ConfigError: a value is malformed or out of range.
    """

    voters: str = text(
        "",
        NamedSetting(
            "controller.quorum.voters",
            "The controllers, each as its node.id and where it is reached: 1@host:9092,2@…; the"
            " same on every node. Empty: this node is its cluster's only one.",
            is_dynamic=False,
        ),
    )
    roles: str = words(
        f"{BROKER_ROLE},{CONTROLLER_ROLE}",
        NamedSetting(
            "process.roles",
            "What this node is: a broker, which has partitions and clients; a controller, which"
            " is one of the voters; or both.",
            is_dynamic=False,
        ),
        (BROKER_ROLE, CONTROLLER_ROLE),
    )
    election_timeout_ms: int = whole(
        1_000,
        NamedSetting(
            "controller.quorum.election.timeout.ms",
            "How long to wait for the outcome of an election before the next one.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    election_backoff_ms: int = whole(
        1_000,
        NamedSetting(
            "controller.quorum.election.backoff.max.ms",
            "Up to so much is added to it by chance, so that two candidates do not meet again.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    fetch_timeout_ms: int = whole(
        2_000,
        NamedSetting(
            "controller.quorum.fetch.timeout.ms",
            "Who has not heard of the leader for so long seeks another one; a leader that has not"
            " heard of a majority for half as long again resigns.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    request_timeout_ms: int = whole(
        2_000,
        NamedSetting(
            "controller.quorum.request.timeout.ms",
            "How long a member waits for the answer of another one.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    retry_backoff_ms: int = whole(
        20,
        NamedSetting(
            "controller.quorum.retry.backoff.ms",
            "How long a member waits before it asks again what has failed.",
            "ms",
            is_dynamic=False,
        ),
        least=1,
        most=INT_MAX,
    )
    snapshot_bytes: int = whole(
        20 * 1024 * 1024,
        NamedSetting(
            "metadata.log.max.record.bytes.between.snapshots",
            "After so much in the metadata log a snapshot of it is written, and what is before"
            " that is removed.",
            "bytes",
            is_dynamic=False,
        ),
        least=1,
    )
    snapshot_interval_ms: int = whole(
        60 * 60 * 1000,
        NamedSetting(
            "metadata.log.max.snapshot.interval.ms",
            "After so long a snapshot is written if there is anything new in the metadata log; 0:"
            " never for the time alone.",
            "ms",
            is_dynamic=False,
        ),
        most=LONG_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
        self.addresses()

    def addresses(self) -> dict[int, Address]:
        """Where the voters are reached, by node.id; empty if this node is alone."""
        found: dict[int, Address] = {}
        for word in filter(None, (each.strip() for each in self.voters.split(","))):
            node_id, address = _voter(word)
            if node_id in found:
                raise ConfigError(f"controller.quorum.voters={self.voters!r} has {node_id} twice")
            found[node_id] = address
        if len(found) > VOTERS_MAX:
            raise ConfigError(
                f"controller.quorum.voters has {len(found)} controllers, the maximum is"
                f" {VOTERS_MAX}: make the other nodes brokers (process.roles=broker)"
            )
        return found

    def voter_ids(self, node_id: int) -> tuple[int, ...]:
        """Who votes, as node `node_id` has it."""
        return tuple(sorted(self.addresses())) or (node_id,)

    @property
    def is_broker(self) -> bool:
        """Whether this node has partitions and clients."""
        return BROKER_ROLE in self._words

    @property
    def is_controller(self) -> bool:
        """Whether it votes."""
        return CONTROLLER_ROLE in self._words

    @property
    def _words(self) -> list[str]:
        return [each.strip() for each in self.roles.split(",")]

    def check(self, node_id: int) -> None:
        """Raise ConfigError if the settings can't be those of node `node_id`."""
        voters = self.voter_ids(node_id)
        listed = ", ".join(str(each) for each in voters)
        if self.is_controller and node_id not in voters:
            raise ConfigError(
                f"process.roles={self.roles} makes node.id={node_id} a controller, but"
                f" controller.quorum.voters ({listed}) does not list it: list it on every node,"
                f" or use process.roles={BROKER_ROLE}"
            )
        if not self.is_controller and not self.voters:
            raise ConfigError(
                f"process.roles={self.roles} needs controllers on other nodes: list them in"
                " controller.quorum.voters"
            )
        if not self.is_controller and node_id in voters:
            raise ConfigError(
                f"controller.quorum.voters ({listed}) lists node.id={node_id}, but"
                f" process.roles={self.roles} does not make it a controller"
            )


def _voter(word: str) -> tuple[int, Address]:
    """Node and address of a word such as `1@host:9092` or `1@[::1]:9092`."""
    node_id, _, address = word.partition("@")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_sound = node_id.isdecimal() and port.isdecimal() and host
    if not is_sound or int(node_id) > _NODE_ID_MAX or not 0 < int(port) <= _PORT_MAX:
        raise ConfigError(
            f"controller.quorum.voters has {word!r}: write each controller as node.id@host:port"
        )
    return int(node_id), (host, int(port))
