"""Debezium's engine as a peer of `PostgresCdc`: from a slot of its own into a topic of our broker.

It has Debezium Server's defaults, but writes a row as `PostgresCdc` does: by the transform
ExtractNewRecordState and without schemas, which costs it less than its envelope. Offsets are in a
file; it promises at least once. All changes are made once before those that are measured, so that
the JVM has compiled what it runs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import psycopg

from benchmarks.connect.lab import Lab, Trial, lab_process
from conformance.kafka import fetched
from tests.oracle.connect.runner import DEBEZIUM_VERSION
from tests.oracle.java import compile_java
from tests.servers.postgres import PostgresServer

PROGRAM = Path(__file__).parent / "peers" / "DebeziumToKafka.java"
MEMORY = "-Xmx1g"
NAME = "debezium"
"""Of its slot, its publication and the prefix of its topics."""
WARM_UPS = 2
"""How often all rows are changed before the changes that are measured."""


async def debezium(lab: Lab, server: PostgresServer, database: str, records: int) -> Trial:
    """Return what Debezium needs for a change of each row of the table `orders`.

    Args:
        lab: the broker.
        server: the server of the table.
        database: its database.
        records: how many rows the table has.

    Raises:
        Unavailable: Maven, a JDK or the network is missing.
    """
    artifacts = ["debezium-embedded", "debezium-connector-postgres"]
    libraries = fetched(
        f"debezium-postgres-{DEBEZIUM_VERSION}", artifacts, DEBEZIUM_VERSION, group="io.debezium"
    )
    with tempfile.TemporaryDirectory(prefix="streamlog-debezium-") as folder:
        path = compile_java(PROGRAM, Path(folder), libraries)
        engine, producer = Path(folder) / "engine.properties", Path(folder) / "producer.properties"
        engine.write_text(_lines(_engine_settings(server, database, Path(folder))))
        producer.write_text(_lines(_producer_settings(lab)))
        command = ("java", MEMORY, "-cp", path, PROGRAM.stem, str(engine), str(producer))
        part = await lab.create_topic(f"{NAME}.public.orders")
        with (
            psycopg.connect(server.url(database), autocommit=True) as connection,
            lab_process(command, {}, lab.directory / f"{NAME}.log") as peer,
        ):

            async def change() -> None:
                connection.execute("UPDATE orders SET cents = cents + 1")

            await peer.until(lambda: _is_streaming(connection))
            for done in range(1, WARM_UPS + 1):
                await change()
                await peer.until(lambda done=done: lab.has(part, records * done))  # type: ignore[misc]
            end = records * (WARM_UPS + 1)
            trial = await peer.timed(records, change, lambda: lab.has(part, end))
    await lab.check(part, end)
    return trial


async def _is_streaming(connection: psycopg.Connection) -> bool:
    query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
    return bool(connection.execute(query, (NAME,)).fetchall())


def _engine_settings(server: PostgresServer, database: str, folder: Path) -> dict[str, str]:
    return {
        "name": NAME,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "postgres",
        "database.password": "postgres",
        "database.dbname": database,
        "topic.prefix": NAME,
        "table.include.list": "public.orders",
        "plugin.name": "pgoutput",
        "slot.name": NAME,
        "publication.name": NAME,
        "publication.autocreate.mode": "filtered",
        "snapshot.mode": "no_data",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets"),
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    }


def _producer_settings(lab: Lab) -> dict[str, str]:
    serializer = "org.apache.kafka.common.serialization.StringSerializer"
    return {
        "bootstrap.servers": lab.url.removeprefix("kafka://"),
        "key.serializer": serializer,
        "value.serializer": serializer,
    }


def _lines(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
