"""Promotion: an operator who promotes without loss, step by step, and may be killed at each.

The steps are those of `client.admin.lossless_promotion`, and what it waits for is `missing` there,
asked of what the leaders here and there tell. A network repeats requests later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.quorum.metadata.topic_seals import SealState
from streamlog.client.admin.lossless_promotion import missing
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterableSeal,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    AlterSealsRequest,
    AlterSealsResponse,
    DescribedMirror,
    DescribedMirrorPartition,
    DescribedSealPartition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulation.mirror.site import Site
    from simulation.mirror.site_replica import SiteReplica
    from simulation.mirror.world import TwoClusters

TOPIC = "t"
PATIENCE_MS_MAX = 1500
"""How long a promotion may take before it is given up."""
REPEATED = 0.3
"""How probable it is that a request arrives once more, later."""
LATE_MS = (50, 1500)
BEGIN, SEAL, WAIT, LATE, MARK, OVER = range(6)


class Promotion:
    """One run of the command for the mirror in `site`."""

    def __init__(self, world: TwoClusters, site: Site) -> None:
        self._world = world
        self._site, self._source = site, world.other(site)
        self._until_ms = world.now_ms + PATIENCE_MS_MAX
        self._next = BEGIN
        self._attempt = 0
        self._epochs: list[int] = []

    def rival(self) -> Promotion:
        """Return a run of another operator, for the mirror of this one."""
        return Promotion(self._world, self._site)

    @property
    def is_over(self) -> bool:
        """Whether it has ended: promoted, given up, superseded or killed."""
        return self._next == OVER

    def step(self) -> None:
        """Do the next step, give up, or be killed."""
        world = self._world
        if world.chance.random() < 0.02:
            self._next = OVER
            world.count("killed promotions")
        elif self._next in (SEAL, WAIT) and world.now_ms > self._until_ms:
            self._give_up()
        elif self._next == BEGIN:
            self._begin()
        elif self._next == SEAL:
            self._seal()
        elif self._next == WAIT:
            self._end()
        elif self._next == LATE:
            # The answer does not come: it is given up, which the target refuses if it is promoted.
            self._give_up()
        elif self._next == MARK:
            self._ask_source(SealState.MOVED)
            self._next = OVER

    def _begin(self) -> None:
        topic = self._source.metadata.topic(TOPIC)
        seal = None if topic is None else self._source.metadata.seals.get(topic.topic_id)
        least = 0 if seal is None else seal.attempt
        result = self._ask_target(MirrorState.PROMOTING, least, is_repeated=False)
        self._attempt, self._next = result, SEAL if result > 0 else OVER

    def _seal(self) -> None:
        answer = self._ask_source(SealState.SEALED)
        self._epochs = [] if answer is None else answer
        self._next = OVER if answer is None else WAIT
        self._world.count("seals", answer is not None)
        self._world.tell(f"{self._source.name} is sealed by attempt {self._attempt}: {answer}")

    def _end(self) -> None:
        """Promote once the mirror has everything that its source will ever have."""
        if self._waits():
            return
        losses = len(self._site.unclean)
        if self._world.chance.random() < 0.2:
            # The request is on its way for a while, and so is what others decide meanwhile.
            self._world.at(self._world.chance.randint(*LATE_MS), lambda: self._promote(losses))
            self._next = LATE
            return
        self._promote(losses)
        is_done = not self._is_mirror()
        self._next = MARK if is_done else OVER

    def _promote(self, losses: int) -> None:
        before = self._is_mirror()
        self._ask_target(MirrorState.PROMOTED, self._attempt, is_repeated=False)
        if before and not self._is_mirror():
            # Records that an unclean election here has lost since were all there at the look.
            is_complete = len(self._site.unclean) == losses
            self._world.administrator.on_promoted(self._site, is_complete=is_complete)

    def _give_up(self) -> None:
        self._next = OVER
        self._world.count("promotions given up")
        # The target first, see `lossless_promotion`.
        if self._ask_target(MirrorState.ACTIVE, self._attempt, is_repeated=True) == 0:
            self._ask_source(SealState.OPEN)

    # ---- requests ----

    def _ask_target(self, state: MirrorState, attempt: int, *, is_repeated: bool) -> int:
        """Return the number of the attempt that begins, 0 for other successes; -1 if refused."""
        if self._world.plan.ignores_attempts and state is MirrorState.PROMOTED:
            attempt = -1
        asked = AlterableMirror(name=TOPIC, state=state, attempt=attempt)
        request = AlterMirrorsRequest(wall_ms=self._site.now_ms, topics=[asked])
        answer = self._site.ask(request)
        if is_repeated and self._world.chance.random() < REPEATED:
            self._later(lambda: self._site.ask(request))
        if not isinstance(answer, AlterMirrorsResponse) or answer.topics[0].error_code:
            return -1
        return max(answer.topics[0].attempt, 0)

    def _ask_source(self, state: SealState) -> list[int] | None:
        """Return the leader epochs of the topic there; None if the request is refused."""
        asked = AlterableSeal(name=TOPIC, state=state, attempt=self._attempt)
        request = AlterSealsRequest(
            target_cluster_id=self._site.name, wall_ms=self._source.now_ms, topics=[asked]
        )
        answer = self._source.ask(request)
        if self._world.chance.random() < REPEATED:
            self._later(lambda: self._source.ask(request))
        if not isinstance(answer, AlterSealsResponse) or answer.topics[0].error_code:
            return None
        return answer.topics[0].leader_epochs

    def _later(self, ask: Callable[[], object]) -> None:
        self._world.count("repeated requests")

        def arrive() -> None:
            ask()

        self._world.at(self._world.chance.randint(*LATE_MS), arrive)

    # ---- the look at both sides ----

    def _is_mirror(self) -> bool:
        topic = self._site.metadata.topic(TOPIC)
        mirror = None if topic is None else self._site.metadata.mirrors.get(topic.topic_id)
        return mirror is not None and mirror.is_mirror

    def _waits(self) -> bool:
        """Return whether something is missing; also if another operator has ended this."""
        topic, plan = self._site.metadata.topic(TOPIC), self._world.plan
        if topic is None or not self._is_mirror():
            self._next = OVER
            return True
        here: dict[int, DescribedMirrorPartition] = {}
        for replica in self._leaders(self._site):
            number, reader = replica.place[1], replica.replica.mirror
            if reader is None:
                continue
            if plan.promotes_at_lag_zero and reader.lag:
                return True
            report = _mirror_report(replica, reader.epoch)
            if number not in here or here[number].leader_epoch < reader.epoch:
                here[number] = report
        if plan.promotes_at_lag_zero:
            return len(here) < len(topic.partitions)
        there: dict[int, DescribedSealPartition] = {}
        for replica in self._leaders(self._source):
            state = replica.replica.state
            if state is None or not (state.sealed_for or plan.seals_without_epoch):
                continue
            known = there.get(replica.place[1])
            if known is None or known.leader_epoch < state.leader_epoch:
                end = _seal_report(replica, state.leader_epoch, marks_only=plan.compares_marks)
                there[replica.place[1]] = end
        mirror = DescribedMirror(name=TOPIC, num_partitions=len(topic.partitions))
        epochs = [-1] * len(self._epochs) if plan.seals_without_epoch else self._epochs
        return bool(missing(mirror, {n: (0, each) for n, each in here.items()}, there, epochs))

    def _leaders(self, site: Site) -> Iterator[SiteReplica]:
        """Yield the replicas that lead as far as their brokers know, former leaders among them."""
        topic = site.metadata.topic(TOPIC)
        for broker in site.brokers:
            for place, replica in broker.replicas.items():
                is_own = topic is not None and place[0] == topic.topic_id
                if broker.is_up and is_own and replica.replica.leader is not None:
                    yield replica


def _mirror_report(replica: SiteReplica, epoch: int) -> DescribedMirrorPartition:
    log, leader = replica.log, replica.replica.leader
    mark = log.high_watermark
    return DescribedMirrorPartition(
        partition_index=replica.place[1],
        leader_epoch=epoch,
        log_end_offset=log.end_offset,
        high_watermark=mark if leader is None else min(mark, leader.replicated_end),
        last_epoch=log.last_epoch,
    )


def _seal_report(replica: SiteReplica, epoch: int, *, marks_only: bool) -> DescribedSealPartition:
    """Return what a leader tells; with a planted fault, its high watermark as its end."""
    log = replica.log
    end = log.high_watermark if marks_only else log.end_offset
    is_empty = end <= log.start_offset
    return DescribedSealPartition(
        partition_index=replica.place[1],
        leader_epoch=epoch,
        log_start_offset=log.start_offset,
        log_end_offset=end,
        high_watermark=log.high_watermark,
        last_stable_offset=log.high_watermark,
        last_epoch=-1 if is_empty else log.epochs.at(end - 1),
    )
