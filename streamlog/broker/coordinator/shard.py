"""Shard: what a coordinator decides, and the port through which it is run.

A shard is one partition's part of a coordinator, without I/O: it gets requests and the time, and
returns a `ShardOutcome`. A request that has to wait is identified by its ticket, a number from the
runtime; a later event returns its response. Every ticket is answered exactly once.

Rules of this package: a handler reads state and returns the records that *would* change it. Only
`replay` changes durable state, so a restart loads the state by the same code that changes it in
operation (compare Kafka's coordinator runtime). Only the state of a running rebalance, which means
nothing after a restart, is in memory without records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from streamlog.protocol.error_responses import code_for, error_response
from streamlog.protocol.messages.classic_groups import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from streamlog.protocol.schema import Message


class Instant(NamedTuple):
    """The current time by both clocks: deadlines use the one, records the other."""

    now_ms: int
    """Monotonic time."""
    wall_ms: int
    """Time since the Unix epoch."""


class CoordinatorRecord(msgspec.Struct, frozen=True):
    """One record for the shard's partition; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Answer(msgspec.Struct, frozen=True):
    """The response to the request that holds `ticket`."""

    ticket: int
    response: Message


class ShardOutcome(msgspec.Struct, frozen=True):
    """The result of an event: append `records`, replay them, then send `answers`."""

    records: tuple[CoordinatorRecord, ...] = ()
    answers: tuple[Answer, ...] = ()
    producer: tuple[int, int] | None = None
    """Id and epoch of the producer whose transaction has the records; None outside one."""

    def __add__(self, other: ShardOutcome) -> ShardOutcome:
        return ShardOutcome(
            self.records + other.records, self.answers + other.answers, self.producer
        )


class Caller(msgspec.Struct, frozen=True):
    """The caller of a request: its ticket, and what a group stores about the member."""

    ticket: int
    version: int
    client_id: str
    client_host: str
    fresh_member_id: str
    """An unused member id, for a member without one; random values are passed in."""
    connection: int = 0
    """The caller's connection: later ones have higher numbers; 0 if unknown."""


class Shard(Protocol):
    """A coordinator without I/O, for the keys of one partition."""

    def handle(self, request: Message, caller: Caller, at: Instant) -> ShardOutcome:
        """Decide on a request."""
        ...

    def replay(self, record: CoordinatorRecord, *, now_ms: int) -> None:
        """Replay a record of the partition: the only way in which durable state changes."""
        ...

    def on_tick(self, at: Instant) -> ShardOutcome:
        """Handle the passing of time: answer and expire what is due."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do; None for never."""
        ...


def refuse(request: Message, version: int, code: int) -> Message:
    """Return a response that only has an error, in the form of the client's version."""
    response = error_response(request, code_for(request, version, code))
    if isinstance(request, JoinGroupRequest) and isinstance(response, JoinGroupResponse):
        response.member_id = request.member_id
    return response
