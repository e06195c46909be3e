"""Leadership: what the leader of an epoch knows of those who fetch from it.

Pure. Who fetches from an offset has everything before it on its disk; so the offset that a
majority of voters has passed is committed, once it lies behind the leader's first entry of its
own epoch. Never an earlier one by count alone (Raft, figure 8):

1. A leads epoch 2 and writes x, which only B gets. A dies.
2. C leads epoch 3, by its own vote and D's and E's, writes y at the same offset and dies.
3. A leads epoch 4 and sends x to C: now a majority has x. If A took x for committed and died,
4. C, D or E could follow with y, which is of a later epoch, and cut x off.

A fetch that finds no news waits here for an entry, for the high watermark, or for its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamlog.broker.quorum.raft_messages import FetchRequest

UNKNOWN = -1
"""The end of a voter's log before its first fetch."""


@dataclass(slots=True)
class Progress:
    """What is known of one replica."""

    end_offset: int = UNKNOWN
    """Up to here its log is on its disk."""
    fetched_ms: int | None = None
    """When it has last asked; None if it has not yet."""
    caught_up_ms: int | None = None
    """When it last had all that the leader had."""
    rejoin_id: int = 0
    rejoin_offset: int = 0
    """A rejoining voter is in again once the others have committed this."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A fetch that waits for news."""

    ticket: int
    request: FetchRequest
    until_ms: int


class Leadership:
    """Of one epoch, by `node_id`, whose own entries begin at `start_offset`."""

    def __init__(
        self, *, node_id: int, voters: Iterable[int], start_offset: int, now_ms: int
    ) -> None:
        self.start_offset = start_offset
        self.began_ms = now_ms
        self.voters = {voter: Progress() for voter in voters if voter != node_id}
        self.observers: dict[int, Progress] = {}
        self.parked: dict[int, Parked] = {}
        """By replica: each has one fetch on its way."""

    def on_fetch(self, request: FetchRequest, *, end_offset: int, now_ms: int) -> Progress:
        """A replica asks; the leader's log ends at `end_offset`."""
        progress = self.voters.get(request.replica_id)
        if progress is None:
            progress = self.observers.setdefault(request.replica_id, Progress())
        progress.fetched_ms = now_ms
        progress.end_offset = request.offset
        if request.offset >= end_offset:
            progress.caught_up_ms = now_ms
        return progress

    def progress_of(self, replica_id: int) -> Progress | None:
        """What is known of a replica; None before its first fetch, if it is no voter."""
        return self.voters.get(replica_id) or self.observers.get(replica_id)

    def majority_offset(self, own_offset: int) -> int:
        """The offset that a majority of voters has passed, the leader with `own_offset`.

        Rejoining voters do not count: what they confirmed before may be gone, and that a majority
        of the *others* has passed an entry written since then is what lets them in again.
        """
        offsets = [UNKNOWN if each.rejoin_id else each.end_offset for each in self.voters.values()]
        offsets.append(own_offset)
        offsets.sort(reverse=True)
        return offsets[len(offsets) // 2]

    def touch_deadline_ms(self, patience_ms: int) -> int | None:
        """When a majority will not have been heard of for `patience_ms`; None for a sole voter."""
        if not self.voters:
            return None
        heard = sorted((self._heard_ms(each) for each in self.voters.values()), reverse=True)
        needed = (len(self.voters) + 1) // 2
        return heard[needed - 1] + patience_ms

    def silent(self, *, now_ms: int, patience_ms: int) -> list[int]:
        """Voters that have not fetched for so long, or not yet."""
        return [
            voter
            for voter, each in self.voters.items()
            if each.fetched_ms is None or now_ms - each.fetched_ms > patience_ms
        ]

    def successors(self) -> tuple[int, ...]:
        """The other voters, the one with the longest log first."""
        return tuple(sorted(self.voters, key=lambda each: (-self.voters[each].end_offset, each)))

    def release(self, *, end_offset: int, high_watermark: int, now_ms: int) -> list[Parked]:
        """Fetches that have waited long enough, or for which there is news."""
        due = [
            each
            for each in self.parked.values()
            if each.until_ms <= now_ms or has_news(each.request, end_offset, high_watermark)
        ]
        for each in due:
            del self.parked[each.request.replica_id]
        return due

    def next_release_ms(self) -> int | None:
        """When the first of those who wait has waited long enough."""
        return min((each.until_ms for each in self.parked.values()), default=None)

    def _heard_ms(self, progress: Progress) -> int:
        return self.began_ms if progress.fetched_ms is None else progress.fetched_ms


def has_news(request: FetchRequest, end_offset: int, high_watermark: int) -> bool:
    """Whether there is something to tell to who asks."""
    return end_offset > request.offset or min(high_watermark, request.offset) > (
        request.high_watermark
    )
