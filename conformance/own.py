"""Our own client, over TCP like the others.

Its producers and consumers are left by the task that entered them, so each lives in a thread of its
own, and the calls come from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import Thread
from typing import Generic, TypeVar

from conformance.client import (
    HEARTBEAT_MS,
    PATIENCE_S,
    REPLICAS,
    SESSION_MS,
    Administrator,
    Client,
    Got,
    Reader,
    Sent,
    Writer,
)
from conformance.schemas import OwnSchemas, Schemas
from streamlog.client.admin import Admin, NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerOptions
from streamlog.client.offset_metadata import GroupMetadata
from streamlog.client.producer import Producer, ProducerOptions
from streamlog.client.producer.transaction_session import Transaction
from streamlog.log import Log
from streamlog.record import TopicPartition

POLL_MS = 100

T = TypeVar("T")
R = TypeVar("R")


class _Room(Generic[T]):
    """A context that is entered, used from outside, and left."""

    def __init__(self, enter: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._entered: Future[T] = Future()
        self._left: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._leave = asyncio.Event()
        self._thread = Thread(target=self._run, args=(enter,), daemon=True)
        self._thread.start()
        self.tenant = self._entered.result(PATIENCE_S)

    def _run(self, enter: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._live(enter))
            except Exception as error:  # noqa: BLE001 - it is raised where the room is used
                end = self._left if self._entered.done() else self._entered
                end.set_exception(error)
            else:
                self._left.set_result(None)

    async def _live(self, enter: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        async with enter() as tenant:
            self._entered.set_result(tenant)
            await self._leave.wait()

    def run(self, coroutine: Coroutine[object, object, R]) -> R:
        """Await it inside."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], R]) -> R:
        """Call it inside."""

        async def calling() -> R:
            return function()

        return self.run(calling())

    def close(self) -> None:
        """Leave."""
        self._loop.call_soon_threadsafe(self._leave.set)
        self._left.result(PATIENCE_S)


class _Unwanted(Exception):
    """By which a transaction is left that shall not count."""


class _Writer(Writer):
    def __init__(self, room: _Room[Producer], *, is_acknowledged: bool) -> None:
        self._room = room
        self._is_acknowledged = is_acknowledged
        self._transaction: Transaction | None = None

    def start(self) -> None:
        """Entering the producer has made it known."""

    def begin(self) -> None:
        self._transaction = self._room.run(self._room.tenant.transaction().__aenter__())

    def commit(self) -> None:
        self._room.run(self._begun().__aexit__(None, None, None))

    def abort(self) -> None:
        self._room.run(self._begun().__aexit__(_Unwanted, _Unwanted(), None))

    def send_offset(self, reader: Reader, topic: str, partition: int, offset: int) -> None:
        assert isinstance(reader, _Reader), "a reader of another client"
        place = TopicPartition(topic, partition)
        self._room.run(self._begun().send_offsets({place: offset}, reader.group_metadata()))

    def _begun(self) -> Transaction:
        assert self._transaction is not None, "no transaction was begun"
        return self._transaction

    def write(self, topic: str, records: Sequence[Sent]) -> list[int]:
        producer = self._room.tenant

        async def write() -> list[int]:
            receipts = [
                await producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=record.headers,
                )
                for record in records
            ]
            found = await asyncio.gather(*receipts)
            return [each.offset for each in found] if self._is_acknowledged else []

        return self._room.run(write())

    def close(self) -> None:
        self._room.close()


class _Reader(Reader):
    def __init__(self, room: _Room[Consumer]) -> None:
        self._room = room
        self._consumer = room.tenant

    def assign(self, topic: str, offsets: Mapping[int, int]) -> None:
        places = {TopicPartition(topic, number): offset for number, offset in offsets.items()}

        def assign() -> None:
            self._consumer.assign(places)
            for place, offset in places.items():
                self._consumer.seek(place, offset)

        self._room.call(assign)

    def subscribe(self, topic: str) -> None:
        self._room.run(self._consumer.subscribe([topic]))

    def poll(self) -> list[Got]:
        found = self._room.run(self._consumer.poll(timeout_ms=POLL_MS))
        return [
            Got(
                each.offset,
                Sent(place.partition, each.key, each.value, each.timestamp_ms, each.headers),
            )
            for place, records in found.items()
            for each in records
        ]

    def group_metadata(self) -> GroupMetadata:
        """Who it is to its group."""
        return self._room.call(self._consumer.group_metadata)

    def owns(self) -> set[int]:
        return {each.partition for each in self._room.call(self._consumer.assignment)}

    def commit(self) -> None:
        self._room.run(self._consumer.commit())

    def committed(self, topic: str, partition: int) -> int | None:
        place = TopicPartition(topic, partition)
        return self._room.run(self._consumer.committed([place]))[place]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        begins = self._room.run(self._consumer.begin_offsets([place]))
        ends = self._room.run(self._consumer.end_offsets([place]))
        return begins[place], ends[place]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        place = TopicPartition(topic, partition)
        found = self._room.run(self._consumer.offsets_for_times({place: timestamp_ms}))[place]
        assert found is not None, "no offset for the time"
        return found.offset

    def close(self) -> None:
        self._room.close()


class _Administrator(Administrator):
    def __init__(self, room: _Room[Admin]) -> None:
        self._room = room
        self._admin = room.tenant

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        topic = NewTopic(name, partitions, REPLICAS, configs=dict(configs))
        self._room.run(self._admin.create_topics([topic]))

    def partitions(self) -> dict[str, int]:
        found = self._room.run(self._admin.list_topics())
        return {each.name: each.partitions for each in found}

    def add_partitions(self, name: str, count: int) -> None:
        self._room.run(self._admin.create_partitions(name, count))

    def delete_topic(self, name: str) -> None:
        self._room.run(self._admin.delete_topics([name]))

    def configs(self, topic: str) -> dict[str, str | None]:
        found = self._room.run(self._admin.describe_configs(topic))
        return {name: entry.value for name, entry in found.items()}

    def set_config(self, topic: str, name: str, value: str) -> None:
        self._room.run(self._admin.alter_configs({name: value}, topic=topic))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        return self._room.run(self._admin.delete_records({place: before}))[place]

    def groups(self) -> set[str]:
        return {each.group_id for each in self._room.run(self._admin.list_groups())}

    def members(self, group: str) -> tuple[str, int]:
        (found,) = self._room.run(self._admin.describe_groups([group]))
        return found.state.lower(), len(found.members)

    def delete_group(self, group: str) -> None:
        self._room.run(self._admin.delete_groups([group]))

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = self._room.run(self._admin.group_offsets(group, places))
        return {place.partition: offset for place, offset in found.items()}

    def set_group_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        place = TopicPartition(topic, partition)
        self._room.run(self._admin.alter_group_offsets(group, {place: offset}))

    def delete_group_offset(self, group: str, topic: str, partition: int) -> None:
        place = TopicPartition(topic, partition)
        self._room.run(self._admin.delete_group_offsets(group, [place]))

    def quotas(self, client_id: str) -> dict[str, float]:
        found = self._room.run(self._admin.describe_client_quotas())
        return {
            name: rate
            for each in found
            if each.entity == {"client-id": client_id}
            for name, rate in each.rates.items()
        }

    def set_quota(self, client_id: str, name: str, rate: float) -> None:
        self._room.run(self._admin.alter_client_quotas({"client-id": client_id}, {name: rate}))

    def subscriptions(self) -> set[str]:
        return {*self._room.run(self._admin.list_client_metrics())}

    def subscription(self, name: str) -> dict[str, str | None]:
        found = self._room.run(self._admin.describe_client_metrics(name))
        return {setting: entry.value for setting, entry in found.items()}

    def set_subscription(self, name: str, settings: Mapping[str, str]) -> None:
        self._room.run(self._admin.alter_client_metrics(name, settings))

    def log_sizes(self, topic: str) -> dict[int, int]:
        return {
            place.partition: size_bytes
            for each in self._room.run(self._admin.describe_log_dirs())
            for place, size_bytes in each.sizes.items()
            if place.topic == topic
        }

    def close(self) -> None:
        self._room.close()


class Own(Client):
    """As an app uses it against a cluster."""

    name = "streamlog"
    pushes_metrics = True

    @classmethod
    def version(cls) -> str:
        return ""  # Of the commit that has the table.

    @asynccontextmanager
    async def _producer(self, options: ProducerOptions) -> AsyncIterator[Producer]:
        async with Log.open(f"kafka://{self.address}") as log, log.producer(**options) as producer:
            yield producer

    @asynccontextmanager
    async def _consumer(self, options: ConsumerOptions) -> AsyncIterator[Consumer]:
        async with Log.open(f"kafka://{self.address}") as log, log.consumer(**options) as consumer:
            yield consumer

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[Admin]:
        async with Log.open(f"kafka://{self.address}") as log, log.admin() as admin:
            yield admin

    def writer(
        self,
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        transactional_id: str | None = None,
    ) -> Writer:
        options: ProducerOptions = {"compression": codec}
        if idempotent:
            options |= {"idempotent": True}
        if transactional_id is not None:
            options |= {"transactional_id": transactional_id, "idempotent": True}
        match acks:
            case "0":
                options["acks"] = 0
            case "1":
                options["acks"] = 1
        return _Writer(_Room(lambda: self._producer(options)), is_acknowledged=acks != "0")

    def reader(
        self,
        *,
        group: str | None = None,
        committed_only: bool = False,
        coordinator_assigns: bool = False,
    ) -> Reader:
        options: ConsumerOptions = {
            "group_id": group,
            "group_protocol": "consumer" if coordinator_assigns else "classic",
            "isolation_level": "read_committed" if committed_only else "read_uncommitted",
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "session_timeout_ms": SESSION_MS,
        }
        return _Reader(_Room(lambda: self._consumer(options)))

    def admin(self) -> Administrator:
        return _Administrator(_Room(self._admin))

    def schemas(self) -> Schemas:
        return OwnSchemas()
