"""Recompression into a topic's codec changes the bytes, but neither the records nor the header."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import TOPIC_SETTINGS, TopicConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.validator import recompress
from streamlog.errors import ConfigError, CorruptMessage, MessageTooLarge, RecordsRefused
from streamlog.records.batch import HEADER_BYTES, RecordBatch, encode_batch
from streamlog.records.compression import Compression, compress

TYPES = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
CODECS = dict(zip(TYPES, Compression, strict=True))
TRANSACTIONAL, CONTROL = 0x10, 0x20
KEPT = (
    "base_offset", "leader_epoch", "last_offset_delta", "base_timestamp_ms", "max_timestamp_ms",
    "producer_id", "producer_epoch", "base_sequence", "record_count", "is_control",
    "is_transactional", "is_log_append_time",
)  # fmt: skip

Rows = list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 10**13),
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=20,
)


def topic(kind: str, **others: int) -> TopicConfig:
    return TopicConfig(compression_type=kind, **others)  # type: ignore[arg-type]


def recompressed(data: bytes, config: TopicConfig) -> list[RecordBatch]:
    batches = []
    position = 0
    while position < len(data):
        batches.append(RecordBatch(data, position))
        position += batches[-1].size_bytes
    written, views = recompress(bytearray(data), batches, config)
    assert b"".join(bytes(view.data) for view in views) == bytes(written)
    return views


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("codec", Compression)
@given(rows=ROWS, numbered=st.booleans())
def test_every_codec_is_recompressed_to_every_other(
    kind: str, codec: Compression, rows: Rows, numbered: bool
) -> None:
    producer = (7, 3, 40) if numbered else (-1, -1, -1)
    data = encode_batch(
        rows,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    before = RecordBatch(data)
    (after,) = recompressed(data, topic(kind))
    after.check_crc()
    assert after.codec is CODECS[kind]
    assert after.records() == before.records()
    assert [getattr(after, name) for name in KEPT] == [getattr(before, name) for name in KEPT]
    if codec is CODECS[kind]:
        assert bytes(after.data) == data


def test_compression_type_producer_changes_nothing() -> None:
    data = bytearray(encode_batch([(1, b"k", b"v", [])], codec=Compression.GZIP))
    batches = [RecordBatch(data)]
    same, views = recompress(data, batches, topic("producer"))
    assert same is data
    assert views is batches


def test_recompression_keeps_the_transaction_and_producer() -> None:
    data = bytearray(encode_batch([(1, b"k", b"v", [])], producer_id=5, producer_epoch=0))
    data[21:23] = (TRANSACTIONAL).to_bytes(2)
    data[17:21] = crc32c(data[21:]).to_bytes(4)
    (after,) = recompressed(bytes(data), topic("zstd"))
    after.check_crc()
    assert after.is_transactional
    assert after.producer_id == 5


def test_control_batches_are_not_recompressed() -> None:
    data = bytearray(encode_batch([(1, b"k", b"v", [])]))
    data[21:23] = (TRANSACTIONAL | CONTROL).to_bytes(2)
    data[17:21] = crc32c(data[21:]).to_bytes(4)
    plain = encode_batch([(2, b"k", b"w", [])])
    for sent in (bytes(data), bytes(data) + plain):
        assert bytes(recompressed(sent, topic("zstd"))[0].data) == bytes(data)


def test_recompressed_batches_keep_their_order() -> None:
    data = b"".join(
        encode_batch([(number, None, b"%d" % number, [])], codec=codec)
        for number, codec in enumerate(Compression)
    )
    views = recompressed(data, topic("lz4"))
    assert [view.records()[0].value for view in views] == [b"0", b"1", b"2", b"3", b"4"]
    assert {view.codec for view in views} == {Compression.LZ4}


def with_records(records: bytes, codec: Compression, count: int = 1) -> bytes:
    """Return a batch with these bytes as records and a correct checksum."""
    data = bytearray(encode_batch([(1, b"k", b"v", [])] * count))[:HEADER_BYTES] + records
    data[8:12] = (len(data) - 12).to_bytes(4)
    data[21:23] = int(codec).to_bytes(2)
    data[17:21] = crc32c(data[21:]).to_bytes(4)
    return bytes(data)


@pytest.mark.parametrize("kind", ["uncompressed", "zstd"])
@pytest.mark.parametrize(
    "data",
    [
        with_records(b"no gzip at all", Compression.GZIP),
        with_records(compress(Compression.GZIP, b"no records"), Compression.GZIP),
        with_records(
            compress(Compression.GZIP, encode_batch([(1, b"k", b"v", [])])[HEADER_BYTES:]),
            Compression.GZIP,
            count=2,
        ),
    ],
    ids=["codec", "records", "count"],
)
def test_an_unreadable_batch_is_refused(kind: str, data: bytes) -> None:
    RecordBatch(data).check_crc()
    with pytest.raises(CorruptMessage):
        recompressed(data, topic(kind))
    log = PartitionLog.create(MemoryFiles(), "/log", name="t-0", config=topic(kind))
    with pytest.raises(RecordsRefused):
        log.append(data, now_ms=0)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_decompression_bomb_is_refused(codec: Compression) -> None:
    bomb = with_records(compress(codec, bytes(1_000_000)), codec)
    with pytest.raises(CorruptMessage, match="100000"):
        recompressed(bomb, topic("uncompressed", max_decompressed_bytes=100_000))


def test_the_size_bound_applies_before_and_after_recompression() -> None:
    data = encode_batch([(1, None, bytes(5_000), [])], codec=Compression.GZIP)
    log = PartitionLog.create(
        MemoryFiles(), "/log", name="t-0", config=topic("uncompressed", max_message_bytes=5_000)
    )
    with pytest.raises(MessageTooLarge, match=r"compression\.type uncompressed"):
        log.append(data, now_ms=0)
    log.configure(topic("zstd", max_message_bytes=5_000))
    with pytest.raises(MessageTooLarge):
        log.append(encode_batch([(1, None, bytes(5_000), [])]), now_ms=0)
    assert log.log_end_offset == 0
    log.append(data, now_ms=0)
    assert log.log_end_offset == 1


@pytest.mark.parametrize("kind", TYPES)
def test_recompressed_batches_get_offsets_and_append_times(kind: str) -> None:
    files = MemoryFiles()
    config = TopicConfig(compression_type=kind, message_timestamp_type="LogAppendTime")
    log = PartitionLog.create(files, "/log", name="t-0", config=config)
    for number, codec in enumerate(Compression):
        data = encode_batch(
            [(1, b"k", b"%d" % number, [("h", b"v")]), (2, b"k", b"x" * 500, [])],
            codec=codec,
            producer_id=9,
            producer_epoch=0,
            base_sequence=2 * number,
        )
        result = log.append(data, now_ms=0, wall_ms=77)
        assert (result.base_offset, result.last_offset) == (2 * number, 2 * number + 1)
        assert result.log_append_time_ms == 77
        assert result.size_bytes > 0
        repeated = log.append(data, now_ms=0, wall_ms=99)
        assert (repeated.duplicate, repeated.base_offset) == (True, 2 * number)
    log.close()
    log = PartitionLog.open(files, "/log", name="t-0", config=config, clean=True)
    for number in range(len(Compression)):
        batch = RecordBatch(log.read(2 * number, max_bytes=1))
        batch.check_crc()
        assert batch.codec is CODECS[kind]
        (first, second) = batch.records()
        assert (first.offset, first.timestamp_ms, first.value) == (2 * number, 77, b"%d" % number)
        assert (first.headers, second.value) == ((("h", b"v"),), b"x" * 500)
    log.close()


def test_a_higher_compression_level_gives_smaller_batches() -> None:
    value = b"".join(b'{"id": %d, "v": %f}' % (n % 77, (n * n % 101) / 7) for n in range(9_000))
    data = encode_batch([(1, None, value, [])])
    for kind, least, most in (("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 19)):
        sizes = [
            recompressed(data, topic(kind, **{f"compression_{kind}_level": level}))[0].size_bytes
            for level in (least, most)
        ]
        assert sizes[1] < sizes[0], kind
        setting = TOPIC_SETTINGS[f"compression.{kind}.level"]
        with pytest.raises(ConfigError, match="must be from"):
            setting.parse("99")
