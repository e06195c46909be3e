"""Histories of topics with schemas, while no registry runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.errors import SerdeError
from streamlog.history.stored_schemas import read_stored_schemas
from streamlog.log import Log
from streamlog.registry_client import RegistryClient, RegistrySettings
from streamlog.serdes.registered import RegistrySerde, SchemaKey
from streamlog.worker.topics.topic_schemas import registry_config


@dataclass
class Order:
    shop: str
    amount: int


def shop(path: Path) -> App:
    app = App("shop", log=f"embedded:{path}/log", state_dir=f"{path}/state")
    orders = app.topic("orders", key=str, value=Order, schema="avro", partitions=1)
    by_shop = app.stream(orders).group_by(lambda _, order: order.shop, name="by-shop")
    by_shop.count(name="counts")
    return app


async def fill(app: App) -> None:
    serde = app.topics["orders"].value
    assert isinstance(serde, RegistrySerde)
    config = registry_config(None, app.topics, embedded=app.log)
    async with Log.open(app.log, config=config) as log, log.producer() as producer:
        assert log.registry_url is not None
        await log.admin().create_topics([NewTopic("orders", 1)])
        client = RegistryClient(RegistrySettings.of(log.registry_url))
        await asyncio.to_thread(client.register, "orders-value", serde.schema)
        found = await asyncio.to_thread(client.lookup, "orders-value", serde.schema)
        stored = await read_stored_schemas(log, "shop")
        assert stored.identify("orders-value", serde.schema).id == found.id
        assert stored.find(SchemaKey(found.id)).schema.type == serde.schema.type
        assert stored.find(SchemaKey(None, found.guid)).id == found.id
        with pytest.raises(SerdeError, match=r"its schema \(id 99\) is not in _schemas"):
            stored.find(SchemaKey(99))
        with pytest.raises(SerdeError, match="not registered under 'other-value'"):
            stored.identify("other-value", serde.schema)
        app.schemas.use(stored)
        for name in ("ulm", "ulm", "bonn"):
            await producer.send("orders", serde.dumps(Order(name, 1)), partition=0)


def test_a_history_reads_schemas_from_the_log(tmp_path: Path) -> None:
    app = shop(tmp_path)
    asyncio.run(fill(app))
    snapshot = app.backfill(until="2100-01-01T00:00:00Z").run()
    assert snapshot.offsets["orders", 0] == 3
