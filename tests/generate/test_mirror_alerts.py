"""A real Prometheus scrapes a cluster that mirrors another one, and each of its alerts is provoked.

The faults are real ones: a source that is killed, one that loses the end of its logs, one whose
disk damages it, and a topic that is deleted at the source.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chaos.broker import BrokerProcess, build_shim
from chaos.ports import reserved_ports
from streamlog.client.admin import MirrorPartitionDescription, NewTopic
from streamlog.generate.alerts import AlertLimits, alert_rules, mirror_alerts
from streamlog.generate.grafana import Board
from streamlog.generate.scrape import scrape_config
from streamlog.log import Log
from tests.generate.test_prometheus import PROMETHEUS, Prometheus, check_panels, prometheus
from tests.worker.processes import STREAMLOG

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
LIMITS = AlertLimits(pending="1s", pending_warning="1s", lag_seconds=15)
TOPICS = ("orders", "users")


class Drill:
    """Two brokers, the second of which mirrors the first, and the faults."""

    def __init__(self, known: Prometheus, source: BrokerProcess, target: BrokerProcess) -> None:
        self.known = known
        self._source = source
        self._target = target
        self._sent = 0

    @asynccontextmanager
    async def brokers(self) -> AsyncIterator[None]:
        """Run both."""
        try:
            await self._source.start()
            await self._target.start()
            yield
        finally:
            for each in (self._source, self._target):
                if each.is_running:
                    await each.kill()

    async def send(self) -> None:
        """Send ten records to each topic of the source, each acknowledged."""
        async with Log.open(f"kafka://{self._source.address}") as log, log.producer() as producer:
            for _ in range(10):
                self._sent += 1
                for topic in TOPICS:
                    await producer.send(topic, value=b"%d" % self._sent, partition=0)

    async def until(self, holds: Callable[[MirrorPartitionDescription], bool]) -> None:
        """Wait until both mirrors are there, and a condition holds for each."""
        async with (
            asyncio.timeout(60),
            Log.open(f"kafka://{self._target.address}") as log,
            log.admin() as admin,
        ):
            while True:
                found = (await admin.describe_mirrors()).mirrors
                parts = [part for each in found for part in each.partitions]
                if len(parts) == len(TOPICS) and all(map(holds, parts)):
                    return
                await asyncio.sleep(0.1)

    def _is_whole(self, part: MirrorPartitionDescription) -> bool:
        return part.log_end_offset == self._sent

    async def begin(self) -> None:
        source = f"kafka://{self._source.address}"
        async with Log.open(source) as log, log.admin() as admin:
            await admin.create_topics([NewTopic(name, partitions=1) for name in TOPICS])
        await self.send()
        at = ("--source", source, "--log", f"kafka://{self._target.address}")
        command = (*STREAMLOG, "mirror", "create", "east", *at, "--topics", ",".join(TOPICS))
        await asyncio.to_thread(subprocess.run, command, check=True)
        await self.until(self._is_whole)
        await self.known.until(_is_up, "the link is up")
        await asyncio.sleep(6)  # some rounds of all rules
        assert self.known.firing() <= {"StreamlogNoController"}

    async def source_away(self) -> None:
        await self._source.kill()
        await self.known.fires("StreamlogMirrorLinkDown", "StreamlogMirrorLag")
        await self._source.start()
        await self.known.ends("StreamlogMirrorLinkDown", "StreamlogMirrorLag")

    async def tail_lost(self) -> None:
        """Take what the source has acknowledged and not synced, as a loss of power does."""
        await self.send()
        await self.until(self._is_whole)
        await self._source.kill()
        self._spoil()
        await self._source.start()
        await self.known.fires("StreamlogMirrorCut")

    async def end_damaged(self) -> None:
        """Damage what the source has synced: the mirrors keep what only they have."""
        await self._source.stop()
        self._spoil()
        await self._source.start()
        await self.until(lambda part: "CORRUPT_MESSAGE" in part.refusal)
        await self.known.fires("StreamlogMirrorLag")
        await self.until(lambda part: part.log_end_offset == self._sent - 10)

    def _spoil(self) -> None:
        for log in self._source.data.glob("p-*-0/*.log"):
            os.truncate(log, log.stat().st_size - 1)

    async def deleted(self) -> None:
        async with Log.open(f"kafka://{self._source.address}") as log, log.admin() as admin:
            await admin.delete_topics(["users"])
        await self.known.fires("StreamlogMirrorStopped")


def _is_up(known: Prometheus) -> bool:
    try:
        return bool(known.query("streamlog_mirror_link_up == 1"))
    except OSError:
        return False


def test_each_alert_of_mirrors_fires_for_its_fault(tmp_path: Path) -> None:
    with reserved_ports(2) as (web, own):
        shim = build_shim(tmp_path)
        source = BrokerProcess(tmp_path / "source", shim)
        settings = {"web.listener": f"127.0.0.1:{web}"}
        target = BrokerProcess(tmp_path / "target", shim, settings=settings)
        (tmp_path / "streamlog-alerts.yml").write_text(alert_rules(LIMITS))
        config = scrape_config([f"127.0.0.1:{web}"], [], cluster="drill", interval="2s")
        (tmp_path / "prometheus.yml").write_text(config)
        with prometheus(tmp_path, own) as known:
            asyncio.run(drill(Drill(known, source, target)))


async def drill(here: Drill) -> None:
    async with here.brokers():
        await here.begin()
        await here.source_away()
        await here.tail_lost()
        await here.end_damaged()
        await here.deleted()
        await asyncio.to_thread(check_panels, here.known, Board.MIRROR)
        assert {alert.name for alert in mirror_alerts(LIMITS)} <= here.known.fired
