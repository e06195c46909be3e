"""Seals of topics, and the attempts of promotions without loss, as two controllers decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.quorum.controller.seal_control import BY_OPERATOR
from streamlog.broker.quorum.metadata.cluster_metadata import TopicRegistration
from streamlog.broker.quorum.metadata.mirror_topics import LogEra, MirrorState
from streamlog.broker.quorum.metadata.topic_seals import SealState
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterableSeal,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    AlterSealsRequest,
    AlterSealsResponse,
    MirrorResult,
    SealResult,
)
from tests.broker.quorum.controller.test_mirror_control import epochs, link, mirror
from tests.broker.quorum.deciding import CLUSTER_ID, Deciding

SEALED, MOVED, OPEN = SealState.SEALED, SealState.MOVED, SealState.OPEN


def seal(
    cluster: Deciding,
    state: int = SEALED,
    attempt: int = 1,
    *,
    target: str = "target",
    name: str = "t",
    topic_id: bytes = bytes(16),
    is_forced: bool = False,
) -> SealResult:
    asked = AlterableSeal(
        name=name, topic_id=topic_id, state=state, attempt=attempt, is_forced=is_forced
    )
    request = AlterSealsRequest(target_cluster_id=target, wall_ms=5, topics=[asked])
    (result,) = cluster.ask(request, AlterSealsResponse).topics
    return result


def alter(cluster: Deciding, state: int, attempt: int = -1, name: str = "t") -> MirrorResult:
    asked = AlterableMirror(name=name, state=state, attempt=attempt)
    (result,) = cluster.ask(
        AlterMirrorsRequest(wall_ms=5, topics=[asked]), AlterMirrorsResponse
    ).topics
    return result


def topic_of(cluster: Deciding, name: str = "t") -> TopicRegistration:
    topic = cluster.metadata.topic(name)
    assert topic is not None
    return topic


@pytest.fixture
def source() -> Deciding:
    deciding = Deciding()
    deciding.start(1, 2, 3)
    deciding.create(partitions=2)
    return deciding


def test_a_seal_begins_an_epoch_and_so_does_its_end(source: Deciding) -> None:
    before = epochs(source)
    sealed = seal(source)
    assert sealed.error_code == 0
    assert sealed.leader_epochs == epochs(source) == [each + 1 for each in before]
    # Sent again, because the answer was lost, and taken over by the next attempt.
    assert seal(source).leader_epochs == sealed.leader_epochs
    assert seal(source, attempt=2).leader_epochs == sealed.leader_epochs
    other = seal(source, attempt=9, target="third")
    assert "is sealed for cluster target" in (other.error_message or "")
    assert "another operator has begun promotion 2" in (seal(source).error_message or "")
    assert seal(source, OPEN, attempt=1).error_code == ErrorCode.INVALID_REQUEST
    assert seal(source, MOVED, attempt=1).error_code == ErrorCode.INVALID_REQUEST
    assert seal(source, OPEN, attempt=2).leader_epochs == [each + 2 for each in before]
    assert seal(source, attempt=2).error_code == ErrorCode.INVALID_REQUEST
    assert seal(source, attempt=3).error_code == 0
    assert source.replayed().digest() == source.metadata.digest()


def test_a_topic_that_has_moved_is_opened_by_force_only(source: Deciding) -> None:
    assert "t is not sealed" in (seal(source, OPEN, BY_OPERATOR, target="").error_message or "")
    seal(source)
    assert seal(source, MOVED).error_code == 0
    assert seal(source, MOVED).error_code == 0
    closed = epochs(source)
    for refused in (seal(source, OPEN, BY_OPERATOR, target=""), seal(source, OPEN), seal(source)):
        if refused.error_code:
            assert "has moved to cluster target" in (refused.error_message or "")
    assert epochs(source) == closed
    assert seal(source, OPEN, BY_OPERATOR, target="", is_forced=True).error_code == 0
    assert epochs(source) == [each + 1 for each in closed]


def test_what_can_not_be_sealed_is_refused(source: Deciding) -> None:
    assert seal(source, name="none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert seal(source, 7).error_code == ErrorCode.INVALID_REQUEST
    assert seal(source, topic_id=b"another topic id").error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert seal(source, topic_id=topic_of(source).topic_id).error_code == 0
    mirror(source, link(source).link_id, "chained")
    chained = seal(source, name="chained")
    assert "mirrors cluster other itself" in (chained.error_message or "")


def test_a_sealed_topic_that_fails_back_is_sealed_no_more(source: Deciding) -> None:
    seal(source, attempt=4)
    seal(source, MOVED, attempt=4)
    eras = (LogEra(CLUSTER_ID, 0, topic_of(source).topic_id), LogEra("other", 5 << 14))
    assert mirror(source, link(source).link_id, eras=eras, follows="east").error_code == 0
    found = source.metadata.seals[topic_of(source).topic_id]
    assert (found.state, found.attempt) == (OPEN, 4)


def test_only_the_last_attempt_ends_a_promotion(source: Deciding) -> None:
    mirror(source, link(source).link_id, "m")
    first = alter(source, MirrorState.PROMOTING, 6, "m")
    assert (first.error_code, first.attempt) == (0, 7)
    second = alter(source, MirrorState.PROMOTING, 6, "m")
    assert second.attempt == 8
    for state in (MirrorState.PROMOTED, MirrorState.ACTIVE):
        refused = alter(source, state, 7, "m")
        assert "another operator has begun promotion 8" in (refused.error_message or "")
    assert alter(source, MirrorState.PAUSED, name="m").error_code == ErrorCode.INVALID_REQUEST
    assert alter(source, MirrorState.ACTIVE, 8, "m").error_code == 0
    late = alter(source, MirrorState.PROMOTED, 8, "m")
    assert "promotion 8 was given up" in (late.error_message or "")
    third = alter(source, MirrorState.PROMOTING, 0, "m").attempt
    assert alter(source, MirrorState.PROMOTED, third, "m").error_code == 0
    before = epochs(source, "m")
    # Repeated, because the answer was lost.
    assert alter(source, MirrorState.PROMOTED, third, "m").error_code == 0
    assert epochs(source, "m") == before
    assert alter(source, MirrorState.PROMOTED, second.attempt, "m").error_code


@dataclass
class Operator:
    """One run of the command, as its protocol says; each step is one request or one look."""

    world: World
    attempt: int = 0
    step: int = 0
    seen: int = -1

    def act(self, *, gives_up: bool) -> None:
        world = self.world
        if self.step >= 4:
            return
        if gives_up and self.step:
            self.step = 9
            # The target first: once it has refused the promotion, the source may go on.
            if not world.to_target(MirrorState.ACTIVE, self.attempt):
                world.to_source(OPEN, self.attempt)
            return
        if self.step == 0:
            known = world.source.metadata.seals.get(world.topic_id)
            least = 0 if known is None else known.attempt
            self.attempt = alter(world.target, MirrorState.PROMOTING, least).attempt
            self.step = 1 if self.attempt > 0 else 9
        elif self.step == 1:
            self.step = 9 if world.to_source(SEALED, self.attempt) else 2
        elif self.step == 2:
            known = world.source.metadata.seals[world.topic_id]
            if known.state is SEALED and known.attempt == self.attempt:
                self.seen, self.step = world.records, 3
                world.looks[self.attempt] = self.seen
        elif self.step == 3:
            self.step = 9 if world.to_target(MirrorState.PROMOTED, self.attempt) else 4


@dataclass
class World:
    """Two controllers, a producer of the source, and a network that repeats requests later."""

    source: Deciding
    target: Deciding
    topic_id: bytes
    records: int = 0
    looks: dict[int, int] = field(default_factory=dict)
    sent: list[Callable[[], object]] = field(default_factory=list)

    def to_source(self, state: int, attempt: int) -> int:
        self.sent.append(lambda: seal(self.source, state, attempt))
        return seal(self.source, state, attempt).error_code

    def to_target(self, state: int, attempt: int) -> int:
        self.sent.append(lambda: alter(self.target, state, attempt))
        return alter(self.target, state, attempt).error_code

    def produce(self) -> None:
        known = self.source.metadata.seals.get(self.topic_id)
        self.records += known is None or not known.is_closed


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=60))
def test_whatever_operators_do_at_once_no_record_comes_after_the_look_of_a_promotion(
    moves: list[tuple[int, int]],
) -> None:
    source, target = Deciding(), Deciding(cluster_id="target")
    source.start(1)
    topic_id = source.create(copies=1)
    target.start(1)
    mirror(target, link(target).link_id, partitions=1)
    world = World(source, target, topic_id)
    operators = [Operator(world), Operator(world), Operator(world)]
    for kind, number in moves:
        if kind < 3:
            operators[kind].act(gives_up=number < 4)
        elif kind == 3 and world.sent:
            world.sent[number % len(world.sent)]()
        else:
            world.produce()
    for _ in range(3):
        world.produce()
    found = target.metadata.mirrors[topic_of(target).topic_id]
    if found.state is MirrorState.PROMOTED:
        assert world.looks[found.attempt] == world.records
