"""An app that works on one cluster, mirrored by its name, and going on at another one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from streamlog import App
from streamlog.client.admin import Admin, NewTopic
from streamlog.errors import ConfigError, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.worker import Worker
from tests.cli.operate.test_mirror_command import FAST, Clusters, call_admin, two_clusters

PATIENCE_S = 120
OWNED = ["counting-1-changelog", "counting-by-word-repartition", "counting-topology"]


def work(url: str, state: Path, words: list[str], last: str) -> list[str]:
    """Count words at a cluster until a result is there; return all results."""
    app = App("counting", state_dir=str(state))
    source = app.topic("words", key=str, value=str, partitions=1)
    counts = app.topic("counts", key=str, value=str, partitions=1)
    app.stream(source).group_by(lambda _, word: word, name="by-word").count(name="n").changes().map(
        lambda word, n: (word, f"{word} {n}")
    ).to(counts)
    program = app.program()
    found: list[str] = []

    async def read(log: Log, stop: asyncio.Event) -> None:
        async with log.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("counts", 0)])
            while last not in found:
                for records in (await consumer.poll(timeout_ms=100)).values():
                    found.extend((record.value or b"").decode() for record in records)
        stop.set()

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), Log.open(url) as log:
            there = {each.name for each in await log.admin().list_topics()}
            missing = [NewTopic(name, 1) for name in ("words", "counts") if name not in there]
            if missing:
                await log.admin().create_topics(missing)
            async with log.producer() as producer:
                for word in words:
                    await (await producer.send("words", word.encode(), key=b"k"))
            stop = asyncio.Event()
            worker = Worker(program, log_url=url, announce=lambda _: None)
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run(stop))
                await read(log, stop)

    asyncio.run(main())
    return found


def create_app_link(clusters: Clusters, *more: str, app: str = "counting") -> str:
    at = ("--source", clusters.source, "--app", app)
    return clusters.call("create", "east", *at, *FAST, *more)


def test_an_app_is_mirrored_with_all_that_it_owns_reads_and_writes(tmp_path: Path) -> None:
    with two_clusters() as clusters:
        work(clusters.source, tmp_path / "source", ["a", "b", "a"], "a 2")
        found = json.loads(create_app_link(clusters, "--json"))
        assert {*OWNED} <= {*found["app"]["owned"]}
        assert found["app"]["read"] == ["words"]
        assert found["app"]["written"] == ["counts"]
        expected = {*OWNED, "words", "counts"}
        assert expected <= {*found["topics"]}
        assert not {"orders", "users", "other"} & {*found["topics"]}

        # What the app gets later comes by itself; what only begins like it does not.
        async def grow(admin: Admin) -> None:
            names = ["counting-new-repartition", "counting-eu-topology", "counting-eu-0-changelog"]
            await admin.create_topics([NewTopic(name, 1) for name in [*names, "late"]])
            await admin.alter_group_offsets("counting", {TopicPartition("late", 0): 0})

        call_admin(clusters.source, grow)
        mirrors = clusters.until(
            lambda each: (
                {*expected, "counting-new-repartition", "late"} <= {*each}
                and all(one["lag_records"] == 0 for one in each.values())
            )
        )
        assert not any(each.startswith("counting-eu") for each in mirrors)

        async def stands(admin: Admin) -> None:
            assert (await admin.group_offsets("counting"))[TopicPartition("words", 0)] == 3

        # The positions come with the promotion, although the link names no groups.
        clusters.call("promote", "east", "--app", "counting", "--yes")
        call_admin(clusters.target, stands)
        counted = work(clusters.target, tmp_path / "target", ["a", "c"], "c 1")
        assert counted == ["a 1", "b 1", "a 2", "a 3", "c 1"]
        # And back again: the first cluster follows with all topics of the app.
        at = ("--source", clusters.target, "--app", "counting")
        clusters.call("create", "back", *at, *FAST, at=clusters.source)
        following = clusters.call("fail-back", "back", "--yes", "--json", at=clusters.source)
        assert expected <= {*json.loads(following)["following"]}
        clusters.until(
            lambda each: (
                expected <= {*each} and all(not one["lag_records"] for one in each.values())
            ),
            at=clusters.source,
        )
        clusters.call("promote", "back", "--yes", at=clusters.source)
        counted = work(clusters.source, tmp_path / "source", ["c"], "c 2")
        assert counted == ["a 1", "b 1", "a 2", "a 3", "c 1", "c 2"]


def test_an_app_whose_source_is_lost_goes_on_from_whole_transactions(tmp_path: Path) -> None:
    with two_clusters() as clusters:
        work(clusters.source, tmp_path / "source", ["a", "b", "a"], "a 2")
        create_app_link(clusters)

        async def marked(admin: Admin) -> None:
            async with asyncio.timeout(PATIENCE_S):
                # The link's runner notes it; no answer tells.
                while not (await admin.app_logs("east")).mark:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        call_admin(clusters.target, marked)
        clusters.until(lambda each: all(not one["lag_records"] for one in each.values()))
        # The results of the next words never come, although their state and positions do.
        clusters.call("pause", "counts")
        work(clusters.source, tmp_path / "source", ["a", "c"], "c 1")
        clusters.until(
            lambda each: all(
                one["status"] == "PAUSED" or one["lag_records"] == 0 for one in each.values()
            )
        )
        shown = clusters.call("promote", "east", "--now", "--app", "counting", "--yes", "--json")
        found = json.loads(shown)
        assert {*OWNED, "words", "counts"} == {*found["promoted"]}
        assert found["transactions_out"] >= 1
        assert {"words", OWNED[1]} == {each["topic"] for each in found["positions"]}
        again = clusters.call("promote", "east", "--now", "--app", "counting", "--yes")
        assert "app counting was promoted before" in again
        # What is cut off is counted again, as if nothing had happened.
        counted = work(clusters.target, tmp_path / "target", ["b"], "b 2")
        assert counted == ["a 1", "b 1", "a 2", "a 3", "c 1", "b 2"]


def test_what_an_app_is_promoted_with_is_checked() -> None:
    with two_clusters() as clusters:
        clusters.link()
        with pytest.raises(UsageError, match="link east mirrors no app 'shop': it has none"):
            clusters.call("promote", "east", "--app", "shop", "--yes")
        with pytest.raises(UsageError, match="leave --topics out"):
            clusters.call("promote", "east", "--now", "--app", "shop", "--topics", "x", "--yes")
        with pytest.raises(UsageError, match="link east mirrors no app 'shop': it has none"):
            clusters.call("promote", "east", "--now", "--app", "shop", "--yes")


def test_an_app_that_is_not_there_or_would_not_find_its_topics_is_refused() -> None:
    with two_clusters() as clusters:
        with pytest.raises(UsageError, match=r"no app .shop. at the source.* its apps: none"):
            create_app_link(clusters, app="shop")
        with pytest.raises(ConfigError, match="an app finds its topics by their names"):
            create_app_link(clusters, "--prefix", "eu.")
        with pytest.raises(UsageError, match="give --topics PATTERN, --app ID, or both"):
            clusters.call("create", "east", "--source", clusters.source)
        assert json.loads(clusters.call("list", "--json")) == []
