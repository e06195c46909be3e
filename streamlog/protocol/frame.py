"""Frames: bytes in, whole requests or responses out, and back, headers included.

On a connection every message has its size in front (int32) and a header: requests say which
API, which version, a number to recognise the answer by and who asks; responses repeat the
number. A header is flexible (ends in tagged fields) when the message's version is, with two
exceptions that are older than the rule: the client id keeps its fixed-size length, and the
response to ApiVersions never has a flexible header, because a client has to be able to read it
before it knows what the broker speaks (KIP-482, KIP-511).

"Not enough bytes yet" is no frame, not an error. Nothing here reads from a connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from streamlog.errors import CorruptData, UnsupportedVersion, UsageError
from streamlog.protocol.api_table import API_VERSIONS_KEY, APIS, Api
from streamlog.protocol.codec import decode, encode_into, read_uvarint
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import Buffer, Message, Piece, one_buffer

READ_BYTES: Final = 8 * 1024
"""Room for one read of small frames, as long as no more come at a time: every connection has it."""
READ_BYTES_MAX: Final = 256 * 1024
"""Room for one read from a peer that fills what there is: fewer reads, and more at once."""
KEPT_BYTES_MAX: Final = 1024 * 1024 + READ_BYTES
"""A buffer of one large batch is used again; a larger one is given back when it is empty."""

_SIZE: Final = struct.Struct(">i")
_CORRELATION_ID: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">hhih")
_ERROR_CODE: Final = struct.Struct(">h")
_SERVED: Final = {
    (api.key, version): (api, api.is_flexible(version))
    for api in APIS.values()
    for version in range(api.request.__versions__.first, api.request.__versions__.last + 1)
}
"""What is understood, found by one look, and whether its header is flexible."""
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


class HeldBytes(NamedTuple):
    """Bytes of a stream in their buffer, from `start` to before `end`."""

    data: bytearray
    view: memoryview
    """Of all of `data`."""
    start: int
    end: int


class FrameReader:
    """Cuts a stream of bytes into frames, without their sizes.

    Bytes go into one buffer, by `room` and `took` straight from a socket, and frames come out as
    views of it: no byte is copied, but for the beginning of a frame that has to move to where
    all of it has room. So a frame is good until more bytes come; who keeps any copies them.
    A caller that takes all frames whenever bytes have come holds one frame and one read.
    """

    def __init__(self, *, size_bytes_max: int) -> None:
        self.size_bytes_max = size_bytes_max
        """May be changed: it holds for frames of which nothing has come yet."""
        self._bytes = bytearray(READ_BYTES)
        self._buffer = memoryview(self._bytes)
        self._start = 0
        self._end = 0
        self._wanted_bytes = _SIZE.size
        self._filled = False
        """Whether the last bytes took all the room there was."""

    def room(self) -> memoryview:
        """Where the next bytes go; never empty. Frames that were taken are gone with it."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_BYTES_MAX:
                self._take_buffer(READ_BYTES)
                self._filled = False
        end_bytes = max(self._start + self._wanted_bytes, self._end + 1)
        if end_bytes > len(self._buffer) or (self._filled and self._grown_bytes):
            self._move()
        return self._buffer[self._end :]

    @property
    def due_bytes(self) -> int:
        """The memory that it has beyond `READ_BYTES`, or will have after the next `room`."""
        size_bytes = len(self._buffer)
        needed_bytes = self._wanted_bytes
        if self._filled:
            needed_bytes = max(needed_bytes, self._grown_bytes)
        if needed_bytes > size_bytes:
            size_bytes = max(needed_bytes, 2 * (self._end - self._start))
        return size_bytes - READ_BYTES

    @property
    def is_cramped(self) -> bool:
        """Whether a frame is being received that its buffer has no room for."""
        return self._wanted_bytes > len(self._buffer)

    def stay_small(self) -> None:
        """Do without the larger buffer that a fast peer would get."""
        self._filled = False

    def trim(self, *, kept_bytes: int = KEPT_BYTES_MAX) -> None:
        """Give a buffer back that is empty and larger than that. Frames of it are gone then."""
        if self._start == self._end and len(self._buffer) > kept_bytes:
            self._take_buffer(READ_BYTES)
            self._start = self._end = 0
            self._filled = False

    def took(self, size_bytes: int) -> bool:
        """So many bytes have come to where `room` had said; whether that changes anything.

        If not, a frame is known to go on, and there is room for what is left of it.
        """
        self._end += size_bytes
        self._filled = self._end == len(self._buffer)
        return self._filled or self._end - self._start >= self._wanted_bytes

    def feed(self, data: Buffer) -> None:
        """Take bytes that are somewhere else."""
        rest = memoryview(data)
        while rest:
            room = self.room()
            size_bytes = min(len(room), len(rest))
            room[:size_bytes] = rest[:size_bytes]
            self.took(size_bytes)
            rest = rest[size_bytes:]

    def frames(self) -> Iterator[memoryview]:
        """The frames that are complete by now.

        Raises:
            CorruptData: a size is negative or too large. The stream can't be read on.
        """
        while (frame := self.next_frame()) is not None:
            yield frame

    def next_frame(self) -> memoryview | None:
        """The next frame, if it is complete by now.

        Raises:
            CorruptData: its size is negative or too large. The stream can't be read on.
        """
        held_bytes = self._end - self._start
        if held_bytes < _SIZE.size:
            return None
        size_bytes = _SIZE.unpack_from(self._buffer, self._start)[0]
        if not 0 <= size_bytes <= self.size_bytes_max:
            raise CorruptData(
                f"a frame of {size_bytes} bytes, at most {self.size_bytes_max} are taken: "
                f"{what_speaks(size_bytes)}"
            )
        if held_bytes - _SIZE.size < size_bytes:
            self._wanted_bytes = _SIZE.size + size_bytes
            return None
        first = self._start + _SIZE.size
        self.skip(_SIZE.size + size_bytes)
        return self._buffer[first : self._start]

    def held(self) -> HeldBytes:
        """What has come and was not taken: frames with their sizes, the last maybe a part."""
        return _new_tuple(HeldBytes, (self._bytes, self._buffer, self._start, self._end))

    def skip(self, size_bytes: int) -> None:
        """Whole frames at the front were taken by somebody who has looked at `held`."""
        self._wanted_bytes = _SIZE.size
        self._start += size_bytes

    @property
    def _grown_bytes(self) -> int:
        """The size to grow to for a peer that sends fast; 0 if the buffer is large enough."""
        twice = 2 * len(self._buffer)
        return twice if twice <= READ_BYTES_MAX else 0

    def _take_buffer(self, size_bytes: int) -> None:
        self._bytes = bytearray(size_bytes)
        self._buffer = memoryview(self._bytes)

    def _move(self) -> None:
        """Bring what is held to the front, of a larger buffer if its frame needs that."""
        held = self._buffer[self._start : self._end]
        needed_bytes = max(self._wanted_bytes, len(held) + 1)
        if self._filled:
            needed_bytes = max(needed_bytes, self._grown_bytes)
            self._filled = False
        if needed_bytes > len(self._buffer):
            # Twice as large where whole frames are waiting to be taken, so that it grows seldom.
            self._take_buffer(max(needed_bytes, 2 * len(held)))
        self._buffer[: len(held)] = held
        self._start, self._end = 0, len(held)


def what_speaks(size_bytes: int) -> str:
    """What sends bytes that, read as the size of a frame, are this impossible one."""
    head = size_bytes.to_bytes(_SIZE.size, "big", signed=True)
    if head[:2] in (b"\x16\x03", b"\x15\x03"):  # A record of a handshake, or an alert.
        return "the peer speaks TLS, and this end does not; both need the same security.protocol"
    return "the peer does not speak Kafka's protocol, or sends more than it may"


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Buffer]:
    """The frame of a request, its size first; record batches are in it as they were given.

    Raises:
        UnsupportedVersion: the message has no such version.
        UsageError: a field, or the client id, holds what this version can't say.
    """
    head = bytearray(_SIZE.size)
    try:
        name = b"" if client_id is None else client_id.encode()
        name_bytes = _NULL if client_id is None else len(name)
        head += _REQUEST_HEADER.pack(api.key, version, correlation_id, name_bytes)
    except (struct.error, UnicodeEncodeError) as error:
        raise UsageError(f"client id {client_id!r:.40} can't be written: {error}") from error
    head += name
    if api.is_flexible(version):
        head += _NO_TAGS
    return [one_buffer(piece) for piece in _framed(head, version, message)]


def encode_response(api: Api, version: int, correlation_id: int, message: Message) -> list[Piece]:
    """The frame of a response, its size first; record batches are in it as they were given.

    Raises:
        UnsupportedVersion: the message has no such version.
        UsageError: a field holds what this version can't say.
    """
    head = bytearray(_SIZE.size)
    head += _CORRELATION_ID.pack(correlation_id)
    if _has_flexible_response_header(api, version):
        head += _NO_TAGS
    return _framed(head, version, message)


def decode_request(frame: Buffer) -> Request:
    """Read a frame as a request.

    Raises:
        UnsupportedVersion: the API or its version is not served. Kafka answers ApiVersions in
            version 0 then, with UNSUPPORTED_VERSION, and closes the connection on the others.
        CorruptData: the bytes are no such request.
    """
    if len(frame) < _REQUEST_HEADER.size:
        raise CorruptData(f"a request of {len(frame)} bytes, its header alone takes more")
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
    # Bytes after it are borne, as Kafka does: librdkafka's Metadata for all topics has three, left
    # over from an array count that it writes as four bytes where one is read.
    message = decode(api.request, version, frame, position, exact=False)
    return Request(api, version, correlation_id, client_id, message)


def decode_response(api: Api, version: int, frame: Buffer) -> tuple[int, Message]:
    """Read a frame as the response to a request of this version: correlation id and message.

    A broker that does not know a version of ApiVersions answers in version 0, which shows by
    the error UNSUPPORTED_VERSION; it is read as that.

    Raises:
        UnsupportedVersion: the message has no such version.
        CorruptData: the bytes are no such response.
    """
    correlation_id = correlation_id_of(frame)
    position = _CORRELATION_ID.size
    if _has_flexible_response_header(api, version):
        position = _skip_tags(frame, position)
    if api.key == API_VERSIONS_KEY and _refuses_version(frame, position):
        version = 0
    # librdkafka's mock cluster, for one, ends some of its answers with a byte too many.
    return correlation_id, decode(api.response, version, frame, position, exact=False)


def correlation_id_of(frame: Buffer) -> int:
    """The number by which a response says which request it answers.

    Raises:
        CorruptData: the frame is too short to have one.
    """
    if len(frame) < _CORRELATION_ID.size:
        raise CorruptData(f"a response of {len(frame)} bytes has no correlation id")
    correlation_id: int = _CORRELATION_ID.unpack_from(frame)[0]
    return correlation_id


def _has_flexible_response_header(api: Api, version: int) -> bool:
    return api.is_flexible(version) and api.key != API_VERSIONS_KEY


def _refuses_version(frame: Buffer, position: int) -> bool:
    if len(frame) < position + _ERROR_CODE.size:
        return False
    code: int = _ERROR_CODE.unpack_from(frame, position)[0]
    return code == ErrorCode.UNSUPPORTED_VERSION


def _framed(head: bytearray, version: int, message: Message) -> list[Piece]:
    buffers: list[Piece] = [head]
    encode_into(message, version, buffers)
    if not buffers[-1]:
        buffers.pop()
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
    """The position after a header's tagged fields; there are none that we know."""
    try:
        count, position = read_uvarint(frame, position)
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size_bytes, position = read_uvarint(frame, position)
            position += size_bytes
    except IndexError as error:
        raise CorruptData(f"a frame of {len(frame)} bytes ends within its header") from error
    return position
