"""An app's internal topics are deleted while it is stopped: it fails unless that is accepted."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from streamlog.errors import SourceLost
from streamlog.replace import replace
from streamlog.worker.topics import version_log
from streamlog.worker.topics.version_log import OwnTopics, decode_own_topics
from streamlog.worker.worker import Worker
from tests.worker.test_recreated_sources import (
    Case,
    ended,
    expected,
    feed,
    opened,
    portion,
    rows_of,
    until,
    worker,
)

CHANGELOG, REPARTITION = "again-1-changelog", "again-by-double-repartition"


def run_and_delete(
    tmp_path: Path, topic: str, then: Callable[[Case, list[tuple[str, str]]], Awaitable[None]]
) -> None:
    """Run an app that counts behind a repartition topic, and delete `topic` after it stopped."""
    chance = random.Random(topic)

    async def main() -> None:
        async with opened(tmp_path, chance, "repartition") as case:
            old = portion(chance, "old", 20)
            await feed(case.log, "source", old)
            async with worker(case) as task:
                await until(rows_of(case), expected("repartition", [old]), task)
                await asyncio.sleep(0.5)
            names = {each.name for each in await case.log.admin().list_topics()}
            assert topic in names, names
            await case.log.admin().delete_topics([topic])
            await then(case, old)

    asyncio.run(main())


@pytest.mark.parametrize("topic", [CHANGELOG, REPARTITION])
@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_missing_internal_topic_stops_the_worker_each_time(
    tmp_path: Path, topic: str, keeps_state: bool
) -> None:
    async def then(case: Case, old: list[tuple[str, str]]) -> None:
        if not keeps_state:
            shutil.rmtree(tmp_path / "state")
        for _ in range(2):
            with pytest.raises(SourceLost, match=f"{topic}: the app's own topic was deleted") as (
                caught
            ):
                await ended(case, [], None)
            assert caught.value.exit_code == 5
        assert Counter(await case.rows()) == expected("repartition", [old])

    run_and_delete(tmp_path, topic, then)


def test_a_missing_repartition_topic_is_replaced_with_source_lost_earliest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def then(case: Case, old: list[tuple[str, str]]) -> None:
        case.source_lost = "earliest"
        async with worker(case) as task:
            new = [("a", "x"), ("b", "y"), ("a", "z")]
            await feed(case.log, "source", new)
            await until(rows_of(case), expected("repartition", [old, new]), task)
            await asyncio.sleep(0.5)
        case.source_lost = None
        async with worker(case) as task:
            await feed(case.log, "source", new)
            await until(rows_of(case), expected("repartition", [old, new, new]), task)

    run_and_delete(tmp_path, REPARTITION, then)
    assert f"{REPARTITION}: the app's own topic was deleted" in caplog.text


def test_state_is_counted_again_if_its_loss_is_accepted(tmp_path: Path) -> None:
    async def then(case: Case, old: list[tuple[str, str]]) -> None:
        stop = asyncio.Event()
        program = replace(case.app().program(), accept_state_loss=True)
        task = asyncio.create_task(
            Worker(program, log_url=case.url, announce=lambda _: None).run(stop)
        )
        rows = expected("repartition", [old])
        await until(rows_of(case), rows + rows, task)
        await asyncio.sleep(0.5)
        stop.set()
        await task
        async with worker(case) as again:
            await feed(case.log, "source", [("a", "x")])
            grown = expected("repartition", [old, [("a", "x")]])
            await until(rows_of(case), rows + grown, again)

    run_and_delete(tmp_path, CHANGELOG, then)


def test_the_last_recorded_topic_ids_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_log, "GIVEN_UP_MAX", 2)
    now = OwnTopics()
    for number in range(5):
        now = now.followed_by({"a": bytes([number]) * 16, "b": b"b" * 16})
    assert now.ids == {"a": b"\4" * 16, "b": b"b" * 16}
    assert now.given_up == (b"\2" * 16, b"\3" * 16)
    records = [(0, b'{"format":1}'), (1, OwnTopics({"c": b"c"}).encode()), (2, now.encode())]
    assert decode_own_topics(records) == now
    assert decode_own_topics(records[:1]) == OwnTopics()
