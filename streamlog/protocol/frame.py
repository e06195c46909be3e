"""Frames: encodes and decodes requests and responses, with their headers.

On a connection, every message has its size in front (int32) and a header. A request's header has
the API, the version, the correlation id and the client id; a response's repeats the correlation id.
A header is flexible (ends in tagged fields) if the message's version is, with two exceptions that
are older than the rule: the client id keeps its fixed-size length, and the response to ApiVersions
never has a flexible header, because a client must be able to read it before it knows the broker's
versions (KIP-482, KIP-511).

A stream of bytes is split into frames by `frame_reader`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from streamlog.errors import CorruptData, UnsupportedVersion, UsageError
from streamlog.protocol.api_table import API_VERSIONS_KEY, APIS, Api
from streamlog.protocol.codec import decode, encode_into, read_uvarint
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import Buffer, Message, Piece, one_buffer

_SIZE: Final = struct.Struct(">i")
_CORRELATION_ID: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">hhih")
_ERROR_CODE: Final = struct.Struct(">h")
_SERVED: Final = {
    (api.key, version): (api, api.is_flexible(version))
    for api in APIS.values()
    for version in range(api.request.__versions__.first, api.request.__versions__.last + 1)
}
"""(API key, version) of all requests that are served, with whether the header is flexible."""
_NO_TAGS: Final = b"\x00"
_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults
_NULL: Final = -1


class Request(NamedTuple):
    """A request with its header."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    message: Message


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Buffer]:
    """Return the frame of a request, with its size; record batches are included uncopied.

    Raises:
        UnsupportedVersion: the message does not have this version.
        UsageError: this version can't encode the value of a field, or the client id.
    """
    head = bytearray(_SIZE.size)
    try:
        name = b"" if client_id is None else client_id.encode()
        name_bytes = _NULL if client_id is None else len(name)
        head += _REQUEST_HEADER.pack(api.key, version, correlation_id, name_bytes)
    except (struct.error, UnicodeEncodeError) as error:
        raise UsageError(f"client id {client_id!r:.40} can't be written: {error}") from error
    head += name
    # In a flexible header, too, the client id has an int16 length; only tags are added (KIP-482).
    if _is_flexible(api, version):
        head += _NO_TAGS
    return [one_buffer(piece) for piece in _framed(head, version, message)]


def encode_response(api: Api, version: int, correlation_id: int, message: Message) -> list[Piece]:
    """Return the frame of a response, with its size; record batches are included uncopied.

    Raises:
        UnsupportedVersion: the message does not have this version.
        UsageError: this version can't encode the value of a field.
    """
    head = bytearray(_SIZE.size)
    head += _CORRELATION_ID.pack(correlation_id)
    if _has_flexible_response_header(api, version):
        head += _NO_TAGS
    return _framed(head, version, message)


def decode_request(frame: Buffer) -> Request:
    """Decode a frame as a request.

    Raises:
        UnsupportedVersion: the API or its version is not served. Kafka then answers ApiVersions in
            version 0 with UNSUPPORTED_VERSION, and closes the connection for other APIs.
        CorruptData: the bytes are not a valid request.
    """
    if len(frame) < _REQUEST_HEADER.size:
        raise CorruptData(f"a request of {len(frame)} bytes is shorter than its header")
    key, version, correlation_id, name_bytes = _REQUEST_HEADER.unpack_from(frame)
    served = _SERVED.get((key, version))
    if served is None:
        asked = f"API {key}" if key not in APIS else APIS[key].name
        raise UnsupportedVersion(
            f"{asked} version {version} is not served",
            api_key=key,
            version=version,
            correlation_id=correlation_id,
        )
    api, is_flexible = served
    position = _REQUEST_HEADER.size
    client_id = None
    if name_bytes >= 0:
        client_id = _text(frame, position, name_bytes)
        position += name_bytes
    if is_flexible:
        position = _skip_tags(frame, position)
    # Bytes behind the message are ignored, as in Kafka. librdkafka's Metadata for all topics has
    # three: it writes an array's count in four bytes where the version reads one.
    message = decode(api.request, version, frame, position, exact=False)
    return _new_tuple(Request, (api, version, correlation_id, client_id, message))


def decode_response(api: Api, version: int, frame: Buffer) -> tuple[int, Message]:
    """Decode a frame as the response to a request of this version; return correlation id, message.

    A broker that does not know a version of ApiVersions answers in version 0 with the error
    UNSUPPORTED_VERSION, and the response is decoded as that.

    Raises:
        UnsupportedVersion: the message does not have this version.
        CorruptData: the bytes are not a valid response.
    """
    correlation_id = correlation_id_of(frame)
    position = _CORRELATION_ID.size
    if _has_flexible_response_header(api, version):
        position = _skip_tags(frame, position)
    if api.key == API_VERSIONS_KEY and _refuses_version(frame, position):
        version = 0
    # Not exact: librdkafka's mock cluster, for example, ends some answers with an extra byte.
    return correlation_id, decode(api.response, version, frame, position, exact=False)


def correlation_id_of(frame: Buffer) -> int:
    """Return the correlation id of a response, which matches it to its request.

    Raises:
        CorruptData: the frame is too short.
    """
    if len(frame) < _CORRELATION_ID.size:
        raise CorruptData(f"a response of {len(frame)} bytes is too short for a correlation id")
    correlation_id: int = _CORRELATION_ID.unpack_from(frame)[0]
    return correlation_id


def _has_flexible_response_header(api: Api, version: int) -> bool:
    return _is_flexible(api, version) and api.key != API_VERSIONS_KEY


def _is_flexible(api: Api, version: int) -> bool:
    served = _SERVED.get((api.key, version))
    return api.is_flexible(version) if served is None else served[1]


def _refuses_version(frame: Buffer, position: int) -> bool:
    if len(frame) < position + _ERROR_CODE.size:
        return False
    code: int = _ERROR_CODE.unpack_from(frame, position)[0]
    return code == ErrorCode.UNSUPPORTED_VERSION


def _framed(head: bytearray, version: int, message: Message) -> list[Piece]:
    buffers: list[Piece] = [head]
    encode_into(message, version, buffers)
    last = buffers.pop()
    if last:  # Otherwise nothing follows the record batches.
        buffers.append(last)
    _SIZE.pack_into(head, 0, sum(map(len, buffers)) - _SIZE.size)
    return buffers


def _text(frame: Buffer, position: int, size_bytes: int) -> str:
    piece = frame[position : position + size_bytes]
    if len(piece) < size_bytes:
        raise CorruptData(f"a request of {len(frame)} bytes ends within the client id")
    try:
        return str(piece, "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptData(f"the client id is not UTF-8: {error}") from error


def _skip_tags(frame: Buffer, position: int) -> int:
    """Return the position behind a header's tagged fields, none of which has a meaning here."""
    try:
        if not frame[position]:  # None: nearly always.
            return position + 1
        count, position = read_uvarint(frame, position)
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size_bytes, position = read_uvarint(frame, position)
            position += size_bytes
    except IndexError as error:
        raise CorruptData(f"a frame of {len(frame)} bytes ends within its header") from error
    return position
