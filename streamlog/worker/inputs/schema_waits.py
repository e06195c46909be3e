"""Schema waits: records whose schema this worker does not know yet are not taken.

1. Polled records name a schema that the book does not know: the book asks the registry for it. The
   consumer goes back to the first of these records, and their partition is paused.
2. The schema is found: the partition continues. All others have continued meanwhile.
3. It is not found within the book's time: the partition continues too, and each record is an error
   that the policy of its topic handles, because its value can't be read.

Rule: the consumer's position never passes a record that waits, so everything that looks at it (ends
of inputs, savepoints, lags) sees records that are still to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streamlog.client.consumer import Consumer
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import Headers, TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.registry_client import SchemaBook
from streamlog.serdes.registered.framing import KEY_HEADER, VALUE_HEADER, SchemaKey, schema_keys
from streamlog.worker.inputs.assigned_partitions import Pauses
from streamlog.worker.topics.topic_schemas import TopicSchemas

Polled = dict[TopicPartition, RecordColumns]
Marks = Mapping[TopicPartition, Sequence[TimeMark]]


class SchemaWaits:
    """The partitions of one worker that wait for schemas."""

    def __init__(
        self,
        book: SchemaBook,
        topics: Mapping[str, TopicSpec],
        consumer: Consumer,
        pauses: Pauses,
    ) -> None:
        self._book = book
        self._topics = topics
        self._consumer = consumer
        self._pauses = pauses
        self._waiting: dict[TopicPartition, set[SchemaKey]] = {}

    def admit(self, polled: Polled, marks: Marks) -> tuple[Polled, Marks]:
        """Return the records and time marks that can be taken now.

        Args:
            polled: the records that the consumer has returned.
            marks: the time marks that it has returned with them.
        """
        # First: a partition that continues has no records in this poll, which came from others.
        self._continue_settled()
        found, found_marks = dict(polled), dict(marks)
        for part, records in polled.items():
            topic = self._topics.get(part.topic)
            unknown = set() if topic is None else self._unknown(topic, records)
            if topic is None or not unknown:
                continue
            # 1. Offsets 5 to 9 were polled, and 7 has an unknown schema: 5 and 6 are taken. 2. The
            # consumer goes back to 7, so 7 to 9 are read again when the partition continues.
            count = _count_before(topic, records, unknown)
            start = records.offsets[count]
            self._consumer.seek(part, self._consumer.offset_and_metadata(part, start))
            self._waiting[part] = unknown
            self._pauses.hold(self, [part])
            found[part] = records[:count]
            found_marks[part] = [each for each in marks.get(part, ()) if each.offset < start]
        return {part: records for part, records in found.items() if len(records)}, found_marks

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop waiting in partitions that are given up or read from elsewhere."""
        for part in partitions:
            if self._waiting.pop(part, None) is not None:
                self._pauses.let_go(self, [part])

    def close(self) -> None:
        """Ask for no more schemas."""
        self._book.close()

    def reason(self) -> str | None:
        """Return what records wait for; None if none wait."""
        waiting = "; ".join(self._book.waiting()) if self._waiting else ""
        return f"records wait for {waiting}" if waiting else None

    def _continue_settled(self) -> None:
        for part, keys in [*self._waiting.items()]:
            if all(map(self._book.is_settled, keys)):
                self.forget([part])

    def _unknown(self, topic: TopicSpec, records: RecordColumns) -> set[SchemaKey]:
        """Return the schemas of records that are being asked for."""
        keys = _keys_of(topic, records.keys, records.values, records.headers)
        unknown = {key for key in keys if not self._book.is_known(key)}
        if unknown:
            self._book.request(unknown)
        # Without those that were not found: reading such a record is an error, and waits no more.
        return {key for key in unknown if not self._book.is_settled(key)}


def schema_waits_of(
    schemas: TopicSchemas | None,
    topics: Mapping[str, TopicSpec],
    consumer: Consumer,
    pauses: Pauses,
) -> SchemaWaits | None:
    """Return what keeps the records of a worker until their schemas are known.

    None if a registry keeps no schema of its topics.
    """
    return None if schemas is None else SchemaWaits(schemas.book, topics, consumer, pauses)


def _keys_of(
    topic: TopicSpec,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers] | None,
) -> set[SchemaKey]:
    found = schema_keys(topic.value, values, headers, VALUE_HEADER)
    return found | schema_keys(topic.key, keys, headers, KEY_HEADER)


def _count_before(topic: TopicSpec, records: RecordColumns, unknown: set[SchemaKey]) -> int:
    """Return the number of records before the first one of an unknown schema."""
    # Record by record, which is slow, but happens once for each schema that is new here.
    for at, record in enumerate(records):
        headers = [record.headers] if record.headers else None
        if unknown & _keys_of(topic, [record.key], [record.value], headers):
            return at
    return len(records)
