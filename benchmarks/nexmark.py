"""Nexmark's queries in a worker process: events per second of its CPU time, ours and the peers'.

Each query runs on a topic of persons, one of auctions and one of bids with one partition each, on a
broker of its own. The process is started and, once it has come to rest, stopped by SIGSTOP while
the events are loaded, and let go; its CPU time counts until all rows are there. They are compared
with those of loops over all events (`examples/nexmark/answers`), whoever wrote them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.engine.contest import STALL_TIMEOUT_S, STOP_TIMEOUT_S, Failed
from benchmarks.engine.environment import environment
from benchmarks.engine.participants import OURS
from benchmarks.harness import Reading, broker, cpu_of
from benchmarks.nexmark_participants import Participant, Row, in_place, participants
from examples.nexmark.answers import ANSWERS
from examples.nexmark.generator import Event, events
from examples.nexmark.queries import QUERIES, Query
from streamlog import Topic
from streamlog.client.admin import NewTopic
from streamlog.durations import when_ms
from streamlog.log import Log
from streamlog.record import TopicPartition

SHARE = 10
"""One event for so many records of the other benchmarks: each is made by a generator in Python."""
CHANGING = frozenset({"q4", "q5", "q6"})
"""Of their rows the last one of a key counts."""
POLL_MS = 20
LOOK_S = 1.0
FETCH_WAIT_S = 1.0
"""Longer than any of them waits."""
REST_CPU_S = 0.1
"""A process that took less since the last look waits for records."""
RESTED_LOOKS = 3
SAID_CHARACTERS = 800


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """A figure for each query and each one who can express it."""
    happened = list(events(records // SHARE))
    where = environment()
    for name, reason in where.missing.items():
        print(f"{name} is left out: it can't be installed here: {reason}")
    entered = list(participants(where))
    for name in QUERIES:
        wanted = sorted(ANSWERS[name](happened), key=repr)
        for each in entered:
            if name not in each.queries:
                continue
            place = directory / name / each.name
            place.mkdir(parents=True)
            try:
                cpu_s = await _cpu_s(each, name, happened, wanted, place)
            except Failed as failure:
                if each.name == OURS:
                    raise
                print(f"{each.name} is left out of {name}: {failure}")
                continue
            by = "" if each.name == OURS else f" {each.name}"
            read = _read(name, happened)
            yield Reading(f"nexmark {name}{by}, events/s of a core", read / cpu_s, "events/s")


def _read(name: str, happened: Sequence[Event]) -> int:
    """How many of the events the query reads."""
    query = Query.of(name)
    topics = query.app.topology().topics
    return sum(query.topic_of(each)[0].name in topics for each in happened)


async def _cpu_s(
    participant: Participant,
    name: str,
    happened: Sequence[Event],
    wanted: Sequence[Row],
    directory: Path,
) -> float:
    query = Query.of(name)
    topics: list[Topic[Any, Any]] = [query.persons, query.auctions, query.bids, query.output]
    with broker(directory / "log", flush="os") as (_, url):
        async with Log.open(url) as log:
            await log.admin().create_topics([NewTopic(topic.name, 1) for topic in topics])
            with _running(participant, name, url, directory) as process:
                await process.come_to_rest()
                process.send(signal.SIGSTOP)
                # A fetch that waits at the broker is answered before there is anything: else it
                # comes with the first topic alone, which is live to a join, and ahead of the rest.
                await asyncio.sleep(FETCH_WAIT_S)
                try:
                    await _load(log, query, happened)
                finally:
                    before_s = process.cpu_s()
                    process.send(signal.SIGCONT)
                await _wait_for(log, process, participant, name, wanted)
                return process.cpu_s() - before_s


class _Process:
    """A participant at work."""

    def __init__(self, popen: subprocess.Popen[bytes], said: Path) -> None:
        self._popen = popen
        self._said = said

    def cpu_s(self) -> float:
        """User and system time so far."""
        return cpu_of(self._popen.pid)

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        self._popen.send_signal(number)

    def check(self, moved_s: float, what: str) -> None:
        """Raise if there is nothing more to be waited for: it has ended, or moved long ago.

        Raises:
            Failed: with what it said.
        """
        code = self._popen.poll()
        if code is None and perf_counter() - moved_s < STALL_TIMEOUT_S:
            return
        ended = what if code is None else f"it ended with {code}"
        said = self._said.read_text(errors="replace")[-SAID_CHARACTERS:].strip()
        raise Failed(f"{ended}; it said: {said or 'nothing'}")

    async def come_to_rest(self) -> None:
        """Imports, connections and rebalances are over."""
        began_s, rested, before_s = perf_counter(), 0, 0.0
        while rested < RESTED_LOOKS:
            await asyncio.sleep(LOOK_S)
            self.check(began_s, "it has not come to rest")
            now_s = self.cpu_s()
            rested = rested + 1 if before_s and now_s - before_s < REST_CPU_S else 0
            before_s = now_s


@contextmanager
def _running(participant: Participant, name: str, url: str, directory: Path) -> Iterator[_Process]:
    state = directory / "state"
    state.mkdir()
    settings = {
        "NEXMARK_QUERY": name,
        "NEXMARK_LOG": url,
        "NEXMARK_BROKER": url.removeprefix("kafka://"),
        "NEXMARK_STATE": str(state),
    }
    if participant.prepare:
        subprocess.run(in_place(participant.prepare, state), check=True)
    with (directory / "said").open("wb") as said:
        popen = subprocess.Popen(
            in_place(participant.command, state),
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
        )
    try:
        yield _Process(popen, directory / "said")
    finally:
        popen.send_signal(signal.SIGCONT)
        popen.terminate()
        try:
            popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


async def _load(log: Log, query: Query, happened: Sequence[Event]) -> None:
    async with log.producer(linger_ms=20) as producer:
        for each in happened:
            topic, key = query.topic_of(each)
            raw_key, value = topic.encoded(key, each)
            at_ms = when_ms(each.date_time)
            await producer.send(topic.name, value, key=raw_key, timestamp_ms=at_ms)
        await producer.flush()


async def _wait_for(
    log: Log, process: _Process, participant: Participant, name: str, wanted: Sequence[Row]
) -> None:
    """Until these rows are there.

    Raises:
        Failed: others are, or some are missing for long.
    """
    query = Query.of(name)
    found: list[Row] = []
    newest = perf_counter()
    async with log.consumer(
        auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([TopicPartition(query.output.name, 0)])
        while True:
            polled = await consumer.poll(timeout_ms=POLL_MS)
            for records in polled.values():
                found += [participant.row(name, query, record) for record in records]
                newest = perf_counter()
            if name in CHANGING:
                found = list(dict(found).items())
            if not polled and len(found) >= len(wanted) and sorted(found, key=repr) == wanted:
                return
            process.check(newest, f"{len(found)} rows, not the {len(wanted)} that were expected")
