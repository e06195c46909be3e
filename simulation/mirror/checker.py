"""MirrorChecker: what must hold of two clusters and the topics between them.

It sees disks and committed metadata, not the machines' reasons. The laws:

- M1: a mirror's record is one that the source has committed, after the same records, and in no
  leader epoch above that of the mirror's leader.
- M2: what is committed in a cluster is on all its in-sync replicas and stays there, unless the
  controller has begun an epoch to lose it. A mirror that begins anew beyond its end leaves no
  replica that could lead and ends lower. Followers of a mirror equal their leader.
- M3: what a cluster had when it was promoted is never cut by a mirror that has reached that era.
- M4: what was acknowledged by the cluster that leads a topic is there at the end. A promotion
  without loss loses nothing, and its source acknowledges nothing afterwards that it lacks.
- M5: after its promotion a topic copies nothing.
- M6: at the end, a mirror has its source's records, and no others.
- M7: what a mirror cuts and only its cluster ever had is in a file.
- M8: a group's position in a mirror is not ahead of what can be read there, unless members have
  committed it since the copier looked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.isr.disk import Entry
from streamlog.broker.quorum.metadata.mirror_topics import ERA_BITS
from streamlog.broker.replication.replica_state import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from simulation.mirror.site import Place, Site
    from simulation.mirror.site_replica import SiteReplica
    from simulation.mirror.world import TwoClusters
    from streamlog.broker.mirroring.group_copy import MirrorEnds, Position, Where
    from streamlog.broker.quorum.metadata.registrations import PartitionRegistration

Log = tuple[int, int]
"""A history that mirrors share: its number, and that of the partition."""


class MirrorViolation(Exception):
    """Something happened that must not."""


class MirrorChecker:
    """The checker of one life."""

    def __init__(self, world: TwoClusters) -> None:
        self.acknowledged: dict[Log, dict[int, Entry]] = {}
        """What the cluster that leads a topic has acknowledged, and must not lose."""
        self.committed: dict[tuple[str, Place], dict[int, Entry]] = {}
        """What is committed in each cluster."""
        self.deleted: dict[Log, int] = {}
        """Below this offset records were deleted on request."""
        self._world = world
        self._written: dict[tuple[Log, int, int], tuple[Entry, Entry | None]] = {}
        self._was_committed: set[tuple[Log, int, int]] = set()
        self._promoted: dict[tuple[str, Log], tuple[int, int]] = {}
        """The era that each cluster's last promotion began, and where it began."""
        self._had: dict[tuple[str, Log], set[tuple[int, Entry]]] = {}
        """All records that some broker of a cluster has ever had, with their offsets."""
        self._kept: dict[tuple[str, Log], set[tuple[int, Entry]]] = {}
        """The records in the files of a cluster."""
        self._moved: dict[Log, tuple[Site, dict[int, Entry]]] = {}
        """The cluster that led a log before its last promotion, if it was one without loss, and
        what was committed in the other one then."""

    def violate(self, law: str, what: str) -> None:
        """Stop the life."""
        raise MirrorViolation(f"{law}: {what}")

    def log_of(self, place: Place) -> Log:
        """Return the history that a partition belongs to."""
        return self._world.histories[place[0]], place[1]

    def on_produced(self, replica: SiteReplica, entry: Entry) -> None:
        """A leader is about to append a producer's record."""
        offset, log = replica.disk.end, self.log_of(replica.place)
        known = self._written.get((log, offset, entry.epoch))
        if known is not None:
            self.violate("M1", f"offset {offset} of epoch {entry.epoch} is {known[0]} and {entry}")
        self._written[log, offset, entry.epoch] = entry, replica.disk.get(offset - 1)
        self._had.setdefault((replica.site.name, log), set()).add((offset, entry))

    def on_copied(self, replica: SiteReplica, entries: tuple[Entry, ...]) -> None:
        """A mirror is about to append what its source has sent."""
        where, offset = replica.broker.address, replica.disk.end
        if replica.replica.mirror is None:
            self.violate("M5", f"{where} copies {offset} although the topic was promoted")
        epoch = replica.replica.leader_epoch or 0
        log = self.log_of(replica.place)
        for place, entry in enumerate(entries, offset):
            if entry.epoch > epoch:
                self.violate("M1", f"{where} copies epoch {entry.epoch} in epoch {epoch}")
            if (log, place, entry.epoch) not in self._was_committed:
                self.violate("M1", f"{where} copies {entry} at {place}, which is not committed")
        self.on_followed(replica, entries)

    def on_followed(self, replica: SiteReplica, entries: tuple[Entry, ...]) -> None:
        """A replica is about to append what another one has sent."""
        log, offset = self.log_of(replica.place), replica.disk.end
        # What is below the leader's log start goes with the same answer, whatever it is.
        before = replica.disk.get(offset - 1) if offset > replica.log.start_offset else None
        self._had.setdefault((replica.site.name, log), set()).update(enumerate(entries, offset))
        for place, entry in enumerate(entries, offset):
            known = self._written.get((log, place, entry.epoch))
            if known is None or known[0] != entry:
                self.violate("M1", f"{replica.broker.address}: nobody wrote {entry} at {place}")
            elif before is not None and known[1] is not None and before != known[1]:
                self.violate(
                    "M1",
                    f"{replica.broker.address}: {entry} at {place} follows {before}, and was"
                    f" written after {known[1]}",
                )
            before = entry

    def on_reader_cut(self, replica: SiteReplica, offset: int) -> None:
        """A mirror's leader is about to cut its log, whose offsets are cut already."""
        key, epoch = (replica.site.name, replica.place), replica.replica.leader_epoch or 0
        partition = replica.site.metadata.partition(*replica.place)
        committed = self.committed.get(key, {})
        lost = [place for place in committed if place >= max(offset, replica.disk.base)]
        is_ordered = (*replica.place, epoch) in replica.site.unclean
        if partition is not None and epoch != partition.leader_epoch:
            # It was replaced and has not heard of it: what it has does not count. But it may lead
            # again, and what its epoch was begun to lose is lost then, promoted meanwhile or not.
            if is_ordered and lost:
                self._lose(replica.site, replica.place, min(lost))
            return
        is_behind = offset > replica.disk.end
        others = {*partition.isr, *partition.elr} - {replica.broker.id} if partition else set()
        if is_behind and others:
            self.violate("M2", f"{replica.broker.address} begins at {offset}, others may lead")
        if lost and not is_ordered and not is_behind:
            self.violate("M2", f"{replica.broker.address} cuts committed {min(lost)} by itself")
        self._check_era(replica, offset, is_behind=is_behind)
        self._check_kept(replica, offset)
        self.committed[key] = {p: each for p, each in committed.items() if p < offset}

    def on_kept(self, replica: SiteReplica, offset: int) -> None:
        """A mirror's leader has written its records from `offset` on to a file."""
        first = max(offset, replica.disk.base)
        kept = self._kept.setdefault((replica.site.name, self.log_of(replica.place)), set())
        kept.update(enumerate(replica.disk.read(first, replica.disk.end), first))

    def _check_kept(self, replica: SiteReplica, offset: int) -> None:
        """Check that what goes, and only this cluster ever had, is kept."""
        site, log, disk = replica.site, self.log_of(replica.place), replica.disk
        first = disk.base if offset > disk.end or offset <= disk.base else offset
        kept = self._kept.get((site.name, log), set())
        had = self._had.get((self._world.other(site).name, log), set())
        for place, entry in enumerate(disk.read(first, disk.end), first):
            if (place, entry) not in kept and (place, entry) not in had:
                self.violate("M7", f"{replica.broker.address} cuts {entry} at {place}, not kept")

    def _check_era(self, replica: SiteReplica, offset: int, *, is_behind: bool) -> None:
        """Check that what the source was promoted with stays, once its era has begun here."""
        source = None if replica.replica.state is None else replica.replica.state.mirror_of
        if source is None or is_behind:
            return
        there = self._world.source_of(replica.site, source.link_id)
        era, end = self._promoted.get((there.name, self.log_of(replica.place)), (0, 0))
        epochs = {each.epoch for each in replica.disk.entries}
        if offset < end and any(era <= each < era + (1 << ERA_BITS) for each in epochs):
            self.violate("M3", f"{replica.broker.address} cuts at {offset}, era from {end} on")

    def on_acknowledged(self, replica: SiteReplica, offset: int, entry: Entry) -> None:
        """A producer is told that its record is safe."""
        found = replica.disk.get(offset)
        if offset >= replica.disk.base and found != entry:
            self.violate("M4", f"{entry} at {offset} is acknowledged, and there is {found}")
        log = self.log_of(replica.place)
        self._world.count("acknowledged")
        moved = self._moved.get(log)
        if moved is not None and moved[0] is replica.site and moved[1].get(offset) != entry:
            self.violate(
                "M4", f"{entry} at {offset} is acknowledged where the topic has moved from"
            )
        if self._world.owners.get(log[0]) is replica.site:
            self.acknowledged.setdefault(log, {})[offset] = entry

    def on_high_watermark(self, replica: SiteReplica) -> None:
        """The high watermark of a replica has moved."""
        site, place = replica.site, replica.place
        partition = site.metadata.partition(*place)
        leader = replica.replica.leader
        if leader is None:
            return
        mark, disk = replica.log.high_watermark, replica.disk
        log = self.log_of(place)
        for offset in range(mark - 1, disk.base - 1, -1):
            entry = disk.get(offset)
            if entry is None or (log, offset, entry.epoch) in self._was_committed:
                break  # What is before is the same as before that record then.
            self._was_committed.add((log, offset, entry.epoch))
        if partition is None or leader.epoch != partition.leader_epoch:
            return  # It has not heard of its successor, or of the topic's end.
        for broker in partition.isr:
            other = site.brokers[broker].disks.get(place)
            synced = 0 if other is None else other.synced
            if synced < mark:
                self.violate("M2", f"{site.name}{broker} is in sync with {synced} of {mark}")
        committed = self.committed.setdefault((site.name, place), {})
        for offset in range(max(disk.base, max(committed, default=-1) + 1), mark):
            entry = disk.get(offset)
            if entry is not None:
                committed[offset] = entry

    def on_elected(self, site: Site, place: Place, partition: PartitionRegistration) -> None:
        """The controller has changed a partition, and may have elected a leader."""
        committed = self.committed.get((site.name, place))
        if not committed or partition.leader == NO_LEADER:
            return
        disk = site.brokers[partition.leader].disks.get(place)
        if disk is None:
            return
        lost = [p for p, each in committed.items() if p >= disk.base and disk.get(p) != each]
        if not lost:
            return
        if (*place, partition.leader_epoch) not in site.unclean:
            self.violate("M2", f"{site.name}{partition.leader} leads and lacks {min(lost)}")
        self._lose(site, place, min(lost))

    def _lose(self, site: Site, place: Place, offset: int) -> None:
        """What is committed from `offset` on is gone, as the controller has decided it."""
        self._world.count("unclean losses")
        committed = self.committed.get((site.name, place), {})
        self.committed[site.name, place] = {p: e for p, e in committed.items() if p < offset}
        log = self.log_of(place)
        if self._world.owners.get(log[0]) is site:
            acknowledged = self.acknowledged.get(log, {})
            self.acknowledged[log] = {p: e for p, e in acknowledged.items() if p < offset}
            # What the owner has lost itself does not bind the clusters that follow it.
            era, end = self._promoted.get((site.name, log), (0, 0))
            self._promoted[site.name, log] = era, min(end, offset)

    def on_promoted(self, site: Site, place: Place, *, is_complete: bool) -> None:
        """A cluster's topic was promoted: what is committed there is what counts."""
        log = self.log_of(place)
        partition = site.metadata.partition(*place)
        if partition is not None:
            self._count_held(site, place, partition)
        committed = self.committed.get((site.name, place), {})
        acknowledged = self.acknowledged.get(log, {})
        deleted = self.deleted.get(log, 0)
        gone = [p for p, e in acknowledged.items() if p >= deleted and committed.get(p) != e]
        if gone and is_complete:
            self.violate("M4", f"{site.name} is promoted without loss and lacks {min(gone)}")
        self.acknowledged[log] = {p: e for p, e in acknowledged.items() if p not in gone}
        self._moved.pop(log, None)
        if is_complete:
            self._moved[log] = self._world.other(site), {**committed}
        if partition is not None and committed:
            self._promoted[site.name, log] = partition.leader_epoch, max(committed) + 1

    def _count_held(self, site: Site, place: Place, partition: PartitionRegistration) -> None:
        """Count what all in sync hold below a mark, without an event of the current epoch.

        1. Leader b0, alone in sync, is cut off from its controller, which begins an epoch. 2. b0
        copies up to 23 meanwhile. 3. It hears of the epoch, if it does, with its mark at 23 (lives
        2168 and 6040). The next leader is in sync, so it has that.
        """
        brokers = [site.brokers[number] for number in partition.isr]
        disks = [each.disks.get(place) for each in brokers]
        marks = [
            each.replicas[place].log.high_watermark for each in brokers if place in each.replicas
        ]
        committed = self.committed.setdefault((site.name, place), {})
        for offset in range(max(committed, default=-1) + 1, max(marks, default=0)):
            entries = {None if each is None else each.get(offset) for each in disks}
            entry = entries.pop()
            if entry is not None and not entries:
                committed[offset] = entry

    def on_left_behind(
        self, history: int, partitions: Container[int], *, is_complete: bool
    ) -> None:
        """A cluster's topic was promoted with these partitions; its source may have more."""
        for log in [each for each in self.acknowledged if each[0] == history]:
            if log[1] in partitions:
                continue
            if is_complete and self.acknowledged[log]:
                self.violate("M4", f"a promotion without loss lacks partition {log[1]}")
            del self.acknowledged[log]

    def on_taken_back(self, site: Site, place: Place) -> None:
        """A promotion was taken back: what is committed in the other cluster, `site`, counts."""
        log = self.log_of(place)
        self.acknowledged[log] = {**self.committed.get((site.name, place), {})}
        self._moved.pop(log, None)

    def on_positions_copied(
        self,
        site: Site,
        positions: Mapping[Where, Position],
        ends: Mapping[Where, MirrorEnds],
        mirrored: Mapping[str, str],
    ) -> None:
        """Positions of a group without members were copied, with these ends known."""
        for where, position in positions.items():
            known = ends.get(where)
            if where[0] not in mirrored or known is None:
                continue
            if position.offset > max(known.start_offset, known.end_offset):
                self.violate("M8", f"{site.name}: {position} in {where} is ahead of {known}")

    def at_end(self) -> None:
        """Compare all logs, which are at rest."""
        for site in self._world.sites:
            for (topic_id, number), state in site.news().states.items():
                place = topic_id, number
                logs = [broker.disks[place] for broker in site.brokers if place in broker.disks]
                leader = site.brokers[state.leader].disks[place]
                for disk in logs:
                    start = max(disk.base, leader.base)
                    if disk.read(start, disk.end) != leader.read(start, leader.end):
                        self.violate("M2", f"{site.name}: replicas of {number} differ")
                source = state.mirror_of
                if source is not None and topic_id in site.news().copied:
                    self._compare(site, place, source.link_id, source.topic_id)
                elif self._world.owners.get(self.log_of(place)[0]) is site:
                    self._check_acknowledged(site, place)

    def _compare(self, site: Site, place: Place, link_id: bytes, topic_id: bytes) -> None:
        there = self._world.source_of(site, link_id)
        leads = there.news().states[topic_id, place[1]].leader
        source = there.brokers[leads].disks[topic_id, place[1]]
        mirror = site.brokers[site.news().states[place].leader].disks[place]
        start = max(source.base, mirror.base)
        self._world.count("mirrors compared")
        self._world.count("records compared", mirror.end - start)
        if mirror.read(start, mirror.end) != source.read(start, source.end):
            self.violate("M6", f"{site.name}: the mirror of {place[1]} is not its source")

    def _check_acknowledged(self, site: Site, place: Place) -> None:
        disk = site.brokers[site.news().states[place].leader].disks[place]
        log = self.log_of(place)
        for offset, entry in self.acknowledged.get(log, {}).items():
            if offset >= self.deleted.get(log, 0) and disk.get(offset) != entry:
                self.violate("M4", f"{site.name}: acknowledged {entry} at {offset} is lost")
