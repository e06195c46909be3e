"""What the members of a group know of each other after a round."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog import App
from streamlog.assignors import Claim, TopicPartition
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.worker.exchange import Exchange
from streamlog.worker.placement import Placement
from streamlog.worker.program import Start
from streamlog.worker.worker import Worker

# Sub-topology 0 reads "in", 1 reads "mid" and "names".
PLACEMENT = Placement((("in",), ("mid", "names")), {0: ("in",), 1: ("mid", "names")})
COUNTS = {"in": 2, "mid": 3, "names": 1}
TASKS = {TaskId(0, 0), TaskId(0, 1), TaskId(1, 0), TaskId(1, 1), TaskId(1, 2)}


def round_of(*exchanges: Exchange, strangers: tuple[str, ...] = ()) -> None:
    """One round, led by the first; every member hears of it."""
    claims = {
        each.peers.process: Claim(["in", "mid", "names"], (), each.told()) for each in exchanges
    }
    claims |= {name: Claim(["in", "mid", "names"], (), b"\xff") for name in strangers}
    shares = exchanges[0].direct(claims, COUNTS)
    for each in exchanges:
        each.heard(shares[each.peers.process].user_data)


def test_everybody_knows_who_runs_what_and_where_it_answers() -> None:
    one, two = Exchange(PLACEMENT, process="one"), Exchange(PLACEMENT, process="two")
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


def test_of_a_stranger_in_the_group_nothing_is_known_but_its_tasks() -> None:
    one = Exchange(PLACEMENT, process="one")
    round_of(one, strangers=("what",))
    assert sorted(peer.process for peer in one.peers.all) == ["", "one"]
    assert {task for peer in one.peers.all for task in peer.active} == TASKS


def test_a_leader_of_another_kind_tells_nothing() -> None:
    one = Exchange(PLACEMENT, process="one")
    round_of(one)
    one.heard(b"")
    assert (one.peers.all, one.peers.rounds) == ((), 2)


def test_tasks_are_those_that_read_the_partitions() -> None:
    some = [TopicPartition("names", 0), TopicPartition("in", 1), TopicPartition("other", 7)]
    assert PLACEMENT.tasks_of(some) == {TaskId(1, 0), TaskId(0, 1)}


def test_two_workers_hear_of_each_other(tmp_path: Path) -> None:
    app = App("pair", log=f"embedded:{tmp_path}/log", state_dir=f"{tmp_path}/state")
    events = app.topic("events", key=str, value=str, partitions=4)
    app.stream(events).filter(lambda _, word: word != "").to(
        app.topic("words", key=str, value=str, partitions=1)
    )
    url = f"embedded:{tmp_path}/log"

    async def main() -> None:
        stop = asyncio.Event()

        def announce(_: Start) -> None:
            """Nobody is there to read it."""

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
