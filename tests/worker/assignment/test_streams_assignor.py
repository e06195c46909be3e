"""StreamsAssignor: what the members of a group know of each other after a round."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

from streamlog import App
from streamlog.assignors import Claim
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.worker.assignment.rebalance_plan import Placement, Policy
from streamlog.worker.assignment.streams_assignor import ASK_MS, ASK_MS_MAX, StreamsAssignor
from streamlog.worker.program import WorkerStart
from streamlog.worker.worker import Worker

# Sub-topology 0 reads "in"; 1 reads "mid" and "names".
PLACEMENT = Placement((("in",), ("mid", "names")), {0: ("in",), 1: ("mid", "names")}, {1})
COUNTS = {"in": 2, "mid": 3, "names": 1}
TASKS = {TaskId(0, 0), TaskId(0, 1), TaskId(1, 0), TaskId(1, 1), TaskId(1, 2)}


Owned = dict[str, list[TopicPartition]]


def round_of(
    *exchanges: StreamsAssignor, owned: Owned | None = None, strangers: tuple[str, ...] = ()
) -> Owned:
    """Run one round led by the first assignor, and deliver the result to every member."""
    before = owned or {}
    topics = ["in", "mid", "names"]
    claims = {
        each.peers.process: Claim(
            topics, before.get(each.peers.process, ()), each.subscription_data()
        )
        for each in exchanges
    }
    claims |= {name: Claim(topics, (), b"\xff") for name in strangers}
    shares = exchanges[0].direct(claims, COUNTS)
    for each in exchanges:
        each.on_assignment(shares[each.peers.process].user_data)
    return {name: list(share.partitions) for name, share in shares.items()}


def test_every_member_knows_all_tasks_and_endpoints() -> None:
    one, two = StreamsAssignor(PLACEMENT, process="one"), StreamsAssignor(PLACEMENT, process="two")
    two.endpoint = "here:8080"
    round_of(one, two)
    for each in (one, two):
        assert [peer.process for peer in each.peers.all] == ["one", "two"]
        assert [peer.endpoint for peer in each.peers.all] == ["", "here:8080"]
        assert {task for peer in each.peers.all for task in peer.active} == TASKS
        for task in TASKS:
            owner = each.peers.active(task)
            assert owner is not None
            assert task in owner.active
            assert not each.peers.standbys(task)
    owners = [one.peers.active(task) for task in TASKS]
    assert {owner and one.peers.is_me(owner) for owner in owners} == {True, False}
    assert one.peers.active(TaskId(9, 9)) is None


def test_only_the_tasks_of_a_foreign_member_are_known() -> None:
    one = StreamsAssignor(PLACEMENT, process="one")
    round_of(one, strangers=("what",))
    assert sorted(peer.process for peer in one.peers.all) == ["", "one"]
    assert {task for peer in one.peers.all for task in peer.active} == TASKS


def test_a_foreign_leader_provides_no_directory() -> None:
    one = StreamsAssignor(PLACEMENT, process="one")
    round_of(one)
    one.on_assignment(b"")
    assert (one.peers.all, one.peers.rounds) == ((), 2)


def test_a_new_member_warms_up_and_requests_a_rebalance_when_ready() -> None:
    one, two = StreamsAssignor(PLACEMENT, process="one"), StreamsAssignor(PLACEMENT, process="two")
    owned = round_of(one)
    owned = round_of(one, two, owned=owned)
    (task,) = two.warmup
    owner = one.peers.active(task)
    assert owner is not None
    assert one.peers.is_me(owner)
    assert [peer.process for peer in one.peers.standbys(task)] == ["two"]
    two.lags = {task: 50_000}
    assert not two.wants_rebalance(0)
    two.lags = {task: 10_000}
    assert two.wants_rebalance(0)
    assert not two.wants_rebalance(ASK_MS - 1)
    owned = round_of(one, two, owned=owned)
    assert one.peers.active(task) is None  # Its owner must revoke it first.
    owned = round_of(one, two, owned=owned)
    owner = one.peers.active(task)
    assert owner is not None
    assert two.peers.is_me(owner)
    assert not two.warmup


def test_a_restarted_process_announces_its_new_endpoint() -> None:
    before, leader = (
        StreamsAssignor(PLACEMENT, process="two"),
        StreamsAssignor(PLACEMENT, process="one"),
    )
    before.endpoint = "here:1"
    round_of(leader, before)
    after = StreamsAssignor(PLACEMENT, process="two")
    after.endpoint = "here:2"
    assert not after.wants_rebalance(0)
    round_of(leader, before)
    after.peers = before.peers  # It gets the assignment of its predecessor.
    first_data = after.subscription_data()
    assert after.wants_rebalance(1)
    assert after.subscription_data() != first_data
    assert not after.wants_rebalance(2)
    round_of(leader, after)
    assert [peer.endpoint for peer in leader.peers.all] == ["", "here:2"]
    assert not after.wants_rebalance(10 * ASK_MS)


def test_unanswered_rebalance_requests_back_off() -> None:
    one = StreamsAssignor(PLACEMENT, process="one")
    one.warmup, one.lags = frozenset({TaskId(1, 0)}), {TaskId(1, 0): 0}
    request_times = [now_ms for now_ms in range(0, 1_000_000, 500) if one.wants_rebalance(now_ms)]
    pauses = [late - early for early, late in pairwise(request_times)]
    assert pauses[:4] == [ASK_MS, 2 * ASK_MS, 4 * ASK_MS, 8 * ASK_MS]
    assert max(pauses) == ASK_MS_MAX


def test_standbys_are_assigned_to_their_followers() -> None:
    policy = Policy(standbys=1)
    one = StreamsAssignor(PLACEMENT, process="one", policy=policy)
    two = StreamsAssignor(PLACEMENT, process="two", policy=policy)
    round_of(one, two)
    for task in (TaskId(1, number) for number in range(3)):
        (follower,) = one.peers.standbys(task)
        assert (task in one.standby) == one.peers.is_me(follower)
        assert (task in two.standby) != one.peers.is_me(follower)


def test_tasks_are_found_by_their_partitions() -> None:
    some = [TopicPartition("names", 0), TopicPartition("in", 1), TopicPartition("other", 7)]
    assert PLACEMENT.tasks_of(some) == {TaskId(1, 0), TaskId(0, 1)}


def test_two_workers_learn_of_each_other(tmp_path: Path) -> None:
    app = App("pair", log=f"embedded:{tmp_path}/log", state_dir=f"{tmp_path}/state")
    events = app.topic("events", key=str, value=str, partitions=4)
    app.stream(events).filter(lambda _, word: word != "").to(
        app.topic("words", key=str, value=str, partitions=1)
    )
    url = f"embedded:{tmp_path}/log"

    async def main() -> None:
        stop = asyncio.Event()

        def announce(_: WorkerStart) -> None:
            """Ignore the announcement."""

        workers = [Worker(app.program(), log_url=url, announce=announce) for _ in range(2)]
        for number, worker in enumerate(workers):
            worker.exchange.endpoint = f"host:{number}"
        async with asyncio.timeout(60), Log.open(url), asyncio.TaskGroup() as work:
            for worker in workers:
                work.create_task(worker.run(stop))
            while not all(len(each.exchange.peers.all) == 2 for each in workers):  # noqa: ASYNC110 - a view sets no event
                await asyncio.sleep(0.02)
            stop.set()
        for worker in workers:
            peers = worker.exchange.peers
            assert {peer.endpoint for peer in peers.all} == {"host:0", "host:1"}
            assert sorted(task for peer in peers.all for task in peer.active) == [
                TaskId(0, number) for number in range(4)
            ]

    asyncio.run(main())
