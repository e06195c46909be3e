"""Lakes of the tests: the same questions to both formats, and DuckDB as their reader.

DuckDB has readers of its own for both formats, which share no code with the libraries that write:
for Delta the Delta kernel, for Iceberg its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog

from streamlog.connect import Batch, Schema, Secret, TopicPartition
from streamlog.connectors.lakes.delta import Delta
from streamlog.connectors.lakes.iceberg import Iceberg
from streamlog.record import Record

TOPIC = "shop.orders-1"
PLACE = TopicPartition(TOPIC, 0)
START = datetime(2025, 1, 31, 22, tzinfo=UTC)


def batch_of(
    values: Sequence[Any],
    first: int = 0,
    *,
    place: TopicPartition = PLACE,
    kind: type | None = None,
    keys: Sequence[Any] | None = None,
) -> Batch[Any, Any]:
    """Return records with the given values, a minute apart, with the schema of `kind`."""
    records = [
        Record(
            f"k{first + at}" if keys is None else keys[at],
            value,
            START + timedelta(minutes=first + at),
            (),
            *place,
            first + at,
        )
        for at, value in enumerate(values)
    ]
    schema = None if kind is None else Schema.of(kind)
    return Batch(place, records, next_offset=first + len(values), schema=schema)


@functools.cache
def duck() -> duckdb.DuckDBPyConnection:
    """Return DuckDB with its extensions for both formats, which take a second to load."""
    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg", "delta"):
        package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
        (path,) = package.glob("extensions/*/*.duckdb_extension")
        connection.load_extension(str(path))
    connection.execute("SET TimeZone='UTC'")
    return connection


def ask(selected: str, s3: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of `SELECT selected`; `s3` is the address of a store that it reads."""
    with duck().cursor() as cursor:
        if s3 is not None:
            cursor.execute(
                "CREATE OR REPLACE SECRET (TYPE s3, KEY_ID 'test', SECRET 'test', "
                "REGION 'us-east-1', URL_STYLE 'path', USE_SSL false, "
                f"ENDPOINT '{urlsplit(s3).netloc}')"
            )
        found = cursor.execute("SELECT " + selected)
        names = [each[0] for each in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


class Tables(Protocol):
    """Where the tables of one format are, for a test."""

    def sink(self, **settings: Any) -> Any:
        """Return the sink."""

    def rows(self, columns: str = "*", topic: str = TOPIC) -> list[dict[str, Any]]:
        """Return the rows of a topic's table, read by DuckDB."""

    def commits(self, topic: str = TOPIC) -> int:
        """Return how often the table was committed."""

    def columns(self, topic: str = TOPIC) -> dict[str, str]:
        """Return the table's columns and types, as the writing library sees them."""

    def append_outside(self, rows: pa.Table, topic: str = TOPIC) -> None:
        """Append rows as a program that knows nothing of the sink."""

    def compact(self, topic: str = TOPIC) -> None:
        """Make few files of many, as an operator does."""


class DeltaTables:
    """Delta tables in a directory or in S3."""

    def __init__(self, root: str, s3: str | None = None) -> None:
        self.root, self.s3 = root, s3
        self.options: dict[str, str] = {}
        if s3 is not None:
            self.options = {
                "AWS_ENDPOINT_URL": s3,
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_ALLOW_HTTP": "true",
            }

    def sink(self, **settings: Any) -> Delta:
        secrets = None if self.s3 is None else Secret('{"AWS_SECRET_ACCESS_KEY": "test"}')
        options = {"url": f"{self.root}/{{topic}}", "options": self.options, "secrets": secrets}
        return Delta(**{**options, **settings})

    def _table(self, topic: str) -> DeltaTable:
        secret = {"AWS_SECRET_ACCESS_KEY": "test"} if self.options else {}
        return DeltaTable(f"{self.root}/{topic}", storage_options={**self.options, **secret})

    def rows(self, columns: str = "*", topic: str = TOPIC) -> list[dict[str, Any]]:
        return ask(f"{columns} FROM delta_scan('{self.root}/{topic}')", self.s3)

    def commits(self, topic: str = TOPIC) -> int:
        return self._table(topic).version() + 1

    def columns(self, topic: str = TOPIC) -> dict[str, str]:
        schema = pa.schema(self._table(topic).schema().to_arrow())
        return {each.name: str(each.type) for each in schema}

    def append_outside(self, rows: pa.Table, topic: str = TOPIC) -> None:
        write_deltalake(self._table(topic), rows, mode="append", schema_mode="merge")

    def compact(self, topic: str = TOPIC) -> None:
        self._table(topic).optimize.compact()


class IcebergTables:
    """Iceberg tables in a directory or in S3, with an SQL catalogue."""

    def __init__(self, root: str, catalog: str, s3: str | None = None) -> None:
        self.s3 = s3
        self.properties = {"type": "sql", "uri": catalog, "warehouse": root}
        if s3 is not None:
            self.properties |= {
                "s3.endpoint": s3,
                "s3.region": "us-east-1",
                "s3.access-key-id": "test",
            }

    def sink(self, **settings: Any) -> Iceberg:
        secrets = None if self.s3 is None else Secret('{"s3.secret-access-key": "test"}')
        options = {"table": "lake.{topic}", "properties": self.properties, "secrets": secrets}
        return Iceberg(**{**options, **settings})

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        secret = {"s3.secret-access-key": "test"} if self.s3 else {}
        found = load_catalog("default", **self.properties, **secret)
        yield found
        found.engine.dispose()  # type: ignore[attr-defined]

    def rows(self, columns: str = "*", topic: str = TOPIC) -> list[dict[str, Any]]:
        with self.catalog() as catalog:
            path = catalog.load_table(("lake", topic)).metadata_location
        return ask(f"{columns} FROM iceberg_scan('{path}')", self.s3)

    def commits(self, topic: str = TOPIC) -> int:
        with self.catalog() as catalog:
            return len(catalog.load_table(("lake", topic)).snapshots())

    def columns(self, topic: str = TOPIC) -> dict[str, str]:
        with self.catalog() as catalog:
            fields = catalog.load_table(("lake", topic)).schema().fields
        return {each.name: str(each.field_type) for each in fields}

    def append_outside(self, rows: pa.Table, topic: str = TOPIC) -> None:
        with self.catalog() as catalog:
            table = catalog.load_table(("lake", topic))
            with table.update_schema() as change:
                change.union_by_name(rows.schema)
            table.append(rows)

    def compact(self, topic: str = TOPIC) -> None:
        with self.catalog() as catalog:
            table = catalog.load_table(("lake", topic))
            table.overwrite(table.scan().to_arrow())


KINDS = ("delta", "iceberg")


def local_tables(kind: str, root: Path) -> Tables:
    """Return tables of a format below a directory."""
    if kind == "delta":
        return DeltaTables(str(root / "lake"))
    return IcebergTables(f"file://{root}/lake", f"sqlite:///{root}/catalog.db")


def cloud_tables(kind: str, root: Path, s3: str, name: str) -> Tables:
    """Return tables of a format in a bucket of moto's."""
    if kind == "delta":
        return DeltaTables(f"s3://lake/delta-{name}", s3)
    return IcebergTables(f"s3://lake/iceberg-{name}", f"sqlite:///{root}/catalog.db", s3)
