"""Records as Arrow batches, with the columns and exact types of Spark's Kafka source.

A batch has 10,000 to 50,000 rows, the fastest size (measured), and a limit in bytes, so that large
values don't fill the memory. An unreadable record batch fails the read, or is skipped with a
warning with `ignoreCorruptBatches`, as Spark's file sources do with corrupt files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_bridge.offset_ranges import OffsetRange
from spark_bridge.registered_values import registered_columns
from spark_bridge.source_options import COLUMNS, ReadOptions
from spark_bridge.typed_values import TypedValues, declared_columns
from streamlog.errors import CorruptData, DamagedBatch, SerdeError
from streamlog.records.arrow import ArrowBuffers, BatchPayload, BinaryColumn
from streamlog.records.batch import RecordBatch

_log = logging.getLogger(__name__)


class CorruptBatches:
    """Fails or warns about the unreadable batches of one range."""

    def __init__(self, offsets: OffsetRange, *, ignored: bool) -> None:
        self._range = offsets
        self._ignored = ignored

    def meet(self, first: int, following: int, error: CorruptData) -> None:
        """Handle an unreadable batch with the offsets from `first` to before `following`.

        Raises:
            DamagedBatch: such batches are not ignored; says where it is and what to do.
        """
        topic, partition = self._range.topic_partition
        text = (
            f"{topic}-{partition}: the batch with offsets {first} to {following - 1} can't be read:"
            f" {error}"
        )
        if self._ignored:
            _log.warning("%s; the read skips it because ignoreCorruptBatches is true", text)
            return
        found = DamagedBatch(
            f"{text}. With ignoreCorruptBatches=true the read skips it; `streamlog log verify`"
            " shows it, and `streamlog log repair` removes it for every reader"
        )
        found.topic, found.partition = topic, partition
        found.offset, found.next_offset = first, following
        raise found from error


ROWS_MAX = 10_000
TIMESTAMP_MS_MAX = (2**63 - 1) // 1_000
"""The latest time that Spark can hold: it counts microseconds in 64 bits."""
CREATE_TIME = 0
LOG_APPEND_TIME = 1

SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "int",
}
HEADERS = "headers array<struct<key: string, value: binary>>"
HEADER_TYPE = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
}


def spark_schema(options: ReadOptions, topics: Iterable[str]) -> str:
    """Return the columns as a Spark schema.

    Raises:
        ConfigError: the app does not declare a topic, or the topics have different types.
    """
    typed = {**SPARK_TYPES}
    if options.value_schema is not None:
        typed["value"] = f"struct<{options.value_schema}>"
    elif options.app is not None:
        typed["value"] = declared_columns(options.app, topics)
    elif options.registry is not None:
        typed["value"] = registered_columns(options.registry, topics)
    columns = [f"{name} {typed[name]}" for name in COLUMNS if name in options.columns]
    return ", ".join([*columns, *([HEADERS] if options.include_headers else [])])


class ArrowBatches:
    """Turns the record batches of one range into Arrow batches."""

    def __init__(self, options: ReadOptions, offsets: OffsetRange, value_type: Any = None) -> None:  # noqa: ANN401 - Arrow's, untyped
        self._options = options
        self._range = offsets
        self._corrupt = CorruptBatches(offsets, ignored=options.ignore_corrupt_batches)
        self._value_type = value_type
        self._values = TypedValues(options, offsets.topic, value_type)
        self._needs_headers = value_type is not None and self._values.needs_headers
        types = {**_TYPES, **({} if value_type is None else {"value": value_type})}
        fields = [pa.field(name, types[name]) for name in options.columns]
        if options.include_headers:
            fields.append(pa.field("headers", HEADER_TYPE))
        self._schema = pa.schema(fields)

    def of_batches(self, batches: Iterable[RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches, decoded directly from the bytes of record batches.

        Raises:
            DamagedBatch: a batch is unreadable, and such batches are not ignored.
        """
        held: list[BatchPayload] = []
        rows = size_bytes = 0
        for batch in batches:
            try:
                payload = self._checked(batch)
            except CorruptData as error:
                self._corrupt.meet(batch.base_offset, batch.next_offset, error)
                continue
            # An Arrow batch has one `timestampType`: record batches of both kinds don't mix.
            other_time = held and held[0].batch.is_log_append_time != batch.is_log_append_time
            full = rows + batch.record_count > ROWS_MAX or size_bytes > self._options.batch_bytes
            if held and (full or other_time):
                yield from self._filled(held)
                held, rows, size_bytes = [], 0, 0
            held.append(payload)
            rows, size_bytes = rows + batch.record_count, size_bytes + payload.size_bytes
        if held:
            yield from self._filled(held)

    def _checked(self, batch: RecordBatch) -> BatchPayload:
        """Return the payload of a batch; decompresses it, as its size is unknown otherwise."""
        if self._options.verify_crc and batch.is_compressed:
            batch.check_crc()
        return BatchPayload(batch)

    def _filled(self, held: Sequence[BatchPayload]) -> Iterator[pa.RecordBatch]:
        wanted = self._range
        buffers = ArrowBuffers(
            sum(payload.batch.record_count for payload in held),
            sum(payload.size_bytes for payload in held),
            _allocate,
        )
        headers: list[Any] = []
        for payload in held:
            batch = payload.batch
            try:
                # Just before decoding: the checksum brings the bytes into the processor's caches.
                if self._options.verify_crc and not batch.is_compressed:
                    batch.check_crc()
                within = self._slice_headers(batch)
                buffers.read(payload, wanted.start, wanted.end)
            except CorruptData as error:
                self._corrupt.meet(batch.base_offset, batch.next_offset, error)
                continue
            headers += within
        count = buffers.count
        if not count:
            return
        arrays = {
            "key": _binary(buffers.keys, count),
            "value": _binary(buffers.values, count),
            "offset": _numbers(buffers.offsets, count),
            "timestamp": _numbers(buffers.timestamps, count),
        }
        append_time = held[0].batch.is_log_append_time
        yield from self._cut(
            arrays, headers, count, LOG_APPEND_TIME if append_time else CREATE_TIME
        )

    def _slice_headers(self, batch: RecordBatch) -> list[Any]:
        if not self._options.include_headers and not self._needs_headers:
            return []
        # A record batch may begin before the range and end after it.
        columns, wanted = batch.columns(), self._range
        headers = columns.headers or [()] * len(columns)
        return [
            each
            for offset, each in zip(columns.offsets, headers, strict=True)
            if wanted.start <= offset < wanted.end
        ]

    def _cut(
        self, arrays: dict[str, Any], headers: Sequence[Any], count: int, timestamp_type: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield one Arrow batch, or several of `ROWS_MAX` rows."""
        if "timestamp" in self._options.columns:
            arrays["timestamp"] = self._times(arrays["timestamp"], arrays["offset"])
        arrays["topic"] = pa.repeat(pa.scalar(self._range.topic, pa.string()), count)
        arrays["partition"] = pa.repeat(pa.scalar(self._range.partition, pa.int32()), count)
        arrays["timestampType"] = pa.repeat(pa.scalar(timestamp_type, pa.int32()), count)
        if self._value_type is not None:
            # There are headers with a schema registry alone: they cost a decoding of each batch.
            arrays["value"] = self._values.typed(
                arrays["value"], self._range, arrays["offset"], headers
            )
        columns = [arrays[name] for name in self._options.columns]
        if self._options.include_headers:
            # Spark's source has NULL, not an empty array, where a record has no headers.
            pairs = [[{"key": k, "value": v} for k, v in h] if h else None for h in headers]
            columns.append(pa.array(pairs, HEADER_TYPE))
        whole = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        # One record batch may have more rows than an Arrow batch should; a slice copies nothing.
        for at in range(0, count, ROWS_MAX):
            yield whole if count <= ROWS_MAX else whole.slice(at, ROWS_MAX)

    def _times(self, milliseconds: Any, offsets: Any) -> Any:  # noqa: ANN401 - Arrow's, untyped
        """Convert times to Spark's timestamps.

        Raises:
            SerdeError: a time is out of their range; names its record.
        """
        try:
            return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(_TYPES["timestamp"])
        except pa.ArrowInvalid as error:
            pairs = zip(offsets.to_pylist(), milliseconds.to_pylist(), strict=True)
            offset, time_ms = next(pair for pair in pairs if abs(pair[1]) > TIMESTAMP_MS_MAX)
            topic, partition = self._range.topic_partition
            raise SerdeError(
                f"the record at offset {offset} of {topic}-{partition} has timestamp {time_ms} ms,"
                " which is out of the range of Spark's timestamps: omit 'timestamp' from the option"
                " 'columns'"
            ) from error


def _allocate(size_bytes: int) -> Any:  # noqa: ANN401 - Arrow's, untyped
    """Allocate memory that is not zeroed.

    From the system's allocator: it keeps blocks of this size for the next batch. Arrow's own
    returns them to the kernel, so the next batch would pay for fresh pages.
    """
    return pa.allocate_buffer(size_bytes, memory_pool=pa.system_memory_pool())


def _binary(column: BinaryColumn, count: int) -> Any:  # noqa: ANN401 - Arrow's, untyped
    valid = pa.py_buffer(column.valid) if column.null_count else None
    buffers = [valid, pa.py_buffer(column.ends), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, column.null_count)


def _numbers(data: bytearray, count: int) -> Any:  # noqa: ANN401 - Arrow's, untyped
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(data)], 0)
