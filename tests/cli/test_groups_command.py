"""`streamlog groups` as its users meet it, on an embedded log."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.worker.processes import streamlog

START_MS = 1_700_000_000_000


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A log with ten records in each of two partitions, a second apart, and a group."""

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


def told(here: Path, *arguments: str, code: int = 0) -> str:
    exited, output = streamlog("groups", *arguments, "--log", "embedded:./log", cwd=here)
    assert exited == code, output
    return output


def row(output: str, *cells: str) -> bool:
    """Whether the table has such a row."""
    pattern = r"\s*│\s*".join(map(re.escape, cells))
    return re.search(pattern, output) is not None


def test_groups_are_listed_described_and_deleted(here: Path) -> None:
    assert row(told(here, "list"), "readers", "classic", "Empty")
    assert "readers" not in told(here, "list", "--state", "Stable")
    shown = told(here, "describe", "readers")
    assert "group readers: Empty, classic" in shown
    assert row(shown, "t", "0", "4", "10", "6")
    assert row(shown, "t", "1", "10", "10", "0")
    assert "deleted group readers" in told(here, "delete", "readers")
    assert "no such group" in told(here, "describe", "readers", code=3)


def test_a_reset_is_shown_and_done_when_it_is_said_twice(here: Path) -> None:
    shown = told(here, "reset-offsets", "readers", "--to-earliest")
    assert row(shown, "t", "1", "10", "0")
    assert "nothing was changed" in shown
    assert row(told(here, "describe", "readers"), "t", "0", "4", "10", "6")
    done = told(here, "reset-offsets", "readers", "--to-offset", "7", "--topic", "t:0", "--execute")
    assert "continues at the new offsets" in done
    shown = told(here, "describe", "readers")
    assert row(shown, "t", "0", "7", "10", "3")
    assert row(shown, "t", "1", "10", "10", "0")


def test_where_a_reset_can_go(here: Path) -> None:
    # Beyond the end is the end.
    assert row(told(here, "reset-offsets", "readers", "--to-offset", "99"), "t", "0", "4", "10")
    new = ("reset-offsets", "new", "--topic", "t")
    assert row(told(here, *new, "--to-latest"), "t", "0", "-", "10")
    at = told(here, *new, "--to-datetime", "2023-11-14T22:13:24.500")
    assert row(at, "t", "1", "-", "5")
    zoned = told(here, *new, "--to-datetime", "2023-11-14T23:13:24.500+01:00")
    assert row(zoned, "t", "1", "-", "5")
    late = told(here, *new, "--to-datetime", "2030-01-01")
    assert row(late, "t", "1", "-", "10")


def test_what_is_not_meant_is_refused(here: Path) -> None:
    reset = ("reset-offsets", "readers")
    assert "reset-offsets needs one of" in told(here, *reset, code=2)
    assert "reset-offsets needs one of" in told(
        here, *reset, "--to-latest", "--to-earliest", code=2
    )
    wrong = told(here, *reset, "--to-datetime", "yesterday", code=2)
    assert "2026-01-31T12:00:00" in wrong
    assert "TOPIC:0,1" in told(here, *reset, "--to-latest", "--topic", "t:x", code=2)
    assert "--topic" in told(here, "reset-offsets", "new", "--to-latest", code=2)
