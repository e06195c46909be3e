"""A real Prometheus scrapes three brokers and an app, and each alert is provoked.

The faults are real ones: killed brokers, a disk without space and one that fails, syncs that take
long, a flood of requests and of connections, a group that does not read, a function that never
returns, a record that fails. One alert is left to `test_generate`, which gives its series to
promtool: StreamlogUnreadableBatches, since no broker takes a batch that can't be read.

It takes minutes, so it runs with STREAMLOG_PROFILE=thorough only (`make alerts`).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer as KafkaProducer

from chaos.broker import BrokerProcess
from chaos.cluster import Cluster, running
from chaos.ports import reserved_ports
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.generate.alerts import (
    AlertLimits,
    alert_rules,
    app_alerts,
    cluster_alerts,
    group_alerts,
)
from streamlog.generate.grafana import BOARDS, Board
from streamlog.generate.scrape import scrape_config
from streamlog.record import TopicPartition
from tests.worker.processes import STREAMLOG, Process
from tests.worker.processes import running as process_running

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.environ.get("STREAMLOG_PROFILE") != "thorough",
        reason="takes minutes: with STREAMLOG_PROFILE=thorough (`make alerts`)",
    ),
    pytest.mark.skipif(
        PROMETHEUS is None, reason="prometheus is not installed (Debian's package prometheus)"
    ),
]
HOUR_MS = 3_600_000
WAIT_S = 150
INTERVAL = "2s"
"""Of scrapes, which may take as long: on a busy machine, one second is short."""
GIB = 1024**3
CONNECTIONS = 150
NOT_PROVOKED = {"StreamlogUnreadableBatches"}
APP = """
import time
from streamlog import App, Emit, on_error, tumbling

app = App("shop", log={url!r}, watchdog="1s", commit_interval="100ms", on_error=on_error.dlq())
orders = app.topic("orders", key=str, value=str, partitions=2)
ticks = app.topic("ticks", key=str, value=str, partitions=2)
seen = app.topic("seen", key=str, value=int, partitions=2)

def size(key, value):
    if value == "bad":
        raise ValueError("a bad order")
    if value == "hang":
        time.sleep(3600)
    return len(value)

(
    app.stream(orders)
    .map(lambda k, v: (k, size(k, v)))
    .group_by(lambda k, _: k, name="by-key")
    .reduce(lambda a, b: a + b, name="sizes")
    .changes()
    .to(seen)
)
(
    app.stream(ticks)
    .group_by(lambda k, _: k, name="all-ticks")
    .windowed(tumbling("10s"))
    .emit(Emit.CLOSE)
    .count(name="per-window")
)
if __name__ == "__main__":
    app.main()
"""


class Series(msgspec.Struct):
    """A series of an answer."""

    value: tuple[float, str]


class Firing(msgspec.Struct):
    """An alert of an answer."""

    labels: dict[str, str]
    annotations: dict[str, str]
    state: str


class Data(msgspec.Struct):
    """The data of an answer."""

    result: list[Series] = []
    alerts: list[Firing] = []


class Answer(msgspec.Struct):
    """An answer of Prometheus."""

    data: Data


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1/"
        self.fired: set[str] = set()
        """The names of the alerts that were seen to fire."""

    def _get(self, path: str) -> Data:
        with urllib.request.urlopen(self._base + path, timeout=10) as response:  # noqa: S310 - http
            return msgspec.json.decode(response.read(), type=Answer).data

    def query(self, text: str) -> list[Series]:
        """Return the series of a query, at this moment."""
        return self._get("query?" + urllib.parse.urlencode({"query": text})).result

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        found = [each for each in self._get("alerts").alerts if each.state == "firing"]
        for each in found:
            # What a template that fails leaves.
            assert not [text for text in each.annotations.values() if "<error" in text]
        names = {each.labels["alertname"] for each in found}
        self.fired |= names
        return names

    async def until(self, condition: Callable[[Prometheus], object], what: str) -> None:
        """Wait until a condition of this holds."""
        deadline_s = time.monotonic() + WAIT_S
        while not await asyncio.to_thread(condition, self):
            assert time.monotonic() < deadline_s, f"not in time: {what}; {self.firing()} fire"
            await asyncio.sleep(0.5)

    async def fires(self, *names: str) -> None:
        """Wait until alerts have fired."""
        for name in names:
            await self.until(partial(_is_firing, name), f"{name} fires")

    async def ends(self, *names: str) -> None:
        """Wait until alerts fire no more."""
        for name in names:
            await self.until(partial(_is_quiet, name), f"{name} ends")


def _is_firing(name: str, known: Prometheus) -> bool:
    return name in known.firing()


def _is_quiet(name: str, known: Prometheus) -> bool:
    return name not in known.firing()


@contextmanager
def prometheus(directory: Path, port: int) -> Iterator[Prometheus]:
    command = [
        str(PROMETHEUS),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def cluster_of(directory: Path, ports: list[int]) -> AsyncIterator[Cluster]:
    own = {number: {"web.listener": f"127.0.0.1:{port}"} for number, port in enumerate(ports, 1)}
    own[2]["max.connections.per.ip"] = str(CONNECTIONS)
    async with running(directory, own_settings=own, two_disks=(3,)) as cluster:
        yield cluster


@contextmanager
def worker_of(directory: Path, url: str, port: int) -> Iterator[Process]:
    (directory / "shop.py").write_text(APP.format(url=url))
    command = (*STREAMLOG, "-A", "shop", "worker", "--web", f"127.0.0.1:{port}")
    with process_running(*command, cwd=directory) as process:
        process.line("web .*http")
        yield process


@dataclass
class Drill:
    """The faults, each until its alerts have fired, and ended where they can."""

    directory: Path
    cluster: Cluster
    producer: Producer
    known: Prometheus

    async def order(self, value: str) -> None:
        await self.producer.send("orders", value.encode(), key=b"k")
        await self.producer.flush()

    async def dead_letters(self) -> None:
        await self.order("bad")
        await self.known.fires("StreamlogDeadLetters")

    async def tick(self) -> None:
        """Let the event time of one partition stay behind that of the other one."""
        now_ms = int(time.time() * 1000)
        for partition, at_ms in ((0, now_ms - 60_000), (1, now_ms - 60_000), (0, now_ms)):
            await self.producer.send(
                "ticks", b"t", key=b"k", partition=partition, timestamp_ms=at_ms
            )
            await self.producer.flush()

    async def lag_and_loss(self) -> None:
        old = TopicPartition("old", 0)
        old_ms = int(time.time() * 1000) - HOUR_MS
        for _ in range(2):
            await self.producer.send("old", b"x", partition=0, timestamp_ms=old_ms)
        await self.producer.flush()
        async with self.cluster.log.admin() as admin:
            await admin.alter_group_offsets("readers", {old: 0})
            await self.known.fires("StreamlogGroupLag")
            await admin.delete_records({old: 1})
            await self.known.fires("StreamlogGroupLostRecords")
            await admin.alter_group_offsets("readers", {old: 2})
        await self.known.ends("StreamlogGroupLag")

    async def slow_disks(self) -> None:
        for each in self.cluster.brokers.values():
            each.turn({"sync_ms": 700})
        for _ in range(10):
            await self.order("slow")
        await self.known.fires("StreamlogSlowSync", "StreamlogSlowProduce")
        self.cluster.heal()

    async def full_disk(self) -> None:
        large = self.directory / "large"
        await asyncio.to_thread(subprocess.run, ["fallocate", "-l", "4G", str(large)], check=True)
        await self.known.fires("StreamlogDiskFull")
        large.unlink()
        await self.known.ends("StreamlogDiskFull")

    async def failed_disk(self) -> None:
        broker = self.cluster.brokers[3]
        broker.turn({"sync_eio": 1_000_000})
        await self.spread()
        await self.known.fires("StreamlogDiskFailed")
        await broker.stop()
        broker.turn({})
        await broker.start()
        await self.known.ends("StreamlogDiskFailed", "StreamlogUnderReplicated")

    async def spread(self) -> None:
        """Write to partitions in all directories of all brokers."""
        for partition in range(12):
            await self.producer.send("spread", b"x", partition=partition)
        await self.producer.flush()

    async def too_many_connections(self) -> None:
        broker = self.cluster.brokers[2]
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS + 50):
                _, writer = await asyncio.open_connection(broker.host, broker.port)
                stack.callback(writer.close)
            await self.known.fires("StreamlogConnectionsRefused")

    async def flood(self) -> None:
        """Send a request for each record, as fast as a broker takes them."""
        leader = await self.cluster.leader("noise")
        settings = {
            "bootstrap.servers": leader.address,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "acks": 1,
            # Enough that the broker never waits for them, and few enough that it answers a scrape.
            "max.in.flight": 1_000,
        }
        producers = [KafkaProducer(settings) for _ in range(3)]
        is_over = False

        def work() -> None:
            while not is_over:
                for each in producers:
                    try:
                        each.produce("noise", b"x", partition=0)
                    except BufferError:
                        each.poll(0.01)

        flooding = asyncio.create_task(asyncio.to_thread(work))
        try:
            await self.known.fires("StreamlogBrokerBusy")
        finally:
            is_over = True
            await flooding
            for each in producers:
                each.purge()
                each.flush(10)

    async def lost_brokers(self) -> None:
        """Kill a follower, then the leader, and let the follower lead what it has missed."""
        known, pair = self.known, TopicPartition("pair", 0)
        first = await self._follower("pair")
        second = await self.cluster.leader("pair")
        await first.kill()
        await known.fires("StreamlogBrokerDown", "StreamlogUnderReplicated", "StreamlogUnderMinIsr")
        await self.producer.send("pair", b"missed", partition=0)
        await self.producer.flush()
        await second.kill()
        await known.fires("StreamlogNoController")
        await first.start()
        await known.ends("StreamlogNoController")
        await known.fires("StreamlogOfflinePartitions")
        async with self.cluster.log.admin() as admin:
            assert await admin.elect_leaders([pair], unclean=True) == {pair: None}
        await known.fires("StreamlogUncleanElection")
        await second.start()
        await known.ends(
            "StreamlogBrokerDown",
            "StreamlogOfflinePartitions",
            "StreamlogUnderMinIsr",
            "StreamlogUnderReplicated",
        )

    async def _follower(self, topic: str) -> BrokerProcess:
        (found,) = [each for each in await self.cluster.partitions() if each.topic == topic]
        (number,) = {*found.replicas} - {found.leader}
        return self.cluster.brokers[number]

    async def hang(self) -> None:
        await self.order("hang")
        await self.order("waits")
        await self.known.fires("StreamlogTaskStalled")


def test_each_alert_fires_for_its_fault_and_all_panels_have_data(tmp_path: Path) -> None:
    with reserved_ports(5) as ports:
        asyncio.run(drill(tmp_path, ports))


async def drill(directory: Path, ports: list[int]) -> None:
    *webs, worker_port, own_port = ports
    write_configuration(directory, webs, worker_port)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(cluster_of(directory, webs))
        url = "kafka://" + ",".join(each.address for each in cluster.brokers.values())
        await create_topics(cluster)
        worker = stack.enter_context(worker_of(directory, url, worker_port))
        known = stack.enter_context(prometheus(directory, own_port))
        producer = await stack.enter_async_context(cluster.log.producer())
        here = Drill(directory, cluster, producer, known)
        await begin(here)
        await here.tick()
        await here.dead_letters()
        await here.lag_and_loss()
        await here.slow_disks()
        await here.full_disk()
        await here.failed_disk()
        await here.too_many_connections()
        await known.fires("StreamlogResultHeldBack")
        await here.flood()
        await here.lost_brokers()
        await here.hang()
        for board in set(Board) - {Board.CONNECT}:
            await asyncio.to_thread(check_panels, known, board)
        await asyncio.to_thread(worker.kill)
        await known.fires("StreamlogWorkerDown")
        # Its group waits for the dead member before it assigns shares.
        stack.enter_context(worker_of(directory, url, worker_port))
        await known.fires("StreamlogWorkerUnassigned")
        limits = AlertLimits()
        alerts = [*cluster_alerts(limits), *group_alerts(limits), *app_alerts(limits)]
        assert {alert.name for alert in alerts} - known.fired == NOT_PROVOKED


def write_configuration(directory: Path, webs: list[int], worker_port: int) -> None:
    # A disk of a few GiB less than the one of this machine is "full".
    free = shutil.disk_usage(directory)
    limits = AlertLimits(
        pending="1s",
        pending_warning="1s",
        lag_seconds=20,
        disk_share=free.free / free.total - 2 * GIB / free.total,
        # The flood shares two cores with the brokers, so it can't take all of a broker's time.
        idle_share=0.6,
        flush_seconds=0.3,
        request_seconds=0.5,
    )
    (directory / "streamlog-alerts.yml").write_text(alert_rules(limits))
    brokers = [f"127.0.0.1:{port}" for port in webs]
    config = scrape_config(
        brokers, [f"127.0.0.1:{worker_port}"], cluster="drill", interval=INTERVAL
    )
    (directory / "prometheus.yml").write_text(config)


async def create_topics(cluster: Cluster) -> None:
    async with cluster.log.admin() as admin:
        await admin.create_topics(
            [
                *(NewTopic(name, 2, 3) for name in ("orders", "seen", "old")),
                # Otherwise the broker brings a quiet partition to the time of the other one.
                NewTopic("ticks", 2, 3, {"mark.quiet.ms": "-1"}),
                NewTopic("spread", 12, 3),
                NewTopic("noise", 1, 1),
                NewTopic("pair", 1, 2, {"min.insync.replicas": "1"}),
                NewTopic("strict", 1, 3, {"min.insync.replicas": "3"}),
            ]
        )


async def begin(here: Drill) -> None:
    """Wait until all is well, and no alert fires."""
    known = here.known
    await known.until(_answers, "Prometheus answers")
    await known.until(lambda it: len(it.query("up == 1")) == 4, "all are scraped")
    for number in range(20):
        await here.order(f"order {number}")
    await known.until(
        lambda it: it.query("sum(streamlog_task_records_in_total) >= 20"), "orders read"
    )
    await known.ends("StreamlogWorkerUnassigned", "StreamlogUnderReplicated")
    await asyncio.sleep(6)  # some rounds of all rules
    assert known.firing() == set()


def _answers(known: Prometheus) -> bool:
    try:
        known.query("up")
    except OSError:
        return False
    return True


def check_panels(known: Prometheus, board: Board) -> None:
    _, panels = BOARDS[board]
    for panel in panels:
        for query, _ in panel.queries:
            filled = re.sub(r"\$(cluster|broker|topic|group|worker|connector|link)\b", ".*", query)
            filled = filled.replace("$__rate_interval", "5m")
            assert known.query(filled), f"{board}: {panel.title}: no data for {filled}"
