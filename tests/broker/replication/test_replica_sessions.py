"""Sessions of followers' fetches (KIP-227): idle partitions cost nothing, and no news is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.replication.replica_sessions import (
    EPOCH_MAX,
    FollowerSessions,
    Key,
    LeaderSession,
    wait_ms_max,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import FetchRequest, FetchResponse
from streamlog.protocol.schema import Message
from tests.broker.replication.cluster import LAG_MS, Cluster, ReplicatingNode

FOLLOWER = (7, 70)
"""A broker, and the epoch of its registration."""


def story(body: Callable[[Cluster], Coroutine[object, object, None]]) -> Callable[[], None]:
    """Return a test that runs `body` with a running cluster."""

    def test() -> None:
        async def main() -> None:
            async with Cluster() as cluster:
                await body(cluster)

        asyncio.run(main())

    test.__name__ = body.__name__
    return test


class Watched:
    """The fetches that a leader gets, and what it answers at once or later."""

    def __init__(self, node: ReplicatingNode) -> None:
        self.requests: list[FetchRequest] = []
        self.responses: list[FetchResponse] = []
        fetches = node.fetches
        begin = fetches.begin

        def watch(request: FetchRequest) -> Message | asyncio.Future[Message]:
            self.requests.append(request)
            answer = begin(request)
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(self._note_later)
            else:
                self._note(answer)
            return answer

        fetches.begin = watch  # type: ignore[method-assign]

    def _note_later(self, done: asyncio.Future[Message]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._note(done.result())

    def _note(self, answer: Message) -> None:
        assert isinstance(answer, FetchResponse)
        self.responses.append(answer)

    def clear(self) -> None:
        self.requests.clear()
        self.responses.clear()


def session_of(leader: ReplicatingNode, broker: int) -> Any:
    return leader.fetches._sessions.of(broker)


def close(leader: ReplicatingNode, broker: int) -> None:
    """Let a leader forget a session; a request that waits is refused."""
    leader.fetches._refuse_waiting(session_of(leader, broker))
    leader.fetches._sessions.close(broker)


async def settle(cluster: Cluster) -> None:
    """Wait until the leader has sent its followers everything, and remembers their fetches."""
    leader, *others = (each for each in cluster.nodes if each.up)

    def is_quiet() -> bool:
        found = [session_of(leader, each.id) for each in others]
        return all(each is not None and each.waiting and not each.due for each in found)

    await cluster.until(is_quiet)


@story
async def test_an_idle_partition_is_in_no_request_and_no_response(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    await settle(cluster)
    watched = Watched(leader)
    await cluster.until(lambda: len(watched.responses) >= 4)
    assert not [each for each in watched.requests if each.topics or each.forgotten_topics_data]
    assert not [each for each in watched.responses if each.responses or each.error_code]
    watched.clear()
    await leader.produce(b"b")
    await settle(cluster)
    named = [topic.partitions[0] for each in watched.requests for topic in each.topics]
    assert {each.fetch_offset for each in named} == {2}
    assert all(node.content() == leader.content() for node in cluster.nodes)


@story
async def test_a_commit_goes_along_with_the_next_records(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    watched = Watched(leader)
    await leader.produce(b"a")
    await settle(cluster)
    watched.clear()
    began_ms = leader.broker.clock.now_ms()
    for number in range(20):
        await leader.produce(b"%d" % number)
    bare = [
        each
        for each in watched.responses
        if not any(data.records for topic in each.responses for data in topic.partitions)
    ]
    # Only a request whose time passes is answered without records.
    waits = (leader.broker.clock.now_ms() - began_ms) // wait_ms_max(LAG_MS)
    assert len(bare) <= 2 * (waits + 1)
    await cluster.until(lambda: all(node.partition.high_watermark == 21 for node in cluster.nodes))


@story
async def test_a_leader_that_sends_readers_to_followers_tells_commits_at_once(
    cluster: Cluster,
) -> None:
    leader = cluster.nodes[0]
    leader.replicas.node.sends_readers_near = True
    watched = Watched(leader)
    await leader.produce(b"a")
    await settle(cluster)
    ends = [
        (bool(data.records), data.high_watermark)
        for each in watched.responses
        for topic in each.responses
        for data in topic.partitions
    ]
    assert (False, 1) in ends
    assert all(node.partition.high_watermark == 1 for node in cluster.nodes)


@story
async def test_a_replica_that_left_the_in_sync_set_rejoins_while_nothing_is_appended(
    cluster: Cluster,
) -> None:
    await cluster.nodes[0].produce(b"a")
    await settle(cluster)
    cluster.isr = (0, 2)  # As if broker 1 had been fenced for a moment.
    cluster.commit()
    await cluster.until(lambda: set(cluster.isr) == {0, 1, 2})


@story
async def test_a_follower_that_knows_a_partition_before_its_leader_asks_again(
    cluster: Cluster,
) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    await settle(cluster)
    watched = Watched(leader)
    known = leader.replicas._replicas.pop(("t", 0))  # As before its metadata has arrived.
    for node in cluster.nodes[1:]:  # They name the partition again, as if it were new.
        replica = node.replicas.get("t", 0)
        assert replica is not None
        assert replica.machine.follower is not None
        replica.machine.follower._outstanding = None
        node.replicas.may_fetch(replica)
    await cluster.until(lambda: any(each.topics for each in watched.requests))
    leader.replicas._replicas["t", 0] = known
    assert (await leader.produce(b"b")).error_code == 0
    assert all(node.end == 2 for node in cluster.nodes)


@story
async def test_a_leader_that_has_forgotten_a_session_is_asked_for_another(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    await settle(cluster)
    lost = session_of(leader, 1)
    close(leader, 1)
    assert (await leader.produce(b"b")).error_code == 0
    await settle(cluster)
    assert session_of(leader, 1).session_id != lost.session_id
    assert cluster.nodes[1].content() == leader.content()


@story
async def test_a_lost_response_begins_another_session(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    await settle(cluster)
    session_of(leader, 1).epoch += 1  # The leader has answered what the follower never got.
    assert (await leader.produce(b"b")).error_code == 0
    await settle(cluster)
    assert cluster.nodes[1].content() == leader.content()


@story
async def test_a_leader_without_sessions_is_followed_too(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    await settle(cluster)
    leader.fetches._may_open = lambda _: False  # type: ignore[method-assign]
    close(leader, 1)
    close(leader, 2)
    for number in range(3):
        assert (await leader.produce(b"%d" % number)).error_code == 0
    await cluster.until(lambda: all(node.end == 4 for node in cluster.nodes))
    assert session_of(leader, 1) is None


@story
async def test_a_leader_that_registers_again_counts_its_followers_again(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    await settle(cluster)
    # Its process goes on under another registration, and leads in the epoch that it had.
    cluster.offset += 1
    leader.replicas.register(1_000, cluster.offset)
    cluster.commit()
    assert (await leader.produce(b"b")).error_code == 0


@story
async def test_a_follower_that_registers_again_begins_another_session(cluster: Cluster) -> None:
    leader, follower, _ = cluster.nodes
    await leader.produce(b"a")
    await settle(cluster)
    lost = session_of(leader, 1)
    cluster.offset += 1
    follower.replicas.register(1_000, cluster.offset)
    cluster.commit()
    assert (await leader.produce(b"b")).error_code == 0
    await cluster.until(lambda: session_of(leader, 1).follower == (1, 1_000))
    assert session_of(leader, 1).session_id != lost.session_id


@story
async def test_a_log_that_was_cut_answers_no_fetch_from_before(cluster: Cluster) -> None:
    leader, follower, _ = cluster.nodes
    watched = Watched(leader)
    await leader.produce(b"a")
    await settle(cluster)
    watched.responses.clear()
    replica = leader.partition.replica
    assert replica is not None
    replica.facts.generation += 1
    answer = leader.produce(b"b")
    await cluster.until(lambda: follower.end == 2)
    codes = {
        each.error_code
        for response in watched.responses
        for topic in response.responses
        for each in topic.partitions
    }
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER in codes
    answer.cancel()  # No sync of this cut counts, as the log itself was not cut.


@story
async def test_a_follower_is_in_touch_while_its_partition_is_idle(cluster: Cluster) -> None:
    leader, follower, _ = cluster.nodes
    await leader.produce(b"a")
    await settle(cluster)
    clock, began_ms = follower.broker.clock, follower.broker.clock.now_ms()
    await cluster.until(lambda: clock.now_ms() - began_ms > 3 * LAG_MS)
    replica = follower.replicas.get("t", 0)
    assert replica is not None
    # Longer than the longest poll, so that a response must have come in between.
    await cluster.until(lambda: replica._contact is not None and replica.is_in_touch)
    await leader.stop()
    await cluster.until(lambda: not replica.is_in_touch)


@story
async def test_the_leader_learns_of_retention_on_a_follower(cluster: Cluster) -> None:
    leader, follower, _ = cluster.nodes
    await leader.produce(b"a")
    await leader.produce(b"b")
    await settle(cluster)
    await cluster.until(lambda: follower.partition.high_watermark == 2)
    follower.partition.log.advance_start(1)
    follower.replicas._tick()
    replica = leader.partition.replica
    assert replica is not None
    assert replica.machine.leader is not None
    progress = replica.machine.leader.followers[1]
    await cluster.until(lambda: progress.start_offset == 1)


# ---- both sides against each other ----


PARTITIONS = 4


class _Replica:
    """Stands for a replica: only its identity counts."""


class Sides:
    """A follower and a leader, and a model without sessions: every request names all fetches."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.served: FollowerSessions[int, object] = FollowerSessions(lambda: next(self._numbers))
        self.client: LeaderSession[Any] = LeaderSession()
        self.replicas: list[Any] = [_Replica() for _ in range(PARTITIONS)]
        self.open: dict[Key, int] = {}
        """The fetches that are open, by their numbers."""

    def ask(self, ready: set[int]) -> int | None:
        """Send a request with new fetches; return the session, None if it was refused."""
        named: dict[Key, Any] = {
            (b"id", n): (self.replicas[n], SimpleNamespace(number=next(self._numbers)))
            for n in ready
            if (b"id", n) not in self.open
        }
        gone = self.client.name(named)
        self.open |= {key: fetch.number for key, (_, fetch) in named.items()}
        session: Any = (
            self.served.find(FOLLOWER, self.client.session_id, self.client.epoch)
            if self.client.session_id
            else self.served.open(FOLLOWER, 0)
        )
        if isinstance(session, ErrorCode):
            return None
        for key, (_, fetch) in named.items():
            self.served.put(session, key, ("t", key[1]), fetch.number)
        for key in gone:
            self.served.forget(session, key)
        watched = (key for n in range(PARTITIONS) for _, key in self.served.watching(("t", n)))
        assert session.parts == self.open
        assert set(watched) == set(self.open)
        return int(session.session_id)

    def answer(self, session_id: int, numbers: set[int]) -> None:
        """Answer some of the fetches."""
        assert self.client.on_response(session_id)
        for key in [(b"id", n) for n in numbers if (b"id", n) in self.open]:
            found: Any = self.client.take(key)
            assert found[1].number == self.open.pop(key)

    def leave(self, numbers: set[int]) -> None:
        """Let replicas follow another leader."""
        for n in numbers:
            self.client.forget(self.replicas[n])
            self.open.pop((b"id", n), None)

    def lose(self) -> None:
        """End the session on the follower's side, which fetches all anew."""
        assert set(self.client.end()) == set(self.open)
        self.open.clear()


@given(st.data())
def test_the_leader_remembers_exactly_the_fetches_that_are_open(data: st.DataObject) -> None:
    """Whatever is answered, forgotten, or lost on the way."""
    sides = Sides()
    some = st.sets(st.integers(0, PARTITIONS - 1))
    for _ in range(data.draw(st.integers(1, 8))):
        session_id = sides.ask(data.draw(some))
        fate = data.draw(st.sampled_from(["answered", "answered", "lost", "evicted"]))
        if session_id is None or fate == "lost":
            # The follower does not know whether its request came.
            sides.lose()
            continue
        sides.answer(session_id, data.draw(some))
        sides.leave(data.draw(some))
        assert sides.client.has_open_fetches == bool(sides.open)
        if fate == "evicted":
            sides.served.close(FOLLOWER[0])


def test_the_largest_epoch_of_a_session_is_followed_by_1() -> None:
    served: FollowerSessions[int, object] = FollowerSessions(lambda: 1)
    client: LeaderSession[Any] = LeaderSession()
    session = served.open(FOLLOWER, 0)
    assert client.on_response(session.session_id)
    client.epoch = session.epoch = EPOCH_MAX
    assert not isinstance(served.find(FOLLOWER, 1, EPOCH_MAX), ErrorCode)
    assert client.on_response(1)
    assert (client.epoch, session.epoch) == (1, 1)


@pytest.mark.parametrize(
    ("follower", "session_id", "epoch", "code"),
    [
        ((7, 70), 1, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((7, 70), 2, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((7, 71), 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((8, 70), 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_a_session_is_of_one_process_and_its_requests_are_in_order(
    follower: tuple[int, int], session_id: int, epoch: int, code: ErrorCode
) -> None:
    served: FollowerSessions[int, object] = FollowerSessions(lambda: 1)
    served.open(FOLLOWER, 0)
    assert served.find(follower, session_id, epoch) == code


def test_a_topic_that_was_created_again_takes_the_place_of_the_deleted_one() -> None:
    served: FollowerSessions[int, object] = FollowerSessions(lambda: 1)
    session = served.open(FOLLOWER, 0)
    served.put(session, (b"old", 0), ("t", 0), 1)
    served.put(session, (b"new", 0), ("t", 0), 2)
    assert session.parts == {(b"new", 0): 2}
    served.forget(session, (b"old", 0))
    assert [key for _, key in served.watching(("t", 0))] == [(b"new", 0)]
