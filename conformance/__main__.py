"""Runs every client through every feature on both clusters, prints the tables, writes the document.

`python -m conformance --clients kcat --features group` tries a part, and writes nothing. `--only
streamlog` leaves the tables of the others as they are; `--only three` is three brokers of ours, one
of which is restarted every 10 s. It exits with 1 if anything fails on our broker or brokers, or
with our client on Apache Kafka.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Thread

from conformance import document, kcat
from conformance.clusters import mock_cluster, own_broker, three_brokers
from conformance.document import Column, Table
from conformance.features import FEATURES, Feature
from conformance.kafka import apache_kafka
from conformance.mock import beyond
from conformance.own import Own
from conformance.program import CLIENTS, FAIL, MOCK, NOT_SERVED, THREE, Outcome
from conformance.schemas import REGISTRY
from conformance.witness import served

OURS, KAFKA = "streamlog", "kafka"
CLUSTERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    OURS: own_broker,
    THREE: three_brokers,
    MOCK: mock_cluster,
    KAFKA: apache_kafka,
}
BY_DEFAULT = (OURS, MOCK)
"""The others are run when they are asked for by name."""
KEPT = (*BY_DEFAULT, THREE)
"""Apache Kafka's table is printed, not kept: there it is the clients and these programs that are
tried."""
TRIAL_S = 300
"""A feature that takes longer hangs: each step within it has its own, shorter patience."""


def results(client: str, address: str, cluster: str, names: Sequence[str]) -> Iterator[Outcome]:
    """The outcomes of one client; a process that hangs is ended, and the next goes on behind it."""
    left = list(names)
    while left:
        command = [sys.executable, "-m", "conformance.program", client, address, cluster, *left]
        # Topics have a copy on each broker, so that one can be away.
        replicas = {"CONFORMANCE_REPLICAS": "3"} if cluster == THREE else {}
        environment = {**os.environ, **replicas}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            for line in _lines(process):
                said = json.loads(line)
                if "begins" not in said:
                    yield Outcome(**said)
                    left.remove(said["feature"])
            process.kill()
            code = process.wait()
        if left:
            reason = f"the client's process ended with {code}, or took longer than {TRIAL_S} s"
            yield Outcome(left.pop(0), FAIL, reason)


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What it prints, until it ends or is silent for too long."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=TRIAL_S)
        except queue.Empty:
            return
        if line is None:
            return
        yield line


def _unserved(feature: Feature, client: str, cluster: str, keys: set[int]) -> str:
    """Why this cluster can't be tried with it, or nothing."""
    missing = sorted(feature.needs - keys)
    if missing:
        return f"no API {', '.join(map(str, missing))}"
    if feature.shows_pages and cluster != OURS:
        return "one broker of ours shows what clients push"
    if feature.has_schemas and REGISTRY not in os.environ:
        return "the cluster has no schema registry"
    return beyond(feature.name, client) if cluster == MOCK else ""


def tried(cluster: str, clients: Sequence[str], features: Sequence[Feature]) -> Table:
    """All clients on one cluster, one after the other."""
    columns: list[Column] = []
    with CLUSTERS[cluster]() as address:
        keys = served(address)
        for client in CLIENTS:
            if client.name not in clients:
                continue
            if client is kcat.Kcat and kcat.program() is None:
                columns.append(Column(client.name, f"not installed: {kcat.HOW_TO_INSTALL}", {}))
                continue
            why = {
                feature.name: _unserved(feature, client.name, cluster, keys) for feature in features
            }
            cells = {name: Outcome(name, NOT_SERVED, reason) for name, reason in why.items()}
            names = [name for name, reason in why.items() if not reason]
            for found in results(client.name, address, cluster, names):
                detail = f": {found.detail}" if found.detail else ""
                print(f"{cluster}, {client.name}, {found.feature}: {found.result}{detail}")
                cells[found.feature] = found
            columns.append(Column(client.name, client.version(), cells))
    return Table(cluster, columns)


def main() -> int:
    """Command line."""
    names = [feature.name for feature in FEATURES]
    clients = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("--clients", nargs="+", choices=clients, default=clients)
    parser.add_argument("--features", nargs="+", choices=names, default=names)
    parser.add_argument("--only", nargs="+", choices=CLUSTERS, default=BY_DEFAULT)
    wanted = parser.parse_args()
    features = [feature for feature in FEATURES if feature.name in wanted.features]
    tables = [tried(cluster, wanted.clients, features) for cluster in wanted.only]
    for table in tables:
        print(f"\n{document.table(table)}")
    kept = [table for table in tables if table.cluster in KEPT]
    if kept and wanted.clients == clients and wanted.features == names:
        print(f"written to {document.write(kept)}")
    failed = [
        cell
        for table in tables
        for column in table.columns
        if table.cluster in (OURS, THREE) or (table.cluster, column.client) == (KAFKA, Own.name)
        for cell in column.cells.values()
        if cell.result == FAIL
    ]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
