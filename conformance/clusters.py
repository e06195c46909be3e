"""The clusters: one broker of ours as a process, three of them, and librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from conformance.client import PATIENCE_S
from conformance.mock import MockCluster
from conformance.schemas import REGISTRY
from conformance.witness import PAGE
from tests.cluster.cluster import Cluster

RESTART_S = 10
"""From one broker's end to the next one's, or until that one is back if it takes longer."""
THREE: Mapping[str, str] = {"num.partitions": "4"}
WEB = re.compile(r"web +http://(\S+)")
SERVED = re.compile(r"registry +(http://\S+)")
LISTENING = re.compile(r"listening on ([^ ]+:\d+)")


@contextmanager
def own_broker(
    settings: Mapping[str, str] | None = None, *, others: Sequence[str] = ()
) -> Iterator[str]:
    """`streamlog broker` over an empty directory, with settings by their names; its address.

    `others` are further directories (`log.dirs`). Its page of metrics is in the environment, for
    the witness, and so is its schema registry.
    """
    with tempfile.TemporaryDirectory(prefix="streamlog-conformance-") as folder:
        file = Path(folder) / "broker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in (settings or {}).items()))
        arguments = ["broker", "--data", f"{folder}/data", "--listen", "127.0.0.1:0"]
        for other in others:
            arguments += ["--data", other]
        arguments += ["--flush", "os", "--config", str(file), "--web", "127.0.0.1:0"]
        arguments += ["--registry", "127.0.0.1:0"]
        command = [sys.executable, "-m", "streamlog", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield _address(process)
            finally:
                os.environ.pop(PAGE, None)
                os.environ.pop(REGISTRY, None)
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=PATIENCE_S)


def _address(process: subprocess.Popen[str]) -> str:
    said = ""
    for line in process.stdout or ():
        said += line
        page = WEB.search(line)
        if page is not None:
            os.environ[PAGE] = page[1]
        registry = SERVED.search(line)
        if registry is not None:
            os.environ[REGISTRY] = registry[1]
        found = LISTENING.search(line)
        if found is not None:
            return found[1]
    raise ConnectionError(f"the broker did not start: {said}")


@contextmanager
def three_brokers() -> Iterator[str]:
    """Three brokers, one of which is stopped and started again every 10 s, each in its turn."""
    with (
        tempfile.TemporaryDirectory(prefix="streamlog-conformance-") as folder,
        Cluster(Path(folder), settings=THREE, has_registry=True) as cluster,
    ):
        asyncio.run(cluster.ready())
        os.environ[REGISTRY] = cluster.registry_urls
        over = Event()
        restarts = Thread(target=_restart_in_turn, args=(cluster, over))
        restarts.start()
        try:
            yield cluster.bootstrap
        finally:
            over.set()
            restarts.join()
            os.environ.pop(REGISTRY, None)


def _restart_in_turn(cluster: Cluster, over: Event) -> None:
    due_s = monotonic() + RESTART_S
    for number in itertools.cycle(cluster.nodes):
        if over.wait(max(due_s - monotonic(), 0)):
            return
        due_s = monotonic() + RESTART_S
        asyncio.run(cluster.restart(number))


@contextmanager
def mock_cluster() -> Iterator[str]:
    """One broker, in memory."""
    with MockCluster() as cluster:
        yield cluster.address
