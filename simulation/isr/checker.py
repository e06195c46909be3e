"""PartitionChecker: what must hold of one partition at every moment, looked at from outside.

It sees the disks of all replicas and what the controller has committed, not the machines' own
reasons. Names (P1 to P13) are those of docs/replication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.isr.disk import Disk, Entry
from streamlog.broker.replication.replica_state import NO_LEADER, ReplicaState

if TYPE_CHECKING:
    from simulation.isr.broker import SimulatedBroker
    from simulation.isr.world import World

RECHECKED = 30
"""Committed records that are compared again when a replica has a new epoch or a new life."""


class Violation(Exception):
    """Something happened that must not."""


class PartitionChecker:
    """The checker of one life."""

    def __init__(self, world: World) -> None:
        self.committed: dict[int, Entry] = {}
        """Every record that was ever below a high watermark."""
        self.acknowledged: dict[int, Entry] = {}
        self.deleted = 0
        """Below this offset records were deleted on request."""
        self._world = world
        self._leaders: dict[int, int] = {}
        self._written: dict[tuple[int, int], Entry] = {}
        self._watermarks: dict[int, tuple[tuple[int, int], int]] = {}
        self._state: ReplicaState | None = None

    def violate(self, name: str, what: str) -> None:
        """Stop the life."""
        raise Violation(f"{name}: {what}")

    def on_committed(self, state: ReplicaState, *, elected: bool) -> None:
        """The controller has committed `state`."""
        before, self._state = self._state, state
        if before is not None:
            older = state.leader_epoch < before.leader_epoch
            if older or state.partition_epoch <= before.partition_epoch:
                self.violate("P1", f"epochs do not grow from {before} to {state}")
        if elected and state.leader != NO_LEADER:
            if self._leaders.setdefault(state.leader_epoch, state.leader) != state.leader:
                self.violate("P1", f"two leaders in epoch {state.leader_epoch}")
            self._check_complete(state.leader, state.leader_epoch)
        self._check_insync(state)

    def on_leading(self, broker: SimulatedBroker) -> None:
        """A broker has become leader."""
        if self._world.plan.strict and broker.producers != broker.disk.producers():
            self.violate("P11", f"broker {broker.id} leads and does not know its producers")

    def on_acknowledged(self, broker: SimulatedBroker, offset: int, epoch: int) -> None:
        """A producer is told that its record is safe."""
        if offset < broker.disk.base:
            return None  # Committed, seen, and deleted before this answer.
        entry = broker.disk.get(offset)
        if entry is None:
            return self.violate("P2", f"offset {offset} is acknowledged and not in the log")
        self._commit(offset, entry)
        copies = sum(self._has(disk, offset, entry) for disk in self._world.disks)
        if copies < self._world.min_insync:
            self.violate("P2", f"offset {offset} is acknowledged with {copies} copies")
        state = self._world.controller.state
        if state.leader_epoch > epoch and state.leader != NO_LEADER:
            found = self._world.disks[state.leader].get(offset)
            if offset >= self.deleted and found != entry:
                self.violate(
                    "P13",
                    f"a leader of epoch {epoch} acknowledges {offset} that {state.leader} lacks",
                )
        self.acknowledged[offset] = entry
        return None

    def on_high_watermark(self, broker: SimulatedBroker) -> None:
        """The high watermark of a replica has moved."""
        log = broker.log
        life = (broker.incarnation, broker.replica.leader_epoch or 0)
        known, before = self._watermarks.get(broker.id, ((-1, -1), 0))
        mark = log.high_watermark
        if known == life and mark < before:
            self.violate("P5", f"broker {broker.id}: the high watermark falls to {mark}")
        if not log.start_offset <= mark <= log.end_offset:
            self.violate("P5", f"broker {broker.id}: high watermark {mark} outside of {log}")
        self._watermarks[broker.id] = (life, mark)
        first = before if known == life else max(mark - RECHECKED, 0)
        for offset in range(max(first, broker.disk.base), mark):
            entry = broker.disk.get(offset)
            if entry is None:
                return self.violate("P4", f"broker {broker.id} has committed {offset}, not written")
            self._commit(offset, entry)
        self._check_leader_mark(broker, mark)
        return None

    def on_truncated(self, broker: SimulatedBroker, offset: int) -> None:
        """A replica is about to cut its log."""
        self._world.count("truncations")
        known, mark = self._watermarks.get(broker.id, ((-1, -1), 0))
        if known[0] == broker.incarnation and offset < mark:
            self.violate("P7", f"broker {broker.id} cuts at {offset}, below high watermark {mark}")

    def on_appended(self, broker: SimulatedBroker, entries: tuple[Entry, ...]) -> None:
        """Records are about to be written."""
        for offset, entry in enumerate(entries, broker.disk.end):
            if self._written.setdefault((offset, entry.epoch), entry) != entry:
                self.violate("P8", f"offset {offset} of epoch {entry.epoch} is written twice")

    def on_deleted(self, offset: int) -> None:
        """A leader was asked to delete what is below `offset`."""
        self.deleted = max(self.deleted, offset)

    def on_read(self, start: int, entries: tuple[Entry, ...], log_start: int) -> None:
        """A consumer got records from `start` on."""
        for offset, entry in enumerate(entries, max(start, log_start)):
            known = self.committed.get(offset)
            if known != entry:
                self.violate("P12", f"offset {offset} was read as {entry}, committed is {known}")

    def at_end(self, broker: SimulatedBroker) -> None:
        """Everything is healed and at rest: read the leader's log from its start."""
        last: dict[int, int] = {}
        for offset in range(broker.disk.base, broker.log.high_watermark):
            entry = broker.disk.get(offset)
            if entry is None:
                return self.violate("P8", f"offset {offset} is missing")
            before = last.setdefault(entry.producer, entry.sequence - 1)
            if entry.sequence <= before:
                self.violate("P10", f"{entry} is in the log twice, again at {offset}")
            if entry.sequence != before + 1:
                self.violate("P9", f"{entry} follows sequence {before}")
            last[entry.producer] = entry.sequence
        for offset, entry in self.acknowledged.items():
            for disk in self._world.disks:
                if offset >= disk.base and disk.get(offset) != entry:
                    self.violate("P3", f"acknowledged {entry} at {offset} is lost at the end")
        return None

    def _commit(self, offset: int, entry: Entry) -> None:
        known = self.committed.setdefault(offset, entry)
        if known != entry:
            self.violate("P4", f"committed offset {offset} changes from {known} to {entry}")

    def _has(self, disk: Disk, offset: int, entry: Entry) -> bool:
        if offset < disk.base:
            return True
        end = disk.synced if self._world.plan.strict else disk.end
        return offset < end and disk.get(offset) == entry

    def _check_complete(self, leader: int, epoch: int) -> None:
        disk = self._world.disks[leader]
        for records, what in ((self.acknowledged, "acknowledged"), (self.committed, "committed")):
            for offset, entry in records.items():
                if offset >= disk.base and disk.get(offset) != entry:
                    self.violate("P3", f"leader {leader} of epoch {epoch} lacks {what} {offset}")

    def _check_insync(self, state: ReplicaState) -> None:
        leading = self._leading(state)
        if leading is None or not self._world.plan.strict:
            return
        for broker in state.isr:
            if self._world.disks[broker].synced < leading.log.high_watermark:
                self.violate(
                    "P6",
                    f"{broker} is in sync and has {self._world.disks[broker].synced} of"
                    f" {leading.log.high_watermark} committed",
                )

    def _check_leader_mark(self, broker: SimulatedBroker, mark: int) -> None:
        state = self._world.controller.state
        if broker.replica.leader is None or self._leading(state) is not broker:
            return
        if self._world.plan.strict and mark > broker.disk.synced:
            self.violate("P5", f"leader {broker.id} commits {mark}, synced {broker.disk.synced}")
        self._check_insync(state)

    def _leading(self, state: ReplicaState) -> SimulatedBroker | None:
        """The broker that leads in the epoch of `state`, if it knows by now."""
        if state.leader == NO_LEADER:
            return None
        broker = self._world.brokers[state.leader]
        leads = broker.up and broker.replica.leader is not None
        return broker if leads and broker.replica.leader_epoch == state.leader_epoch else None
