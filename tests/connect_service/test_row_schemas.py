"""Schemas in the service: a table's types reach another table, and Parquet files, over a topic."""

from __future__ import annotations

import asyncio
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

from tests.connect_service.running import Client, running
from tests.connectors.sql.databases import rows, run

JSON = {
    "key.converter": "JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "true",
}
CAST = {
    "transforms": "cast,named",
    "transforms.cast.type": "org.apache.kafka.connect.transforms.Cast$Value",
    "transforms.cast.spec": "amount:int16",
    "transforms.named.type": "org.apache.kafka.connect.transforms.SetSchemaMetadata$Value",
    "transforms.named.schema.name": "shop.Order",
}


async def until_rows(url: str, statement: str, wanted: list[tuple[object, ...]]) -> None:
    found: list[tuple[object, ...]] = []
    async with asyncio.timeout(30):
        while found != wanted:
            await asyncio.sleep(0.02)
            try:
                found = rows(url, statement)
            except Exception as error:  # noqa: BLE001 - the table is not there yet
                found = [(str(error),)]


def test_types_of_a_table_reach_a_table_and_files(tmp_path: Path) -> None:
    outside, inside = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    run(
        outside,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, amount BIGINT NOT NULL, price DECIMAL(10, 2),"
        " paid BOOLEAN NOT NULL, day DATE, at TIMESTAMP, part REAL)",
        "INSERT INTO orders VALUES (1, 7, 12.5, 1, '2026-02-03', '2026-02-03 04:05:06', 0.5)",
        "INSERT INTO orders VALUES (2, 8, NULL, 0, NULL, NULL, NULL)",
    )

    async def life(client: Client) -> None:
        source = {
            "connector.class": "SqlSource", "url": outside, "tables": "orders", "poll": "50ms",
            "mode": "incrementing", "incrementing.column": "id", **JSON, **CAST,
        }  # fmt: skip
        sink = {
            "connector.class": "SqlSink", "topics": "orders", "url": inside, "auto.create": "true",
            "auto.evolve": "true", "insert.mode": "upsert", "pk.mode": "record_key",
            "pk.fields": "id", "flush.every": "50ms", **JSON,
        }  # fmt: skip
        files = {
            "connector.class": "Objects", "topics": "orders", "url": str(tmp_path / "lake"),
            "flush.every": "50ms", **JSON,
        }  # fmt: skip
        for name, config in (("in", source), ("out", sink), ("lake", files)):
            status, body = await client.ask("PUT", f"/connectors/{name}/config", config)
            assert status == 201, body
        await until_rows(inside, "SELECT id, amount, price FROM orders ORDER BY id", [
            (1, 7, "12.50"), (2, 8, None),
        ])  # fmt: skip
        run(outside, "ALTER TABLE orders ADD COLUMN note TEXT")
        run(outside, "INSERT INTO orders VALUES (3, 9, 1, 1, NULL, NULL, 2, 'new')")
        await until_rows(inside, "SELECT id, price, note FROM orders ORDER BY id", [
            (1, "12.50", None), (2, None, None), (3, "1.00", "new"),
        ])  # fmt: skip
        await client.until(lambda: len(lake(tmp_path)) == 3)

    async def main() -> None:
        async with asyncio.timeout(60), running(tmp_path / "log") as client:
            await life(client)

    asyncio.run(main())
    declared = rows(inside, "SELECT sql FROM sqlite_master WHERE name = 'orders'")[0][0]
    assert "amount SMALLINT" in str(declared)
    table = pyarrow.dataset.dataset(lake_files(tmp_path)[0]).to_table()
    assert table.schema.field("amount").type == pa.int16()
    assert table.schema.field("price").type == pa.decimal128(10, 2)
    assert table.schema.field("day").type == pa.date32()
    assert table.schema.field("part").type == pa.float64()
    first = lake(tmp_path)[0]
    assert (first["price"], first["paid"], first["day"]) == (
        Decimal("12.50"), True, date(2026, 2, 3),
    )  # fmt: skip
    assert first["at"] == datetime(2026, 2, 3, 4, 5, 6)  # noqa: DTZ001 - the column has no zone


def lake_files(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("lake/**/*.parquet"))


def lake(tmp_path: Path) -> list[dict[str, object]]:
    """Return the rows of the files, by id."""
    found = [pyarrow.dataset.dataset(each).to_table().to_pylist() for each in lake_files(tmp_path)]
    return sorted((row for some in found for row in some), key=lambda row: int(row["id"]))


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_decimal_without_a_scale_goes_through_json(tmp_path: Path, enabled: str) -> None:
    from streamlog.connect import Schema  # noqa: PLC0415 - used here alone
    from streamlog.connect.converters import JsonConverter  # noqa: PLC0415

    converter = JsonConverter(schemas_enable=enabled == "true")
    schema = Schema.of(Decimal)
    data = converter.encode(schema, Decimal("1.2300"))
    found = converter.decode(data)
    assert found == ((schema, Decimal("1.2300")) if enabled == "true" else (None, "1.2300"))
