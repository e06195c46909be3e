"""confluent-kafka: librdkafka from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka import admin as admin_side

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
from conformance.schemas import ConfluentSchemas, Schemas

_ADMIN: Any = admin_side  # It does not say which of its names are for others.

POLL_S = 0.1
POLL_RECORDS = 1000
NOTHING_TO_COMMIT = confluent_kafka.KafkaError._NO_OFFSET  # noqa: SLF001 - its public name


class _Writer(Writer):
    def __init__(self, settings: dict[str, object]) -> None:
        self._producer = confluent_kafka.Producer(settings)

    def write(self, topic: str, records: Sequence[Sent]) -> list[int]:
        offsets: dict[int, int] = {}
        refused: list[object] = []

        def delivered(number: int, error: object, message: Any) -> None:
            if error is not None:
                refused.append(error)
            offsets[number] = message.offset()

        for number, record in enumerate(records):
            self._producer.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=partial(delivered, number),
            )
        left = self._producer.flush(PATIENCE_S)
        assert left == 0, f"{left} records are not acknowledged"
        assert not refused, f"refused: {refused}"
        return [offsets[number] for number in range(len(records))]

    def start(self) -> None:
        self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)

    def send_offset(self, reader: Reader, topic: str, partition: int, offset: int) -> None:
        assert isinstance(reader, _Reader)
        position = [TopicPartition(topic, partition, offset)]
        metadata = reader.consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(position, metadata, PATIENCE_S)


class _Reader(Reader):
    def __init__(self, settings: dict[str, object]) -> None:
        self.consumer = confluent_kafka.Consumer(settings)

    def assign(self, topic: str, offsets: Mapping[int, int]) -> None:
        self.consumer.assign([TopicPartition(topic, *each) for each in offsets.items()])

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def poll(self) -> list[Got]:
        found: list[Got] = []
        messages: list[Any] = self.consumer.consume(POLL_RECORDS, POLL_S)
        for message in messages:
            assert message.error() is None, message.error()
            record = Sent(
                message.partition(),
                message.key(),
                message.value(),
                message.timestamp()[1],
                tuple(message.headers() or ()),
            )
            found.append(Got(message.offset(), record))
        return found

    def owns(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def commit(self) -> None:
        try:
            self.consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != NOTHING_TO_COMMIT:
                raise

    def committed(self, topic: str, partition: int) -> int | None:
        (found,) = self.consumer.committed([TopicPartition(topic, partition)], PATIENCE_S)
        offset: int = found.offset
        return offset

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        found: tuple[int, int] = self.consumer.get_watermark_offsets(place, PATIENCE_S)
        return found

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        asked = [TopicPartition(topic, partition, timestamp_ms)]
        (found,) = self.consumer.offsets_for_times(asked, PATIENCE_S)
        offset: int = found.offset
        return offset

    def close(self) -> None:
        self.consumer.close()


def _done(futures: Mapping[Any, Future[Any]]) -> Any:
    (future,) = futures.values()
    return future.result(PATIENCE_S)


class _Administrator(Administrator):
    def __init__(self, address: str) -> None:
        self._admin = _ADMIN.AdminClient({"bootstrap.servers": address})

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        _done(
            self._admin.create_topics(
                [_ADMIN.NewTopic(name, partitions, REPLICAS, config=dict(configs))]
            )
        )

    def partitions(self) -> dict[str, int]:
        found = self._admin.list_topics(timeout=PATIENCE_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def add_partitions(self, name: str, count: int) -> None:
        _done(self._admin.create_partitions([_ADMIN.NewPartitions(name, count)]))

    def delete_topic(self, name: str) -> None:
        _done(self._admin.delete_topics([name]))

    def configs(self, topic: str) -> dict[str, str | None]:
        found = _done(
            self._admin.describe_configs([_ADMIN.ConfigResource(_ADMIN.ResourceType.TOPIC, topic)])
        )
        return {name: entry.value for name, entry in found.items()}

    def set_config(self, topic: str, name: str, value: str) -> None:
        entry = _ADMIN.ConfigEntry(name, value, incremental_operation=_ADMIN.AlterConfigOpType.SET)
        resource = _ADMIN.ConfigResource(
            _ADMIN.ResourceType.TOPIC, topic, incremental_configs=[entry]
        )
        _done(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition, before)
        begins: int = _done(self._admin.delete_records([place])).low_watermark
        return begins

    def groups(self) -> set[str]:
        found = self._admin.list_consumer_groups().result(PATIENCE_S)
        assert not found.errors, found.errors
        return {each.group_id for each in found.valid}

    def members(self, group: str) -> tuple[str, int]:
        found = _done(self._admin.describe_consumer_groups([group]))
        return found.state.name.lower(), len(found.members)

    def delete_group(self, group: str) -> None:
        _done(self._admin.delete_consumer_groups([group]))

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions(
            group, [TopicPartition(topic, number) for number in range(partitions)]
        )
        found = _done(self._admin.list_consumer_group_offsets([asked]))
        return {each.partition: each.offset for each in found.topic_partitions}

    def set_group_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])
        for each in _done(self._admin.alter_consumer_group_offsets([moved])).topic_partitions:
            assert each.error is None, each.error


class Confluent(Client):
    """librdkafka, the newest."""

    name = "confluent-kafka"
    pushes_metrics = True

    @classmethod
    def version(cls) -> str:
        return f"{confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"

    def writer(
        self,
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        transactional_id: str | None = None,
    ) -> Writer:
        settings: dict[str, object] = {
            "bootstrap.servers": self.address,
            "compression.type": codec,
            "acks": acks,
        }
        if idempotent:
            settings["enable.idempotence"] = True
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        return _Writer(settings)

    def reader(
        self,
        *,
        group: str | None = None,
        committed_only: bool = False,
        coordinator_assigns: bool = False,
    ) -> Reader:
        settings: dict[str, object] = {
            "bootstrap.servers": self.address,
            "group.id": group or "of nobody",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
        }
        if coordinator_assigns:
            settings["group.protocol"] = "consumer"
        else:
            settings["heartbeat.interval.ms"] = HEARTBEAT_MS
            settings["session.timeout.ms"] = SESSION_MS
        return _Reader(settings)

    def admin(self) -> Administrator:
        return _Administrator(self.address)

    def schemas(self) -> Schemas:
        return ConfluentSchemas()
