"""Produce requests that look alike, taken up together.

A producer that keeps a partition busy sends requests that differ in two places: the number to
recognise the answer by, and the records. So the codec reads one of them, and those that repeat
its bytes up to the records are not read again; what one read of a socket has brought of them is
a `ProduceRun`, which the log can append by one write. Their answers differ in two places too,
and are copies of one that the codec wrote.

Rule of the file: it knows no field's place by itself. A request becomes a pattern only if the
codec writes it with the same bytes, so nothing here has to be kept in step with a version's
layout; whatever is no exact repetition is left to the codec.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from streamlog.errors import CorruptData
from streamlog.protocol.frame import Request, encode_request, encode_response
from streamlog.protocol.messages.data import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.protocol.reader import read_uvarint
from streamlog.protocol.schema import one_buffer
from streamlog.protocol.writer import uvarint

RUN_MAX: Final = 1024
"""Requests in one run: so many pieces one write takes, and then others have their turn."""
PATTERNS_MAX: Final = 256
"""Patterns that are remembered of one client: a producer has one for each partition."""
ACKS: Final = (1, -1)
"""Of requests that want an answer, and are not refused for it."""
VERSION_MIN: Final = 7
"""Older ones are not allowed every codec, which somebody has to look at."""

_INT32: Final = struct.Struct(">i")
_START: Final = struct.Struct(">ii")
"""Of a request: API and version, which are compared as one number, and the correlation id."""
_INT64: Final = struct.Struct(">q")
_ALIKE_AT: Final = _START.size
"""Behind the correlation id: from here to the records all requests of a pattern are the same."""
_NO_TAGS: Final = bytes(3)
"""Behind the records of a flexible request: of the partition, the topic and the request."""
_OFFSET_MARK: Final = 0x7EED_FACE_FEED_0FF5
"""A base offset that nothing else in an answer looks like: names are text, numbers small."""
_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults


class ProducePattern:
    """What the requests of one producer to one partition have in common."""

    __slots__ = ("_answer", "_flexible", "_start", "api", "client_id", "index", "topic", "version")

    def __init__(self, request: Request, topic: str, index: int, start: int) -> None:
        self.api = request.api
        self.version = request.version
        self.client_id = request.client_id
        self.topic = topic
        self.index = index
        self._start = start
        self._flexible = request.api.is_flexible(request.version)
        self._answer = _AcceptedAnswer(self, log_start_offset=0)

    def match(self, frame: memoryview, position: int) -> Alike | None:
        """The frame, if its records, with their length in front, are all it has at `position`."""
        start, correlation_id = _START.unpack_from(frame)
        if start != self._start:
            return None
        end = len(frame)
        if not self._flexible:
            if end - position < _INT32.size:
                return None
            size_bytes = _INT32.unpack_from(frame, position)[0]
            position += _INT32.size
        else:
            try:
                size_bytes, position = read_uvarint(frame, position)
            except (IndexError, CorruptData):
                return None
            size_bytes -= 1
            end -= len(_NO_TAGS)
            if frame[end:] != _NO_TAGS:
                return None
        if not 0 < size_bytes == end - position:
            return None
        return _new_tuple(Alike, (self, correlation_id, frame[position:end]))

    def accepted(self, correlation_id: int, base_offset: int, log_start_offset: int) -> bytes:
        """The answer to a request whose records are in the log."""
        if self._answer.log_start_offset != log_start_offset:
            self._answer = _AcceptedAnswer(self, log_start_offset=log_start_offset)
        return self._answer.to(correlation_id, base_offset)

    def answered(self, correlation_id: int, answer: PartitionProduceResponse) -> bytes:
        """Any answer, by the codec."""
        topic = TopicProduceResponse(name=self.topic, partition_responses=[answer])
        response = ProduceResponse(responses=[topic])
        pieces = encode_response(self.api, self.version, correlation_id, response)
        return b"".join(map(one_buffer, pieces))


class _AcceptedAnswer:
    """An answer of the codec, to be copied."""

    __slots__ = ("_after", "_before", "_pack", "_size_bytes", "log_start_offset")

    def __init__(self, pattern: ProducePattern, *, log_start_offset: int) -> None:
        self.log_start_offset = log_start_offset
        accepted = PartitionProduceResponse(
            index=pattern.index, base_offset=_OFFSET_MARK, log_start_offset=log_start_offset
        )
        answer = pattern.answered(0, accepted)
        numbers_bytes = 2 * _INT32.size  # size and correlation id
        at = answer.index(_INT64.pack(_OFFSET_MARK))
        self._size_bytes = len(answer) - _INT32.size
        self._before = answer[numbers_bytes:at]
        self._after = answer[at + _INT64.size :]
        self._pack = struct.Struct(f">ii{len(self._before)}sq{len(self._after)}s").pack

    def to(self, correlation_id: int, base_offset: int) -> bytes:
        """A copy with the two numbers that differ."""
        return self._pack(self._size_bytes, correlation_id, self._before, base_offset, self._after)


class Alike(NamedTuple):
    """A request that repeats its pattern, as far as it does not."""

    pattern: ProducePattern
    correlation_id: int
    records: memoryview


class ProduceRun:
    """Requests of one connection that came together, in their order."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests: list[Alike] = []

    def by_pattern(self) -> dict[ProducePattern, list[int]]:
        """Which of the requests, by number, are for one partition."""
        numbers: dict[ProducePattern, list[int]] = {}
        for number, request in enumerate(self.requests):
            numbers.setdefault(request.pattern, []).append(number)
        return numbers

    @property
    def is_full(self) -> bool:
        """Whether it should be taken up before there are more."""
        return len(self.requests) >= RUN_MAX


class ProducePatterns:
    """The patterns of one connection."""

    __slots__ = ("_ends", "_patterns")

    def __init__(self) -> None:
        self._patterns: dict[bytes, ProducePattern] = {}
        self._ends: tuple[int, ...] = ()
        """Up to where requests are alike: it depends on the length of the topic's name."""

    def match(self, frame: memoryview) -> Alike | None:
        """The frame as a request of a known pattern."""
        for end in self._ends:
            pattern = self._patterns.get(bytes(frame[_ALIKE_AT:end]))
            if pattern is not None:
                return pattern.match(frame, end)
        return None

    def learn(self, frame: memoryview, request: Request) -> None:
        """Remember what the codec has read, if more that look like it may come."""
        message = request.message
        if not isinstance(message, ProduceRequest) or not _is_plain(request.version, message):
            return
        topic = message.topic_data[0]
        data = topic.partition_data[0]
        head, records, *rest = encode_request(*request[:4], message)
        size_bytes = len(records)
        length_bytes = _INT32.size
        if request.api.is_flexible(request.version):
            length_bytes = len(uvarint(size_bytes + 1))
        start = bytes(head[_INT32.size :])
        if frame[: len(start)] != start or frame[len(start) + size_bytes :] != b"".join(rest):
            return  # It can be written in another way, too.
        end = len(start) - length_bytes
        if len(self._patterns) >= PATTERNS_MAX:
            del self._patterns[next(iter(self._patterns))]
        pattern = ProducePattern(request, topic.name, data.index, _START.unpack_from(start)[0])
        self._patterns[start[_ALIKE_AT:end]] = pattern
        self._ends = tuple({_ALIKE_AT + len(alike) for alike in self._patterns})


def _is_plain(version: int, request: ProduceRequest) -> bool:
    """Whether it is of records for one partition, outside of transactions, and wants an answer."""
    if version < VERSION_MIN or request.transactional_id is not None or request.acks not in ACKS:
        return False
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return False
    records = request.topic_data[0].partition_data[0].records
    return isinstance(records, memoryview) and len(records) > 0
