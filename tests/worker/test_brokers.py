"""One app exactly once on our broker and on Apache Kafka, while its workers are killed.

At the end, its topics, read with read_committed, equal the test driver's output. With
STREAMLOG_KAFKA=HOST:PORT, the tests also run on that Apache Kafka broker (`make
conformance-kafka`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from tests.broker.process import BrokerProcess
from tests.client.clusters import emptied_kafka
from tests.equality.runs import compare, compare_killed_in_commits
from tests.worker import shop
from tests.worker.processes import STREAMLOG, Process, attached, read_until, running, still

KAFKA = os.environ.get("STREAMLOG_KAFKA")
IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
ORDERS = 6_000 if IS_THOROUGH else 600
KILLS = 12 if IS_THOROUGH else 2
WORKERS = 2
SEEDS = range(60) if IS_THOROUGH else range(6)
OUTPUTS = ("settled", "totals")
WORKER = (*STREAMLOG, "-A", "tests.worker.shop", "worker")

Rows = Counter[tuple[object, ...]]

on_kafka = pytest.mark.skipif(not KAFKA, reason="needs Apache Kafka: make conformance-kafka")


@pytest.fixture(scope="module")
def kafka() -> str:
    """Return the address of an Apache Kafka broker without the data of earlier tests."""

    async def emptied() -> None:
        async with emptied_kafka(KAFKA or "", {}):
            pass

    asyncio.run(emptied())
    return KAFKA or ""


@pytest.fixture(params=["streamlog", pytest.param("kafka", marks=on_kafka)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "kafka":
        yield f"kafka://{request.getfixturevalue('kafka')}"
        return
    with BrokerProcess(tmp_path / "log", flush="os") as broker:
        yield f"kafka://{broker.address}"


def driver_rows(app_id: str, orders: int) -> dict[str, Rows]:
    """Return the output of the test driver."""
    test = shop.build(app_id).test()
    for topic, partition, key, value, at_ms in shop.history(app_id, orders, seed=orders):
        test.topic(topic).append(
            value,
            key=key.encode(),
            timestamp_ms=at_ms,
            partition=None if partition < 0 else partition,
        )
    with test:
        return {
            name: Counter(
                (partition, r.key, r.value, r.timestamp_ms)
                for partition, r in test.topic(f"{app_id}-{name}").arrivals
            )
            for name in OUTPUTS
        }


async def feed(log: Log, app_id: str, orders: int) -> None:
    """Write the whole input before any worker starts, so that lateness is certain."""
    admin = log.admin()
    inputs = [f"{app_id}-{name}" for name in ("orders", "payments", "customers")]
    configs = await still(log)
    topics = [NewTopic(name, shop.PARTITIONS, configs=configs) for name in inputs]
    topics += [NewTopic(f"{app_id}-{name}", 2) for name in OUTPUTS]
    await admin.create_topics(topics)
    async with log.producer() as producer:
        for topic, partition, key, value, at_ms in shop.history(app_id, orders, seed=orders):
            await producer.send(
                topic,
                value,
                key=key.encode(),
                partition=None if partition < 0 else partition,
                timestamp_ms=at_ms,
            )
        await producer.flush()


async def found(log: Log, app_id: str, wanted: dict[str, int]) -> dict[str, Rows]:
    """Return the committed rows as soon as there are this many of each output."""
    return {
        name: Counter(
            (partition, r.key, r.value, r.timestamp_ms)
            for partition, r in await read_until(
                log, f"{app_id}-{name}", lambda rows, enough=enough: len(rows) >= enough
            )
        )
        for name, enough in wanted.items()
    }


def test_joins_windows_and_repartitions_count_once_despite_kills(url: str, tmp_path: Path) -> None:
    app_id, rng = f"shop{os.getpid()}", Random(ORDERS)
    expected = driver_rows(app_id, ORDERS)
    totals = {name: rows.total() for name, rows in expected.items()}
    assert min(totals.values()) > 20
    attached(url, lambda log: feed(log, app_id, ORDERS))
    with ExitStack() as stack:
        started = 0

        def worker() -> Process:
            nonlocal started
            # The directories are used in turn: some hold old state, some newer.
            settings = {"LOG": url, "APP": app_id, "STATE": f"state-{started % (WORKERS + 1)}"}
            started += 1
            return stack.enter_context(running(*WORKER, cwd=tmp_path, PACE_S="0.003", **settings))

        workers = [worker() for _ in range(WORKERS)]
        for number in range(1, KILLS + 1):
            so_far = {"settled": totals["settled"] * number // (KILLS + 2)}
            attached(url, lambda log, so_far=so_far: found(log, app_id, so_far))
            victim = workers.pop(rng.randrange(len(workers)))
            victim.kill()
            assert victim.wait() == -signal.SIGKILL, victim.output
            workers.append(worker())
        attached(url, lambda log: found(log, app_id, totals))
        for each in workers:
            # Earlier, Ctrl-C would reach the interpreter alone.
            each.line("rebalance: this worker has")
            assert each.stop() == 0, each.output
        assert attached(url, lambda log: found(log, app_id, totals)) == expected


@on_kafka
@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_write_equal_rows_on_kafka(seed: int, kafka: str, tmp_path: Path) -> None:
    compare(seed, kafka, tmp_path)


@on_kafka
def test_kills_at_every_commit_step_on_kafka_lose_and_double_nothing(
    kafka: str, tmp_path: Path
) -> None:
    compare_killed_in_commits(580, f"kafka://{kafka}", tmp_path, 1)


@on_kafka
def test_a_worker_reports_missing_time_marks_on_kafka(kafka: str, tmp_path: Path) -> None:
    """The worker names the topics in which event time stands still while they are quiet."""
    url, app_id = f"kafka://{kafka}", f"shop{os.getpid()}said"
    attached(url, lambda log: feed(log, app_id, 60))
    attached(url, lambda log: log.admin().create_topics([NewTopic("of-others", 1)]))
    settings = {"LOG": url, "APP": app_id, "STATE": "state"}
    with running(*WORKER, cwd=tmp_path, **settings) as worker:
        worker.line("the brokers of this log are not streamlog's")
        assert "of-others" not in worker.output
        assert worker.stop() == 0
        assert worker.output.count("time marks") == 1
