"""Administrator: what people and the links' runners do to topics of two clusters.

It creates topics and links, runs the shipped `plan_link`, promotes at once or without loss, fails
back, takes promotions back, adds partitions, pauses, deletes and creates anew, and orders unclean
elections.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simulation.mirror.promotion import Promotion
from streamlog.broker.mirroring.link_plan import LinkRules, plan_link
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.quorum.metadata.topic_seals import SealState
from streamlog.protocol.messages.metadata_log import LinkSetting
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterableSeal,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    AlterSealsRequest,
    CreateLinkRequest,
    CreateMirrorsRequest,
    FailBackRequest,
    FailBackResponse,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    ElectLeadersRequest,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from streamlog.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from simulation.mirror.site import Site
    from simulation.mirror.world import TwoClusters

TOPIC = "t"
ROUND_MS = 100
UNCLEAN = 1
TAKEN_BACK = 0.25
"""How probable it is that an operator takes a promotion back instead of failing back."""
OPERATORS = 2
"""How many operators promote at once; more would meet only what two meet."""


class Administrator:
    """The administrator of both clusters in one life."""

    def __init__(self, world: TwoClusters) -> None:
        chance = world.chance
        self._world = world
        self._is_active_active = chance.random() < 0.2
        self._is_careless = chance.random() < 0.6
        """Whether unclean elections are ordered."""
        self._recreates = chance.random() < 0.15
        self._turns = chance.choice([0, 0.02, 0.06])
        """How probable a promotion or a fail back is in a round."""
        self._promotions: list[Promotion] = []
        """What operators are at, two of them at once at most."""

    def round(self) -> None:
        """Look at everything once."""
        world = self._world
        for site in world.sites:
            if len(site.news().alive) == site.size and site.metadata.topic(TOPIC) is None:
                self._create(site)
        for site in world.sites:
            self._run_links(site)
            if self._is_careless or world.is_healed:
                site.ask(ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=None))
        for site in world.sites:
            self._pause(site)
        if not world.is_healed:
            self._decide()
        world.at(ROUND_MS, self.round)

    def _create(self, site: Site) -> None:
        is_first = site is self._world.sites[0]
        if not is_first and not self._is_active_active:
            if self._world.sites[0].metadata.topic(TOPIC) is not None:
                self._link(site)
            return
        partitions = self._world.chance.choice([1, 1, 2])
        topic = CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=-1)
        site.ask(CreateTopicsRequest(topics=[topic]))
        if self._is_active_active:
            self._link(site)

    def _link(self, site: Site) -> bytes:
        """Return the link of this cluster to the other one; create it if there is none."""
        known = site.metadata.link("link")
        if known is None:
            there = self._world.other(site).name
            address = LinkSetting(name="bootstrap.servers", value=f"{there}:9092")
            request = CreateLinkRequest(name="link", source_cluster_id=there, settings=[address])
            site.ask(request)
            known = site.metadata.link("link")
        return ZERO_UUID if known is None else known.link_id

    def _rules(self, site: Site) -> LinkRules:
        prefix = f"{self._world.other(site).name}." if self._is_active_active else ""
        return LinkRules(topics=(re.compile(".*"),), prefix=prefix)

    def _run_links(self, site: Site) -> None:
        """Do what the runner of a link does in a round, if it reaches the source."""
        world = self._world
        known = site.metadata.link("link")
        if known is None or (not world.is_healed and world.chance.random() < 0.3):
            return
        facts = world.other(site).facts()
        mirrors = site.known(known.link_id)
        plan = plan_link(self._rules(site), facts, mirrors, cluster_id=site.name)
        # The controller refuses those that exist: they follow the other cluster by an order only.
        if plan.created:
            site.ask(
                CreateMirrorsRequest(
                    link_id=known.link_id, wall_ms=site.now_ms, topics=[*plan.created]
                )
            )
        if plan.stopped and not world.plan.ignores_topic_ids:
            site.ask(AlterMirrorsRequest(wall_ms=site.now_ms, topics=[*plan.stopped]))

    def _decide(self) -> None:
        """Do something that only people decide."""
        world, chance = self._world, self._world.chance
        self._continue_promotions()
        if self._promotions and chance.random() < 0.9:
            return
        kind = chance.random()
        if self._is_active_active:
            if kind < 0.03:
                self._grow(chance.choice(world.sites))
        elif kind < self._turns:
            self._turn()
        elif kind < self._turns + 0.02:
            self._grow(next(iter(world.owners.values()), world.sites[0]))
        elif self._recreates and kind > 0.99:
            self._recreate(world.sites[0])

    def _continue_promotions(self) -> None:
        chance = self._world.chance
        for each in self._promotions:
            each.step()
            # Some operators are faster than the news of what they have decided.
            if chance.random() < 0.5:
                each.step()
        self._promotions = [each for each in self._promotions if not each.is_over]
        if 0 < len(self._promotions) < OPERATORS and chance.random() < 0.1:
            self._promotions.append(self._promotions[0].rival())

    def _turn(self) -> None:
        """Take the next step of a failover or a fail back."""
        world, chance = self._world, self._world.chance
        mirroring = [site for site in world.sites if self._is_mirror(site)]
        if mirroring:
            (site,) = mirroring
            if chance.random() < 0.3:
                self._promote_now(site)
            elif len(self._promotions) < OPERATORS:
                self._promotions.append(Promotion(world, site))
            return
        topic = world.sites[1].metadata.topic(TOPIC)
        if topic is not None and world.sites[0].metadata.topic(TOPIC) is not None:
            owner = world.owners[world.histories[topic.topic_id]]
            if chance.random() < TAKEN_BACK:
                self._take_back(owner)
            else:
                self._follow(world.other(owner))

    def _is_mirror(self, site: Site) -> bool:
        topic = site.metadata.topic(TOPIC)
        mirror = None if topic is None else site.metadata.mirrors.get(topic.topic_id)
        return mirror is not None and mirror.is_mirror

    def _promote_now(self, site: Site) -> None:
        promoted = AlterableMirror(name=TOPIC, state=MirrorState.PROMOTED)
        answer = site.ask(AlterMirrorsRequest(wall_ms=site.now_ms, topics=[promoted]))
        if not isinstance(answer, AlterMirrorsResponse) or answer.topics[0].error_code:
            self._world.count("refused promotions")
        else:
            self.on_promoted(site, is_complete=False)

    def on_promoted(self, site: Site, *, is_complete: bool) -> None:
        """Note that a cluster leads the topic from now on."""
        world = self._world
        topic = site.metadata.topic(TOPIC)
        if topic is None:
            return
        world.count("promotions without loss" if is_complete else "promotions")
        world.tell(f"{site.name} is promoted, is_complete={is_complete}")
        world.owners[world.histories[topic.topic_id]] = site
        for number in topic.partitions:
            world.checker.on_promoted(site, (topic.topic_id, number), is_complete=is_complete)
        history = world.histories[topic.topic_id]
        world.checker.on_left_behind(history, topic.partitions, is_complete=is_complete)

    def _take_back(self, site: Site) -> None:
        """Let the cluster that was promoted last follow the other one: it was a mistake."""
        world, there = self._world, self._world.other(site)
        if not self._follow(site):
            return
        world.count("promotions taken back")
        opened = AlterableSeal(name=TOPIC, state=SealState.OPEN, is_forced=True)
        there.ask(AlterSealsRequest(wall_ms=there.now_ms, topics=[opened]))
        topic = there.metadata.topic(TOPIC)
        if topic is not None:
            world.owners[world.histories[topic.topic_id]] = there
            for number in topic.partitions:
                world.checker.on_taken_back(there, (topic.topic_id, number))

    def _follow(self, site: Site) -> bool:
        """Fail back: let a topic that this cluster had follow the other cluster, if it can."""
        world = self._world
        self._link(site)
        plan = plan_link(self._rules(site), world.other(site).facts(), (), cluster_id=site.name)
        answer = site.ask(FailBackRequest(link="link", wall_ms=site.now_ms, topics=[*plan.created]))
        is_done = isinstance(answer, FailBackResponse) and not any(
            each.error_code for each in answer.topics
        )
        world.count("fail backs" if is_done else "refused fail backs")
        world.tell(f"{site.name} follows: {is_done}")
        return is_done

    def _grow(self, site: Site) -> None:
        topic = site.metadata.topic(TOPIC)
        if topic is None or self._is_mirror(site) or len(topic.partitions) > 2:
            return
        wanted = CreatePartitionsTopic(
            name=TOPIC, count=len(topic.partitions) + 1, assignments=None
        )
        site.ask(CreatePartitionsRequest(topics=[wanted]))
        self._world.count("partitions added")

    def _pause(self, site: Site) -> None:
        chance = self._world.chance
        for mirror in [*site.metadata.mirrors.values()]:
            topic = site.metadata.topics.get(mirror.topic_id)
            if topic is None:
                continue
            if (
                mirror.state is MirrorState.ACTIVE
                and chance.random() < 0.005
                and not self._world.is_healed
            ):
                state = MirrorState.PAUSED
            elif mirror.state is MirrorState.PAUSED and chance.random() < 0.3:
                state = MirrorState.ACTIVE
            else:
                continue
            asked = AlterableMirror(name=topic.name, state=state)
            site.ask(AlterMirrorsRequest(wall_ms=site.now_ms, topics=[asked]))
            self._world.count("pauses")

    def _recreate(self, site: Site) -> None:
        """Delete the source's topic and create one of the same name."""
        topic = site.metadata.topic(TOPIC)
        if topic is None or self._is_mirror(site) or topic.topic_id in site.metadata.mirrors:
            return
        gone = DeleteTopicState(name=None, topic_id=topic.topic_id)
        site.ask(DeleteTopicsRequest(topics=[gone], timeout_ms=1000))
        created = CreatableTopic(
            name=TOPIC, num_partitions=len(topic.partitions), replication_factor=-1
        )
        site.ask(CreateTopicsRequest(topics=[created]))
        self._world.count("topics created again")
        self._world.tell("the source's topic is created again")
