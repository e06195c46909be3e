"""kafka-python: the protocol in plain Python, blocking."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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

with warnings.catch_warnings():
    # It reads its own files in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import TopicPartition
    from kafka.admin import (
        ConfigResource,
        ConfigResourceType,
        KafkaAdminClient,
        NewPartitions,
        NewTopic,
    )
    from kafka.errors import (
        GroupIdNotFoundError,
        InvalidPartitionsError,
        KafkaError,
        RetriableError,
        TopicAlreadyExistsError,
        UnknownBrokerIdError,
        UnknownTopicOrPartitionError,
    )
    from kafka.structs import OffsetAndMetadata

R = TypeVar("R")
PAUSE_S = 0.2
POLL_MS = 2_000
"""It returns when there is a record. A poll that ends in the middle of a SyncGroup loses the
assignment that comes (3.0.12): the member has nothing, and never asks again."""
MOCK_VERSION = (2, 3)
"""The mock cluster answers a version of ApiVersions that it doesn't know in a form of its own, so
this client has to be told what it talks to."""


class _Writer(Writer):
    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = kafka.KafkaProducer(**settings)

    def write(self, topic: str, records: Sequence[Sent]) -> list[int]:
        receipts = [
            self._producer.send(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        return [receipt.get(PATIENCE_S).offset for receipt in receipts]

    def start(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def send_offset(self, reader: Reader, topic: str, partition: int, offset: int) -> None:
        assert isinstance(reader, _Reader)
        position = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(position, reader.group)

    def close(self) -> None:
        self._producer.close(timeout=PATIENCE_S)


class _Reader(Reader):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.group: str | None = settings["group_id"]
        self._consumer = kafka.KafkaConsumer(**settings)

    def assign(self, topic: str, offsets: Mapping[int, int]) -> None:
        places = {TopicPartition(topic, number): offset for number, offset in offsets.items()}
        self._consumer.assign(list(places))
        for place, offset in places.items():
            self._consumer.seek(place, offset)

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def poll(self) -> list[Got]:
        """It raises while whom it asks for its coordinator is away, or the coordinator is."""
        return [
            Got(each.offset, Sent(each.partition, each.key, each.value, each.timestamp, headers))
            for records in again(lambda: self._consumer.poll(POLL_MS)).values()
            for each in records
            for headers in [tuple(each.headers)]
        ]

    def owns(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def committed(self, topic: str, partition: int) -> int | None:
        offset: int | None = self._consumer.committed(TopicPartition(topic, partition))
        return offset

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        begins: int = self._consumer.beginning_offsets([place])[place]
        ends: int = self._consumer.end_offsets([place])[place]
        return begins, ends

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        place = TopicPartition(topic, partition)
        offset: int = self._consumer.offsets_for_times({place: timestamp_ms})[place].offset
        return offset

    def close(self) -> None:
        self._consumer.close()


def again(ask: Callable[[], R]) -> R:
    """Ask until a broker that is restarted is back, where the library leaves that to its user.

    So it is with what a broker has refused and calls retriable, such as the coordinator of a group
    that another broker has become.
    """
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except (RetriableError, UnknownBrokerIdError):
            if time.monotonic() > until_s:
                raise
        time.sleep(PAUSE_S)


def once(ask: Callable[[], object], done: type[KafkaError]) -> None:
    """Ask again, too; if an attempt got no answer, `done` says that it has taken effect."""
    attempts = 0

    def attempt() -> None:
        nonlocal attempts
        attempts += 1
        try:
            ask()
        except done:
            if attempts == 1:
                raise

    again(attempt)


class _Administrator(Administrator):
    def __init__(self, settings: dict[str, Any]) -> None:
        self._admin = KafkaAdminClient(**settings)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        topic = NewTopic(name, partitions, REPLICAS, topic_configs=dict(configs))
        once(lambda: self._admin.create_topics([topic]), TopicAlreadyExistsError)

    def partitions(self) -> dict[str, int]:
        found = again(lambda: self._admin.describe_topics(self._admin.list_topics()))
        return {each["name"]: len(each["partitions"]) for each in found}

    def add_partitions(self, name: str, count: int) -> None:
        more = {name: NewPartitions(count)}
        once(lambda: self._admin.create_partitions(more), InvalidPartitionsError)

    def delete_topic(self, name: str) -> None:
        once(lambda: self._admin.delete_topics([name]), UnknownTopicOrPartitionError)

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = again(lambda: self._admin.describe_configs([resource], config_filter="all"))
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        again(lambda: self._admin.alter_configs([resource]))

    def subscriptions(self) -> set[str]:
        kind = ConfigResourceType.CLIENT_METRICS
        found = again(lambda: self._admin.list_config_resources([kind]))
        return {name for names in found.values() for name in names}

    def subscription(self, name: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.CLIENT_METRICS, name)
        found = again(lambda: self._admin.describe_configs([resource], config_filter="all"))
        (settings,) = (each[name] for each in found.values())
        return {setting: entry["value"] for setting, entry in settings.items()}

    def set_subscription(self, name: str, settings: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.CLIENT_METRICS, name, dict(settings))
        again(lambda: self._admin.alter_configs([resource]))

    def log_sizes(self, topic: str) -> dict[int, int]:
        found = again(lambda: self._admin.describe_log_dirs([topic]))
        return {
            part["partition_index"]: part["partition_size"]
            for broker in found
            for directory in broker["log_dirs"]
            for each in directory["topics"]
            for part in each["partitions"]
            if each["name"] == topic
        }

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        found = again(lambda: self._admin.delete_records({place: before}))
        begins: int = found[place]["low_watermark"]
        return begins

    def groups(self) -> set[str]:
        return {each["group_id"] for each in again(self._admin.list_groups)}

    def members(self, group: str) -> tuple[str, int]:
        found = again(lambda: self._admin.describe_groups([group]))[group]
        return found["group_state"].lower(), len(found["members"])

    def delete_group(self, group: str) -> None:
        once(lambda: self._admin.delete_groups([group]), GroupIdNotFoundError)

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = again(lambda: self._admin.list_group_offsets({group: places}))[group]
        return {place.partition: each.offset for place, each in found.items() if each.offset >= 0}

    def set_group_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        position = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        again(lambda: self._admin.alter_group_offsets(group, position))

    def delete_group_offset(self, group: str, topic: str, partition: int) -> None:
        places = [TopicPartition(topic, partition)]
        again(lambda: self._admin.delete_group_offsets(group, places))

    def close(self) -> None:
        self._admin.close()


class KafkaPython(Client):
    """Another protocol stack, of the newest versions."""

    name = "kafka-python"

    @classmethod
    def version(cls) -> str:
        found: str = kafka.__version__
        return found

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap_servers": self.address}
        if self.is_mock:
            settings["api_version"] = MOCK_VERSION
        return settings

    def writer(
        self,
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        transactional_id: str | None = None,
    ) -> Writer:
        settings = self._settings() | {
            "compression_type": None if codec == "none" else codec,
            "acks": acks if acks == "all" else int(acks),
            "enable_idempotence": idempotent or transactional_id is not None,
        }
        if transactional_id is not None:
            settings["transactional_id"] = transactional_id
        return _Writer(settings)

    def reader(
        self,
        *,
        group: str | None = None,
        committed_only: bool = False,
        coordinator_assigns: bool = False,
    ) -> Reader:
        if coordinator_assigns:
            return super().reader(coordinator_assigns=True)
        settings = {
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "session_timeout_ms": SESSION_MS,
            "isolation_level": "read_committed" if committed_only else "read_uncommitted",
        }
        return _Reader(self._settings() | settings)

    def admin(self) -> Administrator:
        return _Administrator(self._settings())
