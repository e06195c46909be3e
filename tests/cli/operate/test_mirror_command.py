"""`streamlog mirror` between two real brokers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos.ports import reserved_ports
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.operate.mirror_command import link_settings, mirror
from streamlog.cli.session import Session
from streamlog.errors import ConfigError, ConnectionLost, LogError, UsageError
from tests.broker.mirroring.test_mirrors import serving
from tests.broker.node import batch, create, produce

WITHIN_S = 30
FAST = ("--set", "refresh.topics.interval.ms=50")


class Clusters:
    """A source with three topics, and the cluster that the commands are for."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = f"kafka://{source}", f"kafka://{target}"

    def call(self, *arguments: str) -> str:
        """Run a command; return its output, or raise its error."""
        at = [*arguments, "--log", self.target]
        result = CliRunner().invoke(mirror, at, obj=Session(), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    def link(self, *more: str, name: str = "east", topics: str = "orders,users") -> str:
        at = ("--source", self.source, "--topics", topics)
        return self.call("create", name, *at, *FAST, *more)

    def mirrors(self) -> dict[str, Any]:
        found = json.loads(self.call("describe", "--json"))
        return {each["name"]: each for each in found["mirrors"]}

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the mirrors as soon as a condition holds."""
        deadline = time.monotonic() + WITHIN_S
        while not holds(found := self.mirrors()):
            assert time.monotonic() < deadline, found
        return found


@contextmanager
def two_clusters() -> Iterator[Clusters]:
    """Run two brokers in a thread of their own: a command runs a loop itself."""
    ready, done = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with (
            serving(MemoryFiles()) as (source, at),
            serving(MemoryFiles()) as (_, target_at),
        ):
            for name in ("orders", "users", "other"):
                create(source, name, partitions=2)
                await produce(source, batch(b"1", b"2"), topic=name)
            found.extend((at, target_at))
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(WITHIN_S)
        yield Clusters(*found)
    finally:
        done.set()
        thread.join()


def test_a_link_is_created_described_paused_resumed_and_kept_while_it_mirrors() -> None:
    with two_clusters() as clusters:
        said = clusters.link("--prefix", "eu.")
        assert "link east mirrors 2 topics of cluster" in said
        assert "eu.orders, eu.users" in said
        assert f"streamlog mirror describe east --log {clusters.target}" in said
        active = clusters.until(
            lambda each: (
                len(each) == 2
                and all(
                    one["status"] == "ACTIVE" and one["lag_records"] == 0 for one in each.values()
                )
            )
        )
        orders = active["eu.orders"]
        assert (orders["link"], orders["source_topic"]) == ("east", "orders")
        assert sum(each["log_end_offset"] for each in orders["partitions"]) == 2
        verified = json.loads(clusters.call("verify", "--link", "east", "--json"))
        assert [(each["topic"], each["end"], each["parts_at"]) for each in verified] == [
            *(("eu.orders", 2, None), ("eu.orders", 0, None)),
            *(("eu.users", 2, None), ("eu.users", 0, None)),
        ]
        with pytest.raises(UsageError, match="no mirror"):
            clusters.call("verify", "other")
        assert "2 topics paused: eu.orders, eu.users" in clusters.call("pause", "--link", "east")
        clusters.until(lambda each: {one["status"] for one in each.values()} == {"PAUSED"})
        assert clusters.call("resume", "eu.users", "--json") == '{"resumed": ["eu.users"]}\n'
        clusters.until(lambda each: each["eu.users"]["status"] == "ACTIVE")
        assert clusters.mirrors()["eu.orders"]["status"] == "PAUSED"
        clusters.call("alter", "east", "--set", "topics=users", "--unset", "prefix")
        text = clusters.call("describe", "east")
        assert "topics=users" in text
        assert "prefix" not in text
        assert "PAUSED" in text
        assert "east" in clusters.call("list")
        with pytest.raises(LogError, match="promote or delete them first"):
            clusters.call("delete", "east")
        clusters.link(name="spare")
        clusters.call("alter", "spare", "--set", "topics=nothing")
        (one, _) = json.loads(clusters.call("list", "--json"))
        assert (one["name"], one["mirrors"], one["troubles"]) == ("east", 2, {})


def test_what_is_wrong_with_a_source_is_one_line_before_anything_is_made() -> None:
    with two_clusters() as clusters, reserved_ports(1) as (port,):
        with pytest.raises(UsageError, match="no topic of the source matches 'ord'; its topics: "):
            clusters.link(topics="ord")
        with pytest.raises(ConfigError, match="is no regular expression"):
            clusters.link(topics="ord[")
        with pytest.raises(ConfigError, match=r"did you mean 'bytes\.per\.second'"):
            clusters.link("--set", "byte.per.second=1")
        with pytest.raises(ConfigError, match="is a secret"):
            clusters.link(
                *("--set", "security.protocol=SASL_PLAINTEXT", "--set", "sasl.mechanism=PLAIN"),
                *("--set", "sasl.username=mirror", "--set", "sasl.password=hunter2"),
            )
        with pytest.raises(ConfigError, match="nothing-here, which can't be read"):
            clusters.link("--set", "sasl.password=${file:nothing-here}")
        for source, what in (
            (f"kafka://127.0.0.1:{port}", "the source can't be reached, nothing was created"),
            ("kafka://no-such-host.invalid:9092", "no-such-host.invalid"),
        ):
            with pytest.raises(ConnectionLost, match=what):
                clusters.call("create", "east", "--source", source, "--topics", ".*")
        with pytest.raises(LogError, match="leads to this cluster itself"):
            clusters.call("create", "self", "--source", clusters.target, "--topics", ".*")
        assert json.loads(clusters.call("list", "--json")) == []


def test_a_url_becomes_addresses_and_a_protocol() -> None:
    assert link_settings("kafka://a,b:1", {"prefix": "", "topics": "t"}) == {
        "bootstrap.servers": "a:9092,b:1",
        "topics": "t",
    }
    tls = link_settings("kafka+ssl://a:1", {"sasl.mechanism": "PLAIN"})
    assert tls["security.protocol"] == "SASL_SSL"
    assert link_settings("kafka+ssl://a:1", {})["security.protocol"] == "SSL"
    for url in ("embedded:dir", "east:9092", "kafka://"):
        with pytest.raises(UsageError, match="write kafka://HOST:PORT"):
            link_settings(url, {})
