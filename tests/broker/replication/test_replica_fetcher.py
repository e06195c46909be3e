"""ReplicaFetcher: how long requests wait, leaders that do not answer, and errors of its own."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.apis.replica_fetch import SOON_MS
from streamlog.broker.config.cluster import ReplicationConfig
from streamlog.broker.config.settings import INT_MAX
from streamlog.broker.replication.replica_fetcher import request_wait_ms
from streamlog.replace import replace
from tests.broker.replication.cluster import LAG_MS, Cluster


def test_a_leader_that_does_not_answer_is_asked_again_over_another_connection() -> None:
    config = ReplicationConfig(lag_time_max_ms=60_000, fetch_wait_max_ms=10, socket_timeout_ms=50)

    async def main() -> None:
        async with Cluster(replication=config) as cluster:
            leader = cluster.nodes[0]
            await leader.produce(b"first")
            cluster.silent.add(0)
            waiting = leader.produce(b"second")
            connects = cluster.connects
            await cluster.until(lambda: cluster.connects >= connects + 2)
            assert not waiting.done()
            cluster.silent.clear()
            assert (await waiting).base_offset == 1

    asyncio.run(main())


def test_a_follower_authenticates_again_before_its_next_request() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            leader = cluster.nodes[0]
            await leader.produce(b"first")
            connects = cluster.connects
            # `Cluster` refuses requests of a session that has ended.
            cluster.must_renew = True
            assert (await leader.produce(b"second")).error_code == 0
            await cluster.until(lambda: not cluster.must_renew)
            assert cluster.connects == connects

    asyncio.run(main())


def test_an_error_that_nothing_explains_ends_the_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Cluster(replication=ReplicationConfig(lag_time_max_ms=LAG_MS)) as cluster:
            leader, follower, _ = cluster.nodes
            await leader.produce(b"first")

            def fail(*_: object, **__: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(follower.partition.log, "append", fail)
            leader.produce(b"second", acks=1)
            with pytest.raises(ExceptionGroup) as raised:
                await follower._task
            assert raised.group_contains(ZeroDivisionError)

    asyncio.run(main())


def test_a_follower_without_news_lets_its_leader_wait_longer() -> None:
    config = ReplicationConfig(lag_time_max_ms=60_000, fetch_wait_max_ms=50)

    async def main() -> None:
        async with Cluster(replication=config) as cluster:
            leader = cluster.nodes[0]
            await leader.produce(b"first")
            await cluster.until(lambda: any(each.max_wait_ms == 200 for each in cluster.asked))
            cluster.asked.clear()
            await leader.produce(b"second")
            # Those that confirm the record: the next commit is news.
            assert {each.max_wait_ms for each in cluster.asked if each.topics} == {50}

    asyncio.run(main())


def test_a_follower_without_news_asks_often_enough_to_stay_in_sync() -> None:
    config = ReplicationConfig(lag_time_max_ms=400, fetch_wait_max_ms=50)

    async def main() -> None:
        async with Cluster(replication=config) as cluster:
            await cluster.nodes[0].produce(b"first")
            await cluster.until(lambda: any(each.max_wait_ms > 50 for each in cluster.asked))
            assert max(each.max_wait_ms for each in cluster.asked) == 100

    asyncio.run(main())


def test_a_request_waits_no_longer_than_its_leader_allows() -> None:
    config = ReplicationConfig(lag_time_max_ms=60_000, fetch_wait_max_ms=5_000)

    async def main() -> None:
        async with Cluster(replication=config) as cluster:
            leader = cluster.nodes[0]
            await leader.stop()
            # Now it has a setting that differs from its followers'.
            cluster.replication = replace(config, lag_time_max_ms=400)
            cluster.start(leader)
            cluster.elect(0)
            await leader.produce(b"first")
            asked = len(cluster.asked)
            # All of them would wait for 5 s otherwise.
            await cluster.until(
                lambda: len(cluster.asked) >= asked + 8 and leader.fetches.delayed == 2
            )
            due_ms = leader.fetches.next_deadline_ms()
            assert due_ms is not None
            assert due_ms - leader.broker.clock.now_ms() <= 100

    asyncio.run(main())


@given(
    lag_ms=st.integers(1, INT_MAX),
    wait_ms=st.integers(0, INT_MAX),
    socket_ms=st.integers(1, INT_MAX),
)
def test_a_request_waits_a_quarter_of_what_ends_a_silence(
    lag_ms: int, wait_ms: int, socket_ms: int
) -> None:
    config = ReplicationConfig(
        lag_time_max_ms=lag_ms, fetch_wait_max_ms=wait_ms, socket_timeout_ms=socket_ms
    )
    usual_ms, idle_ms = (request_wait_ms(config, is_idle=each) for each in (False, True))
    assert usual_ms <= wait_ms
    assert usual_ms <= idle_ms <= 4 * wait_ms
    assert 4 * idle_ms <= max(min(lag_ms, socket_ms), 4)


def test_a_leader_judges_an_idle_follower_soon_after_the_metadata_has_changed() -> None:
    config = ReplicationConfig(lag_time_max_ms=3_600_000, fetch_wait_max_ms=SOON_MS)

    async def main() -> None:
        async with Cluster(replication=config) as cluster:
            fetches, clock = cluster.nodes[0].fetches, cluster.nodes[0].broker.clock
            await cluster.nodes[0].produce(b"first")
            await cluster.until(
                lambda: (
                    len(cluster.asked) > 1
                    and all(each.max_wait_ms > SOON_MS for each in cluster.asked[-2:])
                    and fetches.delayed == 2
                )
            )
            cluster.commit()
            due_ms = fetches.next_deadline_ms()
            assert due_ms is not None
            assert due_ms - clock.now_ms() <= SOON_MS

    asyncio.run(main())
