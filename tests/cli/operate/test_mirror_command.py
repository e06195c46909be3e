"""`streamlog mirror` between two real brokers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from chaos.ports import reserved_ports
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.operate.mirror_command import link_settings, mirror
from streamlog.cli.operate.mirror_promotion import login_here
from streamlog.cli.session import Session, complete_links
from streamlog.cli.topics_command import topics
from streamlog.client.admin import Admin, LinkDescription, NewTopic
from streamlog.errors import ConfigError, ConnectionLost, LogError, UsageError
from streamlog.log import Log
from tests.broker.mirroring.test_mirrors import serving
from tests.broker.node import batch, create, produce

WITHIN_S = 120
FAST = ("--set", "refresh.topics.interval.ms=50")


class Clusters:
    """A source with three topics, and the cluster that the commands are for."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = f"kafka://{source}", f"kafka://{target}"

    def call(self, *arguments: str, at: str = "") -> str:
        """Run a command; return its output, or raise its error."""
        line = [*arguments, "--log", at or self.target]
        result = CliRunner().invoke(mirror, line, obj=Session(), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    def link(self, *more: str, name: str = "east", topics: str = "orders,users") -> str:
        at = ("--source", self.source, "--topics", topics)
        return self.call("create", name, *at, *FAST, *more)

    def mirrors(self, at: str = "") -> dict[str, Any]:
        found = json.loads(self.call("describe", "--json", at=at))
        return {each["name"]: each for each in found["mirrors"]}

    def until(self, holds: Callable[[dict[str, Any]], bool], at: str = "") -> dict[str, Any]:
        """Return the mirrors as soon as a condition holds."""
        deadline = time.monotonic() + WITHIN_S
        while not holds(found := self.mirrors(at)):
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
        context = typer.Context(get_command(mirror), obj=Session())
        context.params["log"] = clusters.target
        assert complete_links(context, "e") == ["east"]
        assert complete_links(context, "w") == []
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
        altered = clusters.call(
            "alter", "spare", "--set", "topics=none", "--unset", "groups", "--json"
        )
        changes = {"topics": "none", "groups": None}
        assert json.loads(altered) == {"altered": "spare", "settings": changes}
        (one, _) = json.loads(clusters.call("list", "--json"))
        assert (one["name"], one["mirrors"], one["troubles"]) == ("east", 2, {})


def call_admin(url: str, question: Callable[[Admin], Awaitable[object]]) -> None:
    async def story() -> None:
        async with Log.open(url) as log:
            await question(log.admin())

    asyncio.run(story())


def send(url: str, topic: str, *values: bytes) -> None:
    async def story() -> None:
        async with Log.open(url) as log, log.producer() as producer:
            sent = [await producer.send(topic, value=each, partition=0) for each in values]
            await asyncio.gather(*sent)

    asyncio.run(story())


def has_all(mirrors: dict[str, Any], name: str, end: int) -> bool:
    """Return whether partition 0 of a mirror has everything, up to a known end."""
    found = mirrors.get(name)
    return (
        found is not None
        and found["lag_records"] == 0
        and (found["partitions"][0]["log_end_offset"] == end)
    )


def test_a_mirror_is_promoted_and_the_old_cluster_follows_by_command_only() -> None:
    with two_clusters() as clusters:
        source, target = clusters.source, clusters.target
        clusters.link()
        clusters.until(lambda each: has_all(each, "orders", 2) and has_all(each, "users", 2))
        for words, why in (
            (("promote", "east", "--topics", "ord", "--yes"), "no mirror to promote; names have"),
            (("promote", "east", "--now", "--json"), "give --yes, too"),
            (("promote", "west", "--now"), "the links are east"),
            (("promote", "east", "--now", "--topics", "ord"), "no mirror to promote; names have"),
            (("fail-back", "east", "--yes"), "no topic of this cluster can follow link east"),
        ):
            with pytest.raises(UsageError, match=why):
                clusters.call(*words)
        line = ("promote", "east", "--now", "--topics", "ord.*", "--log", target)
        asked = CliRunner().invoke(mirror, line, obj=Session(), input="n\n")
        assert asked.exit_code == 1
        assert "orders-0" in asked.stdout
        assert "users" not in asked.stdout
        assert clusters.mirrors()["orders"]["status"] == "ACTIVE"
        done = json.loads(clusters.call(*line[:-2], "--yes", "--json"))
        assert done["promoted"] == ["orders"]
        first, second = done["may_be_missing"]
        assert (first["log_end_offset"], first["source_end_offset"]) == (2, 2)
        assert (first["missing_records"], second["newest_ms"]) == (0, None)
        assert first["newest_ms"] > 0 <= first["silent_ms"]
        assert clusters.mirrors()["orders"]["status"] == "PROMOTED"

        # Both sides go on. The link back names the topic, and that alone changes nothing.
        send(source, "orders", b"late")
        send(target, "orders", b"3", b"4")
        call_admin(target, lambda admin: admin.create_topics([NewTopic("fresh", 1)]))
        back = ("--source", target, "--topics", "orders,fresh,users", *FAST)
        told = clusters.call("create", "back", *back, at=source)
        assert "mirrors 1 topic" in told
        assert "fresh" in told
        there = clusters.until(lambda each: "fresh" in each, at=source)
        assert {*there} == {"fresh"}

        answer = clusters.call("fail-back", "back", "--topics", "o.*", "--yes", "--json", at=source)
        assert json.loads(answer) == {"following": ["orders"]}
        clusters.until(lambda each: has_all(each, "orders", 4), at=source)
        # Partition 1 is empty: its leader epoch is above all those in its log.
        verified = json.loads(clusters.call("verify", "orders", "--json", at=source))
        assert [each["parts_at"] for each in verified] == [None, None]
        with pytest.raises(LogError, match="users of the source mirrors this cluster: promote it"):
            clusters.call("fail-back", "back", "--yes", at=source)
        with pytest.raises(LogError, match="orders of the source mirrors this cluster: promote it"):
            clusters.call("fail-back", "east", "--yes")


def test_a_topic_moves_without_loss_there_and_back_by_command_only() -> None:
    with two_clusters() as clusters:
        source, target = clusters.source, clusters.target
        clusters.link(topics="orders")
        clusters.until(lambda each: "orders" in each)
        send(source, "orders", b"3")
        line = ("promote", "east", "--log", target)
        asked = CliRunner().invoke(mirror, line, obj=Session(), input="n\n")
        assert "will take no records any more" in asked.stdout
        assert clusters.mirrors()["orders"]["status"] == "ACTIVE"
        done = json.loads(clusters.call("promote", "east", "--yes", "--json"))
        assert (done["promoted"], done["is_sealed"], done["trouble"]) == (["orders"], True, "")

        (seal,) = json.loads(clusters.call("describe", "--json", at=source))["seals"]
        assert (seal["topic"], seal["status"], seal["sealed_partitions"]) == ("orders", "MOVED", 2)
        assert "MOVED" in clusters.call("list", at=source)
        shown = CliRunner().invoke(topics, ["describe", "orders", "--log", source], obj=Session())
        assert "takes no records here" in shown.stdout
        with pytest.raises(LogError, match="moves to cluster"):
            send(source, "orders", b"fork")
        with pytest.raises(LogError, match="add --force"):
            clusters.call("unseal", "orders", "--yes", at=source)

        # Back: nothing is cut, and the way home is as safe.
        send(target, "orders", b"4")
        back = ("--source", target, "--topics", "orders", *FAST)
        clusters.call("create", "back", *back, at=source)
        clusters.call("fail-back", "back", "--yes", at=source)
        done = json.loads(clusters.call("promote", "back", "--yes", "--json", at=source))
        assert done["promoted"] == ["orders"]
        verified = clusters.mirrors(at=source)["orders"]
        assert verified["status"] == "PROMOTED"
        send(source, "orders", b"5")
        with pytest.raises(LogError, match="moves to cluster"):
            send(target, "orders", b"fork")
        clusters.call("unseal", "orders", "--force", "--yes")
        send(target, "orders", b"forced")


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
            (f"kafka://127.0.0.1:{port}", "no broker can be reached, nothing was created"),
            ("kafka://no-such-host.invalid:9092", "no-such-host.invalid"),
        ):
            with pytest.raises(ConnectionLost, match=what):
                clusters.call("create", "east", "--source", source, "--topics", ".*")
        with pytest.raises(LogError, match="leads to this cluster itself"):
            clusters.call("create", "self", "--source", clusters.target, "--topics", ".*")
        assert json.loads(clusters.call("list", "--json")) == []


def test_verify_reads_no_file_of_this_machine_that_a_link_names(tmp_path: Path) -> None:
    secret = tmp_path / "id_ed25519"
    secret.write_text("s3cret")
    settings = {
        "bootstrap.servers": "mallory:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "mirror",
        "sasl.password": f"${{file:{secret}}}",
    }
    planted = LinkDescription(
        name="east", source_cluster_id="e", settings=settings, troubles={}, notices={}, mirrors=1
    )
    with pytest.raises(UsageError, match=r"mirror\.allowed\.paths.*--config FILE"):
        login_here(planted, SecurityConfig())
    known = login_here(planted, SecurityConfig(mirror_paths=str(tmp_path)))
    assert known is not None
    assert known.password == "s3cret"


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
