"""Our batches are compatible with the record classes of kafka-python and aiokafka.

Their compression libraries differ from ours: kafka-python uses `lz4`, `python-snappy`, `zstandard`
and the standard library; aiokafka has its own C extension.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.record import default_records as aio_records
from aiokafka.record.memory_records import MemoryRecords as AioMemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from streamlog.records.batch import RecordBatch, encode_batch, split_batches
from streamlog.records.compression import Compression

with warnings.catch_warnings():
    # kafka-python loads its schemas through a deprecated function of the standard library.
    warnings.simplefilter("ignore", DeprecationWarning)
    kafka_records = importlib.import_module("kafka.record.memory_records")

Headers = list[tuple[str, bytes | None]]
Row = tuple[int, bytes | None, bytes | None, Headers]
Write = Callable[[Compression, list[Row]], bytes]
Read = Callable[[bytes], Iterator[Any]]

NOW_MS = 1_700_000_000_000
content = st.none() | st.binary(max_size=100)
rows = st.lists(
    st.tuples(
        st.integers(0, 2 * NOW_MS),
        content,
        content,
        st.lists(st.tuples(st.text(max_size=8), content), max_size=3),
    ),
    min_size=1,
    max_size=10,
)
LONG: list[Row] = [
    (NOW_MS + n, b"key-%d" % n, b"the value of record number %d" % n * 9, [("trace", b"%d" % n)])
    for n in range(1000)
]
PRODUCER = {"producer_id": 2**33, "producer_epoch": 4, "base_sequence": 90}


def kafka_python_writes(codec: Compression, records: list[Row]) -> bytes:
    builder = kafka_records.MemoryRecordsBuilder(
        2, int(codec), 2**24, transactional=True, **PRODUCER
    )
    for row in records:
        builder.append(*row)
    builder.close()
    return bytes(builder.buffer())


def aiokafka_writes(codec: Compression, records: list[Row]) -> bytes:
    builder = aio_records.DefaultRecordBatchBuilder(
        magic=2, compression_type=int(codec), is_transactional=1, batch_size=2**24, **PRODUCER
    )
    for offset, row in enumerate(records):
        builder.append(offset, *row)
    return bytes(builder.build())


def kafka_python_reads(data: bytes) -> Iterator[Any]:
    batches = kafka_records.MemoryRecords(data)
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        yield from batch


def aiokafka_reads(data: bytes) -> Iterator[Any]:
    batches = AioMemoryRecords(data)
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        yield from batch


every_codec = pytest.mark.parametrize("codec", Compression)
every_writer = pytest.mark.parametrize("write", [kafka_python_writes, aiokafka_writes])
every_reader = pytest.mark.parametrize("read", [kafka_python_reads, aiokafka_reads])


def check_read(write: Write, codec: Compression, records: list[Row]) -> RecordBatch:
    (batch,) = split_batches(write(codec, records))
    batch.check_crc()
    assert [(*record[:4], list(record.headers)) for record in batch.records()] == [
        (offset, *row) for offset, row in enumerate(records)
    ]
    assert batch.is_transactional
    assert {name: getattr(batch, name) for name in PRODUCER} == PRODUCER
    assert batch.max_timestamp_ms == max(row[0] for row in records)
    return batch


def check_written(read: Read, codec: Compression, records: list[Row]) -> None:
    coded = encode_batch(records, codec=codec)
    found = [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in read(coded + coded)
    ]
    expected = [(offset, *row) for offset, row in enumerate(records)]
    assert found == expected * 2


@every_codec
@every_writer
def test_a_thousand_records_of_other_clients_are_read(write: Write, codec: Compression) -> None:
    assert check_read(write, codec, LONG).codec is codec


@every_codec
@every_reader
def test_other_clients_read_a_thousand_of_our_records(read: Read, codec: Compression) -> None:
    check_written(read, codec, LONG)


@every_codec
@every_writer
@given(records=rows)
def test_any_records_of_other_clients_are_read(
    write: Write, codec: Compression, records: list[Row]
) -> None:
    check_read(write, codec, records)


@every_codec
@every_reader
@given(records=rows)
def test_other_clients_read_any_of_our_records(
    read: Read, codec: Compression, records: list[Row]
) -> None:
    check_written(read, codec, records)


@given(records=rows)
def test_uncompressed_bytes_equal_kafka_pythons(records: list[Row]) -> None:
    ours = encode_batch(records, transactional=True, **PRODUCER)
    theirs = kafka_python_writes(Compression.NONE, records)
    # All but the leader epoch, which the broker sets.
    assert (ours[:12], ours[16:]) == (theirs[:12], theirs[16:])
