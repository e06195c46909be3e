"""Fast decoding of Fetch requests that repeat the last one except for the offset.

The requests of a reader of one partition differ only in the correlation id and the fetch offset,
and the responses only in a few numbers and the records. So the codec decodes the first request and
encodes the first response; later requests are recognized by their bytes, and their responses are
copies with other numbers (decision 003). The rule of the file, as in `produce_runs`: it does not
know the position of any field, but finds marker values in what the codec encodes.
"""

from __future__ import annotations

import struct
from copy import copy
from typing import Final, NamedTuple

from streamlog.protocol.codec import uvarint
from streamlog.protocol.frame import Request, encode_request, encode_response
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from streamlog.protocol.schema import Piece, one_buffer

VERSION_MIN: Final = 10
"""Readers of older versions don't support every codec, so their answers need a check."""
NO_SESSION: Final = (0, -1)
"""Session id and epoch of a request without a fetch session."""

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_CORRELATION_ID_AT: Final = 4
_ALIKE_AT: Final = 8
_ONE: Final = b"x"
_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults
READ_COMMITTED: Final = 1
_MARKS: Final = tuple(0x7EED_FACE_FEED_0FF5 + number for number in range(3))
"""Marker offsets that occur nowhere else in a message: names are text, and numbers are small."""
_THROTTLE_MARK: Final = 0x5AFE_0DD5
"""A throttle time, of which the first occurrence counts: it comes before names and ids."""


class PartitionEnds(NamedTuple):
    """The offsets of a partition that an answer carries."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class FoundRecords(NamedTuple):
    """The answer for one partition that is not refused and has no aborted transactions."""

    ends: PartitionEnds
    records: Piece


class FetchPattern:
    """The common part of the requests of one reader of one partition."""

    __slots__ = (
        "_after",
        "_before",
        "_frame_bytes",
        "_head",
        "_offset_at",
        "_start",
        "api",
        "client_id",
        "request",
        "version",
    )

    def __init__(self, request: Request, message: FetchRequest, frame: bytes, at: int) -> None:
        self.request = message
        """One of the requests; the others differ in the fetch offset."""
        self.api = request.api
        self.version = request.version
        self.client_id = request.client_id
        self._start = frame[:_CORRELATION_ID_AT]
        self._before = frame[_ALIKE_AT:at]
        self._offset_at = at
        self._after = frame[at + _INT64.size :]
        self._frame_bytes = len(frame)
        self._head = _AnswerHead(request, message)

    def match(self, frame: memoryview) -> FetchAlike | None:
        """Return the frame as a request of this pattern; None if it is not one."""
        # The length comes first: with it, all positions are inside the frame.
        if len(frame) != self._frame_bytes:
            return None
        # A view would be compared byte by byte, through its format.
        data = bytes(frame)
        at = self._offset_at
        if (
            not data.startswith(self._before, _ALIKE_AT)
            or not data.endswith(self._after)
            or not data.startswith(self._start)
        ):
            return None
        number: int = _INT32.unpack_from(data, _CORRELATION_ID_AT)[0]
        offset: int = _INT64.unpack_from(data, at)[0]
        return _new_tuple(FetchAlike, (self, number, offset))

    def answer(self, correlation_id: int, found: FoundRecords, throttle_ms: int) -> list[Piece]:
        """Return the frame of the response with these records."""
        return self._head.around(correlation_id, found, throttle_ms)


class FetchAlike(NamedTuple):
    """A request that repeats its pattern: the parts in which it differs."""

    pattern: FetchPattern
    correlation_id: int
    offset: int

    def message(self) -> FetchRequest:
        """Return the request as the codec would have decoded it."""
        return _at_offset(self.pattern.request, self.offset)

    def full(self) -> Request:
        """Return the request with its header, as the codec would have read it."""
        pattern = self.pattern
        return Request(
            pattern.api, pattern.version, self.correlation_id, pattern.client_id, self.message()
        )

    def written(self, found: FoundRecords, throttle_ms: int) -> list[Piece]:
        """Return the frame of the response: a copy of the pattern's, with these records."""
        return self.pattern.answer(self.correlation_id, found, throttle_ms)


class _AnswerHead:
    """The bytes before and behind the records in an answer that the codec wrote."""

    __slots__ = ("_bytes", "_flexible", "_pack", "_parts", "_tail")

    def __init__(self, request: Request, message: FetchRequest) -> None:
        topic = message.topics[0]
        marked = PartitionEnds(*_MARKS)
        found = PartitionData(
            partition_index=topic.partitions[0].partition,
            aborted_transactions=[] if message.isolation_level == READ_COMMITTED else None,
            records=_ONE,
            **marked._asdict(),
        )
        responses = [
            FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[found])
        ]
        api, version = request.api, request.version
        response = FetchResponse(throttle_time_ms=_THROTTLE_MARK, responses=responses)
        head, _, *rest = encode_response(api, version, 0, response)
        self._tail = b"".join(map(one_buffer, rest))
        self._flexible = api.is_flexible(version)
        # The head ends with the length of the records, which `around` writes for each response.
        length_bytes = len(uvarint(len(_ONE) + 1)) if self._flexible else _INT32.size
        # Cut at the markers, in the order in which the response has the fields.
        end = len(head) - length_bytes
        parts, rest_of_head = [], bytes(one_buffer(head))[2 * _INT32.size : end]
        for mark in (_INT32.pack(_THROTTLE_MARK), *map(_INT64.pack, _MARKS)):
            part, _, rest_of_head = rest_of_head.partition(mark)
            parts.append(part)
        parts.append(rest_of_head)
        self._parts = parts
        lengths = [f"{len(part)}s" for part in parts]
        layout = struct.Struct(f">ii{lengths[0]}i" + "q".join(lengths[1:]))
        self._bytes = layout.size - _INT32.size + len(self._tail)
        self._pack = layout.pack

    def around(self, correlation_id: int, found: FoundRecords, throttle_ms: int) -> list[Piece]:
        """Return the frame of a response with these records."""
        ends, records = found
        size_bytes = len(records)
        length = uvarint(size_bytes + 1) if self._flexible else _INT32.pack(size_bytes)
        start, first, second, third, last = self._parts
        head = self._pack(
            self._bytes + len(length) + size_bytes,
            correlation_id,
            start,
            throttle_ms,
            first,
            ends[0],
            second,
            ends[1],
            third,
            ends[2],
            last,
        )
        pieces: list[Piece] = [head + length, records]
        if self._tail:
            pieces.append(self._tail)
        return pieces


def fetch_pattern(frame: memoryview, request: Request) -> FetchPattern | None:
    """Return the pattern of a decoded request; None if later ones can't repeat it."""
    message = request.message
    if not isinstance(message, FetchRequest) or not is_repeatable(request.version, message):
        return None
    topic = message.topics[0]
    marked = _at_offset(message, _MARKS[0])
    api, version, number, client_id, _ = request
    written = b"".join(encode_request(api, version, number, client_id, marked))[_INT32.size :]
    # The frame must equal the codec's bytes with its own offset in place of the marker: only then
    # the position of the offset is that in the frame.
    at = written.index(_INT64.pack(_MARKS[0]))
    offset = _INT64.pack(topic.partitions[0].fetch_offset)
    if frame != written[:at] + offset + written[at + _INT64.size :]:
        return None  # The client encodes the request otherwise than our codec does.
    return FetchPattern(request, message, written, at)


def _at_offset(request: FetchRequest, offset: int) -> FetchRequest:
    """Return a copy of a request of one partition with another fetch offset."""
    # Shallow copies, because other requests share the pattern's message.
    moved, topic = copy(request), copy(request.topics[0])
    partition = copy(topic.partitions[0])
    partition.fetch_offset = offset
    topic.partitions = [partition]
    moved.topics = [topic]
    return moved


def is_repeatable(version: int, request: FetchRequest) -> bool:
    """Whether a request is for one partition, without a session, and requests no time mark."""
    return (
        version >= VERSION_MIN
        and request.replica_id < 0
        and request.replica_state is None
        and (request.session_id, request.session_epoch) == NO_SESSION
        and len(request.topics) == 1
        and len(request.topics[0].partitions) == 1
        and request.topics[0].partitions[0].mark_after_ms < 0
    )
