"""`streamlog groups` as users meet it, on an embedded log."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.worker.processes import streamlog

START_MS = 1_700_000_000_000


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a directory with a log: a group, and 10 records, 1 s apart, in both partitions."""

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}/log", listen=False) as log:
            await log.admin().create_topics([NewTopic("t", partitions=2)])
            async with log.producer() as producer:
                for partition in (0, 1):
                    records = [(START_MS + n * 1000, None, b"v", ()) for n in range(10)]
                    await (await producer.send_batch("t", partition, records, atomic=True))
            offsets = {TopicPartition("t", 0): 4, TopicPartition("t", 1): 10}
            await log.admin().alter_group_offsets("readers", offsets)

    asyncio.run(main())
    return tmp_path


def run_groups(here: Path, *arguments: str, code: int = 0) -> str:
    exited, output = streamlog("groups", *arguments, "--log", "embedded:./log", cwd=here)
    assert exited == code, output
    return output


def row(output: str, *cells: str) -> bool:
    """Return whether the table has a row with these cells."""
    pattern = r"\s*│\s*".join(map(re.escape, cells))
    return re.search(pattern, output) is not None


def test_groups_are_listed_described_and_deleted(here: Path) -> None:
    assert row(run_groups(here, "list"), "readers", "classic", "Empty")
    assert "readers" not in run_groups(here, "list", "--state", "Stable")
    shown = run_groups(here, "describe", "readers")
    assert "group readers: Empty, classic" in shown
    assert row(shown, "t-0", "4", "10", "6")
    assert row(shown, "t-1", "10", "10", "0")
    assert "deleted group readers" in run_groups(here, "delete", "readers")
    assert "no such group" in run_groups(here, "describe", "readers", code=3)


def test_describe_shows_lag_in_time_and_what_is_lost(here: Path) -> None:
    async def delete_some() -> None:
        async with Log.open(f"embedded:{here}/log", listen=False) as log:
            await log.admin().delete_records({TopicPartition("t", 0): 6})

    asyncio.run(delete_some())
    before_ms = time.time_ns() // 1_000_000
    found = json.loads(run_groups(here, "describe", "readers", "--json"))
    after_ms = time.time_ns() // 1_000_000
    behind, done = found["partitions"]
    assert (found["group"], found["members"]) == ("readers", 0)
    assert (behind["offset"], behind["end_offset"], behind["lag"], behind["lost"]) == (4, 10, 6, 2)
    next_ms = START_MS + 6_000
    assert before_ms - next_ms <= behind["lag_ms"] <= after_ms - next_ms
    assert behind["catch_up_s"] is None
    assert (done["lag"], done["lag_ms"], done["lost"], done["catch_up_s"]) == (0, 0, 0, 0)
    shown = run_groups(here, "describe", "readers")
    assert row(shown, "t-1", "10", "10", "0", "0.0", "0", "0 s")


def test_a_description_fits_a_terminal(here: Path) -> None:
    topic = "orders-of-all-shops"

    async def describe() -> str:
        # Not closed before it is described, so that the group has a member.
        async with Log.open(f"embedded:{here}/log") as log:
            await log.admin().create_topics([NewTopic(topic, partitions=12)])
            await log.admin().alter_group_offsets("wide", {TopicPartition(topic, 11): 10**9})
            async with log.consumer(group_id="wide") as consumer:
                await consumer.subscribe([topic])
                while not consumer.assignment:
                    await consumer.poll(timeout_ms=100)
                return await asyncio.to_thread(run_groups, here, "describe", "wide")

    shown = asyncio.run(describe())
    assert row(shown, f"{topic}-11", "1000000000", "0", "0")
    assert max(map(len, shown.splitlines())) <= 100


def test_a_reset_is_shown_and_needs_execute_to_take_effect(here: Path) -> None:
    shown = run_groups(here, "reset-offsets", "readers", "--to-earliest")
    assert row(shown, "t", "1", "10", "0")
    assert "nothing was changed" in shown
    listed, _ = run_groups(here, "reset-offsets", "readers", "--to-earliest", "--json").splitlines()
    assert json.loads(listed) == [
        {"topic": "t", "partition": 0, "offset": 4, "new_offset": 0},
        {"topic": "t", "partition": 1, "offset": 10, "new_offset": 0},
    ]
    assert row(run_groups(here, "describe", "readers"), "t-0", "4", "10", "6")
    done = run_groups(
        here, "reset-offsets", "readers", "--to-offset", "7", "--topic", "t:0", "--execute"
    )
    assert "continues at the new offsets" in done
    shown = run_groups(here, "describe", "readers")
    assert row(shown, "t-0", "7", "10", "3")
    assert row(shown, "t-1", "10", "10", "0")


def test_a_reset_accepts_offsets_times_and_ends(here: Path) -> None:
    # An offset beyond the end means the end.
    assert row(
        run_groups(here, "reset-offsets", "readers", "--to-offset", "99"), "t", "0", "4", "10"
    )
    new = ("reset-offsets", "new", "--topic", "t")
    assert row(run_groups(here, *new, "--to-latest"), "t", "0", "-", "10")
    at = run_groups(here, *new, "--to-datetime", "2023-11-14T22:13:24.500")
    assert row(at, "t", "1", "-", "5")
    zoned = run_groups(here, *new, "--to-datetime", "2023-11-14T23:13:24.500+01:00")
    assert row(zoned, "t", "1", "-", "5")
    late = run_groups(here, *new, "--to-datetime", "2030-01-01")
    assert row(late, "t", "1", "-", "10")


def test_contradictory_reset_options_are_refused(here: Path) -> None:
    reset = ("reset-offsets", "readers")
    assert "reset-offsets needs one of" in run_groups(here, *reset, code=2)
    assert "reset-offsets needs one of" in run_groups(
        here, *reset, "--to-latest", "--to-earliest", code=2
    )
    wrong = run_groups(here, *reset, "--to-datetime", "yesterday", code=2)
    assert "2026-01-31T12:00:00" in wrong
    assert "TOPIC:0,1" in run_groups(here, *reset, "--to-latest", "--topic", "t:x", code=2)
    assert "--topic" in run_groups(here, "reset-offsets", "new", "--to-latest", code=2)
