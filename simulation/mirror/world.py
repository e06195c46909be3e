"""TwoClusters: two sites, what connects them, their producers, and virtual time.

Everything is drawn from the seed, the kinds and rates of faults among it (swarm testing). At the
end all faults stop: then every replica and every mirror has to become equal (L1).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random
from zlib import crc32

from simulation.isr.disk import Entry
from simulation.mirror.administrator import Administrator
from simulation.mirror.checker import MirrorChecker
from simulation.mirror.group import ROUND_MS as GROUP_MS
from simulation.mirror.group import SiteGroup
from simulation.mirror.plan import MirrorPlan
from simulation.mirror.site import Site
from simulation.mirror.troubles import Troubles

FAULTS_MS = 6_000
REST_MS_MAX = 120_000
"""Once nothing fails any more, everything has to come to rest within this time."""
LAST_RECORDS_MS = 600
"""How long producers go on once nothing fails any more."""
CLOCKS_MS_MAX = 3_600_000
"""How far the clocks of the clusters are apart."""


class TwoClusters:
    """One life."""

    def __init__(self, seed: int, plan: MirrorPlan) -> None:
        chance = self.chance = Random(seed)
        self.plan = plan
        self.now_ms = 0
        self.events = 0
        self.trace = 0
        self.counts: Counter[str] = Counter()
        self.story: list[str] = []
        self.histories: dict[bytes, int] = {}
        """The history that each topic belongs to, by topic id; mirrors share their source's."""
        self.owners: dict[int, Site] = {}
        """The cluster that leads each history: the last one that was promoted."""
        self.is_healed = False
        self.sync_ms = chance.choice([2, 10, 60])
        self.batch_max = chance.choice([1, 3, 20])
        self.checker = MirrorChecker(self)
        size = chance.choice([1, 3, 3])
        ahead_ms = chance.choice([0, chance.randint(-CLOCKS_MS_MAX, CLOCKS_MS_MAX)])
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers, self._records = count(), count()
        self._pause_ms = chance.choice([10, 40, 120])
        self.sites = (Site(self, "a", size, CLOCKS_MS_MAX), Site(self, "b", size, ahead_ms))
        self.troubles = Troubles(self)
        self.administrator = Administrator(self)
        self.groups = {site.name: SiteGroup(self, site) for site in self.sites}
        """The group, by the names of the clusters."""
        for site in self.sites:
            site.begin()
            self._tick(site)
        self.at(300, self.administrator.round)
        self.at(300, self._produce)
        self.at(350, self._copy_groups)
        self.at(400, self.troubles.strike)

    # ---- time and network ----

    def at(self, delay_ms: int, happens: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._numbers), happens))

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Send a message from one address to another."""
        self.troubles.carry(source, target, deliver)

    def tell(self, what: str) -> None:
        """Note something for the reader of a life that violates a law."""
        self.story.append(f"{self.now_ms:6} {what}")

    def count(self, what: str, number: int = 1) -> None:
        """Count something that reports tell the number of."""
        self.counts[what] += number

    def run(self) -> None:
        """Live to the end. Raises `MirrorViolation`."""
        rest_ms = FAULTS_MS + LAST_RECORDS_MS
        next_look_ms = rest_ms
        while self._queue:
            self.now_ms, number, happens = heapq.heappop(self._queue)
            self.events += 1
            self.trace = crc32(b"%d %d" % (self.now_ms, number), self.trace)
            happens()
            if self.now_ms < next_look_ms:
                continue
            next_look_ms = self.now_ms + 50
            troubles = self._unrest()
            if not troubles:
                break
            if self.now_ms > rest_ms + REST_MS_MAX:
                self.checker.violate("L1", f"no rest after everything was healed: {troubles}")
        for site in self.sites:
            for broker in site.brokers:
                for place, disk in sorted(broker.disks.items()):
                    self.trace = crc32(repr((place, disk.entries)).encode(), self.trace)
        self.checker.at_end()

    # ---- the clusters ----

    def other(self, site: Site) -> Site:
        """Return the cluster on the other side."""
        return self.sites[site is self.sites[0]]

    def source_of(self, site: Site, link_id: bytes) -> Site:
        """Return the cluster that a link leads to."""
        name = site.metadata.links[link_id].source_cluster_id
        return next(each for each in self.sites if each.name == name)

    def on_committed(self, site: Site) -> None:
        """Note which history new topics belong to."""
        for topic_id in site.metadata.topics:
            if topic_id in self.histories:
                continue
            mirror = site.metadata.mirrors.get(topic_id)
            if mirror is None:
                history = self.histories[topic_id] = len(self.histories)
                self.owners[history] = site
            else:
                self.histories[topic_id] = self.histories[mirror.source_topic_id]

    def _tick(self, site: Site) -> None:
        site.tick()
        self.at(50, lambda: self._tick(site))

    # ---- groups and producers ----

    def _copy_groups(self) -> None:
        for group in self.groups.values():
            group.round()
        self.at(GROUP_MS, self._copy_groups)

    def _produce(self) -> None:
        """Send a record to each cluster, to a topic that is its own."""
        if self.now_ms > FAULTS_MS + LAST_RECORDS_MS:
            return
        for site in self.sites:
            own = [
                (topic.topic_id, number)
                for topic, number, _ in site.metadata.partitions()
                if (mirror := site.metadata.mirrors.get(topic.topic_id)) is None
                or not mirror.is_mirror
            ]
            if own:
                self._send(site, self.chance.choice(own))
        self.at(self.chance.randint(1, self._pause_ms), self._produce)

    def _send(self, site: Site, place: tuple[bytes, int]) -> None:
        partition = site.metadata.partition(*place)
        if partition is None or partition.leader < 0:
            return
        broker = site.brokers[partition.leader]
        producer, sequence = self.sites.index(site), next(self._records)

        def arrive() -> None:
            replica = broker.replicas.get(place)
            if broker.is_up and replica is not None:
                replica.produce(lambda epoch: Entry(epoch, producer, sequence))

        self.carry("producer", broker.address, arrive)

    # ---- the end ----

    def heal(self) -> None:
        """From here on nothing fails."""
        self.is_healed = True
        self.tell("healed")

    def _unrest(self) -> str:
        """Return what is not at rest; empty if everything is."""
        for site in self.sites:
            for place, state in site.news().states.items():
                found = self._unrest_of(site, place)
                if found:
                    return f"{site.name}, {place[0].hex()[:6]}-{place[1]}: {found}, {state}"
        return ""

    def _unrest_of(self, site: Site, place: tuple[bytes, int]) -> str:
        state = site.news().states[place]
        if {*state.isr} != {*state.replicas} or state.leader < 0:
            return "not in sync"
        replicas = [broker.replicas.get(place) for broker in site.brokers]
        logs = [None if each is None else each.log for each in replicas]
        leader = logs[state.leader]
        ends = {-1 if each is None else each.end_offset for each in logs}
        marks = {-1 if each is None else each.high_watermark for each in logs}
        if leader is None or len(ends | marks) > 1:
            return f"replicas differ: {logs}"
        if state.mirror_of is None or place[0] not in site.news().copied:
            return ""
        there = self.source_of(site, state.mirror_of.link_id)
        source_place = state.mirror_of.topic_id, place[1]
        leads = there.news().states.get(source_place)
        source = None if leads is None else there.brokers[leads.leader].replicas.get(source_place)
        if source is None or source.log.end_offset != leader.end_offset:
            return f"the source is elsewhere: {leader}, {None if source is None else source.log}"
        # Two logs of one length may differ, until the mirror has fetched once more. A log that has
        # begun anew at the end has no epoch (lives 1310 and 6798).
        is_empty = leader.start_offset == leader.end_offset
        if not is_empty and source.log.last_epoch != leader.last_epoch:
            return f"the source has another last epoch: {leader}, {source.log}"
        return ""
