"""The table of settings of the quorum: who keeps the metadata log, and how its members wait.

Rule of the file: that of `config`. Names are Kafka's on the wire; what a field of a table can be
is `settings`'. Nothing of it changes while a broker runs: who may vote is part of what is voted on.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    NamedSetting,
    check_table,
    text,
    whole,
    words,
)
from streamlog.errors import ConfigError

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
