"""What brokers, the controller and clients of one partition send each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from simulation.isr.disk import Entry
from streamlog.broker.replication.replica_state import (
    FetchAnswer,
    ProposeIsr,
    ReplicaFetch,
    ReplicaState,
)


class Heartbeat(NamedTuple):
    """A broker tells the controller that it lives, and registers with the first one."""

    broker: int
    epoch: int
    incarnation: int
    clean: bool


class Registered(NamedTuple):
    """This life of the broker has an epoch, by the record at `offset`."""

    epoch: int
    incarnation: int
    offset: int


class Metadata(NamedTuple):
    """What the controller has committed as of `offset`."""

    offset: int
    state: ReplicaState
    brokers: Mapping[int, int]


class Fetch(NamedTuple):
    """A follower's."""

    fetch_id: tuple[int, int]
    fetch: ReplicaFetch


class Fetched(NamedTuple):
    """The leader's answer."""

    fetch_id: tuple[int, int]
    answer: FetchAnswer
    entries: tuple[Entry, ...]


class Alter(NamedTuple):
    """AlterPartition."""

    broker: int
    broker_epoch: int
    proposal: ProposeIsr


class Altered(NamedTuple):
    """The controller's answer."""

    number: int
    code: int
    leader_epoch: int
    partition_epoch: int
    isr: frozenset[int]


class Produce(NamedTuple):
    """One record of an idempotent producer."""

    client: int
    request: int
    producer: int
    sequence: int


class Produced(NamedTuple):
    """What has become of it."""

    request: int
    code: int


class Read(NamedTuple):
    """A consumer's fetch."""

    client: int
    request: int
    offset: int
    leader_epoch: int


class ReadAnswer(NamedTuple):
    """Committed records; `out_of_range` if the leader knows nothing of the offset."""

    request: int
    start: int
    entries: tuple[Entry, ...]
    log_start: int
    out_of_range: bool
    leader_epoch: int


Message: TypeAlias = (
    Heartbeat
    | Registered
    | Metadata
    | Fetch
    | Fetched
    | Alter
    | Altered
    | Produce
    | Produced
    | Read
    | ReadAnswer
)
