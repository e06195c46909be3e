"""ConsumerMember: every answer by itself, then many members and the broker's own coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.coordinator.group.group_coordinator import GroupCoordinator
from streamlog.broker.coordinator.shard import Caller, CoordinatorRecord, Instant, ShardOutcome
from streamlog.client.group.classic_protocol import GroupSettings, Leave, MemberPhase, WaitForGroup
from streamlog.client.group.consumer_protocol import ConsumerMember, NameTopics, Tell
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import consumer_groups as wire
from streamlog.record import TopicPartition

ID = b"t" * 16
NAMES = {ID: "t"}
T = [TopicPartition("t", number) for number in range(4)]
PATIENCE_MS = 60_000
REBALANCE_MS = 10**9
"""Nobody is thrown out for being slow: that it reads on until it hears of it is by design."""
BEAT_MS = 1_000
SESSION_MS = 10_000


def member(name: str = "me", instance_id: str | None = None, **other: str) -> ConsumerMember:
    settings = GroupSettings(
        group_id="g",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=BEAT_MS,
        max_poll_interval_ms=PATIENCE_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol="consumer",
        instance_id=instance_id,
        **other,  # type: ignore[arg-type]
    )
    return ConsumerMember(settings, ["t"], member_id=name)


def told(one: ConsumerMember, now_ms: int) -> wire.ConsumerGroupHeartbeatRequest:
    """The heartbeat that is due."""
    action = one.next(now_ms)
    assert isinstance(action, Tell), action
    return action.request


def answer(epoch: int, *numbers: int, code: int = 0, same: bool = False) -> object:
    assigned = wire.HeartbeatTopicPartitions(topic_id=ID, partitions=list(numbers))
    return wire.ConsumerGroupHeartbeatResponse(
        error_code=code,
        member_epoch=epoch,
        heartbeat_interval_ms=BEAT_MS,
        assignment=None if same else wire.Assignment(topic_partitions=[assigned]),
    )


def hear(one: ConsumerMember, response: object, now_ms: int) -> None:
    assert isinstance(response, wire.ConsumerGroupHeartbeatResponse)
    one.on_heartbeat(response, now_ms)


def owned(request: wire.ConsumerGroupHeartbeatRequest) -> list[int] | None:
    if request.topic_partitions is None:
        return None
    return sorted(number for each in request.topic_partitions for number in each.partitions)


def stable(one: ConsumerMember | None = None, *numbers: int) -> ConsumerMember:
    """At epoch 1 with these partitions, of which the coordinator knows."""
    one = one or member()
    told(one, 0)
    hear(one, answer(1, *numbers), 0)
    if one.next(0) == NameTopics():
        one.on_names(NAMES, 0)
    one.on_assigned(0)
    if numbers:
        told(one, 0)
        hear(one, answer(1, same=True), 0)
    return one


def test_it_joins_under_its_own_name_and_says_everything() -> None:
    one = member(remote_assignor="range")
    request = told(one, 0)
    assert (request.member_id, request.member_epoch, request.rebalance_timeout_ms) == (
        "me", 0, REBALANCE_MS,
    )  # fmt: skip
    assert (request.subscribed_topic_names, owned(request), request.server_assignor) == (
        ["t"], [], "range",
    )  # fmt: skip
    assert one.next(0) == WaitForGroup(None)
    hear(one, answer(1, 0, 1), 0)
    assert (one.is_known, one.offered) == (True, None)  # Nobody knows the topic's name.
    assert one.next(0) == NameTopics()
    one.on_names(NAMES, 0)
    assert one.offered == {T[0], T[1]}
    assert one.on_assigned(0) == {T[0], T[1]}
    # What it owns is told at once, and only that.
    request = told(one, 0)
    assert (request.subscribed_topic_names, request.rebalance_timeout_ms) == (None, -1)
    assert (owned(request), request.member_epoch) == ([0, 1], 1)
    hear(one, answer(1, same=True), 0)
    assert one.next(0) == WaitForGroup(BEAT_MS)
    request = told(one, BEAT_MS)
    assert (request.subscribed_topic_names, owned(request)) == (None, None)


def test_what_is_asked_back_is_kept_until_the_owner_is_done() -> None:
    one = stable(None, 0, 1)
    told(one, BEAT_MS)
    hear(one, answer(1, 1), BEAT_MS)
    assert (one.revoking, one.assignment, one.may_commit) == ({T[0]}, {T[0], T[1]}, True)
    assert owned(told(one, 2 * BEAT_MS)) is None
    hear(one, answer(1, same=True), 2 * BEAT_MS)
    one.on_revoked(one.revoking, 2 * BEAT_MS)
    assert one.on_assigned(2 * BEAT_MS) == frozenset()
    assert owned(told(one, 2 * BEAT_MS)) == [1]
    hear(one, answer(2, 1, 2), 2 * BEAT_MS)
    assert (one.revoking, one.on_assigned(0), one.generation_id) == (set(), {T[2]}, 2)


def test_other_topics_are_told_at_once() -> None:
    one = stable()
    one.on_subscription(["u", "t"])
    assert told(one, 1).subscribed_topic_names == ["t", "u"]
    hear(one, answer(2, same=True), 1)
    assert isinstance(one.next(1), WaitForGroup)


def test_who_reads_nothing_does_not_join() -> None:
    one = member()
    one.on_subscription([])
    assert one.next(0) == WaitForGroup(None)
    one.on_subscription(["t"])
    assert told(one, 0).subscribed_topic_names == ["t"]


def test_topics_that_nobody_knows_are_looked_up_again_and_the_rest_is_read() -> None:
    one = member()
    told(one, 0)
    other = wire.HeartbeatTopicPartitions(topic_id=b"u" * 16, partitions=[0])
    mine = wire.HeartbeatTopicPartitions(topic_id=ID, partitions=[3])
    response = wire.ConsumerGroupHeartbeatResponse(
        member_epoch=1,
        heartbeat_interval_ms=BEAT_MS,
        assignment=wire.Assignment(topic_partitions=[mine, other]),
    )
    hear(one, response, 0)
    assert one.next(0) == NameTopics()
    one.on_names(NAMES, 0)
    assert one.on_assigned(0) == {T[3]}
    hear(one, answer(1, same=True), 0) if isinstance(one.next(0), Tell) else None
    assert one.next(BEAT_MS) == NameTopics()
    one.on_names({b"u" * 16: "u"}, BEAT_MS)
    assert one.on_assigned(0) == {TopicPartition("u", 0)}


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_has_lost_all_and_joins_again(code: ErrorCode) -> None:
    one = stable(None, 0, 1)
    told(one, BEAT_MS)
    hear(one, answer(0, code=code), BEAT_MS)
    assert (one.phase, one.is_lost, one.revoking) == (MemberPhase.REVOKING, True, {T[0], T[1]})
    assert (one.is_known, one.next(2 * BEAT_MS)) == (False, WaitForGroup(None))
    one.on_revoked(one.revoking, 2 * BEAT_MS)
    request = told(one, 2 * BEAT_MS)
    assert (request.member_id, request.member_epoch, owned(request)) == ("me", 0, [])


def test_a_lost_coordinator_costs_nothing_but_is_told_everything() -> None:
    one = stable(None, 0, 1)
    one.on_coordinator_lost(BEAT_MS)
    assert (one.coordinator_lost, one.assignment) == (True, {T[0], T[1]})
    one.on_coordinator_found()
    assert isinstance(one.next(BEAT_MS), WaitForGroup)
    request = told(one, BEAT_MS + 100)
    assert (owned(request), request.subscribed_topic_names) == ([0, 1], ["t"])
    assert (request.member_epoch, request.rebalance_timeout_ms) == (1, REBALANCE_MS)
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        hear(one, answer(0, code=code), BEAT_MS)
        assert one.coordinator_lost
    hear(one, answer(0, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), BEAT_MS)
    assert (one.phase, owned(told(one, 2 * BEAT_MS))) == (MemberPhase.STABLE, [0, 1])


def test_a_place_that_is_not_released_is_waited_for_but_not_for_ever() -> None:
    one, now_ms = member(instance_id="i"), 0
    refusal = answer(0, code=ErrorCode.UNRELEASED_INSTANCE_ID)
    for now_ms in range(0, 60_000, 1_000):
        assert told(one, now_ms).instance_id == "i"
        hear(one, refusal, now_ms)
        assert isinstance(one.next(now_ms + 999), WaitForGroup)
    told(one, now_ms + 1_000)
    with pytest.raises(LogError, match="same group_instance_id"):
        hear(one, refusal, now_ms + 1_000)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INVALID_REQUEST,
    ],
)
def test_a_refusal_is_told_in_the_coordinators_words(code: ErrorCode) -> None:
    one = member()
    told(one, 0)
    response = answer(0, code=code)
    assert isinstance(response, wire.ConsumerGroupHeartbeatResponse)
    response.error_message = "because"
    with pytest.raises(LogError, match="group g: because") as refused:
        hear(one, response, 0)
    assert refused.value.code == code


def test_leaving_and_being_away() -> None:
    assert member().leave() is None
    one, static = stable(None, 0), stable(member(instance_id="i"), 0)
    left, away = one.leave(), static.leave()
    assert left is not None
    assert away is not None
    assert (left.member_epoch, away.member_epoch, away.instance_id) == (-1, -2, "i")
    assert (one.phase, one.next(0)) == (MemberPhase.LEFT, WaitForGroup(None))
    hear(one, answer(5, 1), 0)
    assert one.phase is MemberPhase.LEFT


def test_whose_owner_does_not_poll_leaves_and_is_back_with_the_next_poll() -> None:
    one = stable(None, 0)
    one.on_poll(0, waits=False)
    left = one.next(PATIENCE_MS)
    assert isinstance(left, Leave)
    assert isinstance(left.request, wire.ConsumerGroupHeartbeatRequest)
    assert left.request.member_epoch == -1
    assert (one.phase, one.is_lost, one.next(9 * PATIENCE_MS)) == (
        MemberPhase.REVOKING,
        True,
        WaitForGroup(None),
    )
    assert "max_poll_interval_ms" in one.absence
    one.on_poll(9 * PATIENCE_MS, waits=False)
    one.on_revoked(one.revoking, 9 * PATIENCE_MS)
    assert told(one, 9 * PATIENCE_MS).member_epoch == 0
    hear(one, answer(3), 9 * PATIENCE_MS)
    assert one.absence == ""
    idle = member()
    idle.on_poll(0, waits=False)
    assert isinstance(idle.next(PATIENCE_MS), Leave)
    assert (idle.phase, idle.next(PATIENCE_MS)) == (MemberPhase.AWAY, WaitForGroup(None))
    idle.on_poll(PATIENCE_MS, waits=False)
    assert isinstance(idle.next(PATIENCE_MS), Tell)


def test_it_prints_itself() -> None:
    assert str(stable(None, 0)) == "member me of group g: stable, epoch 1, 1 partitions"


# ---- with the broker's coordinator ----


class OneTopic:
    """t with four partitions."""

    def names(self) -> list[str]:
        return ["t"]

    def topic_id(self, name: str) -> bytes | None:
        return ID if name == "t" else None

    def name_of(self, topic_id: bytes) -> str | None:
        return NAMES.get(topic_id)

    def partitions(self, name: str) -> int:
        return len(T) if name == "t" else 0


class World:
    """A coordinator with its log, members, and the time."""

    def __init__(self, count: int) -> None:
        self.now_ms = 0
        self.members = [member(f"m{number}") for number in range(count)]
        self._log: list[CoordinatorRecord] = []
        self._tickets = 0
        self.restart()

    def restart(self) -> None:
        config = GroupConfig(
            consumer_session_timeout_ms=SESSION_MS, consumer_heartbeat_interval_ms=BEAT_MS
        )
        self._coordinator = GroupCoordinator(config, topics=OneTopic())
        for record in self._log:
            self._coordinator.replay(record, now_ms=self.now_ms)

    def step(self, one: ConsumerMember, *, is_asked: bool = True, is_answered: bool = True) -> None:
        """What is due of one member; its request or the answer may be lost."""
        one.on_coordinator_found()
        match one.next(self.now_ms):
            case Tell(request):
                response = self._ask(request) if is_asked else None
                if response is None or not is_answered:
                    one.on_coordinator_lost(self.now_ms)
                else:
                    one.on_heartbeat(response, self.now_ms)
            case NameTopics():
                one.on_names(NAMES, self.now_ms)
            case Leave() | WaitForGroup():
                pass

    def settle(self, one: ConsumerMember) -> None:
        """What its owner does in a poll."""
        while revoked := one.revoking:
            one.on_revoked(revoked, self.now_ms)
        if one.offered is not None:
            one.on_assigned(self.now_ms)

    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self._take(self._coordinator.on_tick(self._at))

    def owners(self) -> Mapping[TopicPartition, list[str]]:
        """Who reads each partition: a member whose session is over reads nothing."""
        return {
            partition: [
                one.member_id
                for one in self.members
                if partition in one.assignment and one.is_current(self.now_ms) and not one.is_lost
            ]
            for partition in T
        }

    @property
    def _at(self) -> Instant:
        return Instant(self.now_ms, self.now_ms)

    def _take(self, outcome: ShardOutcome) -> None:
        self._log += outcome.records
        for record in outcome.records:
            self._coordinator.replay(record, now_ms=self.now_ms)

    def _ask(
        self, request: wire.ConsumerGroupHeartbeatRequest
    ) -> wire.ConsumerGroupHeartbeatResponse:
        self._tickets += 1
        caller = Caller(self._tickets, 1, "app", "/127.0.0.1", "fresh")
        outcome = self._coordinator.handle(request, caller, self._at)
        self._take(outcome)
        (given,) = outcome.answers
        assert isinstance(given.response, wire.ConsumerGroupHeartbeatResponse)
        assert given.response.error_code != ErrorCode.INVALID_REQUEST, given.response
        return given.response


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_whatever_gets_lost_no_two_read_the_same_and_in_the_end_all_is_read(
    seed: int, count: int
) -> None:
    chance, world = Random(seed), World(count)
    for _ in range(60):
        one = chance.choice(world.members)
        match chance.choice(
            ["step", "step", "step", "lose", "miss", "poll", "poll", "wait", "die"]
        ):
            case "step":
                world.step(one)
            case "lose":
                world.step(one, is_asked=False)
            case "miss":
                world.step(one, is_answered=False)
            case "poll":
                world.settle(one)
            case "wait":
                world.wait(chance.choice([100, BEAT_MS, SESSION_MS // 2]))
            case "die":
                world.restart()
        assert all(len(readers) <= 1 for readers in world.owners().values()), world.owners()
    for _ in range(60):
        world.wait(BEAT_MS)
        for one in world.members:
            world.step(one)
            world.settle(one)
            world.step(one)
            assert all(len(readers) <= 1 for readers in world.owners().values())
    assert all(len(readers) == 1 for readers in world.owners().values()), world.owners()
    assert {one.phase for one in world.members} == {MemberPhase.STABLE}
    shares = [len(one.assignment) for one in world.members]
    assert max(shares) - min(shares) <= 1
