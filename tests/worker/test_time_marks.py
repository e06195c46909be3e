"""A stream becomes quiet: its windows close, at the same record for every later reader."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.serdes import serde_for
from tests.worker.commit_steps import IS_THOROUGH
from tests.worker.processes import STREAMLOG, attached, read_until, running

APP = """
import os
from streamlog import App, Windowed, tumbling

name = os.environ["NAME"]
app = App(name, log="embedded:./log", state_dir=f"./state-{name}", commit_interval="20ms",
          guarantee=os.environ["GUARANTEE"])
words = app.topic("words", key=str, value=str)
out = app.topic(f"out-{name}", key=Windowed[str], value=int, partitions=1)
stream = app.stream(words)
grouped = stream.group_by(lambda _, word: word, name="again") if name.startswith("far") else (
    stream.group_by_key())
grouped.windowed(tumbling("400ms")).count(name="counts").changes().to(out)
"""
WORKER = (*STREAMLOG, "-A", "quiet", "worker")
COUNTS = serde_for(int)


async def send(log: Log, *times_ms: int) -> None:
    async with log.producer() as producer:
        for at_ms in times_ms:
            await producer.send("words", b"w", key=b"w", partition=0, timestamp_ms=at_ms)
        await producer.flush()


def rows_of(log_url: str, name: str, count: int) -> list[tuple[int, int]]:
    """Return start and value of the first rows of an app."""

    async def read(log: Log) -> list[tuple[int, int]]:
        found = await read_until(log, f"out-{name}", lambda rows: len(rows) >= count)
        return [(start_of(r.key or b""), COUNTS.loads(r.value or b"")) for _, r in found]

    return attached(log_url, read)


def start_of(key: bytes) -> int:
    return int.from_bytes(key[-8:])


SOME_CASES = [("near", "exactly_once"), ("far", "at_least_once")]
ALL_CASES = list(product(["near", "far"], ["exactly_once", "at_least_once"]))


@pytest.mark.parametrize(("name", "guarantee"), ALL_CASES if IS_THOROUGH else SOME_CASES)
def test_quiet_windows_close_at_a_mark_and_a_replay_closes_them_there(
    tmp_path: Path, name: str, guarantee: str
) -> None:
    (tmp_path / "quiet.py").write_text(APP)
    log_url = f"embedded:{tmp_path / 'log'}"

    async def begin() -> None:
        async with Log.open(log_url, listen=False) as log:
            new = NewTopic("words", 1, configs={"mark.quiet.ms": "20"})
            await log.admin().create_topics([new])

    asyncio.run(begin())
    with running(*WORKER, cwd=tmp_path, NAME=name, GUARANTEE=guarantee) as worker:
        worker.line("rebalance: this worker has")
        attached(log_url, lambda log: send(log, 1_210, 1_300))
        assert rows_of(log_url, name, 1) == [(1_200, 2)]
        # Late, because of the mark. The next window has one more record.
        attached(log_url, lambda log: send(log, 1_400, 9_000))
        live = rows_of(log_url, name, 2)
        assert live == [(1_200, 2), (8_800, 1)]
        assert worker.stop() == 0
    with running(*WORKER, cwd=tmp_path, NAME=f"{name}-replay", GUARANTEE=guarantee) as worker:
        assert rows_of(log_url, f"{name}-replay", 2) == live
        assert worker.stop() == 0


FIRST = """
import os
from streamlog import App, Windowed, tumbling

name = os.environ["NAME"]
app = App(name, log="embedded:./log", state_dir=f"./state-{os.environ['TRY']}",
          commit_interval="20ms", guarantee=os.environ["GUARANTEE"])
words = app.topic("words", key=str, value=str)
out = app.topic(f"out-{name}", key=Windowed[str], value=int, partitions=1)
grouped = app.stream(words).group_by(lambda _, word: word, name="again")
grouped.windowed(tumbling("1s")).count(name="counts").changes().to(out)
"""


@pytest.mark.parametrize(
    "guarantee", ["exactly_once", "at_least_once"] if IS_THOROUGH else ["exactly_once"]
)
def test_an_empty_partition_delays_no_window_and_a_load_is_waited_for(
    tmp_path: Path, guarantee: str
) -> None:
    """Partitions are filled one after another, more slowly than a topic takes to count as quiet."""
    (tmp_path / "quiet.py").write_text(FIRST)
    log_url = f"embedded:{tmp_path / 'log'}"

    async def begin() -> None:
        async with Log.open(log_url, listen=False) as log:
            new = NewTopic("words", 4, configs={"mark.quiet.ms": "20"})
            await log.admin().create_topics([new])

    async def load(log: Log) -> None:
        async with log.producer() as producer:
            for number in (0, 1):
                for step in range(13):
                    await producer.send(
                        "words", b"w", key=b"w", partition=number, timestamp_ms=step * 100_000
                    )
                    await producer.flush()
                    await asyncio.sleep(0.5)

    asyncio.run(begin())
    environment = {"NAME": "first", "GUARANTEE": guarantee}
    with running(*WORKER, cwd=tmp_path, TRY="live", **environment) as worker:
        worker.line("rebalance: this worker has")
        attached(log_url, load)
        # Two partitions stay empty, and the records of the second one were not late.
        live = rows_of(log_url, "first", 13)
        assert live == [(step * 100_000, 2) for step in range(13)]
        assert worker.stop() == 0
    assert "late" not in worker.output
