"""Shard: what a coordinator decides, and the port through which it is run.

A shard is one partition's worth of a coordinator, pure: requests and time in, an `Outcome` out.
Rule of the room: a handler reads state and returns the records that *would* change it; what is
durable changes in `replay` alone, so that loading after a restart is the same code as living
through it (after Kafka's coordinator runtime). Only the dance of a rebalance, which is
meaningless after a restart, is held in memory without records.

A request that has to wait is known by its ticket, a number that the runtime has given to it;
the answer comes out of some later event. Every ticket is answered exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from streamlog.protocol.error_responses import code_for, error_response
from streamlog.protocol.messages.classic_groups import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from streamlog.protocol.schema import Message


class Instant(NamedTuple):
    """Now, by both clocks: deadlines need the one, records the other."""

    now_ms: int
    """Monotonic."""
    wall_ms: int
    """Since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """One record for the shard's partition; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to the request that holds `ticket`."""

    ticket: int
    response: Message


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """What an event leads to: append `records`, replay them, then send `answers`."""

    records: tuple[CoordinatorRecord, ...] = ()
    answers: tuple[Answer, ...] = ()
    producer: tuple[int, int] | None = None
    """Whose transaction the records are part of, by id and epoch; None if they count at once."""

    def __add__(self, other: ShardOutcome) -> ShardOutcome:
        return ShardOutcome(
            self.records + other.records, self.answers + other.answers, self.producer
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: where the answer goes, and what a group remembers of its member."""

    ticket: int
    version: int
    client_id: str
    client_host: str
    fresh_member_id: str
    """A name that nobody has, for a member that has none yet: chance is an argument."""
    connection: int = 0
    """By which it asks: later ones have higher numbers; 0 if that is not known."""


class Shard(Protocol):
    """A pure coordinator for the keys of one partition."""

    def handle(self, request: Message, caller: Caller, at: Instant) -> ShardOutcome:
        """Decide on a request."""
        ...

    def replay(self, record: CoordinatorRecord, *, now_ms: int) -> None:
        """Take a record of the partition into account: the only way durable state changes."""
        ...

    def on_tick(self, at: Instant) -> ShardOutcome:
        """Time has passed: answer and expire what is due."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do at the earliest; None for never."""
        ...


def refuse(request: Message, version: int, code: int) -> Message:
    """Return the response that carries nothing but an error, as clients of a version know it."""
    response = error_response(request, code_for(request, version, code))
    if isinstance(request, JoinGroupRequest) and isinstance(response, JoinGroupResponse):
        response.member_id = request.member_id
    return response
