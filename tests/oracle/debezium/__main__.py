"""`python -m tests.oracle.debezium`: random changes of tables, captured by Debezium and by us.

Both have a slot of their own in one PostgreSQL and the same settings, ours by the name of the Java
class in a Connect service. Each event has to come from both, in the order of its key, with equal
keys, `before`, `after`, `op` and types; of `source`, the fields that we write. A difference has one
of the `REASONS`, or the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg

from conformance.kafka import Unavailable, fetched
from tests.connect_service.running import Client, running
from tests.oracle.connect.runner import DEBEZIUM_VERSION
from tests.oracle.debezium import workload
from tests.oracle.java import JavaProgram
from tests.servers.postgres import PostgresServer
from tests.worker.processes import read_whole

PROGRAM: Final = Path(__file__).parent / "DebeziumEvents.java"
ENGINE_ONLY: Final = {
    "name": "engine",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "poll.interval.ms": "50",
}
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
WAIT_S: Final = 60
SHOWN_MAX: Final = 40
REASONS: Final = {
    "json": "JSON is written anew: without blanks, numbers as Python has them.",
    "enum": "An enum is a plain string, without the names that the type allows.",
    "source": "`lsn` is the transaction's, not the change's; what a snapshot has read has no xid.",
}
"""What differs on purpose, as docs/connect-service.md says."""
Event = dict[str, Any]


def settings_of(server: PostgresServer, name: str, slot: str) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1", "database.port": str(server.port),
        "database.user": "postgres", "database.password": "postgres", "database.dbname": name,
        "topic.prefix": "shop", "table.include.list": "public.plain,public.whole",
        "plugin.name": "pgoutput", "slot.name": slot, "publication.name": slot,
        "publication.autocreate.mode": "filtered", "snapshot.mode": "initial",
    }  # fmt: skip


def parsed(key: str | bytes | None, value: str | bytes | None) -> Event:
    """Return what is compared of an event."""
    found: Event = {"key": json.loads(key or "null"), "value": json.loads(value or "null")}
    plain: Event = {"key": found["key"] and found["key"]["payload"], "value": None}
    if found["value"] is None:
        return plain
    payload, schema = found["value"]["payload"], found["value"]["schema"]
    plain["value"] = {name: payload[name] for name in ("before", "after", "op")}
    plain["source"] = payload["source"]
    plain["name"] = schema["name"]
    after = next(each for each in schema["fields"] if each["field"] == "after")
    plain["types"] = {each["field"]: _type(each) for each in after["fields"]}
    return plain


def _type(schema: Event) -> Event:
    """Return a field's type without `optional` and defaults: ours are optional, as documented."""
    kept = {name: schema[name] for name in ("type", "name", "parameters") if name in schema}
    if "items" in schema:
        kept["items"] = _type(schema["items"])
    return kept


def alike(event: Event) -> Event:
    """Return an event without what differs on purpose."""
    if event["value"] is None:
        return event
    source, value = dict(event["source"]), dict(event["value"])
    source.pop("lsn")
    for name in ("txId", "ts_ms", "snapshot") if value["op"] == "r" else ():
        source.pop(name)
    for side in ("before", "after"):
        if value[side] is not None:
            value[side] = {name: _json_alike(name, each) for name, each in value[side].items()}
    types = {**event["types"], "mood": {"type": event["types"]["mood"]["type"]}}
    return {**event, "source": source, "value": value, "types": types}


def _json_alike(name: str, value: object) -> object:
    is_json = name in ("document", "binary_document") and isinstance(value, str)
    return json.loads(value) if is_json else value


def differences(ours: Event, theirs: Event) -> list[str]:
    """Return what differs, as paths with both values."""
    mine, other = alike(ours), alike(theirs)
    if mine["value"] is not None and other["value"] is not None:
        other = {**other, "source": {name: other["source"].get(name) for name in mine["source"]}}
    return [*_paths("", mine, other)]


def _paths(path: str, mine: object, theirs: object) -> Iterator[str]:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for name in sorted(mine.keys() | theirs.keys()):
            yield from _paths(f"{path}.{name}", mine.get(name), theirs.get(name))
    elif mine != theirs:
        yield f"{path}: ours {mine!r}, Debezium's {theirs!r}"


async def records_of(client: Client) -> dict[str, list[Event]]:
    """Return what our topics have."""
    found: dict[str, list[Event]] = {}
    log = client.service.log
    known = {each.name for each in await log.admin().list_topics()}
    for topic in ("shop.public.plain", "shop.public.whole"):
        records = await read_whole(log, topic) if topic in known else []
        found[topic] = [parsed(each.key, each.value) for _, each in records]
    return found


async def until_there(client: Client, count: int) -> dict[str, list[Event]]:
    async with asyncio.timeout(WAIT_S):
        while sum(map(len, (found := await records_of(client)).values())) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return found


class Engine:
    """Debezium's engine, and what it has sent."""

    def __init__(self, program: JavaProgram, settings: dict[str, str]) -> None:
        self._program = program
        self.events: dict[str, list[Event]] = {}
        program.ask({"start": {**settings, **ENGINE_ONLY}})

    def take(self, count: int) -> list[Event]:
        """Wait for events."""
        answer = self._program.ask({"take": count})
        if "missing" in answer:
            raise AssertionError(f"Debezium sends nothing more: {answer['failure']}")
        found = []
        for each in answer["events"]:
            found.append(parsed(each["key"], each["value"]))
            self.events.setdefault(each["topic"], []).append(found[-1])
        return found

    def take_all(self) -> None:
        """Wait for the last row of each table."""
        ends = 0
        while ends < 2:
            (event,) = self.take(1)
            after = (event["value"] or {}).get("after") or {}
            ends += after.get("id") == workload.END


async def captured(
    server: PostgresServer, program: JavaProgram, folder: Path, seed: int, count: int
) -> tuple[dict[str, list[Event]], dict[str, list[Event]]]:
    """Return what we and Debezium capture of a workload."""
    chance, name = Random(seed), server.create_database()
    config = {**settings_of(server, name, "ours"), "key.converter": JSON, "value.converter": JSON}
    with psycopg.connect(server.dsn(name), autocommit=True) as database:
        workload.prepare(database)
        workload.work(database, chance, count // 4)
        rows = workload.row_count(database)
        async with running(folder) as client:
            body = {"name": "shop", "config": config}
            status, answer = await client.ask("POST", "/connectors", body)
            if status != 201:
                raise AssertionError(answer)
            # Both have read the tables before they change.
            await until_there(client, rows)
            engine = Engine(program, settings_of(server, name, "debezium"))
            await asyncio.to_thread(engine.take, rows)
            await asyncio.to_thread(workload.work, database, chance, count)
            workload.end(database)
            await asyncio.to_thread(engine.take_all)
            ours = await until_there(client, sum(map(len, engine.events.values())))
    return ours, engine.events


def compare(seed: int, count: int) -> int:
    """Run both on one workload; returns the number of events that differ."""
    libraries = fetched(
        f"debezium-postgres-{DEBEZIUM_VERSION}",
        ["debezium-embedded", "debezium-connector-postgres"],
        DEBEZIUM_VERSION,
        group="io.debezium",
    )
    with (
        tempfile.TemporaryDirectory(prefix="streamlog-debezium-") as folder,
        PostgresServer() as server,
        JavaProgram(PROGRAM, libraries) as program,
    ):
        ours, theirs = asyncio.run(captured(server, program, Path(folder), seed, count))
    return report(ours, theirs)


def in_order(events: list[Event]) -> list[Event]:
    """Return events by their keys, those of one key in the order in which they came."""
    # Partitions keep the order of a key, and no other.
    return sorted(events, key=lambda each: json.dumps(each["key"]))


def report(ours: dict[str, list[Event]], theirs: dict[str, list[Event]]) -> int:
    """Print what differs; returns the number of events that do."""
    different, kinds, bad = Counter[str](), Counter[str](), 0
    for topic, expected in theirs.items():
        found = ours[topic]
        if len(found) != len(expected):
            print(f"{topic}: ours {len(found)} events, Debezium's {len(expected)}")
            bad += 1
        for mine, other in zip(in_order(found), in_order(expected), strict=False):
            kinds[(other["value"] or {"op": "tombstone"})["op"]] += 1
            paths = differences(mine, other)
            bad += bool(paths)
            different.update(paths)
    for text, times in different.most_common(SHOWN_MAX):
        print(f"{times} x {text}"[:400])
    for name, why in REASONS.items():
        print(f"differs on purpose: {name}: {why}")
    print(f"{kinds.total()} events {dict(kinds)}: {bad} differ")
    return bad


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.debezium")
    parser.add_argument("--statements", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    try:
        return int(compare(given.seed, given.statements) > 0)
    except Unavailable as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
