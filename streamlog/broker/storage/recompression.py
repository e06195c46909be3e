"""Recompression: batches compressed as the topic wants it, not as their producer did.

With `compression.type=producer`, the default, batches stay as they came and nothing here runs.
Otherwise the records of a batch that comes in another codec are decompressed, looked through, and
compressed anew; the bytes of the records, and everything else that the header says (times,
producer, sequence, what it belongs to), stay as they were. A batch that can't be read is refused:
under a new checksum it would look sound. Marks of the broker (control batches) stay as they are.
What a small batch may grow to on the way is bounded (`max.decompressed.bytes`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crc32c import crc32c

from streamlog.broker.config import AS_PRODUCED, UNCOMPRESSED, TopicConfig
from streamlog.broker.storage.validation import readable
from streamlog.errors import CorruptData, CorruptMessage, MessageTooLarge
from streamlog.records.batch import HEADER_BYTES, RecordBatch
from streamlog.records.compression import Compression, compress

_LENGTH_AT = 8
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_NOT_IN_LENGTH = 12
_CODEC_BITS = 0x07
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")


def recompressed(
    data: bytearray | memoryview, batches: list[RecordBatch], config: TopicConfig
) -> tuple[bytearray | memoryview, list[RecordBatch]]:
    """Batches and the bytes that they are views of, which are new ones if they had to change.

    Raises:
        CorruptMessage: a batch does not hold the records that it should.
        MessageTooLarge: compressed as the topic wants it, a batch is larger than it takes.
    """
    if config.compression_type == AS_PRODUCED:
        return data, batches
    codec = Compression.NONE
    if config.compression_type != UNCOMPRESSED:
        codec = Compression.parse(config.compression_type)
    if all(batch.codec is codec or batch.is_control for batch in batches):
        return data, batches
    level = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }.get(codec)
    anew = bytearray().join(_rewritten(batches, codec, level, config.max_decompressed_bytes))
    views = []
    position = 0
    while position < len(anew):
        views.append(RecordBatch(anew, position))
        position += views[-1].size_bytes
    for view in views:
        if view.size_bytes > config.max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {view.size_bytes} bytes, with the topic's compression.type"
                f" {config.compression_type}, is larger than max.message.bytes"
                f" ({config.max_message_bytes}): send smaller batches, or raise it for the topic"
            )
    return anew, views


def _rewritten(
    batches: Iterable[RecordBatch], codec: Compression, level: int | None, bytes_max: int
) -> Iterable[bytearray | memoryview]:
    for batch in batches:
        if batch.codec is codec or batch.is_control:
            yield batch.data
            continue
        records = _records(batch, bytes_max)
        if codec is not Compression.NONE:
            records = compress(codec, records, level=level)
        yield _with(batch, records, codec)


def _records(batch: RecordBatch, bytes_max: int) -> bytes:
    """The bytes of the records, uncompressed and sound."""
    try:
        return readable(batch, max(bytes_max, batch.size_bytes))
    except CorruptData as error:
        raise CorruptMessage(f"a batch was refused: {error}") from error


def _with(batch: RecordBatch, records: bytes, codec: Compression) -> bytearray:
    """A batch with other bytes for its records."""
    rewritten = bytearray(batch.data[:HEADER_BYTES])
    rewritten += records
    _INT32.pack_into(rewritten, _LENGTH_AT, len(rewritten) - _NOT_IN_LENGTH)
    _INT16.pack_into(rewritten, _ATTRIBUTES_AT, batch.attributes & ~_CODEC_BITS | codec)
    with memoryview(rewritten) as view:
        crc = crc32c(view[_ATTRIBUTES_AT:])
    _UINT32.pack_into(rewritten, _CRC_AT, crc)
    return rewritten
