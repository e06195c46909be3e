"""ClassicGroup: one test per rule, then random orders of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.coordinator.group.classic_group import ClassicGroup, GroupState
from streamlog.broker.coordinator.group.group_records import GroupChange, decode_change
from streamlog.broker.coordinator.shard import Caller, Instant, ShardOutcome
from streamlog.protocol.codec import encode_versioned
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from streamlog.protocol.schema import Message

SESSION_MS = 10_000
REBALANCE_MS = 30_000
DELAY_MS = 100


@dataclass
class Driver:
    """A group, the time, and the response to each ticket."""

    group: ClassicGroup = field(
        default_factory=lambda: ClassicGroup("g", GroupConfig(initial_rebalance_delay_ms=DELAY_MS))
    )
    now_ms: int = 0
    tickets: int = 0
    answers: dict[int, Message] = field(default_factory=dict)
    records: list[GroupChange] = field(default_factory=list)

    @property
    def at(self) -> Instant:
        return Instant(self.now_ms, 1_000_000 + self.now_ms)

    def take(self, outcome: ShardOutcome) -> None:
        for record in outcome.records:
            change = decode_change(record)
            assert isinstance(change, GroupChange)
            assert change.value is not None
            self.records.append(change)
            self.group.replay(change.value, self.now_ms)
        for answer in outcome.answers:
            assert answer.ticket not in self.answers, "answered twice"
            self.answers[answer.ticket] = answer.response

    def caller(self, version: int = 9) -> Caller:
        self.tickets += 1
        return Caller(self.tickets, version, "app", "/127.0.0.1", f"m{self.tickets}")

    def join(
        self,
        member: str = "",
        *,
        version: int = 9,
        instance: str | None = None,
        about: bytes = b"s",
        protocols: tuple[str, ...] = ("range",),
    ) -> int:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=about) for name in protocols],
        )
        self.take(self.group.join(request, self.caller(version), self.at))
        return self.tickets

    def enter(self) -> tuple[str, int]:
        """Get a member id and join with it; return the id and the ticket."""
        response = self.answers[self.join()]
        assert isinstance(response, JoinGroupResponse)
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return response.member_id, self.join(response.member_id)

    def sync(
        self, member: str, gives: dict[str, bytes] | None = None, generation: int | None = None
    ) -> int:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.group.generation if generation is None else generation,
            member_id=member,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (gives or {}).items()
            ],
        )
        self.take(self.group.sync(request, self.caller(), self.at))
        return self.tickets

    def beat(self, member: str, generation: int | None = None) -> ErrorCode:
        asked = self.group.generation if generation is None else generation
        request = HeartbeatRequest(group_id="g", generation_id=asked, member_id=member)
        return self.group.heartbeat(request, self.at)

    def leave(self, member: str, instance: str | None = None) -> ErrorCode:
        code, outcome = self.group.leave(member, instance, self.at)
        self.take(outcome)
        return code

    def wait(self, by_ms: int) -> None:
        """Let time pass, stopping at every deadline on the way, as the runtime does."""
        end_ms = self.now_ms + by_ms
        while True:
            due_ms = self.group.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.group.on_tick(self.at))
        self.now_ms = end_ms

    def joined(self, ticket: int) -> JoinGroupResponse:
        response = self.answers[ticket]
        assert isinstance(response, JoinGroupResponse)
        return response

    def synced(self, ticket: int) -> SyncGroupResponse:
        response = self.answers[ticket]
        assert isinstance(response, SyncGroupResponse)
        return response


def stable_group(count: int) -> tuple[Driver, list[str]]:
    """Return a stable group whose first member leads; each member's assignment is its own id."""
    driver = Driver()
    names = [driver.enter()[0] for _ in range(count)]
    driver.wait(DELAY_MS)
    for name in reversed(names):
        driver.sync(name, {n: n.encode() for n in names} if name == names[0] else None)
    assert driver.group.state is GroupState.STABLE
    return driver, names


def test_a_new_member_first_gets_a_member_id() -> None:
    driver = Driver()
    response = driver.joined(driver.join())
    assert (response.error_code, response.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "m1")
    assert driver.join("m1") not in driver.answers


def test_an_old_client_joins_at_once() -> None:
    driver = Driver()
    ticket = driver.join(version=3)
    driver.wait(DELAY_MS)
    assert driver.joined(ticket).generation_id == 1


def test_the_first_rebalance_waits_for_more_members() -> None:
    driver = Driver()
    first, one = driver.enter()
    driver.wait(DELAY_MS - 1)
    _, two = driver.enter()
    driver.wait(DELAY_MS - 1)
    assert not {one, two} & driver.answers.keys()
    driver.wait(1)
    assert driver.joined(one).generation_id == driver.joined(two).generation_id == 1
    assert driver.joined(two).leader == first


def test_only_the_leader_gets_the_list_of_members() -> None:
    driver = Driver()
    names = [driver.enter() for _ in range(3)]
    driver.wait(DELAY_MS)
    counts = [len(driver.joined(ticket).members) for _, ticket in names]
    assert counts == [3, 0, 0]


def test_followers_wait_for_the_leaders_assignment() -> None:
    driver = Driver()
    leader, follower = driver.enter()[0], driver.enter()[0]
    driver.wait(DELAY_MS)
    waiting = driver.sync(follower)
    assert waiting not in driver.answers
    own = driver.sync(leader, {leader: b"L", follower: b"F"})
    assert driver.synced(waiting).assignment == b"F"
    assert driver.synced(own).assignment == b"L"
    assert driver.group.state is GroupState.STABLE


def test_a_wrong_generation_or_member_is_refused() -> None:
    driver, (one,) = stable_group(1)
    assert driver.beat(one, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert driver.beat("nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.beat(one) is ErrorCode.NONE
    assert driver.group.may_commit(one, None, 0, driver.at) is ErrorCode.ILLEGAL_GENERATION
    assert driver.group.may_commit("", None, -1, driver.at) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_is_removed_after_its_session_timeout() -> None:
    driver, (one, two) = stable_group(2)
    driver.wait(SESSION_MS - 1)
    driver.beat(two)
    driver.wait(1)
    assert list(driver.group.members) == [two]
    assert driver.beat(two) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.beat(one) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_completes_without_late_members() -> None:
    driver, (one, two) = stable_group(2)
    ticket = driver.join(one)
    for _ in range(REBALANCE_MS // 1000):
        driver.beat(two)
        driver.wait(1000)
    assert driver.joined(ticket).generation_id == 2
    assert list(driver.group.members) == [one]


def test_a_member_that_never_syncs_is_removed() -> None:
    driver = Driver()
    leader, follower = driver.enter()[0], driver.enter()[0]
    driver.wait(DELAY_MS)
    waiting = driver.sync(follower)
    for _ in range(REBALANCE_MS // 1000):
        driver.beat(leader)
        driver.wait(1000)
    assert driver.synced(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert list(driver.group.members) == [follower]


def test_an_assignment_of_another_generation_is_refused() -> None:
    driver, (one, two) = stable_group(2)
    driver.join(one)
    driver.join(two)
    assert driver.group.generation == 2
    late = driver.sync(one, {one: b"all", two: b""}, generation=1)
    assert driver.synced(late).error_code == ErrorCode.ILLEGAL_GENERATION


def test_a_rebalance_waits_for_members_with_a_new_member_id() -> None:
    driver, (one,) = stable_group(1)
    named = driver.joined(driver.join()).member_id
    ticket = driver.join(one)
    assert ticket not in driver.answers
    driver.join(named)
    assert len(driver.joined(ticket).members) == 2


def test_a_member_id_that_never_joins_expires_with_its_session() -> None:
    driver, (one,) = stable_group(1)
    driver.join()
    ticket = driver.join(one)
    driver.wait(SESSION_MS)
    assert len(driver.joined(ticket).members) == 1


def test_rejoining_resets_the_sync_deadline() -> None:
    driver = Driver()
    leader, follower = driver.enter()[0], driver.enter()[0]
    driver.wait(DELAY_MS)
    for _ in range(REBALANCE_MS // 1000 - 1):
        driver.beat(leader)
        driver.beat(follower)
        driver.wait(1000)
    ticket = driver.join(follower, about=b"something else")
    for _ in range(5):
        driver.beat(leader)
        driver.wait(1000)
    assert ticket not in driver.answers
    driver.join(leader)
    assert driver.joined(ticket).error_code == ErrorCode.NONE


def test_the_last_to_leave_empties_the_group() -> None:
    driver, (one,) = stable_group(1)
    assert driver.leave(one) is ErrorCode.NONE
    assert driver.group.state is GroupState.EMPTY
    assert driver.leave(one) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.group.may_commit("", None, -1, driver.at) is ErrorCode.NONE


def test_a_leaving_member_triggers_a_rebalance() -> None:
    driver, (one, two) = stable_group(2)
    driver.leave(one)
    assert driver.beat(two) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.joined(driver.join(two)).leader == two


def test_a_member_that_leaves_during_its_join_is_answered() -> None:
    driver = Driver()
    name, ticket = driver.enter()
    driver.leave(name)
    assert driver.joined(ticket).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_repeated_join_is_answered_without_a_rebalance() -> None:
    driver, (_, two) = stable_group(2)
    assert driver.joined(driver.join(two)).generation_id == 1
    assert driver.group.state is GroupState.STABLE
    assert driver.synced(driver.sync(two)).assignment == two.encode()


def test_a_leader_that_rejoins_triggers_a_rebalance() -> None:
    driver, (one, _) = stable_group(2)
    assert driver.join(one) not in driver.answers
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_without_a_common_protocol_is_refused() -> None:
    driver, _ = stable_group(1)
    request = JoinGroupRequest(
        session_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="sticky")],
    )
    driver.take(driver.group.join(request, driver.caller(), driver.at))
    code = driver.joined(driver.tickets).error_code
    assert code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_out_of_range_session_timeout_is_refused() -> None:
    driver = Driver()
    request = JoinGroupRequest(session_timeout_ms=1, protocol_type="consumer")
    driver.take(driver.group.join(request, driver.caller(), driver.at))
    assert driver.joined(1).error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def static_pair() -> tuple[Driver, str, str]:
    driver = Driver()
    one, two = driver.join(instance="a"), driver.join(instance="b")
    driver.wait(DELAY_MS)
    leader, follower = driver.joined(one).member_id, driver.joined(two).member_id
    driver.sync(leader, {leader: b"L", follower: b"F"})
    driver.sync(follower)
    return driver, leader, follower


def test_a_returning_static_member_keeps_its_assignment() -> None:
    driver, _, follower = static_pair()
    back = driver.joined(driver.join(instance="b"))
    assert back.generation_id == 1
    assert back.member_id != follower
    assert driver.synced(driver.sync(back.member_id)).assignment == b"F"
    assert driver.beat(follower) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_returning_static_leader_does_not_assign_again() -> None:
    driver, leader, _ = static_pair()
    back = driver.joined(driver.join(instance="a"))
    assert back.skip_assignment
    assert back.leader == back.member_id
    again = driver.joined(driver.join(instance="a", version=8))
    assert again.leader == back.member_id != again.member_id
    assert driver.synced(driver.sync(again.member_id)).assignment == b"L"
    assert leader not in driver.group.members


def test_the_predecessor_of_a_static_member_is_fenced() -> None:
    driver, _, follower = static_pair()
    driver.join(instance="b")
    request = HeartbeatRequest(member_id=follower, group_instance_id="b", generation_id=1)
    assert driver.group.heartbeat(request, driver.at) is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_leaves_by_its_instance_id() -> None:
    driver, _, follower = static_pair()
    assert driver.leave("", "b") is ErrorCode.NONE
    assert follower not in driver.group.members


def test_a_static_member_s_new_subscription_triggers_no_rebalance() -> None:
    driver, leader, _ = static_pair()
    back = driver.joined(driver.join(instance="b", about=b"owns nothing yet"))
    assert back.generation_id == 1
    assert driver.beat(leader) is ErrorCode.NONE
    change = driver.records[-1].value
    assert change is not None
    assert [m.subscription for m in change.members] == [b"s", b"owns nothing yet"]


def test_a_static_member_with_other_protocols_triggers_a_rebalance() -> None:
    driver = Driver()
    one = driver.join(instance="a", protocols=("range", "roundrobin"))
    two = driver.join(instance="b", protocols=("range", "roundrobin"))
    driver.wait(DELAY_MS)
    leader, follower = driver.joined(one).member_id, driver.joined(two).member_id
    driver.sync(leader, {leader: b"L", follower: b"F"})
    driver.sync(follower)
    ticket = driver.join(instance="b", protocols=("roundrobin",))
    assert ticket not in driver.answers
    assert driver.beat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


def test_an_absent_static_member_stays_through_a_rebalance() -> None:
    driver, leader, follower = static_pair()
    driver.beat(follower)
    ticket = driver.join(leader, instance="a")
    driver.beat(follower)
    for _ in range(REBALANCE_MS // 5_000):
        driver.group.members[follower].renew_session(driver.now_ms)
        driver.wait(5_000)
    joined = driver.joined(ticket)
    assert {member.member_id for member in joined.members} == {leader, follower}
    assert joined.generation_id == 2
    driver.sync(leader, {leader: b"L", follower: b"F2"})
    back = driver.joined(driver.join(instance="b"))
    assert back.generation_id == 2
    assert driver.synced(driver.sync(back.member_id)).assignment == b"F2"
    driver.wait(SESSION_MS)
    assert driver.group.state is GroupState.EMPTY


def test_a_rebalance_without_joins_waits_for_static_sessions() -> None:
    driver, leader, follower = static_pair()
    driver.join(leader, instance="a")
    driver.leave(leader, "a")
    for _ in range(REBALANCE_MS // 5_000 + 1):
        driver.group.members[follower].renew_session(driver.now_ms)
        driver.wait(5_000)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert list(driver.group.members) == [follower]
    driver.wait(SESSION_MS)
    assert driver.group.state is GroupState.EMPTY


def test_an_unknown_instance_id_is_an_unknown_member() -> None:
    driver, (one,) = stable_group(1)
    request = HeartbeatRequest(member_id=one, group_instance_id="b", generation_id=1)
    assert driver.group.heartbeat(request, driver.at) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_refuses_new_members() -> None:
    config = GroupConfig(initial_rebalance_delay_ms=DELAY_MS, size_max=2)
    driver = Driver(ClassicGroup("g", config))
    names = [driver.enter()[0] for _ in range(2)]
    refused = driver.joined(driver.join())
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.wait(DELAY_MS)
    driver.sync(names[0], dict.fromkeys(names, b""))
    assert driver.joined(driver.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_reduced_maximum_size_removes_members() -> None:
    driver, names = stable_group(3)
    driver.group.config = GroupConfig(initial_rebalance_delay_ms=DELAY_MS, size_max=2)
    tickets = [driver.join(name) for name in names]
    assert driver.joined(tickets[2]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.leave(names[2])
    assert [driver.joined(ticket).generation_id for ticket in tickets[:2]] == [2, 2]


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


def test_offsets_of_subscribed_topics_are_in_use() -> None:
    driver = Driver()
    named = driver.joined(driver.join()).member_id
    driver.join(named, about=subscription("t"))
    driver.wait(DELAY_MS)
    driver.sync(named, {named: b""})
    group = driver.group
    assert (group.subscribes("t"), group.subscribes("u")) == (True, False)
    assert group.unused_since_ms("t", 5) is None
    assert group.unused_since_ms("u", 5) == 5
    driver.leave(named)
    emptied_ms = driver.at.wall_ms
    assert group.unused_since_ms("t", 5) == emptied_ms
    assert group.unused_since_ms("t", emptied_ms + 1) == emptied_ms + 1


def test_an_undecodable_subscription_counts_for_every_topic() -> None:
    driver, _ = stable_group(1)
    assert driver.group.subscribes("t")
    assert driver.group.unused_since_ms("t", 5) is None


def test_a_group_stays_stable_after_a_restart() -> None:
    driver, (one, two) = stable_group(2)
    after = Driver(now_ms=5)
    for change in driver.records:
        assert change.value is not None
        after.group.replay(change.value, after.now_ms)
    assert after.group.state is GroupState.STABLE
    assert after.beat(one) is after.beat(two) is ErrorCode.NONE
    assert after.synced(after.sync(two)).assignment == two.encode()
    after.wait(SESSION_MS)
    assert after.group.state is GroupState.EMPTY


# ---- any order of events ----

PARTITIONS = 6


@dataclass
class Client:
    """A consumer: what its last responses say, and the ticket that it waits for."""

    name: str = ""
    generation: int = -1
    owns: frozenset[int] = frozenset()
    waits: int | None = None
    leads: list[str] = field(default_factory=list)
    to_sync: bool = False


def on_joined(client: Client, response: JoinGroupResponse) -> None:
    client.to_sync = response.error_code == ErrorCode.NONE
    if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
        client.name = ""
    elif response.member_id:
        client.name = response.member_id
    client.generation = response.generation_id
    client.leads = [member.member_id for member in response.members]


def on_synced(client: Client, response: SyncGroupResponse) -> None:
    client.to_sync = False
    if response.error_code == ErrorCode.NONE:
        client.owns = frozenset(response.assignment)
    elif response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
        client.name = ""


class World:
    """Clients that follow the protocol, and a network that loses answers now and then."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.clients = [Client() for _ in range(3)]
        self.generation = 0

    def collect(self) -> None:
        for client in self.clients:
            response = self.driver.answers.get(client.waits or 0)
            if response is not None:
                client.waits = None
                if isinstance(response, JoinGroupResponse):
                    on_joined(client, response)
                elif isinstance(response, SyncGroupResponse):
                    on_synced(client, response)

    def advance(self, client: Client) -> None:
        """Send the client's next request according to the protocol."""
        if client.waits is not None:
            return
        if client.to_sync:
            shares = {
                name: bytes(range(index, PARTITIONS, len(client.leads)))
                for index, name in enumerate(client.leads)
            }
            client.waits = self.driver.sync(client.name, shares, client.generation)
            return
        if client.name and client.owns:
            code = self.driver.beat(client.name, client.generation)
            if code is ErrorCode.NONE:
                return
            client.owns = frozenset()
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                client.name = ""
        client.waits = self.driver.join(client.name)

    def crash(self, client: Client) -> None:
        """Replace the client; its pending response goes unread."""
        self.clients[self.clients.index(client)] = Client()

    def leave(self, client: Client) -> None:
        """Leave the group, even with a request pending, which must be answered."""
        if client.name:
            self.driver.leave(client.name)
            self.crash(client)

    def wait(self, by_ms: int) -> None:
        self.driver.wait(by_ms)

    def check(self) -> None:
        group = self.driver.group
        assert group.generation >= self.generation
        self.generation = group.generation
        held = [m.join_ticket for m in group.members.values()]
        held += [m.sync_ticket for m in group.members.values()]
        tickets = [ticket for ticket in held if ticket is not None]
        unanswered = set(range(1, self.driver.tickets + 1)) - self.driver.answers.keys()
        assert sorted(tickets) == sorted(unanswered), "a ticket was lost"
        current = [
            client.owns
            for client in self.clients
            if client.name in group.members and client.generation == group.generation
        ]
        assert sum(map(len, current)) == len(frozenset().union(*current)), "owned twice"
        assert group.next_deadline_ms() is not None or not unanswered, "waits for ever"


Step = Callable[[World], None]
steps = st.one_of(
    st.builds(lambda i: lambda world: world.advance(world.clients[i]), st.integers(0, 2)),
    st.builds(lambda i: lambda world: world.crash(world.clients[i]), st.integers(0, 2)),
    st.builds(lambda i: lambda world: world.leave(world.clients[i]), st.integers(0, 2)),
    st.builds(lambda ms: lambda world: world.wait(ms), st.integers(1, SESSION_MS)),
)


@given(st.lists(steps, min_size=20, max_size=80))
def test_random_event_orders_keep_the_group_consistent(story: list[Step]) -> None:
    world = World()
    for step in story:
        step(world)
        world.collect()
        world.check()
    # Without faults the clients settle: each partition has exactly one owner.
    for _ in range(200):
        for client in world.clients:
            world.advance(client)
            world.collect()
        world.wait(500)
        world.collect()
        world.check()
    assert world.driver.group.state is GroupState.STABLE
    assert sorted(p for client in world.clients for p in client.owns) == list(range(PARTITIONS))


@given(st.lists(steps, min_size=10, max_size=60))
def test_a_replay_of_the_log_restores_the_group(story: list[Step]) -> None:
    world = World()
    for step in story:
        step(world)
        world.collect()
    cold = Driver().group
    for change in world.driver.records:
        assert change.value is not None
        cold.replay(change.value, 0)
    live = world.driver.group
    if world.driver.records and live.state in (GroupState.STABLE, GroupState.EMPTY):
        assert (cold.state, cold.generation, cold.leader_id) == (
            live.state,
            live.generation,
            live.leader_id,
        )
        assert {m.member_id: m.assignment for m in cold.members.values()} == {
            m.member_id: m.assignment for m in live.members.values()
        }
