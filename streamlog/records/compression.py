"""Compression: the codecs of record batches (none, gzip, snappy, lz4, zstd), with Kafka's numbers.

Compresses as Kafka's Java client does. Snappy has xerial framing: 32 KiB blocks behind a magic
header. Lz4 has the frame format with independent blocks, because Java rejects linked ones. The
frame is assembled here: the library's own function for such frames holds the GIL meanwhile, so
other threads would wait. Decompresses what other clients produce as well: raw snappy, and several
gzip members, zstd frames or lz4 frames in a row.

The rule of the file: a few hundred bytes can claim to be gigabytes. So `decompress` gets a limit
and never holds more than that; more bytes, or malformed ones, raise `CorruptData`. Dictionaries are
not supported. Without a level, the constants below apply.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from io import BytesIO
from typing import TYPE_CHECKING

import cramjam

from streamlog.errors import ConfigError, CorruptData, DecompressedTooLarge

if TYPE_CHECKING:
    from types import ModuleType

GZIP_LEVEL = 6
ZSTD_LEVEL = 3
LZ4_LEVEL = 1
XERIAL_BLOCK_BYTES = 32 * 1024

LZ4_BLOCK_BYTES = 64 * 1024
"""The size of blocks that `_LZ4_HEADER` declares."""

# Magic; version 1, independent blocks and no checksums; blocks of 64 KiB; checksum of these two.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_END = bytes(4)
_LZ4_SIZE = struct.Struct("<I")
_LZ4_STORED = 1 << 31
"""The bit of a block's size that means that the block is not compressed."""
_LZ4_THOROUGH = 3
"""The first level that searches beyond the first match, for which a block has no function."""
_LZ4_FLAGS_AT = 4
_LZ4_CONTENT_SIZE, _LZ4_DICTIONARY = 0x08, 0x01
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest compatible version
_BLOCK_SIZE = struct.Struct(">I")
_NO_ROOM = "failed to write whole buffer"
"""The library's error for a buffer that is too small. It only selects the exception."""
_FIRST_GUESS_BYTES = 4 * 1024
_FIRST_GUESS_RATIO = 8
_SNAPPY_RATIO_MAX = 22  # a copy of 64 bytes takes 3


class Compression(IntEnum):
    """The codec of a batch's records: the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Compression:
        """Return the codec called `name`: "none", "gzip", "snappy", "lz4" or "zstd".

        Raises:
            ConfigError: no codec has that name.
        """
        codec = _CODECS.get(name)
        if codec is None:
            raise ConfigError(f"compression {name!r} is not known; use one of {', '.join(_CODECS)}")
        return codec


_FRAMED = {  # with the most bytes that one compressed byte can yield
    Compression.GZIP: (cramjam.gzip, 1032),
    Compression.LZ4: (cramjam.lz4, 255),
    Compression.ZSTD: (cramjam.zstd, 32 * 1024),
}
_CODECS = {codec.name.lower(): codec for codec in Compression}


def compress(
    codec: Compression, data: bytes | bytearray | memoryview, *, level: int | None = None
) -> bytes:
    """Compress `data` with `codec`, in the framing that Kafka's clients expect.

    The ranges of levels are: gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22; snappy has none.
    """
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data, GZIP_LEVEL if level is None else level))
    if codec is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, ZSTD_LEVEL if level is None else level))
    if codec is Compression.LZ4:
        return _compress_lz4(data, LZ4_LEVEL if level is None else level)
    return _compress_xerial(data)


def decompress(
    codec: Compression, data: bytes | bytearray | memoryview, *, size_bytes_max: int
) -> bytes:
    """Decompress `data`.

    Raises:
        DecompressedTooLarge: the result would have more than `size_bytes_max` bytes.
        CorruptData: the data is malformed, or the codec can't tell that from a result that is too
            large.
    """
    if codec is Compression.NONE:
        _check_size(len(data), size_bytes_max)
        return bytes(data)
    try:
        if codec is Compression.SNAPPY:
            return _decompress_snappy(data, size_bytes_max)
        return _decompress_framed(codec, data, size_bytes_max)
    except cramjam.DecompressionError as error:
        what = f"{codec.name.lower()} data of {len(data)} bytes"
        if _NO_ROOM in str(error):
            raise DecompressedTooLarge(f"{what} yields more than {size_bytes_max} bytes") from error
        raise CorruptData(
            f"{what} is malformed, or yields more than {size_bytes_max} bytes: {error}"
        ) from error


def _check_size(size_bytes: int, size_bytes_max: int) -> None:
    if size_bytes > size_bytes_max:
        raise DecompressedTooLarge(
            f"{size_bytes} bytes uncompressed; at most {size_bytes_max} are read"
        )


def _decompress_framed(
    codec: Compression, data: bytes | bytearray | memoryview, size_bytes_max: int
) -> bytes:
    """Decompress gzip, lz4 or zstd into a buffer that grows up to a bound.

    The library writes into a given buffer and fails when that is full, so a decompression bomb
    costs no more memory than the bound. The library does not say why it failed, so malformed data
    is retried, too, each time with eight times the room, up to the bound or to the largest result
    that the format allows.
    """
    library, ratio_max = _FRAMED[codec]
    bound_bytes = min(size_bytes_max, len(data) * ratio_max)
    room_bytes = max(_FIRST_GUESS_BYTES, len(data) * _FIRST_GUESS_RATIO)
    while room_bytes < bound_bytes:
        try:
            return _decompress_within(library, data, room_bytes)
        except cramjam.DecompressionError:
            room_bytes *= _FIRST_GUESS_RATIO
    return _decompress_within(library, data, bound_bytes)


def _decompress_within(
    library: ModuleType, data: bytes | bytearray | memoryview, room_bytes: int
) -> bytes:
    """Decompress into fresh memory, of which only the used part costs anything.

    The system clears the memory of new `bytes` when it is first touched. A bytearray would be
    cleared at once, by this thread, while it holds the interpreter.
    """
    output = BytesIO(bytes(room_bytes))
    with output.getbuffer() as view:
        size_bytes = library.decompress_into(data, view)
    output.truncate(size_bytes)
    return output.getvalue()


def _compress_lz4(data: bytes | bytearray | memoryview, level: int) -> bytes:
    view = memoryview(data)
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for start in range(0, len(view), LZ4_BLOCK_BYTES):
        raw = view[start : start + LZ4_BLOCK_BYTES]
        if level >= _LZ4_THOROUGH:
            parts.append(_thorough_block(raw, level))
            continue
        block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
        # A block that does not become smaller is stored as it is: readers allow at most 64 KiB.
        if len(block) < len(raw):
            parts += (_LZ4_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_SIZE.pack(len(raw) | _LZ4_STORED), raw)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _thorough_block(raw: memoryview, level: int) -> bytes:
    """Compress a block with a level; return it with its size in front.

    The library has levels only in its function for frames, so this cuts the block out of a frame.
    """
    frame = bytes(cramjam.lz4.compress(raw, level))
    flags = frame[_LZ4_FLAGS_AT]
    begin = len(_LZ4_HEADER)
    begin += 8 * bool(flags & _LZ4_CONTENT_SIZE) + 4 * bool(flags & _LZ4_DICTIONARY)
    size_bytes = _LZ4_SIZE.unpack_from(frame, begin)[0] & ~_LZ4_STORED
    return frame[begin : begin + _LZ4_SIZE.size + size_bytes]


def _compress_xerial(data: bytes | bytearray | memoryview) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes | bytearray | memoryview, size_bytes_max: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_block(view, size_bytes_max)
    blocks: list[bytes] = []
    room_bytes = size_bytes_max
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise CorruptData(f"a xerial header is cut short: {len(view)} of {position} bytes")
    while position < len(view):
        if len(view) - position < _BLOCK_SIZE.size:
            raise CorruptData("the size of a xerial block is cut short")
        (size_bytes,) = _BLOCK_SIZE.unpack_from(view, position)
        position += _BLOCK_SIZE.size
        if size_bytes > len(view) - position:
            raise CorruptData(
                f"a xerial block claims {size_bytes} bytes; {len(view) - position} are left"
            )
        # The limit is for the sum of all blocks.
        block = _decompress_block(view[position : position + size_bytes], room_bytes)
        room_bytes -= len(block)
        position += size_bytes
        blocks.append(block)
    return b"".join(blocks)


def _decompress_block(block: memoryview, size_bytes_max: int) -> bytes:
    """Decompress raw snappy.

    Its head claims a size, which is believed only up to the most that so few bytes can yield.
    """
    claimed_bytes = cramjam.snappy.decompress_raw_len(block)
    _check_size(claimed_bytes, min(size_bytes_max, len(block) * _SNAPPY_RATIO_MAX))
    return bytes(cramjam.snappy.decompress_raw(block))
