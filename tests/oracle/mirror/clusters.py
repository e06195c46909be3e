"""The clusters of a history: the source, Apache Kafka or brokers of ours, and ours that mirrors it.

A strike kills a broker, or ends it in order, and starts it again. It waits for no one, so that what
comes next meets a cluster that is not whole.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, Protocol

from chaos.ports import reserved_ports
from conformance.kafka import NEWEST, ApacheKafka, java, release
from tests.cluster.cluster import Cluster

QUICK_CLEANER: Final = """
log.cleaner.backoff.ms=200
log.cleaner.min.compaction.lag.ms=0
log.flush.start.offset.checkpoint.interval.ms=50
log.initial.task.delay.ms=100
"""
"""Kafka looks for what it can compact every 15 s otherwise. And it writes down every minute which
heads it has deleted: what was deleted since the last time is there again after a kill."""
CHECKPOINT_S: Final = 0.3
SILENT_MS: Final = 30_000
READ: Final = re.compile(r"Partition:(\d+)\s+Offset:(\d+)")


class Side(Protocol):
    """A cluster that can be struck."""

    @property
    def address(self) -> str:
        """Where its brokers are reached, with commas between them."""
        ...

    @property
    def replicas(self) -> int:
        """Those of its topics."""
        ...

    def strike(self, chance: Random) -> str:
        """Let a broker of it end and begin again; return what has happened."""
        ...


def java_reads(address: str, topic: str, group: str) -> list[str]:
    """Return PARTITION:OFFSET of what Kafka's own consumer reads in a group until nothing comes."""
    settings = ("isolation.level=read_committed", "auto.offset.reset=earliest")
    shown = ("print.partition=true", "print.offset=true", "print.value=false")
    done = subprocess.run(
        [
            *java("org.apache.kafka.tools.consumer.ConsoleConsumer", libraries=release(NEWEST)),
            *("--bootstrap-server", address, "--topic", topic, "--group", group),
            *("--timeout-ms", str(SILENT_MS)),
            *(word for each in settings for word in ("--command-property", each)),
            *(word for each in shown for word in ("--formatter-property", each)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found = READ.findall(done.stdout)
    if not found and "TimeoutException" not in done.stderr:
        raise RuntimeError(f"Kafka's consumer has ended with {done.returncode}: {done.stderr}")
    return [f"{partition}:{offset}" for partition, offset in found]


class KafkaSide:
    """One broker of Apache Kafka."""

    replicas = 1

    def __init__(self, broker: ApacheKafka) -> None:
        self._broker = broker

    @property
    def address(self) -> str:
        return self._broker.address

    def strike(self, chance: Random) -> str:
        is_killed = chance.random() < 0.5
        time.sleep(CHECKPOINT_S)
        (self._broker.kill if is_killed else self._broker.stop)()
        self._broker.start()
        return f"Apache Kafka was {'killed' if is_killed else 'stopped'}, and runs again"


class OurSide:
    """Brokers of ours."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        return self._cluster.bootstrap

    @property
    def replicas(self) -> int:
        return len(self._cluster.nodes)

    def strike(self, chance: Random) -> str:
        number = chance.choice([*self._cluster.nodes])
        is_killed = chance.random() < 0.7
        if is_killed:
            self._cluster.kill(number)
        else:
            asyncio.run(self._cluster.stop(number))
        self._cluster.start(number)
        return f"broker {number} was {'killed' if is_killed else 'stopped'}, and runs again"


@contextmanager
def kafka_side(folder: Path) -> Iterator[KafkaSide]:
    """Run Apache Kafka. Raises Unavailable if it can't be had here."""
    libraries = release(NEWEST)
    folder.mkdir()
    with (
        reserved_ports(2) as ports,
        ApacheKafka(folder, ports, libraries=libraries, settings=QUICK_CLEANER) as broker,
    ):
        yield KafkaSide(broker)


@contextmanager
def our_side(folder: Path, brokers: int) -> Iterator[OurSide]:
    """Run brokers of ours."""
    with Cluster(folder, brokers) as cluster:
        asyncio.run(cluster.ready())
        yield OurSide(cluster)
