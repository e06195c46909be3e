"""Fetch requests that repeat the last one but for the offset.

A reader of one partition asks the same thing again and again: its requests differ in the number
to recognise the answer by and in the offset to go on at, and the answers in a few numbers and in
the records. So the codec reads the first request and writes the first answer; what repeats them
is told by its bytes and made by copying. Rule of the file, as in `produce_runs`: it knows no
field's place by itself, but finds marks in what the codec writes.
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
"""Readers of older ones don't know every codec, which somebody has to look at."""
NO_SESSION: Final = (0, -1)
"""Session and epoch of a request that stands for itself."""

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_CORRELATION_ID_AT: Final = 4
_ALIKE_AT: Final = 8
_ONE: Final = b"x"
READ_COMMITTED: Final = 1
_MARKS: Final = tuple(0x7EED_FACE_FEED_0FF5 + number for number in range(3))
"""Offsets that nothing else in a message looks like: names are text, numbers small."""
_THROTTLE_MARK: Final = 0x5AFE_0DD5
"""A throttle time, of which the first occurrence counts: it comes before names and ids."""


class PartitionEnds(NamedTuple):
    """Between which offsets there is something to read."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class FoundRecords(NamedTuple):
    """The answer for one partition that is not refused and has no aborted transactions."""

    ends: PartitionEnds
    records: Piece


class FetchPattern:
    """What the requests of one reader of one partition have in common."""

    __slots__ = (
        "_after",
        "_before",
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
        """One of them; only its offset says nothing about the others."""
        self.api = request.api
        self.version = request.version
        self.client_id = request.client_id
        self._start = frame[:_CORRELATION_ID_AT]
        self._before = frame[_ALIKE_AT:at]
        self._offset_at = at
        self._after = frame[at + _INT64.size :]
        self._head = _AnswerHead(request, message)

    def match(self, frame: memoryview) -> FetchAlike | None:
        """The frame as a request of this pattern."""
        at = self._offset_at
        if (
            frame[at + _INT64.size :] != self._after
            or frame[_ALIKE_AT:at] != self._before
            or frame[:_CORRELATION_ID_AT] != self._start
        ):
            return None
        number: int = _INT32.unpack_from(frame, _CORRELATION_ID_AT)[0]
        offset: int = _INT64.unpack_from(frame, at)[0]
        return FetchAlike(self, number, offset)

    def answer(self, correlation_id: int, found: FoundRecords, throttle_ms: int) -> list[Piece]:
        """Return the frame of the response with these records."""
        return self._head.around(correlation_id, found, throttle_ms)


class FetchAlike(NamedTuple):
    """A request that repeats its pattern, as far as it does not."""

    pattern: FetchPattern
    correlation_id: int
    offset: int

    def message(self) -> FetchRequest:
        """What the codec would have read."""
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
    """What stands before the records, and behind them, in an answer of the codec."""

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
        length_bytes = len(uvarint(len(_ONE) + 1)) if self._flexible else _INT32.size
        parts, rest_of_head = [], bytes(one_buffer(head))[2 * _INT32.size : -length_bytes]
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
    """A pattern of what the codec has read, if more that look like it may come."""
    message = request.message
    if not isinstance(message, FetchRequest) or not _is_plain(request.version, message):
        return None
    topic = message.topics[0]
    marked = _at_offset(message, _MARKS[0])
    api, version, number, client_id, _ = request
    written = b"".join(encode_request(api, version, number, client_id, marked))[_INT32.size :]
    at = written.index(_INT64.pack(_MARKS[0]))
    offset = _INT64.pack(topic.partitions[0].fetch_offset)
    if frame != written[:at] + offset + written[at + _INT64.size :]:
        return None  # It can be written in another way, too.
    return FetchPattern(request, message, written, at)


def _at_offset(request: FetchRequest, offset: int) -> FetchRequest:
    """The same request of one partition, but for where to read."""
    moved, topic = copy(request), copy(request.topics[0])
    partition = copy(topic.partitions[0])
    partition.fetch_offset = offset
    topic.partitions = [partition]
    moved.topics = [topic]
    return moved


def _is_plain(version: int, request: FetchRequest) -> bool:
    """Whether it is for one partition, outside of sessions, and only reads."""
    return (
        version >= VERSION_MIN
        and request.replica_id < 0
        and request.replica_state is None
        and (request.session_id, request.session_epoch) == NO_SESSION
        and len(request.topics) == 1
        and len(request.topics[0].partitions) == 1
        and request.topics[0].partitions[0].mark_after_ms < 0
    )
