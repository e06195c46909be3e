"""ConsumerMember: each response alone, then many members and the broker's own coordinator."""

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
"""No member is expelled for slowness: by design, a member reads until it learns of its expulsion.
"""
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


def next_heartbeat(one: ConsumerMember, now_ms: int) -> wire.ConsumerGroupHeartbeatRequest:
    """Return the heartbeat that is due."""
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
    """Return a member at epoch 1 whose partitions the coordinator knows."""
    one = one or member()
    next_heartbeat(one, 0)
    hear(one, answer(1, *numbers), 0)
    if one.next(0) == NameTopics():
        one.on_names(NAMES, 0)
    one.on_assigned(0)
    if numbers:
        next_heartbeat(one, 0)
        hear(one, answer(1, same=True), 0)
    return one


def test_a_member_joins_with_its_own_id_and_its_full_state() -> None:
    one = member(remote_assignor="range")
    request = next_heartbeat(one, 0)
    assert (request.member_id, request.member_epoch, request.rebalance_timeout_ms) == (
        "me", 0, REBALANCE_MS,
    )  # fmt: skip
    assert (request.subscribed_topic_names, owned(request), request.server_assignor) == (
        ["t"], [], "range",
    )  # fmt: skip
    assert one.next(0) == WaitForGroup(None)
    hear(one, answer(1, 0, 1), 0)
    assert (one.is_known, one.offered) == (True, None)  # The topic's name is not known yet.
    assert one.next(0) == NameTopics()
    one.on_names(NAMES, 0)
    assert one.offered == {T[0], T[1]}
    assert one.on_assigned(0) == {T[0], T[1]}
    # What it owns is sent at once, and only that.
    request = next_heartbeat(one, 0)
    assert (request.subscribed_topic_names, request.rebalance_timeout_ms) == (None, -1)
    assert (owned(request), request.member_epoch) == ([0, 1], 1)
    hear(one, answer(1, same=True), 0)
    assert one.next(0) == WaitForGroup(BEAT_MS)
    request = next_heartbeat(one, BEAT_MS)
    assert (request.subscribed_topic_names, owned(request)) == (None, None)


def test_a_revoked_partition_is_kept_until_the_owner_releases_it() -> None:
    one = stable(None, 0, 1)
    next_heartbeat(one, BEAT_MS)
    hear(one, answer(1, 1), BEAT_MS)
    assert (one.revoking, one.assignment, one.may_commit) == ({T[0]}, {T[0], T[1]}, True)
    assert owned(next_heartbeat(one, 2 * BEAT_MS)) is None
    hear(one, answer(1, same=True), 2 * BEAT_MS)
    one.on_revoked(one.revoking, 2 * BEAT_MS)
    assert one.on_assigned(2 * BEAT_MS) == frozenset()
    assert owned(next_heartbeat(one, 2 * BEAT_MS)) == [1]
    hear(one, answer(2, 1, 2), 2 * BEAT_MS)
    assert (one.revoking, one.on_assigned(0), one.generation_id) == (set(), {T[2]}, 2)


def test_a_changed_subscription_is_sent_at_once() -> None:
    one = stable()
    one.on_subscription(["u", "t"])
    assert next_heartbeat(one, 1).subscribed_topic_names == ["t", "u"]
    hear(one, answer(2, same=True), 1)
    assert isinstance(one.next(1), WaitForGroup)


def test_a_member_without_topics_does_not_join() -> None:
    one = member()
    one.on_subscription([])
    assert one.next(0) == WaitForGroup(None)
    one.on_subscription(["t"])
    assert next_heartbeat(one, 0).subscribed_topic_names == ["t"]


def test_unknown_topic_ids_are_looked_up_while_known_ones_are_read() -> None:
    one = member()
    next_heartbeat(one, 0)
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
def test_a_fenced_member_loses_its_partitions_and_rejoins(code: ErrorCode) -> None:
    one = stable(None, 0, 1)
    next_heartbeat(one, BEAT_MS)
    hear(one, answer(0, code=code), BEAT_MS)
    assert (one.phase, one.is_lost, one.revoking) == (MemberPhase.REVOKING, True, {T[0], T[1]})
    assert (one.is_known, one.next(2 * BEAT_MS)) == (False, WaitForGroup(None))
    one.on_revoked(one.revoking, 2 * BEAT_MS)
    request = next_heartbeat(one, 2 * BEAT_MS)
    assert (request.member_id, request.member_epoch, owned(request)) == ("me", 0, [])


def test_a_member_sends_its_full_state_to_a_new_coordinator() -> None:
    one = stable(None, 0, 1)
    one.on_coordinator_lost(BEAT_MS)
    assert (one.coordinator_lost, one.assignment) == (True, {T[0], T[1]})
    one.on_coordinator_found()
    assert isinstance(one.next(BEAT_MS), WaitForGroup)
    request = next_heartbeat(one, BEAT_MS + 100)
    assert (owned(request), request.subscribed_topic_names) == ([0, 1], ["t"])
    assert (request.member_epoch, request.rebalance_timeout_ms) == (1, REBALANCE_MS)
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        hear(one, answer(0, code=code), BEAT_MS)
        assert one.coordinator_lost
    hear(one, answer(0, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), BEAT_MS)
    assert (one.phase, owned(next_heartbeat(one, 2 * BEAT_MS))) == (MemberPhase.STABLE, [0, 1])


def test_an_unreleased_instance_id_is_retried_for_a_bounded_time() -> None:
    one, now_ms = member(instance_id="i"), 0
    refusal = answer(0, code=ErrorCode.UNRELEASED_INSTANCE_ID)
    for now_ms in range(0, 60_000, 1_000):
        assert next_heartbeat(one, now_ms).instance_id == "i"
        hear(one, refusal, now_ms)
        assert isinstance(one.next(now_ms + 999), WaitForGroup)
    next_heartbeat(one, now_ms + 1_000)
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
def test_a_refusal_has_the_coordinators_message(code: ErrorCode) -> None:
    one = member()
    next_heartbeat(one, 0)
    response = answer(0, code=code)
    assert isinstance(response, wire.ConsumerGroupHeartbeatResponse)
    response.error_message = "because"
    with pytest.raises(LogError, match="group g: because") as refused:
        hear(one, response, 0)
    assert refused.value.code == code


def test_only_a_static_member_leaves_temporarily() -> None:
    assert member().leave() is None
    one, static = stable(None, 0), stable(member(instance_id="i"), 0)
    left, away = one.leave(), static.leave()
    assert left is not None
    assert away is not None
    assert (left.member_epoch, away.member_epoch, away.instance_id) == (-1, -2, "i")
    assert (one.phase, one.next(0)) == (MemberPhase.LEFT, WaitForGroup(None))
    hear(one, answer(5, 1), 0)
    assert one.phase is MemberPhase.LEFT


def test_a_member_that_is_not_polled_leaves_until_the_next_poll() -> None:
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
    assert next_heartbeat(one, 9 * PATIENCE_MS).member_epoch == 0
    hear(one, answer(3), 9 * PATIENCE_MS)
    assert one.absence == ""
    idle = member()
    idle.on_poll(0, waits=False)
    assert isinstance(idle.next(PATIENCE_MS), Leave)
    assert (idle.phase, idle.next(PATIENCE_MS)) == (MemberPhase.AWAY, WaitForGroup(None))
    idle.on_poll(PATIENCE_MS, waits=False)
    assert isinstance(idle.next(PATIENCE_MS), Tell)


def test_a_member_prints_its_state() -> None:
    assert str(stable(None, 0)) == "member me of group g (stable, epoch 1, partitions: 1)"


# ---- with the broker's coordinator ----


class OneTopic:
    """The topic t with 4 partitions."""

    def names(self) -> list[str]:
        return ["t"]

    def topic_id(self, name: str) -> bytes | None:
        return ID if name == "t" else None

    def name_of(self, topic_id: bytes) -> str | None:
        return NAMES.get(topic_id)

    def partitions(self, name: str) -> int:
        return len(T) if name == "t" else 0


class World:
    """A coordinator with its log, its members and a clock."""

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
        """Perform a member's next action; its request or the response may be lost."""
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
        """Do what the owner does in a poll."""
        while revoked := one.revoking:
            one.on_revoked(revoked, self.now_ms)
        if one.offered is not None:
            one.on_assigned(self.now_ms)

    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self._take(self._coordinator.on_tick(self._at))

    def owners(self) -> Mapping[TopicPartition, list[str]]:
        """Return the readers of each partition; a member with an expired session reads nothing."""
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
def test_all_partitions_get_one_reader_despite_lost_requests(seed: int, count: int) -> None:
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
