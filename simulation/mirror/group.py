"""Group: the positions of one group in both clusters, its consumers, and the shipped `GroupCopy`.

Consumers of a cluster commit what they have read of topics that it leads, or of mirrors before a
failover; operators reset positions of a group without members. Answers of the source come late or
never, and what a copier remembers is lost when another broker takes over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.mirroring.group_copy import GroupCopy, GroupHere, MirrorEnds, Position, Where

if TYPE_CHECKING:
    from simulation.mirror.site import Site
    from simulation.mirror.site_replica import SiteReplica
    from simulation.mirror.world import TwoClusters

ROUND_MS = 150
READ_MAX = 30
FAR = 2**40
"""An end that no log reaches."""


class SiteGroup:
    """The group in one cluster: its coordinator's state, and the copier of the link from there."""

    def __init__(self, world: TwoClusters, site: Site) -> None:
        chance = world.chance
        self.positions: dict[Where, Position] = {}
        self.has_members = False
        self._world = world
        self._site = site
        self._follows_deletions = chance.random() < 0.5
        self._copy = GroupCopy(follows_deletions=self._follows_deletions)

    def round(self) -> None:
        """Let consumers read, and ask the source for its positions."""
        chance = self._world.chance
        if self._world.is_healed:
            self.has_members = False
        elif chance.random() < 0.1:
            self.has_members = not self.has_members
        if self.has_members:
            self._read()
        elif not self._world.is_healed and chance.random() < 0.03:
            self._reset()
        if chance.random() < 0.02:
            # Another broker coordinates the group from now on.
            self._copy = GroupCopy(follows_deletions=self._follows_deletions)
        self._ask()

    def _read(self) -> None:
        """Let the members read a part of what they can, and commit."""
        for where, replica in self._leaders().items():
            log, chance = replica.log, self._world.chance
            if chance.random() < 0.5:
                continue
            begin = min(self._offset(where, log.start_offset), log.end_offset)
            offset = max(begin, log.start_offset)
            offset = max(offset, min(offset + chance.randint(0, READ_MAX), log.high_watermark))
            self.positions[where] = Position(offset, log.last_epoch)
            self._world.count("commits")

    def _offset(self, where: Where, otherwise: int) -> int:
        known = self.positions.get(where)
        return otherwise if known is None else known.offset

    def _reset(self) -> None:
        """Move a position back, or delete it, as an operator may."""
        chance = self._world.chance
        for where in [*self.positions]:
            if chance.random() < 0.3:
                del self.positions[where]
            elif chance.random() < 0.5:
                before = self.positions[where].offset
                self.positions[where] = Position(chance.randint(0, before))
            self._world.count("resets")

    def _leaders(self) -> dict[Where, SiteReplica]:
        """Return who leads each partition, as far as its broker knows it, too."""
        found = {}
        for topic, number, partition in self._site.metadata.partitions():
            broker = self._site.brokers[partition.leader] if partition.leader >= 0 else None
            replica = None if broker is None else broker.replicas.get((topic.topic_id, number))
            if broker is None or not broker.is_up or replica is None:
                continue
            leader = replica.replica.leader
            # Readers are not told of an end that a new leader does not know yet (KIP-207).
            is_present = leader is not None and leader.epoch == partition.leader_epoch
            if leader is not None and is_present and leader.is_offset_known:
                found[topic.name, number] = replica
        return found

    # ---- copying ----

    def mirrored(self) -> dict[str, str]:
        """Return the source's topics by the names of their active mirrors."""
        metadata = self._site.metadata
        return {
            metadata.topics[topic_id].name: mirror.source_topic
            for topic_id, mirror in metadata.mirrors.items()
            if mirror.copies and topic_id in metadata.topics
        }

    def _ask(self) -> None:
        """Ask the source for its positions; what is known of ends may be older than the answer."""
        world = self._world
        if not self.mirrored():
            return
        there = world.other(self._site)
        seen = self._ends()
        # A planted fault copies positions whatever the end here is.
        if world.plan.copies_positions_beyond_end:
            ends = {where: each._replace(end_offset=FAR) for where, each in seen.items()}
        else:
            ends = seen
        here, far = self._site.brokers[0].address, there.brokers[0].address

        def arrive() -> None:
            positions = {**world.groups[there.name].positions}
            world.carry(far, here, lambda: self._on_positions(positions, ends, seen))

        world.carry(here, far, arrive)

    def _ends(self) -> dict[Where, MirrorEnds]:
        """Return what consumers can read."""
        return {
            where: MirrorEnds(
                replica.log.start_offset,
                replica.log.high_watermark,
                replica.replica.leader_epoch or 0,
            )
            for where, replica in self._leaders().items()
        }

    def _on_positions(
        self,
        positions: dict[Where, Position],
        ends: dict[Where, MirrorEnds],
        seen: dict[Where, MirrorEnds],
    ) -> None:
        mirrored = self.mirrored()
        here = GroupHere(self.has_members, {**self.positions})
        changes = self._copy.plan(positions, mirrored, ends, here)
        refused = {where for where in changes.commits if self._is_refused(where)}
        for where, wanted in changes.commits.items():
            if where in refused:
                continue
            self.positions[where] = wanted
            self._copy.on_committed(where, wanted.offset)
            self._world.count("copied positions")
        for where in changes.deletions:
            if self._is_refused(where):
                refused.add(where)
            else:
                del self.positions[where]
                self._copy.on_deleted(where)
                self._world.count("deleted positions")
        if not self.has_members:
            known = {where: each for where, each in seen.items() if where not in refused}
            self._world.checker.on_positions_copied(self._site, self.positions, known, mirrored)

    def _is_refused(self, where: Where) -> bool:
        """Whether the coordinator does not answer a change, which it has made or not."""
        if self._world.is_healed or self._world.chance.random() > 0.05:
            return False
        self._copy.on_failed(where)
        return True
