"""Messages to bytes and back, in any of their versions.

Each message and version is compiled to a function on first use (`reader`, `writer`): that
takes about a millisecond, and then costs about what handwritten code would.

Rule of the file: whatever the bytes, reading ends in a message, in `CorruptData`, or (by the
version alone) in `UnsupportedVersion`; whatever the values, writing ends in bytes or in
`UsageError`. What the compiled functions raise besides stays in here.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, TypeVar, cast

from streamlog.errors import CorruptData, UnsupportedVersion, UsageError
from streamlog.protocol.reader import Reader, compile_reader
from streamlog.protocol.schema import Buffer, Message, Piece, one_buffer
from streamlog.protocol.writer import Writer, compile_writer, null_field

M = TypeVar("M", bound=Message)

_INT16: Final = struct.Struct(">h")
_MALFORMED: Final = (struct.error, IndexError, UnicodeDecodeError)
_UNWRITABLE: Final = (struct.error, TypeError, ValueError, AttributeError)


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message, without header or size.

    Raises:
        UnsupportedVersion: the message has no such version.
        UsageError: a field holds what this version can't say.
    """
    buffers: list[Piece] = [bytearray()]
    encode_into(message, version, buffers)
    return b"".join(map(one_buffer, buffers))


def encode_into(message: Message, version: int, buffers: list[Piece]) -> None:
    """Write a message on from the last of `buffers`, a bytearray; records become own buffers.

    Raises:
        UnsupportedVersion: the message has no such version.
        UsageError: a field holds what this version can't say.
    """
    try:
        _writer(type(message), version)(message, buffers)
    except _UNWRITABLE as error:
        null = null_field(message, version)
        reason = error if null is None else f"{null} is None, which this version can't say"
        raise UsageError(
            f"{type(message).__name__} can't be written in version {version}: {reason}"
        ) from error


def decode(
    message_type: type[M], version: int, data: Buffer, position: int = 0, *, exact: bool = True
) -> M:
    """Read the message that fills `data` from `position` to its end.

    `exact=False` tolerates bytes after it, as Kafka's clients do with what brokers answer.

    Raises:
        UnsupportedVersion: the message has no such version.
        CorruptData: the bytes are no such message, or more than that.
    """
    message, end = _decode(message_type, version, data, position)
    if exact and end != len(data):
        raise CorruptData(
            f"{message_type.__name__} version {version} ends at byte {end} of {len(data)}"
        )
    return message


def encode_versioned(message: Message, version: int) -> bytes:
    """The bytes of a message that carries its version in front, as stored records do.

    Raises:
        UnsupportedVersion: the message has no such version.
        UsageError: a field holds what this version can't say.
    """
    buffers: list[Piece] = [bytearray(_INT16.pack(version))]
    encode_into(message, version, buffers)
    return b"".join(map(one_buffer, buffers))


def decode_versioned(message_type: type[M], data: Buffer) -> M:
    """Read a message that carries its version in front.

    A newer version of an `append_only` message is read as the newest known one.

    Raises:
        UnsupportedVersion: the version is not known.
        CorruptData: the bytes are no such message.
    """
    if len(data) < _INT16.size:
        raise CorruptData(f"{message_type.__name__}: {len(data)} bytes, not even a version")
    version = _INT16.unpack_from(data)[0]
    newest = message_type.__versions__.last
    if message_type.__append_only__ and version > newest:
        return _decode(message_type, newest, data, _INT16.size)[0]
    return decode(message_type, version, data, _INT16.size)


def _decode(message_type: type[M], version: int, data: Buffer, position: int) -> tuple[M, int]:
    read = _reader(message_type, version)
    try:
        message, end = read(memoryview(data), position)
    except _MALFORMED as error:
        raise CorruptData(
            f"{message_type.__name__} version {version} in {len(data)} bytes: {error}"
        ) from error
    if end > len(data):
        raise CorruptData(
            f"{message_type.__name__} version {version} is cut short: "
            f"{len(data)} bytes, at least {end} were expected"
        )
    return cast("M", message), end


@cache
def _reader(message_type: type[Message], version: int) -> Reader:
    _check_version(message_type, version)
    return compile_reader(message_type, version)


@cache
def _writer(message_type: type[Message], version: int) -> Writer:
    _check_version(message_type, version)
    return compile_writer(message_type, version)


def _check_version(message_type: type[Message], version: int) -> None:
    if version not in message_type.__versions__:
        raise UnsupportedVersion(
            f"{message_type.__name__} has versions {message_type.__versions__}, not {version}",
            version=version,
        )
