"""The settings of a cluster: its controller quorum, sessions, replication, inter-broker access.

Rule of the file, as in `config/broker`: a setting without an effect is not declared. Names are
Kafka's on the wire, except those of the inter-broker user and password, which are part of a JAAS
text in Kafka. `settings` defines the types of fields. The settings of the quorum can't be changed
while a broker runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    NamedSetting,
    boolean,
    check_table,
    choice,
    integer,
    password,
    text,
    words,
)
from streamlog.errors import ConfigError

BY_CLUSTER = 0
"""The value of `default.replication.factor` that derives it from the number of brokers."""
REPLICAS_MAX = 100
"""The most replicas of one partition; each is a full copy."""
DAY_S = 24 * 60 * 60
_REPLICAS_USUAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Settings of replicas and of broker sessions.

    Raises:
        ConfigError: a value is out of range.
    """

    replication_factor: int = integer(
        BY_CLUSTER,
        NamedSetting(
            "default.replication.factor",
            "Replicas of each partition of a topic whose creator gives no number; 0: 3, or the"
            " number of brokers if there are fewer.",
        ),
        maximum=REPLICAS_MAX,
    )
    session_timeout_ms: int = integer(
        9_000,
        NamedSetting(
            "broker.session.timeout.ms",
            "A broker whose last heartbeat is older than this is fenced and loses its leaderships.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    heartbeat_interval_ms: int = integer(
        2_000,
        NamedSetting(
            "broker.heartbeat.interval.ms",
            "The interval of a broker's heartbeats to the controller.",
            "ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    leader_rebalance: bool = boolean(
        NamedSetting(
            "auto.leader.rebalance.enable",
            "Whether leadership moves back to preferred leaders automatically.",
        ),
        default=True,
    )
    imbalance_check_interval_s: int = integer(
        300,
        NamedSetting(
            "leader.imbalance.check.interval.seconds",
            "How often the controller looks for partitions whose preferred leader could lead but"
            " does not, in seconds.",
        ),
        minimum=1,
        maximum=DAY_S,
    )

    def __post_init__(self) -> None:
        check_table(self)

    def copies(self, brokers: int) -> int:
        """Return the number of replicas of a partition whose creator gives none."""
        return self.replication_factor or max(1, min(_REPLICAS_USUAL, brokers))


PEER_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """Settings of connections between brokers.

    Raises:
        ConfigError: a value is out of range.
    """

    listener: str = text(
        "",
        NamedSetting(
            "inter.broker.listener.name",
            "The listener for connections from other brokers; empty: the first. The same on all"
            " brokers.",
            is_dynamic=False,
        ),
    )
    controller_listener: str = text(
        "",
        NamedSetting(
            "controller.listener.names",
            "The listener for connections from other nodes to this one as a controller, at the"
            " address in controller.quorum.voters; empty: the inter-broker listener. One name, the"
            " same on all nodes, including those that are only brokers.",
            is_dynamic=False,
        ),
    )
    mechanism: str = choice(
        "SCRAM-SHA-512",
        NamedSetting(
            "sasl.mechanism.inter.broker.protocol",
            "The SASL mechanism with which a broker authenticates to others, if that listener has"
            " SASL.",
            is_dynamic=False,
        ),
        PEER_MECHANISMS,
    )
    user: str = text(
        "",
        NamedSetting(
            "sasl.inter.broker.username",
            "The user name of brokers. It needs no stored credential, and may do everything: no"
            " client should use it. The same on all brokers.",
            is_dynamic=False,
        ),
    )
    password: str = password(
        NamedSetting(
            "sasl.inter.broker.password",
            "The password of sasl.inter.broker.username.",
            is_dynamic=False,
        )
    )
    checks_name: str = choice(
        "https",
        NamedSetting(
            "ssl.endpoint.identification.algorithm",
            "https: the certificate of another broker must be for the host name under which it is"
            " reached. none: any certificate from a trusted authority is accepted.",
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
    """Settings of followers' fetches and of the in-sync set.

    Raises:
        ConfigError: a value is out of range.
    """

    lag_time_max_ms: int = integer(
        30_000,
        NamedSetting(
            "replica.lag.time.max.ms",
            "A follower that has not caught up with its leader for this long leaves the in-sync"
            " replicas.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    fetch_wait_max_ms: int = integer(
        500,
        NamedSetting(
            "replica.fetch.wait.max.ms",
            "How long a leader delays the response to a follower that has everything; up to four"
            " times as long while nothing changes. Never more than a quarter of"
            " replica.lag.time.max.ms, the leader's or the follower's, or of"
            " replica.socket.timeout.ms.",
            "ms",
            is_dynamic=False,
        ),
        maximum=INT_MAX,
    )
    fetch_max_bytes: int = integer(
        1024 * 1024,
        NamedSetting(
            "replica.fetch.max.bytes",
            "What a follower fetches from one partition at a time; a larger batch is sent alone.",
            "bytes",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    fetch_response_max_bytes: int = integer(
        10 * 1024 * 1024,
        NamedSetting(
            "replica.fetch.response.max.bytes",
            "What a follower fetches from all partitions in one request.",
            "bytes",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    socket_timeout_ms: int = integer(
        30_000,
        NamedSetting(
            "replica.socket.timeout.ms",
            "A follower connects again to a leader that has not responded for this long.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    leader_throttled_rate: int = integer(
        LONG_MAX,
        NamedSetting(
            "leader.replication.throttled.rate",
            "Bytes per second that followers may fetch from this broker's replicas in"
            " leader.replication.throttled.replicas. Followers in sync are neither throttled nor"
            " counted.",
            "bytes",
        ),
        minimum=1,
    )
    follower_throttled_rate: int = integer(
        LONG_MAX,
        NamedSetting(
            "follower.replication.throttled.rate",
            "Bytes per second that this broker may fetch for its replicas in"
            " follower.replication.throttled.replicas that are not in sync.",
            "bytes",
        ),
        minimum=1,
    )
    alter_log_dirs_rate: int = integer(
        LONG_MAX,
        NamedSetting(
            "replica.alter.log.dirs.io.max.bytes.per.second",
            "Bytes per second that this broker may copy for replicas that move between its"
            " log.dirs.",
            "bytes",
        ),
        minimum=1,
    )
    selector: str = choice(
        NO_SELECTOR,
        NamedSetting(
            "replica.selector.class",
            "Which replica a leader sends readers to that give their client.rack: rack (or Kafka's"
            " name for it): the in-sync replica in the same broker.rack that has the most records;"
            " none: readers stay with the leader.",
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
"""The most voters; each decision waits for a majority of them."""
_PORT_MAX = 2**16 - 1
_NODE_ID_MAX = INT_MAX

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """Settings of the controller quorum.

    Raises:
        ConfigError: a value is malformed or out of range.
    """

    voters: str = text(
        "",
        NamedSetting(
            "controller.quorum.voters",
            "The controllers, each with its node.id and address: 1@host:9092,2@…; the same on every"
            " node. Empty: this node is the only one of its cluster.",
            is_dynamic=False,
        ),
    )
    roles: str = words(
        f"{BROKER_ROLE},{CONTROLLER_ROLE}",
        NamedSetting(
            "process.roles",
            "The roles of this node: a broker has partitions and clients; a controller is one of"
            " the voters; a node can be both.",
            is_dynamic=False,
        ),
        (BROKER_ROLE, CONTROLLER_ROLE),
    )
    election_timeout_ms: int = integer(
        1_000,
        NamedSetting(
            "controller.quorum.election.timeout.ms",
            "How long a candidate waits for the outcome of an election before it starts another.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    election_backoff_ms: int = integer(
        1_000,
        NamedSetting(
            "controller.quorum.election.backoff.max.ms",
            "The longest random delay that is added to the election time-out, so that two"
            " candidates don't collide again.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    fetch_timeout_ms: int = integer(
        2_000,
        NamedSetting(
            "controller.quorum.fetch.timeout.ms",
            "A voter that has not heard from the leader for this long starts an election; a leader"
            " that has not heard from a majority for one and a half times as long resigns.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    request_timeout_ms: int = integer(
        2_000,
        NamedSetting(
            "controller.quorum.request.timeout.ms",
            "How long a voter waits for a response of another one.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    retry_backoff_ms: int = integer(
        20,
        NamedSetting(
            "controller.quorum.retry.backoff.ms",
            "The pause before a voter repeats a request that has failed.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    snapshot_bytes: int = integer(
        20 * 1024 * 1024,
        NamedSetting(
            "metadata.log.max.record.bytes.between.snapshots",
            "How much the metadata log grows before a snapshot of it is written and the log before"
            " it is removed.",
            "bytes",
            is_dynamic=False,
        ),
        minimum=1,
    )
    snapshot_interval_ms: int = integer(
        60 * 60 * 1000,
        NamedSetting(
            "metadata.log.max.snapshot.interval.ms",
            "After this time, a snapshot is written if the metadata log has new records; 0:"
            " snapshots are not written by time.",
            "ms",
            is_dynamic=False,
        ),
        maximum=LONG_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
        self.addresses()  # Raises ConfigError for a malformed list, before anything uses it.

    def addresses(self) -> dict[int, Address]:
        """Return the addresses of the voters by node.id; empty if this node is alone."""
        found: dict[int, Address] = {}
        for word in filter(None, (each.strip() for each in self.voters.split(","))):
            node_id, address = _voter(word)
            if node_id in found:
                raise ConfigError(f"controller.quorum.voters={self.voters!r} lists {node_id} twice")
            found[node_id] = address
        if len(found) > VOTERS_MAX:
            raise ConfigError(
                f"controller.quorum.voters has {len(found)} controllers, the maximum is"
                f" {VOTERS_MAX}: make the other nodes brokers (process.roles=broker)"
            )
        return found

    def voter_ids(self, node_id: int) -> tuple[int, ...]:
        """Return the ids of the voters, as node `node_id` sees them."""
        # A node without `controller.quorum.voters` is a cluster of its own, and its only voter.
        return tuple(sorted(self.addresses())) or (node_id,)

    @property
    def is_broker(self) -> bool:
        """Whether this node has partitions and clients."""
        return BROKER_ROLE in self._words

    @property
    def is_controller(self) -> bool:
        """Whether this node is a voter."""
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
    """Parse node id and address of a voter, such as `1@host:9092` or `1@[::1]:9092`."""
    node_id, _, address = word.partition("@")
    # From the right: an IPv6 address has colons, too.
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_sound = node_id.isdecimal() and port.isdecimal() and host
    if not is_sound or int(node_id) > _NODE_ID_MAX or not 0 < int(port) <= _PORT_MAX:
        raise ConfigError(
            f"controller.quorum.voters contains {word!r}: write each controller as"
            " node.id@host:port"
        )
    return int(node_id), (host, int(port))
