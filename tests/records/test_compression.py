"""The codecs: round trips, data of other writers, and refusals."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc
from collections.abc import Callable

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import ConfigError, CorruptData
from streamlog.records.compression import XERIAL_BLOCK_BYTES, Compression, compress, decompress

XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
MIB = 1024 * 1024
CODED = [codec for codec in Compression if codec is not Compression.NONE]
TEXT = b"every record looks like the one before it; " * 5000

every_codec = pytest.mark.parametrize("codec", Compression)
every_coded = pytest.mark.parametrize("codec", CODED)


@every_codec
@given(data=st.binary(max_size=4096), times=st.integers(1, 50))
def test_any_bytes_round_trip(codec: Compression, data: bytes, times: int) -> None:
    whole = data * times
    coded = compress(codec, whole)
    assert decompress(codec, coded, size_bytes_max=len(whole)) == whole
    assert decompress(codec, memoryview(coded), size_bytes_max=MIB) == whole


@every_codec
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_type_is_accepted(codec: Compression, kind: Callable[[bytes], bytes]) -> None:
    coded = compress(codec, kind(TEXT))
    assert type(coded) is bytes
    assert decompress(codec, kind(coded), size_bytes_max=MIB) == TEXT


@every_codec
def test_one_byte_above_the_bound_is_refused(codec: Compression) -> None:
    coded = compress(codec, TEXT)
    assert decompress(codec, coded, size_bytes_max=len(TEXT)) == TEXT
    with pytest.raises(CorruptData):
        decompress(codec, coded, size_bytes_max=len(TEXT) - 1)


@every_coded
def test_a_decompression_bomb_stays_within_the_memory_bound(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            decompress(codec, bomb, size_bytes_max=MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * MIB


def test_a_false_snappy_size_is_refused() -> None:
    with pytest.raises(CorruptData, match="at most"):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x07abc", size_bytes_max=2**31)


@every_coded
def test_truncated_data_is_refused(codec: Compression) -> None:
    coded = compress(codec, TEXT)
    for size_bytes in (1, 7, len(coded) // 2, len(coded) - 1):
        with pytest.raises(CorruptData):
            decompress(codec, coded[:size_bytes], size_bytes_max=MIB)


@every_coded
@given(where=st.floats(0, 1, exclude_max=True), noise=st.binary(min_size=1, max_size=8))
def test_broken_data_is_data_or_corrupt(codec: Compression, where: float, noise: bytes) -> None:
    coded = compress(codec, TEXT[:600])
    position = int(where * len(coded))
    broken = coded[:position] + noise + coded[position + len(noise) :]
    with contextlib.suppress(CorruptData):
        assert len(decompress(codec, broken, size_bytes_max=MIB)) <= MIB


@every_coded
@given(data=st.binary(max_size=200))
def test_noise_is_data_or_corrupt(codec: Compression, data: bytes) -> None:
    with contextlib.suppress(CorruptData):
        assert len(decompress(codec, data, size_bytes_max=MIB)) <= MIB


@pytest.mark.parametrize(
    ("codec", "coded"),
    [
        (Compression.GZIP, gzip.compress(TEXT, 9)),
        (Compression.SNAPPY, snappy.compress(TEXT)),
        (Compression.LZ4, lz4.frame.compress(TEXT, block_linked=False)),
        (Compression.LZ4, lz4.frame.compress(TEXT, block_linked=True, content_checksum=True)),
        (Compression.LZ4, lz4.frame.compress(TEXT, store_size=False, block_size=7)),
        (Compression.ZSTD, zstandard.compress(TEXT)),
        (Compression.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)),
    ],
)
def test_data_of_other_writers_is_read(codec: Compression, coded: bytes) -> None:
    assert decompress(codec, coded, size_bytes_max=MIB) == TEXT


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_consecutive_frames_are_concatenated(codec: Compression) -> None:
    coded = compress(codec, TEXT[:1000]) + compress(codec, TEXT[1000:])
    assert decompress(codec, coded, size_bytes_max=MIB) == TEXT


@pytest.mark.parametrize(
    ("codec", "read"),
    [
        (Compression.GZIP, gzip.decompress),
        (Compression.LZ4, lz4.frame.decompress),
        (
            Compression.ZSTD,
            lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
        ),
    ],
)
def test_other_readers_read_our_data(codec: Compression, read: Callable[[bytes], bytes]) -> None:
    assert read(compress(codec, TEXT)) == TEXT


def test_snappy_is_written_in_xerial_blocks() -> None:
    coded = compress(Compression.SNAPPY, TEXT)
    assert coded.startswith(XERIAL)
    position, blocks = len(XERIAL), []
    while position < len(coded):
        (size_bytes,) = struct.unpack_from(">i", coded, position)
        position += 4 + size_bytes
        blocks.append(snappy.decompress(coded[position - size_bytes : position]))
    assert b"".join(blocks) == TEXT
    assert {len(block) for block in blocks[:-1]} == {XERIAL_BLOCK_BYTES}


@pytest.mark.parametrize("level", [1, 2, 3, 9, 12, 17])
@pytest.mark.parametrize("data", [b"", b"x", TEXT, random.Random(1).randbytes(200_000)])
def test_other_readers_read_every_lz4_level(level: int, data: bytes) -> None:
    coded = compress(Compression.LZ4, data, level=level)
    assert lz4.frame.decompress(coded) == data
    assert decompress(Compression.LZ4, coded, size_bytes_max=MIB) == data
    assert len(coded) < len(data) + 100


def test_a_higher_lz4_level_compresses_better() -> None:
    chance = random.Random(2)
    data = b"".join(b"key-%d;" % chance.randrange(5000) for _ in range(20_000))
    sizes = [len(compress(Compression.LZ4, data, level=level)) for level in (1, 3, 9)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_lz4_blocks_are_independent() -> None:
    # The Java client refuses a frame whose blocks are linked.
    flags = compress(Compression.LZ4, TEXT)[4]
    assert flags & 0x20


@pytest.mark.parametrize(
    ("tail", "complaint"),
    [
        (b"\x00\x00", "cut short"),
        (b"\x00\x00\x00\x09abc", "claims 9 bytes; 3 are left"),
        (b"\xff\xff\xff\xffabc", "claims 4294967295 bytes"),
        (b"\x00\x00\x00\x00", "malformed"),
    ],
)
def test_a_malformed_xerial_block_is_refused(tail: bytes, complaint: str) -> None:
    with pytest.raises(CorruptData, match=complaint):
        decompress(Compression.SNAPPY, XERIAL + tail, size_bytes_max=MIB)


def test_a_truncated_xerial_header_is_refused() -> None:
    with pytest.raises(CorruptData, match="header is cut short"):
        decompress(Compression.SNAPPY, XERIAL[:12], size_bytes_max=MIB)


def test_codecs_are_parsed_by_name() -> None:
    assert [Compression.parse(codec.name.lower()) for codec in Compression] == list(Compression)
    with pytest.raises(ConfigError, match="'brotli' is not known; use one of none, gzip, snappy"):
        Compression.parse("brotli")
