"""`streamlog mirror create --to`: a mirror that a real Connect service runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.cli.operate.connectors_command import ConnectAnswer
from streamlog.cli.operate.mirror_to_kafka import WantedMirror, altered, configuration, create
from streamlog.cli.session import Session
from streamlog.errors import ConnectionLost, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.cli.operate.test_mirror_command import Clusters, two_clusters
from tests.worker.processes import STREAMLOG, running

WITHIN_S = 60


class Mirrors:
    """The commands, for a service of the source's cluster."""

    def __init__(self, clusters: Clusters, service: str) -> None:
        self.clusters, self.service = clusters, service

    def call(self, *arguments: str) -> str:
        at = self.clusters.source
        return self.clusters.call(*arguments, "--connect", self.service, at=at)

    def create(self, name: str = "eu", topics: str = "orders,users", *more: str) -> str:
        at = ("--to", self.clusters.target, "--topics", topics)
        return self.call("create", name, *at, "--set", "flush.every=50ms", *more)

    def describe(self, name: str = "eu") -> dict[str, Any]:
        (found,) = json.loads(self.call("describe", name, "--json"))["mirrors"]
        state: dict[str, Any] = found
        return state

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + WITHIN_S
        while not holds(found := self.describe()):
            assert time.monotonic() < deadline, found
        return found


async def _counts(url: str, *topics: str) -> dict[str, int]:
    async with Log.open(url) as log:
        return {
            each: sum([len(await log.read_range(TopicPartition(each, at))) for at in range(2)])
            for each in topics
        }


async def _write(url: str, topic: str) -> None:
    async with Log.open(url) as log, log.producer() as producer:
        await producer.send(topic, b"late", partition=0)


def verifies(mirrors: Mirrors) -> None:
    verified = json.loads(mirrors.call("verify", "--link", "eu", "--json"))
    assert {each["parts_at"] for each in verified} == {None}
    assert sum(each["end"] for each in verified) == 4


def falls_behind(mirrors: Mirrors) -> None:
    mirrors.until(lambda each: each["state"] == "PAUSED")
    asyncio.run(_write(mirrors.clusters.source, "orders"))
    behind = mirrors.until(lambda each: each["lag_records"] == 1)
    assert behind["lag_bytes"] > 0
    assert behind["lag_ms"] >= 0


def alters(mirrors: Mirrors) -> None:
    wrong = ("alter", "eu", "--set", "flush.evry=1s")
    with pytest.raises(UsageError, match=r"stays as it is.*flush\.evry"):
        mirrors.call(*wrong)
    with pytest.raises(UsageError, match="can't be altered"):
        mirrors.call("alter", "eu", "--set", "source.cluster.alias=us")
    given = ("--set", "topics=orders", "--unset", "flush.every")
    assert mirrors.call("alter", "eu", *given) == "mirror eu is altered\n"
    found = mirrors.until(lambda each: each["topics"].endswith("(?:orders)"))
    assert "flush.every" not in found["settings"]


PATTERNS = st.lists(st.sampled_from(("orders", "users", "a.*", "b|c")), min_size=1).map(",".join)


@given(PATTERNS, PATTERNS, PATTERNS)
def test_what_is_altered_is_what_a_new_mirror_would_have(
    before: str, topics: str, exclude: str
) -> None:
    def created(topics: str, **settings: str) -> dict[str, str]:
        return configuration(
            WantedMirror("eu", "id", {"flush.every": "1s", **settings}, topics, None)
        )

    changes = {"topics": topics, "flush.every": "2s"}
    known = created(topics, **{"flush.every": "2s"})
    assert altered(created(before), changes) == known
    excluding = created(topics, **{"flush.every": "2s", "topics.exclude": exclude})
    assert altered(created(before), changes | {"topics.exclude": exclude}) == excluding
    assert altered(excluding, {"topics.exclude": None}) == known


@pytest.mark.slow
def test_a_mirror_from_its_creation_to_its_end(tmp_path: Path) -> None:
    with two_clusters() as clusters:
        command = ("connect", "--log", clusters.source, "--rest", "127.0.0.1:0")
        with running(*STREAMLOG, *command, cwd=tmp_path) as process:
            service = process.line(r"(http://\S+)").group(1)
            mirrors = Mirrors(clusters, service)
            with pytest.raises(UsageError, match="no topic of this cluster matches 'gone'"):
                mirrors.create(topics="gone")
            with pytest.raises(UsageError, match="has no mirror 'eu': there are none"):
                mirrors.describe()
            said = mirrors.create()
            assert "eu mirrors 2 topics to cluster" in said
            assert "orders, users" in said
            with pytest.raises(ConnectAnswer, match="eu already exists"):
                mirrors.create()
            found = mirrors.until(lambda each: len(each["partitions"]) == 4 and is_done(each))
            assert (found["state"], found["alias"]) == ("RUNNING", "eu")
            assert found["to"] == clusters.target.removeprefix("kafka://")
            assert "eu" in mirrors.call("list")
            verifies(mirrors)
            assert json.loads(mirrors.call("pause", "--link", "eu", "--json")) == {"paused": "eu"}
            falls_behind(mirrors)
            assert mirrors.call("resume", "--link", "eu") == "mirror eu is resumed\n"
            mirrors.until(lambda each: each["state"] == "RUNNING")
            with pytest.raises(UsageError, match="as a whole: --link NAME"):
                mirrors.call("pause", "orders")
            mirrors.until(is_done)
            counts = asyncio.run(_counts(clusters.target, "eu.orders", "eu.users"))
            assert counts == {"eu.orders": 3, "eu.users": 2}
            alters(mirrors)
            assert mirrors.call("delete", "eu") == "mirror eu is deleted\n"
            with pytest.raises(UsageError, match="has no mirror 'eu'"):
                mirrors.describe()
            with pytest.raises(UsageError, match="this cluster itself"):
                clusters.call(
                    *("create", "eu", "--to", clusters.source, "--topics", "orders"),
                    *("--connect", service),
                    at=clusters.source,
                )
            with pytest.raises(UsageError, match="works for cluster"):
                clusters.call(
                    *("create", "eu", "--to", clusters.source, "--topics", ".*"),
                    *("--source", clusters.target, "--connect", service),
                )


def is_done(found: dict[str, Any]) -> bool:
    return bool(found["state"] == "RUNNING" and found["lag_records"] == 0)


def test_what_is_wrong_is_said_before_anything_is_made() -> None:
    with two_clusters() as clusters:
        with pytest.raises(UsageError, match="name the source by --source URL, or by --to URL"):
            clusters.call("create", "eu", "--topics", "orders")
        with pytest.raises(UsageError, match="--to takes no --prefix"):
            clusters.call("create", "eu", "--to", clusters.source, "--topics", "a", "--prefix", "x")
        with pytest.raises(ConnectionLost, match="no broker can be reached, nothing was created"):
            clusters.call("create", "eu", "--to", "kafka://127.0.0.1:1", "--topics", "orders")
        wanted = WantedMirror("eu", "another", {}, "orders", None)
        with pytest.raises(ConnectionLost, match="the service at http"):
            create(Session(), clusters.target, wanted, "http://127.0.0.1:1", as_json=False)
