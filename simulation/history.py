"""History: what clients have asked of a log, and what they were told: all that checkers look at.

It is written by the clients of a load, in the simulation and against real processes alike, and
knows nothing of what is inside a broker. An answer that never came leaves an operation unknown: it
may have happened or not. Times are of one clock, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

Place: TypeAlias = tuple[str, int]
"""A topic and a partition's number."""


class Outcome(StrEnum):
    """What has become of an operation."""

    OK = "ok"
    FAILED = "failed"
    """It has not happened, and will not."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A record that a producer has written; its value is like no other's."""

    producer: str
    number: int
    """In the order in which the producer has handed them over."""
    place: Place
    value: str
    outcome: Outcome
    offset: int | None = None
    began_ms: int
    ended_ms: int
    transaction: str | None = None
    """Which one it is part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """How a transaction has ended; FAILED is one that was aborted."""

    name: str
    outcome: Outcome
    decided_ms: int
    """When its end was asked for: nothing of it may be read as committed before."""
    ended_ms: int
    is_planned: bool = False
    """Whether its client has aborted it by choice, and nothing went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A record as a consumer has got it."""

    place: Place
    offset: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What a consumer has got at once."""

    consumer: str
    session: int
    """Counts up whenever the consumer is assigned anew: from one to the next it may go back."""
    committed: bool
    """Whether it reads committed records alone."""
    began_ms: int
    ended_ms: int
    records: tuple[Seen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A group's offset, as it was committed or as it was told (`offset` None: there is none)."""

    group: str
    place: Place
    offset: int | None
    is_commit: bool
    outcome: Outcome
    began_ms: int
    ended_ms: int


@dataclass(slots=True)
class History:
    """All of it, in the order in which operations ended."""

    sends: list[Send] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    final: dict[Place, list[Seen]] = field(default_factory=dict)
    """What is there when all is over, read from the beginning to the end, uncommitted included."""
    final_committed: dict[Place, list[Seen]] = field(default_factory=dict)
    """The same for a reader of committed records."""
    transformed: dict[str, str] = field(default_factory=dict)
    """Of values that were made of others, exactly once: the value, and of which one."""
    transforms: Mapping[str, str] = field(default_factory=dict)
    """Topics whose records are to be transformed, each to one of the other topic."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be in a history."""

    kind: str
    """As jepsen.tests.kafka calls it, where it knows it."""
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"
