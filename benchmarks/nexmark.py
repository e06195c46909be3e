"""Nexmark's queries in a worker process, exactly once: events per second of its CPU time.

Each query runs on a topic of persons, one of auctions and one of bids with one partition each. The
worker is started, stopped by SIGSTOP while the events are loaded, and let go; its CPU time counts
until all rows are there. They are compared with those of loops over all events
(`examples/nexmark/answers`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

from benchmarks.harness import Process, Reading, broker, running
from examples.nexmark.answers import ANSWERS, Rows
from examples.nexmark.generator import Event, events
from examples.nexmark.queries import QUERIES, Hottest, Query
from streamlog import Topic, Windowed
from streamlog.assignors import TopicPartition
from streamlog.client.admin import NewTopic
from streamlog.durations import when_ms
from streamlog.log import Log

SHARE = 10
"""One event for so many records of the other benchmarks: each is made by a generator in Python."""
CHANGING = frozenset({"q4", "q5", "q6"})
"""Of their rows the last one of a key counts."""
STALL_TIMEOUT_S = 60
POLL_MS = 20


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """A figure for each query."""
    happened = list(events(records // SHARE))
    for name in QUERIES:
        with broker(directory / name, flush="os") as (_, url):
            async with Log.open(url) as log:
                cpu_s = await _cpu_s(log, url, name, happened, directory)
        read = _read(name, happened)
        yield Reading(f"nexmark {name}, events/s of a core", read / cpu_s, "events/s")


def _read(name: str, happened: Sequence[Event]) -> int:
    """How many of the events the query reads."""
    query = Query.of(name)
    topics = query.app.topology().topics
    return sum(query.topic_of(each)[0].name in topics for each in happened)


async def _cpu_s(
    log: Log, url: str, name: str, happened: Sequence[Event], directory: Path
) -> float:
    query = Query.of(name)
    topics: list[Topic[Any, Any]] = [query.persons, query.auctions, query.bids, query.output]
    await log.admin().create_topics([NewTopic(topic.name, 1) for topic in topics])
    settings = {
        "NEXMARK_QUERY": name,
        "NEXMARK_LOG": url,
        "NEXMARK_STATE": str(directory / f"{name}-state"),
    }
    with running("streamlog", "-A", "examples.nexmark.queries", "worker", **settings) as worker:
        _wait_until_ready(worker)
        os.kill(worker.popen.pid, signal.SIGSTOP)
        try:
            await _load(log, query, happened)
        finally:
            before_s = worker.cpu_s()
            os.kill(worker.popen.pid, signal.SIGCONT)
        await _wait_for(log, query, name, ANSWERS[name](happened))
        return worker.cpu_s() - before_s


def _wait_until_ready(worker: Process) -> None:
    said: list[str] = []
    for line in worker.popen.stdout or ():
        said.append(line)
        if "rebalance: this worker has" in line:
            # What it says from now on is read, or it would wait for that in the end.
            Thread(target=deque, args=(worker.popen.stdout, 0), daemon=True).start()
            return
    sys.exit("the worker did not start:\n" + "".join(said))


async def _load(log: Log, query: Query, happened: Sequence[Event]) -> None:
    async with log.producer(linger_ms=20) as producer:
        for each in happened:
            topic, key = query.topic_of(each)
            raw_key, value = topic.encoded(key, each)
            at_ms = when_ms(each.date_time)
            await producer.send(topic.name, value, key=raw_key, timestamp_ms=at_ms)
        await producer.flush()


async def _wait_for(log: Log, query: Query, name: str, expected: Rows) -> None:
    """Until these rows are there.

    Raises:
        AssertionError: others are, or some are missing for long.
    """
    wanted = sorted(expected, key=repr)
    found: Rows = []
    newest = perf_counter()
    async with log.consumer(
        auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([TopicPartition(query.output.name, 0)])
        while perf_counter() - newest < STALL_TIMEOUT_S:
            polled = await consumer.poll(timeout_ms=POLL_MS)
            for records in polled.values():
                rows = (query.output.decoded(record, 0) for record in records)
                found += [(_plain(row.key), _in_order(row.value)) for row in rows]
                newest = perf_counter()
            if name in CHANGING:
                found = list(dict(found).items())
            if not polled and len(found) >= len(wanted) and sorted(found, key=repr) == wanted:
                return
            await asyncio.sleep(0)
    raise AssertionError(f"{name}: {len(found)} rows, not the {len(wanted)} that were expected")


def _plain(key: Any) -> Any:  # noqa: ANN401 - of any query
    if not isinstance(key, Windowed):
        return key
    return key.key, when_ms(key.start), when_ms(key.end)


def _in_order(value: Any) -> Any:  # noqa: ANN401 - of any query
    return Hottest(value.bids, sorted(value.auctions)) if isinstance(value, Hottest) else value
