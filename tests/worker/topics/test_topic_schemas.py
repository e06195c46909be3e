"""Schemas of a worker: registered before it starts, refused with reasons, awaited for records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamlog import App, on_error
from streamlog.clock import SystemClock
from streamlog.errors import ConfigError, SchemaIncompatible, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.registry_client import RegistryClient, RegistrySettings
from streamlog.serdes.registered import MEMORY_REGISTRY, TopicSchema
from streamlog.worker.program import Program
from streamlog.worker.task_deps import prepare_log
from streamlog.worker.worker import Worker
from tests.registry_client.stub_registry import StubRegistry


@dataclass
class Order:
    shop: str
    amount: int


NEWER = make_dataclass("Order", [("shop", str), ("amount", int), ("note", str)])
WITH_DEFAULT = make_dataclass("Order", [("shop", str), ("amount", int), ("note", str, "none")])
AVRO_ORDER = (
    '{"type":"record","name":"Order","fields":[{"name":"shop","type":"string"},'
    '{"name":"amount","type":"long"}]}'
)


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as found:
        yield found


def writer(
    registry: StubRegistry, value: Any = Order, *, schema: Any = "avro", **options: Any
) -> Program:
    app = App("shop", schema_registry=registry.url)
    orders = app.topic("orders", key=str, value=value, schema=schema, **options)
    app.stream(app.topic("raw", key=str, value=str)).map_values(lambda _: value("ulm", 1)).to(
        orders
    )
    return app.program()


def reader(registry: StubRegistry, value: Any = Order, **options: Any) -> Program:
    app = App("billing", schema_registry=registry.url)
    orders = app.topic("orders", key=str, value=value, schema="avro", **options)
    app.stream(orders).map_values(str).to(app.topic("out", key=str, value=str))
    return app.program()


def start(path: Path, *programs: Program) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{path}/log", listen=False) as log:
            for program in programs:
                found = await prepare_log(program, log, log_url="embedded:", web=None)
                assert found.schemas is not None
                found.schemas.close()

    asyncio.run(main())


def test_a_start_that_lacks_a_source_registers_nothing(
    registry: StubRegistry, tmp_path: Path
) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}/log", listen=False) as log:
            with pytest.raises(UnknownTopicOrPartition, match="'orders', which does not exist"):
                await prepare_log(reader(registry), log, log_url="kafka://there", web=None)

    asyncio.run(main())
    assert registry.subjects == {}


def test_all_sources_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    app = App("shop", state_dir=str(tmp_path / "state"))
    orders = app.topic("orders", key=str, value=str)
    left, right = app.stream(orders), app.stream(app.topic("returns", key=str, value=str))
    left.merge(right).to(app.topic("out", key=str, value=str))

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}/log", listen=False) as log:
            with pytest.raises(
                UnknownTopicOrPartition, match="'orders', 'returns': none exists; create each"
            ):
                await prepare_log(app.program(), log, log_url="kafka://there", web=None)

    asyncio.run(main())


def texts(registry: StubRegistry, subject: str) -> list[str]:
    return [registry.schemas[each - 1]["schema"] for each in registry.subjects.get(subject, [])]


def test_a_writer_registers_its_schema_once(registry: StubRegistry, tmp_path: Path) -> None:
    start(tmp_path, writer(registry), writer(registry))
    assert texts(registry, "orders-value") == [AVRO_ORDER]
    assert registry.asked["POST /subjects/orders-value/versions"] == 1


def test_a_reader_leaves_the_subject_to_the_writers(registry: StubRegistry, tmp_path: Path) -> None:
    start(tmp_path, reader(registry))
    assert registry.subjects == {"billing-orders-value": [1]}


def test_an_incompatible_schema_is_refused_in_words(registry: StubRegistry, tmp_path: Path) -> None:
    start(tmp_path, writer(registry))
    with pytest.raises(SchemaIncompatible) as caught:
        start(tmp_path, writer(registry, NEWER))
    assert caught.value.exit_code == 8
    message = str(caught.value)
    assert message.startswith(
        "app 'shop' does not start, because of its schemas:\n  orders-value: "
    )
    assert "'note'" in message
    assert "(compared with version 1, BACKWARD)" in message
    assert texts(registry, "orders-value") == [AVRO_ORDER]


@dataclass
class Inserted:
    __schema_name__ = "Order"

    shop: str
    customer: str
    count: int


@dataclass
class Moved:
    __schema_name__ = "Order"

    customer: str
    shop: str


@dataclass
class Plain:
    __schema_name__ = "Order"

    shop: str
    customer: str


def test_a_protobuf_field_that_has_moved_is_refused(registry: StubRegistry, tmp_path: Path) -> None:
    start(tmp_path, writer(registry, Plain, schema="protobuf"))
    # Both are text, so no registry sees that each would be read as the other.
    with pytest.raises(SchemaIncompatible, match="`customer` of Order has number 1, and had 2"):
        start(tmp_path, writer(registry, Moved, schema="protobuf"))
    start(tmp_path, writer(registry, Inserted, schema="protobuf"))


def test_a_compatible_schema_is_the_next_version(registry: StubRegistry, tmp_path: Path) -> None:
    start(tmp_path, writer(registry), writer(registry, WITH_DEFAULT))
    assert len(texts(registry, "orders-value")) == 2


def test_the_reasons_of_the_registry_count_too(registry: StubRegistry, tmp_path: Path) -> None:
    start(tmp_path, writer(registry))
    registry.refusals["orders-value"] = ["a rule of this registry"]
    with pytest.raises(SchemaIncompatible, match="orders-value: a rule of this registry"):
        start(tmp_path, writer(registry, WITH_DEFAULT))


def test_a_reader_that_can_not_read_the_latest_version_is_refused(
    registry: StubRegistry, tmp_path: Path
) -> None:
    start(tmp_path, writer(registry))
    with pytest.raises(
        SchemaIncompatible, match="orders-value: version 1, which others write, can't be read"
    ):
        start(tmp_path / "other", reader(registry, NEWER))


def test_with_check_nothing_is_registered(registry: StubRegistry, tmp_path: Path) -> None:
    with pytest.raises(SchemaIncompatible, match="orders-value: the schema is not registered"):
        start(tmp_path, writer(registry, schema_policy="check"))
    assert registry.schemas == []
    start(tmp_path, writer(registry), writer(registry, schema_policy="check"))


def test_off_looks_up_ids_alone(registry: StubRegistry, tmp_path: Path) -> None:
    start(tmp_path, writer(registry, schema_policy="off"))
    assert registry.schemas == []


def test_without_a_registry_the_worker_says_what_to_set(tmp_path: Path) -> None:
    app = App("shop")
    app.topic("orders", key=str, value=Order, schema="avro")
    with pytest.raises(ConfigError, match=r"the schemas of 'orders' need a schema registry"):
        start(tmp_path, app.program())


def test_a_schema_and_a_serde_exclude_each_other() -> None:
    app = App("shop")
    with pytest.raises(ConfigError, match="topic 'orders': the value has a schema and a serde"):
        app.topic(
            "orders",
            key=str,
            value=Order,
            schema="avro",
            value_serde=app.topic("x", key=str, value=Order).spec.value,
        )


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_an_app_with_schemas_is_tested_without_a_registry(form: Any, ids: Any) -> None:
    app = App("shop")
    given = TopicSchema(form, ids=ids)
    orders = app.topic(
        "orders",
        key=str,
        value=Order,
        schema=given,
        key_schema=None if form == "protobuf" else given,
    )
    big = app.topic("big", key=str, value=Order, schema=given)
    app.stream(orders).filter(lambda _, order: order.amount > 1).to(big)
    latest = app.table(orders)
    with app.test() as driver:
        driver.input(orders).send(Order("ulm", 3), key="k")
        driver.input(orders).send(Order("ulm", 1), key="k")
        assert driver.output(big).values == [Order("ulm", 3)]
        assert driver.table(latest).get("k") == Order("ulm", 1)
    assert app.schemas.source is MEMORY_REGISTRY


async def until(found: Any, wanted: Any) -> None:
    async with asyncio.timeout(30):
        while await found() != wanted:  # noqa: ASYNC110 - the log of another task is looked at
            await asyncio.sleep(0.02)


def test_records_wait_for_their_schema_and_others_continue(
    registry: StubRegistry, tmp_path: Path
) -> None:
    """The registry goes down behind the start; a record of a schema that it knows comes later."""
    app = App("billing", schema_registry=registry.url, commit_interval="20ms")
    orders = app.topic("orders", key=str, value=Order, schema="avro", partitions=2)
    out = app.topic("out", key=str, value=str, partitions=1)
    app.stream(orders).map_values(lambda order: order.shop).to(out)
    client = RegistryClient(RegistrySettings.of(registry.url))
    access = App("w", schema_registry=registry.url)
    new = access.topic("orders", key=str, value=WITH_DEFAULT, schema="avro").spec.value
    old = access.topic("orders2", key=str, value=Order, schema="avro").spec.value
    client.register("orders-value", old.schema)  # type: ignore[attr-defined]
    client.register("orders2-value", old.schema)  # type: ignore[attr-defined]

    async def story() -> None:
        url = f"embedded:{tmp_path}/log"
        async with Log.open(url) as log, log.producer() as producer:

            async def shops() -> list[bytes | None]:
                found = await log.read_range(TopicPartition("out", 0))
                return [each.value for each in found]

            async with asyncio.TaskGroup() as group:
                stop = asyncio.Event()
                worker = Worker(app.program(), log_url=url, announce=lambda _: None)
                group.create_task(worker.run(stop))
                await until(partial(topics, log), True)
                await (await producer.send("orders", old.dumps(Order("a", 1)), partition=0))
                await until(shops, [b"a"])
                client.register("orders-value", new.schema)  # type: ignore[attr-defined]
                data = new.dumps(WITH_DEFAULT("b", 2, "x"))
                registry.is_down = True
                await (await producer.send("orders", data, partition=0))
                await (await producer.send("orders", old.dumps(Order("c", 1)), partition=0))
                await (await producer.send("orders", old.dumps(Order("d", 1)), partition=1))
                # The other partition has schemas that are known: it does not wait.
                await until(shops, [b"a", b"d"])
                registry.is_down = False
                await until(shops, [b"a", b"d", b"b", b"c"])
                stop.set()

    async def topics(log: Log) -> bool:
        return {"orders", "out"} <= {each.name for each in await log.admin().list_topics()}

    asyncio.run(story())


class HurriedClock(SystemClock):
    """A clock whose time a test moves ahead, beside its usual pace."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_after_60_s_the_policy_of_the_topic_handles_records_without_a_schema(
    registry: StubRegistry, tmp_path: Path
) -> None:
    """The registry stays down: one record is skipped, and its partition continues."""
    app = App("billing", schema_registry=registry.url, commit_interval="20ms")
    orders = app.topic(
        "orders", key=str, value=Order, schema="avro", partitions=1, on_error=on_error.skip()
    )
    app.stream(orders).map_values(lambda order: order.shop).to(
        app.topic("out", key=str, value=str, partitions=1)
    )
    client, clock = RegistryClient(RegistrySettings.of(registry.url)), HurriedClock()
    serde = orders.spec.value
    client.register("orders-value", serde.schema)  # type: ignore[attr-defined]
    known = b"\0\0\0\0\1"
    unknown = b"\0\0\0\0\7"

    async def story() -> None:
        url = f"embedded:{tmp_path}/log"
        async with Log.open(url) as log, log.producer() as producer:

            async def shops() -> list[bytes | None]:
                return [each.value for each in await log.read_range(TopicPartition("out", 0))]

            async with asyncio.TaskGroup() as group:
                stop, started = asyncio.Event(), asyncio.Event()
                worker = Worker(
                    app.program(), log_url=url, clock=clock, announce=lambda _: started.set()
                )
                group.create_task(worker.run(stop))
                await started.wait()
                for data in (known + b"\2a\2", unknown + b"\2b\2", known + b"\2c\2"):
                    await (await producer.send("orders", data, partition=0))
                    registry.is_down = True
                    await until(shops, [b"a"])

                async def asked() -> bool:
                    return registry.asked["GET /schemas/ids/7"] > 0

                await until(asked, True)
                assert await shops() == [b"a"]
                clock.ahead_ms += 60_000
                await until(shops, [b"a", b"c"])
                stop.set()

    asyncio.run(story())


def test_an_embedded_log_serves_the_registry_of_its_worker(tmp_path: Path) -> None:
    app = App("shop", log=f"embedded:{tmp_path}/log", commit_interval="20ms")
    raw = app.topic("raw", key=str, value=str, partitions=1)
    orders = app.topic("orders", key=str, value=Order, schema="avro", partitions=1)
    app.stream(raw).map_values(lambda shop: Order(shop, 1)).to(orders)
    values: list[bytes | None] = []

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            stop, started = asyncio.Event(), asyncio.Event()
            worker = Worker(app.program(), log_url=app.log, announce=lambda _: started.set())
            group.create_task(worker.run(stop))
            await started.wait()
            async with Log.open(app.log) as log, log.producer() as producer:
                await (await producer.send("raw", b"ulm", partition=0))

                async def count() -> int:
                    found = await log.read_range(TopicPartition("orders", 0))
                    values[:] = [each.value for each in found]
                    return len(values)

                await until(count, 1)
                schemas = await log.read_range(TopicPartition("_schemas", 0))
                assert any(b"orders-value" in (each.key or b"") for each in schemas)
                # Another process on the log finds the registry in the log's directory.
                url = log.registry_url
                assert url is not None
                client = RegistryClient(RegistrySettings.of(url))
                assert await asyncio.to_thread(client.latest, "orders-value") is not None
                joined = asyncio.Event()
                other = Worker(app.program(), log_url=app.log, announce=lambda _: joined.set())
                await other.run(joined)
            stop.set()

    asyncio.run(story())
    assert values == [b"\0\0\0\0\1\6ulm\2"]
