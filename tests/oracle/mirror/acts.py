"""Acts: what happens to the topics and groups of a source, by librdkafka, at random.

No account of the acts is kept: what counts is what the source has in the end. An act that fails
since a broker was struck is part of the history, and so is a record whose acknowledgement is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import admin as admin_side

from tests.oracle.mirror.reading import QUIET, WITHIN_S, Record, bounds, read

_ADMIN: Any = admin_side  # It does not say which of its names are for others.

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS: Final = 3
KEYS: Final = 12
TRANSACTIONAL_IDS: Final = ("till", "shop", "bank")
TRANSACTION_MS: Final = 600_000
"""Longer than a history, so that what is left open stays open."""
ACT_S: Final = 15
"""How long an act waits for an answer."""
FIRST_MS: Final = 1_700_000_000_000
GROUP_TYPES: Final = ("classic", "consumer")
PLAIN, COMPACTED, EMPTY, AGAIN = "plain", "compacted", "empty", "again"
CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    # The records are of 2023, and stay.
    PLAIN: {"retention.ms": "-1"},
    COMPACTED: {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "500",
    },
    EMPTY: {},
    AGAIN: {"retention.ms": "-1"},
}


class Acts:
    """What can happen at a source.

    Args:
        address: the source.
        replicas: those of its topics.
        chance: where all choices come from.
    """

    def __init__(self, address: str, replicas: int, chance: Random) -> None:
        self.address = address
        self.counts: Counter[str] = Counter()
        """How often each act has happened."""
        self.partitions: dict[str, int] = dict.fromkeys(CONFIGS, PARTITIONS)
        self.before_deletion: list[tuple[str, int, list[Record]]] = []
        """What was in each partition of AGAIN each time that it was deleted."""
        self._replicas = replicas
        self._admin = self._new_admin()
        self._chance = chance
        self._producers = {
            codec: Producer(
                {
                    "bootstrap.servers": address,
                    **QUIET,
                    "compression.type": codec,
                    "linger.ms": 5,
                    "enable.idempotence": codec != "none",
                }
            )
            for codec in CODECS
        }
        self._transactional: dict[str, Producer] = {}
        self._open: set[str] = set()
        self._now_ms = FIRST_MS

    def begin(self) -> None:
        """Create the topics, and a first record in some partitions."""
        for name in CONFIGS:
            self._create(name)
        for _ in range(4):
            self._send()

    def act(self) -> None:
        """Let something happen."""
        choices: list[tuple[int, Callable[[], None]]] = [
            (30, self._send),
            (20, self._write_in_transaction),
            (8, self._end_transaction),
            (6, self._delete_head),
            (2, self._add_partition),
            (3, self._change_setting),
            (1, self._create_again),
            (6, self._read_in_group),
            (4, self._commit_by_admin),
            (3 if self._replicas > 1 else 0, self._elect_preferred),
        ]
        (chosen,) = self._chance.choices([act for _, act in choices], [each for each, _ in choices])
        # librdkafka's administrator may never find a coordinator that was restarted.
        self._admin = self._new_admin()
        try:
            chosen()
        except KafkaException as error:
            self.counts[f"{chosen.__name__.strip('_')}: {error.args[0].name()}"] += 1
        else:
            self.counts[chosen.__name__.strip("_")] += 1

    def on_strike(self) -> None:
        """Give up all transactions: librdkafka 2.16 may never get on with them after a restart.

        They stay open at the source, until a producer with the id of one fences it.
        """
        self._transactional.clear()
        self._open.clear()

    def close(self) -> None:
        """Wait for what is on its way. Transactions that are open stay open, one at least."""
        with suppress(KafkaException):
            self._write_in_transaction()
        for each in self._producers.values():
            each.flush(WITHIN_S)

    def _new_admin(self) -> Any:
        settings = {"bootstrap.servers": self.address, "socket.timeout.ms": ACT_S * 1000}
        return _ADMIN.AdminClient({**settings, **QUIET})

    # ---- records ----

    def _send(self) -> None:
        topic = self._chance.choice((PLAIN, PLAIN, COMPACTED, COMPACTED, AGAIN))
        producer = self._producers[self._chance.choice(CODECS)]
        self._write(producer, topic, self._partition(topic), self._chance.randint(1, 40))
        producer.flush(WITHIN_S)

    def _write(self, producer: Producer, topic: str, partition: int, count: int) -> None:
        chance = self._chance
        for _ in range(count):
            self._now_ms += chance.randint(0, 50)
            # Compaction refuses records without a key.
            has_key = topic == COMPACTED or chance.random() < 0.7
            producer.produce(
                topic,
                None if chance.random() < 0.15 else chance.randbytes(chance.randint(0, 80)),
                f"key-{chance.randrange(KEYS)}".encode() if has_key else None,
                partition=partition,
                timestamp=self._now_ms,
                headers=[
                    (f"h{number}", chance.choice((None, b"", chance.randbytes(5))))
                    for number in range(chance.choice((0, 0, 1, 3)))
                ],
            )

    def _partition(self, topic: str) -> int:
        # Not the last one: some partitions stay empty until more are added.
        return self._chance.randrange(self.partitions[topic] - 1)

    # ---- transactions ----

    def _write_in_transaction(self) -> None:
        name = self._chance.choice(TRANSACTIONAL_IDS)
        producer = self._transactional.get(name)
        try:
            if producer is None:
                producer = self._new_transactional(name)
            if name not in self._open:
                producer.begin_transaction()
                self._open.add(name)
            for topic in self._chance.sample((PLAIN, COMPACTED), self._chance.randint(1, 2)):
                self._write(producer, topic, self._partition(topic), self._chance.randint(1, 8))
            producer.flush(ACT_S)
        except KafkaException:
            self._drop(name)
            raise

    def _new_transactional(self, name: str) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                **QUIET,
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_MS,
                "compression.type": self._chance.choice(CODECS),
                "linger.ms": 5,
            }
        )
        producer.init_transactions(ACT_S)
        self._transactional[name] = producer
        return producer

    def _end_transaction(self) -> None:
        if not self._open:
            return
        name = self._chance.choice(sorted(self._open))
        producer = self._transactional[name]
        try:
            if self._chance.random() < 0.3:
                producer.abort_transaction(ACT_S)
            else:
                if self._chance.random() < 0.5:
                    self._send_position(producer)
                producer.commit_transaction(ACT_S)
        except KafkaException:
            self._drop(name)
            raise
        self._open.discard(name)

    def _send_position(self, producer: Producer) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "transactional", **QUIET}
        )
        try:
            producer.send_offsets_to_transaction(
                [self._position()], consumer.consumer_group_metadata(), ACT_S
            )
        finally:
            consumer.close()

    def _drop(self, name: str) -> None:
        """Forget a producer that is of no use any more; the next one with its id fences it."""
        self._transactional.pop(name, None)
        self._open.discard(name)

    # ---- topics ----

    def _create(self, name: str) -> None:
        config = dict(CONFIGS[name])
        created = self._admin.create_topics(
            [_ADMIN.NewTopic(name, PARTITIONS, self._replicas, config=config)]
        )
        created[name].result(ACT_S)
        self.partitions[name] = PARTITIONS

    def _delete_head(self) -> None:
        topic = self._chance.choice((PLAIN, PLAIN, AGAIN))
        partition = self._partition(topic)
        start, end = bounds(self.address, topic, partition)
        # All of it, too: the mirror of what is left begins at the end.
        before = end if self._chance.random() < 0.2 else self._chance.randint(start, end)
        asked = [TopicPartition(topic, partition, before)]
        for done in self._admin.delete_records(asked).values():
            done.result(ACT_S)

    def _add_partition(self) -> None:
        topic = self._chance.choice((PLAIN, COMPACTED, EMPTY))
        count = self.partitions[topic] + 1
        done = self._admin.create_partitions([_ADMIN.NewPartitions(topic, count)])
        done[topic].result(ACT_S)
        self.partitions[topic] = count

    def _change_setting(self) -> None:
        topic = self._chance.choice((PLAIN, EMPTY))
        entry = _ADMIN.ConfigEntry(
            "retention.ms",
            str(self._chance.randint(10**12, 10**13)),
            incremental_operation=_ADMIN.AlterConfigOpType.SET,
        )
        resource = _ADMIN.ConfigResource(
            _ADMIN.ResourceType.TOPIC, topic, incremental_configs=[entry]
        )
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result(ACT_S)

    def _create_again(self) -> None:
        for partition in range(self.partitions[AGAIN]):
            found = read(self.address, AGAIN, partition, isolation="read_uncommitted")
            self.before_deletion.append((AGAIN, partition, found))
        self._admin.delete_topics([AGAIN])[AGAIN].result(ACT_S)
        # The name is free a moment after the deletion was confirmed.
        for _ in range(100):
            with suppress(KafkaException):
                self._create(AGAIN)
                return

    def _elect_preferred(self) -> None:
        self._admin.elect_leaders(ElectionType.PREFERRED, None).result(ACT_S)

    # ---- groups ----

    def _position(self) -> TopicPartition:
        topic = self._chance.choice((PLAIN, COMPACTED))
        partition = self._partition(topic)
        start, end = bounds(self.address, topic, partition)
        return TopicPartition(topic, partition, self._chance.randint(start, end))

    def _read_in_group(self) -> None:
        kind = self._chance.choice(GROUP_TYPES)
        settings = {
            "bootstrap.servers": self.address,
            **QUIET,
            "group.id": f"{kind}-{self._chance.randrange(2)}",
            "group.protocol": kind,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer(settings)
        try:
            consumer.subscribe([PLAIN, COMPACTED])
            if consumer.poll(ACT_S) is not None:
                consumer.consume(self._chance.randint(1, 60), 0.2)
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    def _commit_by_admin(self) -> None:
        group = ConsumerGroupTopicPartitions("reset", [self._position()])
        for done in self._admin.alter_consumer_group_offsets([group]).values():
            done.result(ACT_S)
