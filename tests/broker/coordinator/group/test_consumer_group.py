"""Groups whose coordinator assigns: one test per rule, then random orders of events."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

import pytest

from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.coordinator.group.consumer_group import ConsumerGroup
from streamlog.broker.coordinator.group.group_coordinator import GroupCoordinator
from streamlog.broker.coordinator.group.group_member import (
    AWAY_EPOCH,
    LEFT_EPOCH,
    NOTHING,
    Held,
    held_of,
    topic_partitions,
)
from streamlog.broker.coordinator.shard import Caller, CoordinatorRecord, Instant, ShardOutcome
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    HeartbeatTopicPartitions,
)
from streamlog.protocol.schema import Message

SESSION_MS = 10_000
BEAT_MS = 1_000
REBALANCE_MS = 30_000

Owned = frozenset[tuple[str, int]]


class Catalog:
    """A topic catalog that tests change."""

    def __init__(self, **counts: int) -> None:
        self._serial = 0
        self._topics: dict[str, tuple[bytes, int]] = {}
        for name, count in counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        self._serial += 1
        self._topics[name] = (self._serial.to_bytes(16), count)

    def delete(self, name: str) -> None:
        del self._topics[name]

    def names(self) -> Collection[str]:
        return self._topics.keys()

    def topic_id(self, name: str) -> bytes | None:
        return self._topics[name][0] if name in self._topics else None

    def name_of(self, topic_id: bytes) -> str | None:
        return next((n for n, (known, _) in self._topics.items() if known == topic_id), None)

    def partitions(self, name: str) -> int:
        return self._topics[name][1] if name in self._topics else 0


@dataclass
class Driver:
    """A coordinator, the time, and its log."""

    topics: Catalog = field(default_factory=lambda: Catalog(t=4))
    config: GroupConfig = field(
        default_factory=lambda: GroupConfig(
            consumer_session_timeout_ms=SESSION_MS,
            consumer_heartbeat_interval_ms=BEAT_MS,
            consumer_size_max=3,
        )
    )
    now_ms: int = 0
    tickets: int = 0
    log: list[CoordinatorRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinator = GroupCoordinator(self.config, topics=self.topics)

    @property
    def at(self) -> Instant:
        return Instant(self.now_ms, 1_000_000 + self.now_ms)

    @property
    def group(self) -> ConsumerGroup:
        group = self.coordinator._groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    def take(self, outcome: ShardOutcome) -> None:
        self.log += outcome.records
        for record in outcome.records:
            self.coordinator.replay(record, now_ms=self.now_ms)

    def ask(self, request: Message, version: int = 1) -> Message:
        self.tickets += 1
        caller = Caller(self.tickets, version, "app", "/127.0.0.1", f"fresh{self.tickets}")
        outcome = self.coordinator.handle(request, caller, self.at)
        self.take(outcome)
        (answer,) = outcome.answers
        assert answer.ticket == self.tickets
        return answer.response

    def beat(
        self,
        member: str,
        epoch: int,
        *,
        owns: Owned | None = None,
        topics: list[str] | None = None,
        version: int = 1,
        **other: str | None,
    ) -> ConsumerGroupHeartbeatResponse:
        joins = epoch == 0
        if joins and topics is None and "subscribed_topic_regex" not in other:
            topics = ["t"]
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topic_names=topics,
            topic_partitions=[] if joins else None if owns is None else self.wire(owns),
            **other,
        )
        response = self.ask(request, version)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    def wire(self, owned: Owned) -> list[HeartbeatTopicPartitions]:
        ids = {topic: self.topics.topic_id(topic) or bytes(16) for topic, _ in owned}
        return [
            HeartbeatTopicPartitions(
                topic_id=ids[topic], partitions=[n for name, n in owned if name == topic]
            )
            for topic in sorted(ids)
        ]

    def beat_of(self, client: Client, topics: list[str] | None, *, full: bool) -> Message:
        """Send the heartbeat of a client that knows topics by their ids."""
        joins = client.epoch == 0
        return self.ask(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=client.name,
                member_epoch=client.epoch,
                rebalance_timeout_ms=REBALANCE_MS if joins or full else -1,
                subscribed_topic_names=topics,
                topic_partitions=[] if joins else topic_partitions(client.uses),
            )
        )

    def assigned(self, response: ConsumerGroupHeartbeatResponse) -> Owned | None:
        if response.assignment is None:
            return None
        return frozenset(
            (self.topics.name_of(topic.topic_id) or "", number)
            for topic in response.assignment.topic_partitions
            for number in topic.partitions
        )

    def commit(self, member: str, epoch: int, version: int = 9) -> int:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        request = OffsetCommitRequest(
            group_id="g",
            member_id=member,
            generation_id_or_member_epoch=epoch,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        response = self.ask(request, version)
        assert isinstance(response, OffsetCommitResponse)
        return response.topics[0].partitions[0].error_code

    def wait(self, by_ms: int) -> None:
        end_ms = self.now_ms + by_ms
        while True:
            due_ms = self.coordinator.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.coordinator.on_tick(self.at))
        self.now_ms = end_ms

    def restarted(self, records: list[CoordinatorRecord] | None = None) -> Driver:
        other = Driver(topics=self.topics, config=self.config, now_ms=self.now_ms)
        for record in self.log if records is None else records:
            other.coordinator.replay(record, now_ms=other.now_ms)
        other.log = list(self.log)
        return other


def parts(*numbers: int, topic: str = "t") -> Owned:
    return frozenset((topic, number) for number in numbers)


ALL = parts(0, 1, 2, 3)


def test_the_first_member_gets_all_partitions() -> None:
    driver = Driver()
    response = driver.beat("a", 0)
    assert (response.error_code, response.member_id, response.member_epoch) == (0, "a", 1)
    assert response.heartbeat_interval_ms == BEAT_MS
    assert driver.assigned(response) == ALL
    # An unchanged assignment is not repeated.
    assert driver.assigned(driver.beat("a", 1, owns=ALL)) is None
    assert driver.group.state == "Stable"


def test_a_partition_is_revoked_before_it_is_assigned_again() -> None:
    driver = Driver()
    driver.beat("a", 0)
    newcomer = driver.beat("b", 0)
    assert (newcomer.member_epoch, driver.assigned(newcomer)) == (2, parts())
    assert driver.group.state == "Reconciling"
    asked = driver.beat("a", 1)
    kept = driver.assigned(asked)
    assert kept is not None
    assert (asked.member_epoch, len(kept)) == (1, 2)
    # Member a has not confirmed the revocation, so its partitions stay unassigned.
    assert driver.assigned(driver.beat("b", 2)) is None
    assert driver.beat("a", 1, owns=ALL).member_epoch == 1
    assert driver.beat("a", 1, owns=kept).member_epoch == 2
    assert driver.assigned(driver.beat("b", 2)) == ALL - kept
    assert driver.group.state == "Stable"


def pair() -> tuple[Driver, Owned, Owned]:
    """Return members a and b, both at epoch 2, with half of the topic each."""
    driver = Driver()
    driver.beat("a", 0)
    driver.beat("b", 0)
    kept = driver.assigned(driver.beat("a", 1)) or parts()
    driver.beat("a", 1, owns=kept)
    driver.beat("b", 2)
    return driver, kept, ALL - kept


def test_partitions_of_a_leaving_member_are_reassigned() -> None:
    driver, kept, rest = pair()
    response = driver.beat("b", LEFT_EPOCH)
    assert (response.error_code, response.member_epoch) == (0, LEFT_EPOCH)
    after = driver.beat("a", 2)
    assert (after.member_epoch, driver.assigned(after)) == (3, ALL)
    assert driver.beat("b", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert kept | rest == ALL


def test_a_member_is_removed_after_its_session_timeout() -> None:
    driver, _, _ = pair()
    for _ in range(9):
        driver.wait(BEAT_MS)
        driver.beat("a", 2)
    driver.wait(BEAT_MS)
    assert list(driver.group.members) == ["a"]
    assert driver.assigned(driver.beat("a", 2)) == ALL


def test_a_member_that_revokes_nothing_is_removed() -> None:
    driver = Driver()
    driver.beat("a", 0)
    driver.beat("b", 0)
    for _ in range(REBALANCE_MS // BEAT_MS):
        driver.beat("a", 1, owns=ALL)
        driver.beat("b", 2)
        driver.wait(BEAT_MS)
    assert driver.beat("a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.assigned(driver.beat("b", 2)) == ALL


def test_a_wrong_member_epoch_is_fenced() -> None:
    driver, kept, _ = pair()
    assert driver.beat("a", 3).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    # The last response may have been lost: then the member owns no more than before.
    assert driver.beat("a", 1, owns=kept).member_epoch == 2
    assert driver.beat("a", 1, owns=ALL).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.beat("a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_may_rejoin_at_epoch_0() -> None:
    driver, kept, _ = pair()
    again = driver.beat("a", 0)
    assert (again.error_code, again.member_epoch, driver.assigned(again)) == (0, 2, kept)
    assert len(driver.group.members) == 2


def test_commits_need_the_current_member_epoch() -> None:
    driver, _, _ = pair()
    assert driver.commit("a", 2) == ErrorCode.NONE
    assert driver.commit("a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit("c", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit("a", 2, version=8) == ErrorCode.UNSUPPORTED_VERSION
    coordinator = driver.coordinator
    assert coordinator.may_fetch("g", "a", 2) is ErrorCode.NONE
    assert coordinator.may_fetch("g", "a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert coordinator.may_fetch("g", "c", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.may_fetch("g", None, -1) is ErrorCode.NONE
    driver.beat("a", LEFT_EPOCH)
    driver.beat("b", LEFT_EPOCH)
    assert driver.commit("", -1) == ErrorCode.NONE


@pytest.mark.parametrize(
    "changes",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": AWAY_EPOCH},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
    ],
)
def test_an_invalid_heartbeat_is_refused(changes: dict[str, object]) -> None:
    driver = Driver()
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="a",
        rebalance_timeout_ms=1,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    for name, value in changes.items():
        setattr(request, name, value)
    response = driver.ask(request)
    assert isinstance(response, ConsumerGroupHeartbeatResponse)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert not driver.log


def test_invalid_joins_are_refused_with_their_error() -> None:
    driver = Driver()
    refused = driver.beat("a", 0, server_assignor="best")
    assert refused.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in (refused.error_message or "")
    bad = driver.beat("a", 0, subscribed_topic_regex="(")
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert driver.beat("a", 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for name in ("a", "b", "c"):
        assert driver.beat(name, 0).error_code == 0
    assert driver.beat("d", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_an_old_client_gets_its_member_id_from_the_coordinator() -> None:
    driver = Driver()
    response = driver.beat("", 0, version=0)
    assert (response.error_code, response.member_id) == (0, "fresh1")


def test_a_group_can_use_the_range_assignor() -> None:
    driver = Driver(topics=Catalog(t=3, u=3))
    driver.beat("a", 0, topics=["t", "u"], server_assignor="range")
    driver.beat("b", 0, topics=["t", "u"], server_assignor="range")
    group = driver.group
    shares = {
        member: sorted(
            (driver.topics.name_of(topic_id), n) for topic_id, n in group.targets[member]
        )
        for member in ("a", "b")
    }
    assert shares == {
        "a": [("t", 0), ("t", 1), ("u", 0), ("u", 1)],
        "b": [("t", 2), ("u", 2)],
    }


def test_created_and_deleted_topics_change_the_assignment() -> None:
    driver = Driver()
    driver.beat("a", 0, topics=["t", "u"])
    driver.topics.create("u", 2)
    found = driver.beat("a", 1, owns=ALL)
    assert (found.member_epoch, driver.assigned(found)) == (2, ALL | parts(0, 1, topic="u"))
    driver.topics.delete("t")
    lost = driver.beat("a", 2)
    assert driver.assigned(lost) == parts(0, 1, topic="u")


def test_a_subscribed_regex_finds_topics() -> None:
    driver = Driver(topics=Catalog(orders_a=1, payments=1))
    driver.beat("a", 0, subscribed_topic_regex="orders.*")
    driver.topics.create("orders_b", 1)
    response = driver.beat("a", 1)
    assert driver.assigned(response) == {("orders_a", 0), ("orders_b", 0)}
    assert driver.group.subscribes("orders_c")
    assert not driver.group.subscribes("payments")
    # An empty regex removes the pattern; the topics are named instead.
    changed = driver.beat(
        "a", 3 if response.member_epoch == 3 else 2, topics=["payments"], subscribed_topic_regex=""
    )
    assert changed.error_code == 0
    assert driver.group.wanted().topics == {"payments"}
    assert not driver.group.wanted().patterns


def test_a_subscribed_regex_matches_internal_topics_as_on_kafka() -> None:
    driver = Driver(topics=Catalog(__consumer_offsets=4, t=1))
    internal = parts(0, 1, 2, 3, topic="__consumer_offsets")
    every = driver.beat("a", 0, subscribed_topic_regex=".*")
    assert driver.assigned(every) == internal | parts(0)
    driver.beat("a", -1)
    assert driver.assigned(driver.beat("b", 0, subscribed_topic_regex="__.*")) == internal


def test_an_absent_static_member_keeps_its_assignment() -> None:
    driver = Driver()
    driver.beat("a", 0, instance_id="one")
    kept = driver.assigned(driver.beat("b", 0, instance_id="two"))
    assert kept == parts()
    first = driver.assigned(driver.beat("a", 1)) or parts()
    driver.beat("a", 1, owns=first)
    second = driver.assigned(driver.beat("b", 2))
    epoch = driver.group.epoch
    early = driver.beat("c", 0, instance_id="two")
    assert early.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert driver.beat("b", AWAY_EPOCH, instance_id="two").member_epoch == AWAY_EPOCH
    assert driver.assigned(driver.beat("a", 2)) is None
    back = driver.beat("c", 0, instance_id="two")
    assert (back.error_code, back.member_epoch, driver.assigned(back)) == (0, 2, second)
    assert driver.group.epoch == epoch
    assert driver.beat("b", 2, instance_id="two").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert driver.beat("c", 2, instance_id="three").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_is_removed() -> None:
    driver = Driver()
    driver.beat("a", 0, instance_id="one")
    driver.beat("a", AWAY_EPOCH, instance_id="one")
    driver.wait(SESSION_MS - 1)
    assert driver.group.members
    driver.wait(1)
    assert driver.group.state == "Empty"


def joining(member: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=SESSION_MS,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )


def test_a_group_uses_one_protocol_at_a_time() -> None:
    driver = Driver()
    driver.beat("a", 0)
    refused = driver.ask(joining(), 9)
    assert isinstance(refused, JoinGroupResponse)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beaten = driver.ask(HeartbeatRequest(group_id="g", member_id="a", generation_id=1))
    assert isinstance(beaten, HeartbeatResponse)
    assert beaten.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    # An empty group can change its protocol; its offsets stay, also after a restart.
    assert driver.commit("a", 1) == ErrorCode.NONE
    driver.beat("a", LEFT_EPOCH)
    named = driver.ask(joining(), 9)
    assert isinstance(named, JoinGroupResponse)
    assert named.error_code == ErrorCode.MEMBER_ID_REQUIRED
    conflict = driver.beat("a", 0)
    assert conflict.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    driver.wait(SESSION_MS)
    assert driver.beat("a", 0).member_epoch == 1
    for each in (driver, driver.restarted()):
        (line,) = each.coordinator.list_groups()
        assert (line.group_type, line.group_state) == ("consumer", "Stable")
        assert each.coordinator.positions("g", None)[0].partitions[0].committed_offset == 1


def test_only_an_empty_group_can_be_deleted() -> None:
    driver = Driver()
    driver.beat("a", 0)

    def delete() -> int:
        response = driver.ask(DeleteGroupsRequest(groups_names=["g"]))
        assert isinstance(response, DeleteGroupsResponse)
        return response.results[0].error_code

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    driver.beat("a", LEFT_EPOCH)
    assert delete() == ErrorCode.NONE
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert not driver.restarted().coordinator.list_groups()


def test_an_empty_group_without_offsets_is_forgotten() -> None:
    driver = Driver()
    driver.beat("a", 0)
    driver.beat("a", LEFT_EPOCH)
    driver.wait(driver.config.offsets_retention_check_interval_ms)
    assert not driver.coordinator.list_groups()
    assert driver.beat("b", 0).member_epoch == 1


def test_groups_are_described() -> None:
    driver, kept, _ = pair()
    shown = driver.coordinator.describe_consumers("g")
    assert (shown.group_state, shown.group_epoch, shown.assignment_epoch) == ("Stable", 2, 2)
    member = next(each for each in shown.members if each.member_id == "a")
    assert (member.member_epoch, member.subscribed_topic_names) == (2, ["t"])
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, frozenset(topic.partitions)) == ("t", {n for _, n in kept})
    absent = driver.coordinator.describe_consumers("h")
    assert absent.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.coordinator.describe("g").group_state == "Dead"


# ---- any order of events ----


@dataclass
class Client:
    """A consumer: it uses its assignment and the partitions that it has not revoked yet."""

    name: str
    epoch: int = 0
    assigned: Held = NOTHING
    uses: Held = NOTHING
    is_in: bool = False
    in_doubt: bool = False


class World:
    """Clients that follow the protocol; answers get lost, members vanish, topics come and go."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        config = GroupConfig(
            consumer_session_timeout_ms=SESSION_MS, consumer_heartbeat_interval_ms=BEAT_MS
        )
        self.driver = Driver(topics=Catalog(t=5, u=2), config=config)
        self.serial = 0
        self.clients: list[Client] = []
        for _ in range(3):
            self.add()

    def add(self) -> None:
        self.serial += 1
        self.clients.append(Client(f"m{self.serial}"))

    def beat(self, client: Client, *, lost: bool = False) -> None:
        # After a lost response the client sends its full state and gets its full assignment.
        full = client.in_doubt or self.chance.random() < 0.1
        topics = ["t", "u"] if client.epoch == 0 or full else None
        response = self.driver.beat_of(client, topics, full=full)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        client.in_doubt = lost
        if lost:
            return
        if response.error_code:
            assert response.error_code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
            )
            client.epoch, client.assigned, client.uses, client.is_in = (
                0,
                frozenset(),
                frozenset(),
                False,
            )
            return
        client.is_in, client.epoch = True, response.member_epoch
        if response.assignment is not None:
            client.assigned = held_of(response.assignment.topic_partitions)
            client.uses |= client.assigned

    def finish(self, client: Client) -> None:
        """Finish the revocation."""
        client.uses = client.assigned

    def step(self) -> None:
        client = self.chance.choice(self.clients)
        match self.chance.choices(
            ["beat", "lost", "finish", "wait", "leave", "vanish", "topic", "restart"],
            [40, 5, 25, 10, 2, 1, 2, 1],
        )[0]:
            case "beat":
                self.beat(client)
            case "lost":
                self.beat(client, lost=True)
            case "finish":
                self.finish(client)
            case "wait":
                self.driver.wait(self.chance.choice([1, 100, BEAT_MS, 3 * BEAT_MS]))
            case "leave" if client.is_in:
                self.driver.beat(client.name, LEFT_EPOCH)
                self.clients.remove(client)
                self.add()
            case "vanish":
                self.clients.remove(client)
                self.add()
            case "topic":
                self.change_topics()
            case "restart":
                self.driver = self.driver.restarted()

    def change_topics(self) -> None:
        name = self.chance.choice(["u", "v"])
        if name in self.driver.topics.names():
            self.driver.topics.delete(name)
        else:
            self.driver.topics.create(name, self.chance.randint(1, 4))

    def check(self) -> None:
        """Check that no two members use one partition."""
        if "g" not in self.driver.coordinator._groups:
            return
        group = self.driver.group
        used: dict[tuple[bytes, int], str] = {}
        for client in self.clients:
            if client.name not in group.members:
                continue
            for each in client.uses:
                assert used.setdefault(each, client.name) == client.name, each
        held = [each for member in group.members for each in group.holding(member).held]
        assert len(held) == len(set(held)), "held twice"

    def settle(self) -> None:
        for _ in range(60):
            for client in self.clients:
                self.finish(client)
                self.beat(client)
                self.check()
            self.driver.wait(BEAT_MS)
        group = self.driver.group
        topics = self.driver.topics
        every = {
            (topics.topic_id(name), number)
            for name in ("t", "u")
            for number in range(topics.partitions(name))
        }
        assert group.state == "Stable"
        assert {each for client in self.clients for each in client.uses} == every
        loads = [len(client.uses) for client in self.clients]
        assert max(loads) - min(loads) <= 1


def durable(group: ConsumerGroup) -> tuple[object, ...]:
    holdings = {member: group.holding(member) for member in group.members}
    return (
        group.epoch,
        group.fingerprint,
        group.target_epoch,
        dict(sorted(group.members.items())),
        group.targets,
        group.static,
        holdings,
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_event_orders_keep_the_group_consistent(seed: int) -> None:
    world = World(seed)
    for _ in range(world.chance.randint(20, 200)):
        world.step()
        world.check()
    world.settle()
    live = world.driver
    assert durable(live.restarted().group) == durable(live.group)
    # Compaction keeps the newest record of each key at its offset.
    newest = {record.key: index for index, record in enumerate(live.log)}
    compacted = [live.log[index] for index in sorted(newest.values())]
    assert durable(live.restarted(compacted).group) == durable(live.group)
