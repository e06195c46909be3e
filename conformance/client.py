"""The face that each library is put behind, so that a feature is written down once.

A client offers writers, readers and an administrator. What a library has no call for is left as it
is here and raises `NotOffered`, which the table shows as such: it is neither a pass nor a fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from conformance.schemas import Schemas

PATIENCE_S = int(os.environ.get("CONFORMANCE_PATIENCE_S", "60"))
"""How long anything may take that a broker does at once, on a machine with much else to do."""

REPLICAS = int(os.environ.get("CONFORMANCE_REPLICAS", "1"))
"""Of the topics that administrators make: as many as the cluster under trial has brokers."""

HEARTBEAT_MS, SESSION_MS = 500, 6_000
"""Of a group's member. A member hears of a rebalance by a heartbeat. librdkafka's mock cluster lets
every rebalance but a group's first last a second less than the session may; 6 s is the shortest
session that brokers take by default."""

Headers = tuple[tuple[str, bytes | None], ...]


class NotOffered(Exception):
    """The library has no call for it."""


class Sent(NamedTuple):
    """A record as a writer gives it and a reader gets it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class Got(NamedTuple):
    """Where a record was found, and what it is."""

    offset: int
    record: Sent


def not_offered(what: str) -> NoReturn:
    """Say that the library can't."""
    raise NotOffered(what)


class Writer:
    """A producer."""

    def write(self, topic: str, records: Sequence[Sent]) -> list[int]:
        """Write, wait for the acknowledgements, return the offsets that they name."""
        not_offered("produce")

    def start(self) -> None:
        """Make itself known as the only one with its transactional id."""
        not_offered("transactions")

    def begin(self) -> None:
        """Begin a transaction."""
        not_offered("transactions")

    def commit(self) -> None:
        """End it, so that everybody sees it."""
        not_offered("transactions")

    def abort(self) -> None:
        """End it, so that nobody sees it."""
        not_offered("transactions")

    def send_offset(self, reader: Reader, topic: str, partition: int, offset: int) -> None:
        """Commit a reader's position with the transaction."""
        not_offered("offsets in a transaction")

    def close(self) -> None:
        """Leave nothing behind."""


class Reader:
    """A consumer."""

    def assign(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Read these partitions, each from its offset on."""
        not_offered("assign")

    def subscribe(self, topic: str) -> None:
        """Share a topic with the group, from its beginning where nothing is committed."""
        not_offered("subscribe")

    def poll(self) -> list[Got]:
        """What there is by now; returns soon if that is nothing."""
        not_offered("poll")

    def owns(self) -> set[int]:
        """The partitions that it has to itself."""
        not_offered("assignment")

    def commit(self) -> None:
        """Keep the positions of everything that was polled."""
        not_offered("commit")

    def committed(self, topic: str, partition: int) -> int | None:
        """The position that the group has kept."""
        not_offered("committed")

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset, and the one that comes next."""
        not_offered("begin and end of a partition")

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first record of this time or later."""
        not_offered("offsets for times")

    def close(self) -> None:
        """Leave the group."""


class Administrator:
    """The admin side. Names and numbers only, so that libraries compare."""

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create it."""
        not_offered("create topics")

    def partitions(self) -> dict[str, int]:
        """How many partitions each topic has."""
        not_offered("list topics")

    def add_partitions(self, name: str, count: int) -> None:
        """Let it have `count` of them."""
        not_offered("add partitions")

    def delete_topic(self, name: str) -> None:
        """Delete it."""
        not_offered("delete topics")

    def configs(self, topic: str) -> dict[str, str | None]:
        """All settings of a topic."""
        not_offered("describe configs")

    def set_config(self, topic: str, name: str, value: str) -> None:
        """Change a setting."""
        not_offered("alter configs")

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete what is before an offset; returns where the partition begins then."""
        not_offered("delete records")

    def groups(self) -> set[str]:
        """The ids of all groups."""
        not_offered("list groups")

    def members(self, group: str) -> tuple[str, int]:
        """A group's state and the number of its members."""
        not_offered("describe groups")

    def delete_group(self, group: str) -> None:
        """Forget a group."""
        not_offered("delete groups")

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """What a group has committed for a topic, by partition."""
        not_offered("list the offsets of a group")

    def set_group_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Move a group that nobody is in."""
        not_offered("alter the offsets of a group")

    def delete_group_offset(self, group: str, topic: str, partition: int) -> None:
        """Forget a position."""
        not_offered("delete the offsets of a group")

    def quotas(self, client_id: str) -> dict[str, float]:
        """The rates that a client id may use."""
        not_offered("quotas")

    def set_quota(self, client_id: str, name: str, rate: float) -> None:
        """Bound a rate."""
        not_offered("quotas")

    def subscriptions(self) -> set[str]:
        """The names of the subscriptions to metrics of clients (KIP-714)."""
        not_offered("list subscriptions to client metrics")

    def subscription(self, name: str) -> dict[str, str | None]:
        """The settings of one of them."""
        not_offered("describe subscriptions to client metrics")

    def set_subscription(self, name: str, settings: Mapping[str, str]) -> None:
        """Create one, or change it."""
        not_offered("create subscriptions to client metrics")

    def log_sizes(self, topic: str) -> dict[int, int]:
        """The bytes of a topic's partitions in the directories of brokers."""
        not_offered("describe log directories")

    def close(self) -> None:
        """Leave nothing behind."""


class Client:
    """One library, bound to one cluster."""

    name: str
    keeps_timestamps = True
    """Whether a writer can say what time a record is of."""
    has_lasting_writers = True
    """Whether a writer lives longer than one transaction."""
    pushes_metrics = False
    """Whether its writers push metrics to brokers that ask for them (KIP-714)."""

    def __init__(self, address: str, *, is_mock: bool) -> None:
        self.address = address
        self.is_mock = is_mock

    @classmethod
    def version(cls) -> str:
        """Of the library, and of the one below it."""
        raise LookupError(cls.name)

    def writer(
        self,
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        transactional_id: str | None = None,
    ) -> Writer:
        """A producer with these settings."""
        not_offered("produce")

    def reader(
        self,
        *,
        group: str | None = None,
        committed_only: bool = False,
        coordinator_assigns: bool = False,
    ) -> Reader:
        """A consumer with these settings."""
        not_offered("consume")

    def admin(self) -> Administrator:
        """The admin side."""
        not_offered("admin")

    def schemas(self) -> Schemas:
        """The side of a schema registry."""
        not_offered("schema registries")


ClientFactory = Callable[..., Client]
