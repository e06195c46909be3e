"""aiokafka: asyncio, and the oldest versions of every request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata, TopicPartition

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

POLL_MS = 100
PAUSE_S = 0.1
CLASSIC_GROUP_STATE, CLASSIC_GROUP_MEMBERS = 2, 5
"""Where a description has them: it is a tuple here."""
OF_TOPIC = 1
"""The source of a setting that was made for the topic."""

T = TypeVar("T")


class _Writer(Writer):
    def __init__(self, loop: asyncio.Runner, settings: dict[str, Any]) -> None:
        self._loop = loop

        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(**settings)
            await producer.start()
            return producer

        self._acknowledged = settings["acks"] != 0
        self._producer = loop.run(start())

    def write(self, topic: str, records: Sequence[Sent]) -> list[int]:
        async def write() -> list[int]:
            receipts = [
                await self._producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            found = await asyncio.wait_for(asyncio.gather(*receipts), PATIENCE_S)
            return [each.offset for each in found] if self._acknowledged else []

        return self._loop.run(write())

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def start(self) -> None:
        """Starting the producer has done it."""

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction())

    def send_offset(self, reader: Reader, topic: str, partition: int, offset: int) -> None:
        assert isinstance(reader, _Reader)
        position = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "")}
        self._loop.run(self._producer.send_offsets_to_transaction(position, reader.group))

    def close(self) -> None:
        self._loop.run(self._producer.stop())


class _Reader(Reader):
    def __init__(self, loop: asyncio.Runner, settings: dict[str, Any]) -> None:
        self._loop = loop
        self.group: str | None = settings["group_id"]

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(**settings)
            await consumer.start()
            return consumer

        self._consumer = loop.run(start())

    def assign(self, topic: str, offsets: Mapping[int, int]) -> None:
        places = {TopicPartition(topic, number): offset for number, offset in offsets.items()}

        async def assign() -> None:
            self._consumer.assign(list(places))
            for place, offset in places.items():
                self._consumer.seek(place, offset)

        self._loop.run(assign())

    def subscribe(self, topic: str) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe([topic])

        self._loop.run(subscribe())

    def poll(self) -> list[Got]:
        """It raises while its coordinator is away."""
        found = self._loop.run(again(lambda: self._consumer.getmany(timeout_ms=POLL_MS)))
        return [
            Got(each.offset, Sent(each.partition, each.key, each.value, each.timestamp, headers))
            for records in found.values()
            for each in records
            for headers in [tuple(each.headers)]
        ]

    def owns(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        self._loop.run(again(self._consumer.commit))

    def committed(self, topic: str, partition: int) -> int | None:
        place = TopicPartition(topic, partition)
        offset: int | None = self._loop.run(again(lambda: self._consumer.committed(place)))
        return offset

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        begins = self._loop.run(self._consumer.beginning_offsets([place]))
        ends = self._loop.run(self._consumer.end_offsets([place]))
        return begins[place], ends[place]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        place = TopicPartition(topic, partition)
        found = self._loop.run(self._consumer.offsets_for_times({place: timestamp_ms}))
        offset: int = found[place].offset
        return offset

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


async def again(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until a broker that is restarted is back, where the library leaves that to its user."""
    deadline_s = monotonic() + PATIENCE_S
    while True:
        try:
            return await ask()
        except KafkaError as error:
            if not error.retriable or monotonic() > deadline_s:
                raise
        await asyncio.sleep(PAUSE_S)


class _Administrator(Administrator):
    def __init__(self, loop: asyncio.Runner, address: str) -> None:
        self._loop = loop

        async def start() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=address)
            await admin.start()
            return admin

        self._admin = loop.run(start())

    def _answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """It asks one broker, once."""
        return self._loop.run(again(ask))

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        topic = NewTopic(name, partitions, REPLICAS, topic_configs=dict(configs))
        self._answer(lambda: self._admin.create_topics([topic]))

    def partitions(self) -> dict[str, int]:
        found: list[dict[str, Any]] = self._answer(self._admin.describe_topics)
        return {each["topic"]: len(each["partitions"]) for each in found}

    def add_partitions(self, name: str, count: int) -> None:
        self._answer(lambda: self._admin.create_partitions({name: NewPartitions(count)}))

    def delete_topic(self, name: str) -> None:
        self._answer(lambda: self._admin.delete_topics([name]))

    def configs(self, topic: str) -> dict[str, str | None]:
        return {entry[0]: entry[1] for entry in self._answer(lambda: self._entries(topic))}

    async def _entries(self, topic: str) -> list[Any]:
        """It leaves what is refused to who reads the answer, such as a topic not known yet."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = await self._admin.describe_configs([resource])
        error_code, message, _, _, entries = answer.resources[0]
        if error_code:
            raise for_code(error_code)(message)
        found: list[Any] = entries
        return found

    def set_config(self, topic: str, name: str, value: str) -> None:
        """Its request replaces all settings of a topic, so those that were made go with it."""
        entries = self._answer(lambda: self._entries(topic))
        made = {entry[0]: entry[1] for entry in entries if entry[3] == OF_TOPIC}
        changed = ConfigResource(ConfigResourceType.TOPIC, topic, made | {name: value})
        for done in self._answer(lambda: self._admin.alter_configs([changed])):
            for error_code, message, *_ in done.resources:
                assert error_code == 0, f"error {error_code}: {message}"

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        asked = {place: RecordsToDelete(before_offset=before)}
        begins: int = self._answer(lambda: self._admin.delete_records(asked))[place]
        return begins

    def groups(self) -> set[str]:
        return {each[0] for each in self._answer(self._admin.list_consumer_groups)}

    def members(self, group: str) -> tuple[str, int]:
        (answer,) = self._answer(lambda: self._admin.describe_consumer_groups([group]))
        (found,) = answer.groups
        return found[CLASSIC_GROUP_STATE].lower(), len(found[CLASSIC_GROUP_MEMBERS])

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = self._answer(
            lambda: self._admin.list_consumer_group_offsets(group, partitions=places)
        )
        return {place.partition: each.offset for place, each in found.items() if each.offset >= 0}

    def close(self) -> None:
        self._loop.run(self._admin.close())


class AioKafka(Client):
    """One loop for all members of a group: each runs while another is polled."""

    name = "aiokafka"

    def __init__(self, address: str, *, is_mock: bool) -> None:
        super().__init__(address, is_mock=is_mock)
        self._loop = asyncio.Runner()

    @classmethod
    def version(cls) -> str:
        found: str = aiokafka.__version__
        return found

    def writer(
        self,
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        transactional_id: str | None = None,
    ) -> Writer:
        settings: dict[str, Any] = {
            "bootstrap_servers": self.address,
            "compression_type": None if codec == "none" else codec,
            "acks": acks if acks == "all" else int(acks),
            "enable_idempotence": idempotent or transactional_id is not None,
            "transactional_id": transactional_id,
        }
        return _Writer(self._loop, settings)

    def reader(
        self,
        *,
        group: str | None = None,
        committed_only: bool = False,
        coordinator_assigns: bool = False,
    ) -> Reader:
        if coordinator_assigns:
            return super().reader(coordinator_assigns=True)
        settings: dict[str, Any] = {
            "bootstrap_servers": self.address,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "session_timeout_ms": SESSION_MS,
            "isolation_level": "read_committed" if committed_only else "read_uncommitted",
        }
        return _Reader(self._loop, settings)

    def admin(self) -> Administrator:
        return _Administrator(self._loop, self.address)
