"""A member of a group whose coordinator assigns (KIP-848): what it wants, what it has, what next.

Pure values, and `reconciled`, the one step towards what the member is to have:

    STABLE ──▸ UNREVOKED: it has to give something up, and keeps its epoch until it has
       ▴ ▴──── UNRELEASED: what it is to get is still another's; the rest it has

A partition goes to a member only when nobody else holds it: `free` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self, TypeAlias

Held: TypeAlias = frozenset[tuple[bytes, int]]
"""Partitions by topic id and number."""

NOTHING: Held = frozenset()
JOINING_EPOCH = 0
LEFT_EPOCH = -1
AWAY_EPOCH = -2
"""Of a static member that has left and will be back: its place is kept for a session."""


class Progress(IntEnum):
    """How far a member has come towards its target; the values are Kafka's, in records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """What a member has said of itself."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    assignor: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression for the names of topics, besides `topics`."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What several members read together."""

    topics: frozenset[str]
    patterns: frozenset[str]

    @classmethod
    def of(cls, members: Iterable[Subscriber]) -> Self:
        """Put together what each of them reads."""
        many = list(members)
        return cls(
            frozenset(topic for member in many for topic in member.topics),
            frozenset(member.pattern for member in many if member.pattern is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a member has, as of its epoch."""

    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    """The one before: the answer with the new one may have been lost."""
    progress: Progress = Progress.STABLE
    assigned: Held = NOTHING
    revoking: Held = NOTHING
    """Not its own any more, but nobody else's before it has said so."""

    @property
    def held(self) -> Held:
        """What nobody else may have."""
        return self.assigned | self.revoking

    def at_epoch(self, epoch: int) -> Holding:
        """The same at another epoch."""
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch)


@dataclass(frozen=True, slots=True)
class Target:
    """What a member is to have, and of which epoch that is."""

    epoch: int
    partitions: Held


def reconciled(
    holding: Holding,
    target: Target,
    owned: Held | None,
    free: Callable[[tuple[bytes, int]], bool],
) -> Holding:
    """One step towards the target.

    Args:
        holding: what the member has.
        target: what it is to have.
        owned: what it says that it owns; None if it does not say.
        free: whether nobody holds a partition.
    """
    match holding.progress:
        case Progress.UNREVOKED if _still_owns(owned, holding.revoking):
            return holding
        case Progress.UNREVOKED:
            # It is done with what it was to give up: on to the next epoch, and the newest target.
            return _next(holding, holding.epoch + 1, target, owned, free)
        case Progress.STABLE if holding.epoch == target.epoch:
            return holding
    return _next(holding, holding.epoch, target, owned, free)


def _next(
    holding: Holding,
    epoch: int,
    target: Target,
    owned: Held | None,
    free: Callable[[tuple[bytes, int]], bool],
) -> Holding:
    kept = holding.assigned & target.partitions
    revoking = holding.assigned - target.partitions
    wanted = target.partitions - kept
    available = frozenset(each for each in wanted if free(each))
    if revoking and _still_owns(owned, revoking):
        return replace(
            holding.at_epoch(epoch), progress=Progress.UNREVOKED, assigned=kept, revoking=revoking
        )
    progress = Progress.STABLE if available == wanted else Progress.UNRELEASED
    return replace(
        holding.at_epoch(target.epoch),
        progress=progress,
        assigned=kept | available,
        revoking=NOTHING,
    )


def _still_owns(owned: Held | None, revoking: Iterable[tuple[bytes, int]]) -> bool:
    """Who does not say what it owns may own it still."""
    return owned is None or not owned.isdisjoint(revoking)
