"""Carried: records on their way between a connector and the log: serdes, transforms, error policy.

A source's records are transformed and then encoded; a sink's are decoded and then transformed. Rows
of a database, which are dicts, become values of the class that the topic declares. A record that
fails there gets the connector's error policy, as does one that the connector itself refuses. `FAIL`
raises a ProcessingError with the record's coordinates.

Rule: here only the last step of a policy decides. A serde and a transform give the same result each
time, so the attempts of `on_error.retry` are for the connector's own calls (`sink_task`). If the
caller tries again, a retriable error is raised instead.
"""

from __future__ import annotations

import logging
import traceback
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, Final, Literal, TypeAlias, get_origin, is_typeddict

import msgspec

from streamlog.connect.connector_errors import ConnectError, Retriable
from streamlog.connect.declared_connectors import SinkConnector, SourceConnector
from streamlog.connect.row_spans import column_spans, spans_of_contents
from streamlog.connect.schema_record import with_read_schemas
from streamlog.connect.sink_rows import SinkRow, SinkRows
from streamlog.connect.source import READ_BYTES_MAX, Read, ReadColumns, Transform
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, StreamlogError, quantity
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.column_batch import deserialize_column, serialize_column
from streamlog.processing.error_handling import (
    CONNECT,
    MESSAGE_CHARACTERS_MAX,
    DeadLetterRecord,
    NodeFailures,
)
from streamlog.processing.outbox import Drop, Reason, SinkBatch
from streamlog.record import Headers, Record, TopicPartition
from streamlog.records.byte_spans import ByteSpans
from streamlog.records.record_columns import RecordColumns, all_of_type, total_bytes
from streamlog.replace import replace
from streamlog.serdes import display_json
from streamlog.serdes.erased_types import AnyRecord, AnySerde, UserValue
from streamlog.serdes.json_values import is_model
from streamlog.serdes.named_columns import NamedColumns
from streamlog.serdes.serde import declared_by

logger = logging.getLogger(__name__)
_NOT_OF_RECORDS: Final = (Retriable, ConfigError)
"""Errors of a serde that are not a record's: its server is away, or one of its settings is wrong.
They pass, as a dead letter would lose a sound record."""
AnyRead: TypeAlias = Read[Any, Any]
"""A read whose types only its source knows."""
SPANS_LEAST: Final = 64
"""The fewest records of a Read that are written into one buffer; the buffer has a price, too."""
UNWRITTEN: Final = -1
"""Partition and offset of a source's record, which the log does not have."""


@dataclass(slots=True)
class CarriedRead:
    """A read as records for the log, with its dead letters."""

    batches: list[SinkBatch] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    may_retry: bool = False
    """Whether an error that may pass is raised, so that the caller tries again, and does not reach
    the policy."""

    @property
    def count(self) -> int:
        """The number of records, dead letters included."""
        return sum(len(batch.values) for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        """The size of keys and values."""
        columns = chain.from_iterable((each.keys, each.values) for each in self.batches)
        return sum(map(_content_bytes, columns))

    def send(self, batch: SinkBatch) -> None:
        """Add a dead letter; the sink of `NodeFailures`."""
        self.batches.append(batch)

    def drop(self, node: str, reason: Reason, count: int = 1, *, message: str = "") -> None:
        """Count dropped records; the sink of `NodeFailures`."""
        self.drops.append(Drop(node, reason, count, message=message))


def _content_bytes(column: Sequence[bytes | None]) -> int:
    return column.content_bytes if isinstance(column, ByteSpans) else total_bytes(column)


def change(record: AnyRecord, transforms: Sequence[Transform]) -> AnyRecord | None:
    """Return a record as the transforms leave it; None if one of them leaves it out."""
    changed: AnyRecord | None = record
    for transform in transforms:
        if changed is None:
            return None
        changed = transform(changed)
    return changed


TRACE_CHARACTERS_MAX: Final = 16 * 1024
"""Limit of the stack trace in a header: the size of a record is limited."""
Stage: TypeAlias = Literal["VALUE_CONVERTER", "TRANSFORMATION", "TASK_PUT", "TASK_POLL"]
"""Where a record failed, by Kafka Connect's names (KIP-298)."""


def context_headers(
    connector: SourceConnector | SinkConnector, task: int, stage: Stage, letter: DeadLetterRecord
) -> Headers:
    """Return the headers that Kafka Connect gives a dead letter (KIP-298), if they are wanted."""
    if not connector.has_context_headers:
        return ()
    inner = connector.source if isinstance(connector, SourceConnector) else connector.sink
    kind, error = type(letter.error), letter.error
    trace = "".join(traceback.format_exception(error))[:TRACE_CHARACTERS_MAX]
    # What a source could not carry has no partition and no offset yet.
    coordinates = (("partition", letter.partition), ("offset", letter.offset))
    found: list[tuple[str, object]] = [
        ("topic", letter.topic),
        *(each for each in coordinates if letter.offset != UNWRITTEN),
        ("connector.name", connector.name),
        ("task.id", task),
        ("stage", stage),
        ("class.name", f"{type(inner).__module__}.{type(inner).__qualname__}"),
        ("exception.class.name", f"{kind.__module__}.{kind.__qualname__}"),
        ("exception.message", str(error)[:MESSAGE_CHARACTERS_MAX]),
        ("exception.stacktrace", trace),
    ]
    return tuple((f"{CONNECT}{name}", str(value).encode(errors="replace")) for name, value in found)


def log_error(
    connector: SourceConnector | SinkConnector, task: int, stage: Stage, letter: DeadLetterRecord
) -> None:
    """Log a record that can't be carried in Kafka Connect's words, if that is wanted."""
    if connector.error_log == "off":
        return
    is_source = isinstance(connector, SourceConnector)
    inner = connector.source if isinstance(connector, SourceConnector) else connector.sink
    where = ""
    if connector.error_log == "records":
        of, written_at = ("source", "") if is_source else (
            "consumed", f", partition={letter.partition}, offset={letter.offset}"
        )  # fmt: skip
        where = (
            f", where {of} record is {{topic='{letter.topic}'{written_at}, "
            f"timestamp={letter.timestamp_ms}}}"
        )
    logger.error(
        "Error encountered in task %s-%d. Executing stage '%s' with class '%s.%s'%s.",
        connector.name, task, stage, type(inner).__module__, type(inner).__qualname__, where,
        exc_info=letter.error,
    )  # fmt: skip


def _give_up(
    connector: SourceConnector | SinkConnector,
    task: int,
    stage: Stage,
    letter: DeadLetterRecord,
    carried: CarriedRead,
) -> None:
    """Let the policy decide on a record, unless its error may pass and is tried again."""
    if carried.may_retry and isinstance(letter.error, StreamlogError) and letter.error.retriable:
        raise letter.error
    log_error(connector, task, stage, letter)
    context = context_headers(connector, task, stage, letter)
    failures = NodeFailures(connector.name, connector.policy, "", carried)
    failures.give_up(replace(letter, context=context))


class SourceCarrier:
    """Makes records for the log of what a source reads."""

    def __init__(self, connector: SourceConnector, task: int = 0) -> None:
        self._connector, self._task = connector, task
        self.retries = connector.retries
        self._name, self._transforms = connector.name, connector.transforms
        self.may_block = any(map(may_block, connector.topics.values()))
        """Whether `carry` may wait for a server, so that it belongs on a thread."""

    def carry(self, read: AnyRead, now: datetime, *, may_retry: bool = False) -> CarriedRead:
        """Return the records of a read.

        Args:
            read: what the source has read.
            now: the time.
            may_retry: whether the caller tries again after an error that may pass.

        Raises:
            StreamlogError: a transform or a serde failed with a retriable error, and may be tried
                again.
            ProcessingError: a record fails, and the policy is `FAIL`.
            ConnectError: the read is larger than one transaction may be.
            ConfigError: a record names a topic that the source does not feed, or a setting of its
                serde is wrong.
            Retriable: a serde's server does not answer; carry the read again.
        """
        carried = CarriedRead(may_retry=may_retry)
        columns, connector = read.read_columns, self._connector
        is_raw = columns is not None and columns.is_raw
        # The bytes of a raw Read need no record each, as this is the way of every log line.
        as_columns = connector.keeps_raw if is_raw else not self._transforms
        as_columns = as_columns and (is_raw or not connector.needs_schemas)
        if columns is None or not as_columns or not self._carry_columns(columns, carried, now):
            records = read.records(now)
            if connector.needs_schemas:
                # Before the transforms, which change rows and schemas together.
                schemas = read.key_schema, read.schema
                records = [with_read_schemas(record, *schemas) for record in records]
            self._carry_records(records, carried, is_bytes=is_raw)
        if (size_bytes := carried.size_bytes) > READ_BYTES_MAX:
            raise ConnectError(
                f"source {self._name!r} yields a Read of {quantity(size_bytes, 'byte')}; one"
                f" Read is written in one transaction and may have {READ_BYTES_MAX}: yield smaller"
                " ones"
            )
        return carried

    def refuse(self, error: Exception, now: datetime) -> CarriedRead:
        """Return what the policy makes of a record that the source could not read.

        Raises:
            ProcessingError: the policy is `FAIL`.
        """
        carried = CarriedRead()
        spec = next(iter(self._connector.topics.values()))
        nothing: AnyRecord = Record(None, None, now)
        letter = self._letter(spec.name, nothing, error, key=None, value=None)
        _give_up(self._connector, self._task, "TASK_POLL", letter, carried)
        return carried

    def _carry_columns(self, columns: ReadColumns, carried: CarriedRead, now: datetime) -> bool:
        """Add records as columns, for which none is made; False if one of them can't be encoded."""
        spec = self._connector.topic_of(columns.topic)
        count = len(columns.values)
        times = columns.timestamps_ms
        if times is None:
            times = array("q", [when_ms(now)]) * count
        keys: Sequence[Any] | None = columns.keys
        values: Sequence[Any] = columns.values
        if not columns.is_raw:
            try:
                if keys is None:
                    values = self._column(spec.value, values, is_bytes=False)
                else:
                    keys, values = self._columns(spec, keys, values, is_bytes=False)
            except _NOT_OF_RECORDS:
                raise
            except Exception:  # noqa: BLE001 - any serde's: the other way finds the record
                return False
        if keys is None:
            keys = ByteSpans.nulls(count) if isinstance(values, ByteSpans) else [None] * count
        if count:
            carried.batches.append(
                SinkBatch(
                    spec.name,
                    None,
                    times,
                    keys,
                    values,
                    columns.headers,
                    partitioner=spec.partitioner,
                )
            )
        return True

    def _carry_records(
        self,
        records: Sequence[AnyRecord],
        carried: CarriedRead,
        *,
        is_bytes: bool,
    ) -> None:
        changed = [*self._changed(records, carried)] if self._transforms else records
        # Most sources have one topic: then nothing is dealt out.
        topics = {record.topic for record in changed}
        by_topic: dict[str, Sequence[AnyRecord]] = dict.fromkeys(topics, changed)
        if len(topics) > 1:
            by_topic = _by_topic(changed)
        for topic, some in by_topic.items():
            self._encode(self._connector.topic_of(topic), some, carried, is_bytes=is_bytes)

    def _changed(self, records: Sequence[AnyRecord], carried: CarriedRead) -> Iterator[AnyRecord]:
        for record in records:
            try:
                changed = change(record, self._transforms)
            except Exception as error:  # noqa: BLE001 - the user's code: that is what policies are for
                self._drop(record, error, carried, "TRANSFORMATION")
                continue
            if changed is not None:
                yield changed

    def _encode(
        self,
        spec: TopicSpec,
        records: Sequence[AnyRecord],
        carried: CarriedRead,
        *,
        is_bytes: bool,
    ) -> None:
        """Add the records of one topic; columns first, and one by one where that fails."""
        try:
            keys, values = self._columns(
                spec,
                [record.key for record in records],
                [record.value for record in records],
                is_bytes=is_bytes,
            )
        except _NOT_OF_RECORDS:
            raise
        except Exception as error:  # noqa: BLE001 - any serde's: a policy decides
            if len(records) > 1:
                # The column does not say which record it was. The order of the others stays.
                for record in records:
                    self._encode(spec, [record], carried, is_bytes=is_bytes)
                return
            self._drop(records[0], error, carried, "VALUE_CONVERTER")
            return
        headers: list[Headers] | None = [record.headers for record in records]
        if not any(headers or ()):
            headers = None
        times = _times_ms([record.timestamp for record in records])
        carried.batches.append(
            SinkBatch(spec.name, None, times, keys, values, headers, partitioner=spec.partitioner)
        )

    def _column(
        self, serde: AnySerde, column: Sequence[Any], *, is_bytes: bool
    ) -> Sequence[bytes | None]:
        if is_bytes and all(isinstance(each, bytes | None) for each in column):
            return column
        is_table = isinstance(column, NamedColumns)
        rows = column if is_table else declare_rows(serde, column)
        # All that a commit writes is held until then: in objects of their own, its records would
        # be so much memory that the system clears it anew for each commit.
        if is_table or len(rows) >= SPANS_LEAST:
            spans = column_spans(serde, rows)
            if spans is not None:
                return spans
        return serialize_column(serde, declare_rows(serde, rows) if is_table else rows)

    def _columns(
        self,
        spec: TopicSpec,
        keys: Sequence[Any],
        values: Sequence[Any],
        *,
        is_bytes: bool,
    ) -> tuple[Sequence[bytes | None], Sequence[bytes | None]]:
        """Return keys and values as their serdes write them; the keys as the values, in a buffer.

        Raises:
            Exception: any serde's; it does not say which record it was.
        """
        # Keys first, as Connect does: where schemas are registered, theirs gets the lower id.
        found = self._column(spec.key, keys, is_bytes=is_bytes)
        written = self._column(spec.value, values, is_bytes=is_bytes)
        if isinstance(written, ByteSpans):
            if not isinstance(found, ByteSpans):
                found = spans_of_contents(found) or found
        elif isinstance(found, ByteSpans):
            found = list(found)
        return found, written

    def _drop(
        self, record: AnyRecord, error: Exception, carried: CarriedRead, stage: Stage
    ) -> None:
        # A transform that failed has not said which topic it means; the first one is named then.
        topics = self._connector.topics
        spec = topics.get(record.topic) or next(iter(topics.values()))
        key, value = _bytes_of(spec.key, record.key), _bytes_of(spec.value, record.value)
        letter = self._letter(spec.name, record, error, key=key, value=value)
        _give_up(self._connector, self._task, stage, letter, carried)

    def _letter(
        self,
        topic: str,
        record: AnyRecord,
        error: Exception,
        *,
        key: bytes | None,
        value: bytes | None,
    ) -> DeadLetterRecord:
        return DeadLetterRecord(
            topic=topic,
            partition=UNWRITTEN,
            offset=UNWRITTEN,
            timestamp_ms=when_ms(record.timestamp),
            key=key,
            value=value,
            headers=record.headers,
            node=self._name,
            error=error,
            attempt=1,
        )


class SinkCarrier:
    """Makes rows for a sink of the log's records."""

    def __init__(self, connector: SinkConnector, task: int = 0) -> None:
        self._connector, self._task = connector, task
        self.policy, self.retries = connector.policy, connector.retries
        self._name, self._transforms = connector.name, connector.transforms
        self._topics = {spec.name: spec for spec in connector.topics}
        like = () if connector.like is None else (connector.like,)
        self.may_block = any(map(may_block, (*connector.topics, *like)))
        """Whether `carry` may wait for a server, so that it belongs on a thread."""

    def carry(
        self, partition: TopicPartition, columns: RecordColumns, *, may_retry: bool = False
    ) -> tuple[SinkRows, CarriedRead]:
        """Return the rows of records, and the dead letters of those that can't be read.

        Args:
            partition: where the records are from.
            columns: the records.
            may_retry: whether the caller tries again after an error that may pass.

        Raises:
            StreamlogError: a transform or a serde failed with a retriable error, and may be tried
                again.
            ProcessingError: a record fails, and the policy is `FAIL`.
            ConfigError: a setting of a serde is wrong.
            Retriable: a serde's server does not answer; carry the records again.
        """
        spec, refused = self._spec(partition.topic), CarriedRead(may_retry=may_retry)
        try:
            keys = deserialize_column(spec.key, columns.keys)
            values = deserialize_column(spec.value, columns.values)
        except _NOT_OF_RECORDS:
            raise
        except Exception:  # noqa: BLE001 - any serde's; the loop below finds the record
            rows = self._carry_each(partition, columns, spec, refused)
            return SinkRows.of(partition, rows), refused
        carried = SinkRows(partition, columns, keys, values)
        if self._transforms:
            carried = SinkRows.of(partition, self._changed(carried, refused))
        return carried, refused

    def _spec(self, topic: str) -> TopicSpec:
        """Return a topic of the connector; with a pattern, it may be one that has just appeared."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = self._connector.topic_of(topic)
        return found

    def give_up(
        self, partition: TopicPartition, row: SinkRow, error: Exception, attempt: int = 1
    ) -> CarriedRead:
        """Return what the policy makes of a record that the sink can't take.

        Raises:
            ProcessingError: the policy ends in `FAIL`.
        """
        refused = CarriedRead()
        topic, number = partition
        letter = DeadLetterRecord(
            topic=topic,
            partition=number,
            offset=row.offset,
            timestamp_ms=row.time_ms,
            key=row.key,
            value=row.value,
            headers=row.record.headers,
            node=self._name,
            error=error,
            attempt=attempt,
        )
        _give_up(self._connector, self._task, "TASK_PUT", letter, refused)
        return refused

    def _carry_each(
        self,
        partition: TopicPartition,
        columns: RecordColumns,
        spec: TopicSpec,
        refused: CarriedRead,
    ) -> list[SinkRow]:
        rows: list[SinkRow] = []
        for index in range(len(columns)):
            one: RecordColumns = columns[index : index + 1]
            try:
                keys = deserialize_column(spec.key, one.keys)
                values = deserialize_column(spec.value, one.values)
            except _NOT_OF_RECORDS:
                raise
            except Exception as error:  # noqa: BLE001 - any serde's: that is what policies are for
                self._refuse(partition, one, error, refused, "VALUE_CONVERTER")
                continue
            rows += self._changed(SinkRows(partition, one, keys, values), refused)
        return rows

    def _changed(self, rows: SinkRows, refused: CarriedRead) -> list[SinkRow]:
        """Return rows as the transforms leave them."""
        topic, number = rows.partition
        changed: list[SinkRow] = []
        for index, (offset, given) in enumerate(zip(rows.offsets, rows.records, strict=True)):
            try:
                record = change(given, self._transforms)
            except Exception as error:  # noqa: BLE001 - the user's code: a policy decides
                self._refuse(
                    rows.partition,
                    rows.log[index : index + 1],
                    error,
                    refused,
                    "TRANSFORMATION",
                )
                continue
            if record is None:
                continue
            if record.offset != offset:
                # A transform that makes a new record leaves out where it came from.
                named = record.topic or topic
                record = replace(record, topic=named, partition=number, offset=offset)
            log = rows.log
            changed.append(
                SinkRow(record, log.keys[index], log.values[index], log.timestamps[index])
            )
        return changed

    def _refuse(
        self,
        partition: TopicPartition,
        one: RecordColumns,
        error: Exception,
        refused: CarriedRead,
        stage: Stage,
    ) -> None:
        topic, number = partition
        letter = DeadLetterRecord(
            topic=topic,
            partition=number,
            offset=one.offsets[0],
            timestamp_ms=one.timestamps[0],
            key=one.keys[0],
            value=one.values[0],
            headers=() if one.headers is None else one.headers[0],
            node=self._name,
            error=error,
            attempt=1,
        )
        _give_up(self._connector, self._task, stage, letter, refused)


def may_block(spec: TopicSpec) -> bool:
    """Return whether the serdes of a topic may wait for a server, as their `may_block` says."""
    return any(getattr(serde, "may_block", False) for serde in (spec.key, spec.value))


def _by_topic(records: Sequence[AnyRecord]) -> dict[str, Sequence[AnyRecord]]:
    found: dict[str, list[AnyRecord]] = {}
    for record in records:
        found.setdefault(record.topic, []).append(record)
    return {**found}


def _times_ms(times: Sequence[datetime]) -> array[int]:
    # Records of a page of rows, or of a transaction, have one time.
    if times.count(times[0]) == len(times):
        return array("q", [when_ms(times[0])]) * len(times)
    return array("q", map(when_ms, times))


def _bytes_of(serde: AnySerde, value: UserValue) -> bytes | None:
    """Return a value as its serde writes it, or else in a form for people."""
    if value is None or isinstance(value, bytes):
        return value
    try:
        return serde.dumps(value)
    except _NOT_OF_RECORDS:
        raise
    except Exception:  # noqa: BLE001 - it is what made the record a dead letter
        try:
            return display_json(value, enc_hook=repr)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
            return f"a value of type {type(value).__name__} that can't be shown".encode()


def declare_rows(serde: AnySerde, column: Sequence[UserValue]) -> Sequence[UserValue]:
    """Return the column with each dict as a value of the serde's type, if that is a class.

    Fields that the class lacks are left out, as they are when JSON is read.

    Raises:
        msgspec.ValidationError: a field is missing, or has another type; with its path.
        ValueError: a model of pydantic refuses the row.
    """
    declared: Any = declared_by(serde)
    if isinstance(column, NamedColumns):
        structs = column.structs(declared)
        if structs is not None:
            return structs
        column = [*column]
    # Nearly always: then no value is looked at again.
    if isinstance(declared, type) and all_of_type(column, frozenset({declared})):
        return column
    convert = _converter(declared)
    if convert is None:
        return column
    # All in one call, at a third of the time. A row alone is converted by itself, as the error
    # then names the field without a place in a list.
    if len(column) > 1 and not is_model(get_origin(declared) or declared) and _are_rows(column):
        converted: list[UserValue] = msgspec.convert(column, list[declared])
        return converted
    return [convert(value) if type(value) is dict else value for value in column]


def _are_rows(column: Sequence[UserValue]) -> bool:
    return isinstance(column, list) and all_of_type(column, _DICT)


_DICT: Final = frozenset({dict})


def _converter(declared: object) -> Callable[[UserValue], UserValue] | None:
    """Return what makes a value of a declared type; None for types that a dict is a value of."""
    kind: Any = get_origin(declared) or declared
    if kind is None or kind is Any or is_typeddict(kind):
        return None
    if isinstance(kind, type) and (kind is object or issubclass(kind, Mapping | bytes | str)):
        return None
    if is_model(kind):
        return kind.model_validate  # type: ignore[no-any-return]
    # It takes a datetime, a Decimal or a UUID as it is, and a Decimal for a declared float.
    return lambda row: msgspec.convert(row, declared)
