"""Rows that agents set are committed with their records, despite kills and moving tasks."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from streamlog.client.producer import Producer
from streamlog.log import Log
from streamlog.records.batch import LogRecord
from tests.worker.commit_steps import IS_THOROUGH, write_program
from tests.worker.commit_steps import STEPS as ALL_STEPS
from tests.worker.processes import STREAMLOG, Process, attached, read_until, running

STEPS = ALL_STEPS if IS_THOROUGH else ("checkpointed", "changelogs written", "committed")
CALLS = (1, 8) if IS_THOROUGH else (8,)
KEYS = tuple(f"k{number}" for number in range(12))
PARTITIONS = 3

TALLY = """
import asyncio
import sys

from mortal import run
from streamlog import App, Stream
from streamlog.worker import worker

worker.SESSION_TIMEOUT_MS, worker.HEARTBEAT_INTERVAL_MS = 2_000, 300  # Failures are noticed sooner.
app = App("tally", state_dir=sys.argv[4], commit_interval="20ms")
words = app.topic("words", key=str, value=int, partitions=3)
changes = app.topic("changes", key=str, value=int, partitions=1)
totals = app.table("totals", key=str, value=int, default=int)
totals.changes().to(changes)

@app.agent(words, concurrency=int(sys.argv[5]))
async def tally(stream: Stream[str, int]) -> None:
    async for word, amount in stream.items():
        before = totals[word]
        if amount % 7 == 0:
            await asyncio.sleep(0.001)
        totals[word] = before + amount

run(app, sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[6] if len(sys.argv) > 6 else None)
"""
Amounts = Sequence[tuple[str, int]]


def amounts_of(rng: Random, count: int) -> Amounts:
    return [(rng.choice(KEYS), rng.randrange(1, 50)) for _ in range(count)]


def sums_of(amounts: Amounts) -> Counter[str]:
    sums: Counter[str] = Counter()
    for key, amount in amounts:
        sums[key] += amount
    return sums


async def feed(producer: Producer, amounts: Amounts) -> None:
    for key, amount in amounts:
        value = amount.to_bytes(8, "big", signed=True)
        await producer.send("words", value, key=key.encode())
    await producer.flush()


def latest(records: Sequence[tuple[int, LogRecord]]) -> dict[str, int]:
    return {
        (record.key or b"").decode(): int.from_bytes(record.value or b"", "big", signed=True)
        for _, record in records
    }


def broker_in(path: Path, stack: ExitStack) -> str:
    write_program(path, "tally.py", TALLY)
    listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
    broker = stack.enter_context(running(*STREAMLOG, *listen, cwd=path))
    return "kafka://" + broker.line(r"listening on (\S+)").group(1)


@pytest.mark.parametrize("calls", CALLS)
def test_agent_rows_are_committed_with_their_records_despite_kills(
    tmp_path: Path, calls: int
) -> None:
    rng = Random(5)
    portions = [amounts_of(rng, 200) for _ in range(len(STEPS) + 1)]
    wanted = sums_of([each for portion in portions for each in portion])
    with ExitStack() as stack:
        url = broker_in(tmp_path, stack)

        def worker(step: str, times: int) -> Process:
            own = (url, step, str(times), "./state", str(calls), "one")
            return stack.enter_context(running(sys.executable, "tally.py", *own, cwd=tmp_path))

        async def story(log: Log) -> dict[str, int]:
            last = worker("none", 0)
            await asyncio.to_thread(last.line, "^up$")
            assert await asyncio.to_thread(last.stop) == 0
            async with log.producer() as producer:
                for number, step in enumerate(STEPS):
                    await feed(producer, portions[number])
                    assert await asyncio.to_thread(worker(step, number % 2).wait) == -9
                last = worker("none", 0)
                await feed(producer, portions[-1])
            found = await read_until(log, "changes", lambda records: latest(records) == wanted)
            # A repeated addition would come before the end.
            assert await asyncio.to_thread(last.stop) == 0
            return latest(found)

        assert attached(url, story) == wanted


def test_agent_rows_move_with_their_records_between_workers(tmp_path: Path) -> None:
    rng = Random(6)
    portions = [amounts_of(rng, 300) for _ in range(4)]
    wanted = sums_of([each for portion in portions for each in portion])
    with ExitStack() as stack:
        url = broker_in(tmp_path, stack)

        def worker(number: int) -> Process:
            own = (url, "none", "0", f"./state{number}", "1")
            return stack.enter_context(running(sys.executable, "tally.py", *own, cwd=tmp_path))

        async def story(log: Log) -> dict[str, int]:
            first = worker(1)
            await asyncio.to_thread(first.line, "^up$")
            async with log.producer() as producer:
                await feed(producer, portions[0])
                second = worker(2)
                await feed(producer, portions[1])
                await asyncio.to_thread(second.line, "^up$")
                await feed(producer, portions[2])
                second.kill()
                third = worker(3)
                await asyncio.to_thread(third.line, "^up$")
                await feed(producer, portions[3])
            found = await read_until(log, "changes", lambda records: latest(records) == wanted)
            for each in (first, third):
                assert await asyncio.to_thread(each.stop) == 0
            return latest(found)

        assert attached(url, story) == wanted
