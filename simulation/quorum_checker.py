"""What must hold for a quorum, watched from outside: Q1 to Q6 of the design, and what was acked.

The checker believes no member: it keeps what it was shown, votes, leaders, entries committed and
images, and says when two of these contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlog.broker.quorum.raft.raft_messages import Entry

Slot = tuple[int, int, bytes]
"""Base offset, epoch and payload: what makes two entries the same."""


class Violation(Exception):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class Log:
    """What a member has on its disk, as the checker sees it."""

    node_id: int
    start_offset: int
    entries: list[Entry]
    synced_end: int


def slot_of(entry: Entry) -> Slot:
    """What identifies an entry."""
    return entry.base_offset, entry.epoch, entry.payload


@dataclass(slots=True)
class QuorumChecker:
    """Of one cluster, from its beginning."""

    voters: tuple[int, ...]
    leaders: dict[int, int] = field(default_factory=dict)
    """By epoch."""
    votes: dict[tuple[int, int], int] = field(default_factory=dict)
    """By voter and epoch."""
    epochs: dict[int, int] = field(default_factory=dict)
    """The latest that each member has stated."""
    committed: dict[int, Slot] = field(default_factory=dict)
    """By base offset."""
    committed_in: dict[int, int] = field(default_factory=dict)
    """In which epoch an entry was committed by its leader."""
    committed_end: int = 0
    images: dict[int, int] = field(default_factory=dict)
    """Of all records before an offset, as a number."""
    acked: int = 0

    def vote(self, voter: int, epoch: int, candidate: int) -> None:
        """Q4: one vote in an epoch, whatever happens to the voter."""
        before = self.votes.setdefault((voter, epoch), candidate)
        if before != candidate:
            raise Violation(f"Q4: {voter} votes in epoch {epoch} for {before} and {candidate}")

    def state(self, member: int, epoch: int) -> None:
        """Q4: epochs never go back."""
        if epoch < self.epochs.get(member, 0):
            raise Violation(f"Q4: {member} goes from epoch {self.epochs[member]} to {epoch}")
        self.epochs[member] = epoch

    def forget_epoch(self, member: int) -> None:
        """Its disk was wiped."""
        self.epochs.pop(member, None)

    def leader(self, log: Log, epoch: int) -> None:
        """Q1: one leader in an epoch. Q2: it has all that was committed in earlier ones."""
        before = self.leaders.setdefault(epoch, log.node_id)
        if before != log.node_id:
            raise Violation(f"Q1: {before} and {log.node_id} lead epoch {epoch}")
        have = {slot_of(entry) for entry in log.entries}
        for offset, slot in self.committed.items():
            if offset < log.start_offset or self.committed_in.get(offset, epoch) >= epoch:
                continue
            if slot not in have:
                raise Violation(f"Q2: {log.node_id} leads epoch {epoch} without {slot}")

    def commit(self, entries: Iterable[Entry]) -> None:
        """Q3: what is committed never changes."""
        for entry in entries:
            slot = slot_of(entry)
            before = self.committed.setdefault(entry.base_offset, slot)
            if before != slot:
                raise Violation(f"Q3: {before} was committed, and now {slot}")
            self.committed_end = max(self.committed_end, entry.next_offset)

    def commit_as_leader(
        self, entries: Iterable[Entry], epoch: int, logs: Iterable[Log], lost: dict[int, int]
    ) -> None:
        """Q6: at that moment a majority has it on disk; `lost` is what wiped disks have had."""
        held = list(logs)
        for entry in entries:
            self.committed_in.setdefault(entry.base_offset, epoch)
            count = sum(_holds(log, entry) for log in held if log.node_id in self.voters)
            count += sum(end >= entry.next_offset for end in lost.values())
            if count <= len(self.voters) // 2:
                raise Violation(f"Q6: {slot_of(entry)} is committed and on {count} disks")

    def high_watermark(self, member: int, before: int, after: int) -> None:
        """Q5: it does not fall while a member lives."""
        if after < before:
            raise Violation(f"Q5: high watermark of {member} falls from {before} to {after}")

    def truncate(self, member: int, end_offset: int, high_watermark: int) -> None:
        """Q5: nothing that is committed is cut off."""
        if end_offset < high_watermark:
            raise Violation(f"Q5: {member} cuts off at {end_offset}, below {high_watermark}")

    def image(self, member: int, offset: int, image: int) -> None:
        """Q7: whoever has taken the same records is in the same state."""
        before = self.images.setdefault(offset, image)
        if before != image:
            raise Violation(f"Q7: {member} is in another state at {offset}")

    def ack(self, entry: Entry) -> None:
        """Whoever wrote it was told that it is committed."""
        if self.committed.get(entry.base_offset) != slot_of(entry):
            raise Violation(f"an entry was acknowledged and is not committed: {slot_of(entry)}")
        self.acked += 1


def _holds(log: Log, entry: Entry) -> bool:
    if entry.next_offset <= log.start_offset:
        return True
    if log.synced_end < entry.next_offset:
        return False
    return any(each == entry for each in _near(log.entries, entry.base_offset))


def _near(entries: list[Entry], offset: int) -> list[Entry]:
    """The entry at an offset, found by halving."""
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        if entries[middle].base_offset < offset:
            low = middle + 1
        else:
            high = middle
    return entries[low : low + 1]
