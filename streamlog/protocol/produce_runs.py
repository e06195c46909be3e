"""Produce requests that look alike, taken up together.

A producer that keeps a partition busy sends requests that differ in two places: the number to
recognise the answer by, and the records. So the codec reads one of them, and those that repeat
its bytes up to the records are not read again; what one read of a socket has brought of them is
a `ProduceRun`, which the log can append by one write. Their answers differ in two places too,
and are copies of one that the codec wrote.

Rule of the file: it knows no field's place by itself. A request becomes a pattern only if the
codec writes it with the same bytes, so nothing here has to be kept in step with a version's
layout; whatever is no exact repetition is left to the codec. And it may be compiled, where an
index is not checked: nothing is looked at that is not known to be before the end.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from streamlog.protocol.codec import uvarint
from streamlog.protocol.frame import FrameReader, Request, encode_request, encode_response
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.protocol.schema import one_buffer

RUN_MAX: Final = 1024
"""Requests in one run: so many pieces one write takes, and then others have their turn."""
PATTERNS_MAX: Final = 256
"""Patterns that are remembered of one client: a producer has one for each partition."""
ACKS: Final = (1, -1)
"""Of requests that want an answer, and are not refused for it."""
VERSION_MIN: Final = 7
"""Older ones are not allowed every codec, which somebody has to look at."""

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_OFFSET_MARK: Final = 0x7EED_FACE_FEED_0FF5
"""A base offset that nothing else in an answer looks like: names are text, numbers small."""
_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults

# C integers when compiled.
_RUN_MAX = RUN_MAX
_INT32_BYTES = 4
_INT32_END = 2**31
_UINT32_MAX = 2**32 - 1
_CONTINUES = 0x80
_VARINT_SHIFT_MAX = 28
_CORRELATION_ID_AT = 4
_ALIKE_AT = 8
"""Behind the correlation id: from here to the records all requests of a pattern are the same."""
_NO_TAGS = bytes(3)
"""Behind the records of a flexible request: of the partition, the topic and the request."""
_NO_TAGS_BYTES = 3


class ProducePattern:
    """What the requests of one producer to one partition have in common."""

    __slots__ = (
        "_alike_bytes",
        "_answer",
        "_start",
        "acks",
        "alike",
        "api",
        "client_id",
        "index",
        "is_flexible",
        "timeout_ms",
        "topic",
        "version",
    )

    def __init__(self, request: Request, topic: str, index: int, frame: bytes) -> None:
        """Of requests that begin like `frame`, up to the length of the records."""
        self.api = request.api
        self.version = request.version
        self.client_id = request.client_id
        self.topic = topic
        self.index = index
        message = request.message
        self.acks = message.acks if isinstance(message, ProduceRequest) else -1
        self.timeout_ms = message.timeout_ms if isinstance(message, ProduceRequest) else 0
        self._start = _int32(frame, 0)
        self.alike = frame[_ALIKE_AT:]
        self._alike_bytes = len(self.alike)
        self.is_flexible = request.api.is_flexible(request.version)
        self._answer = _AcceptedAnswer(self, log_start_offset=0)

    def begins(self, data: bytearray, position: int, end: int) -> bool:
        """Whether the frame from `position` to before `end` begins like its requests do."""
        begin = position + _ALIKE_AT
        return (
            end - begin >= self._alike_bytes
            and _int32(data, position) == self._start
            and data[begin : begin + self._alike_bytes] == self.alike
        )

    def records_at(self, data: bytearray, position: int, end: int) -> int:
        """Where in a frame that begins so the records are, if they are the rest of it; else 0."""
        position += _ALIKE_AT + self._alike_bytes
        size_bytes = 0
        if not self.is_flexible:
            if end - position < _INT32_BYTES:
                return 0
            size_bytes = _int32(data, position)
            position += _INT32_BYTES
        else:
            end -= _NO_TAGS_BYTES
            if end - position < 1 or data[end : end + _NO_TAGS_BYTES] != _NO_TAGS:
                return 0
            shift = 0
            byte = data[position]
            while byte >= _CONTINUES:
                size_bytes |= (byte - _CONTINUES) << shift
                shift += 7
                position += 1
                if position >= end or shift > _VARINT_SHIFT_MAX:
                    return 0
                byte = data[position]
            size_bytes |= byte << shift
            if size_bytes > _UINT32_MAX:
                return 0
            size_bytes -= 1
            position += 1
        return position if 0 < size_bytes == end - position else 0

    def accepted(self, correlation_id: int, base_offset: int, log_start_offset: int) -> bytes:
        """The answer to a request whose records are in the log."""
        if self._answer.log_start_offset != log_start_offset:
            self._answer = _AcceptedAnswer(self, log_start_offset=log_start_offset)
        return self._answer.to(correlation_id, base_offset)

    def answered(self, correlation_id: int, answer: PartitionProduceResponse) -> bytes:
        """Return the response with this answer for the partition, encoded by the codec."""
        return self.written(correlation_id, self.response_with(answer))

    def response_with(self, answer: PartitionProduceResponse) -> ProduceResponse:
        """Return the response that has this answer for the partition."""
        topic = TopicProduceResponse(name=self.topic, partition_responses=[answer])
        return ProduceResponse(responses=[topic])

    def written(self, correlation_id: int, response: ProduceResponse) -> bytes:
        """Return a response as the codec encodes it."""
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
        numbers_bytes = 2 * _INT32_BYTES  # size and correlation id
        at = answer.index(_INT64.pack(_OFFSET_MARK))
        self._size_bytes = len(answer) - _INT32_BYTES
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

    __slots__ = ("found_bytes", "found_count", "requests")

    def __init__(self) -> None:
        self.requests: list[Alike] = []
        self.found_count = 0
        """The number of requests before any was cut off."""
        self.found_bytes = 0
        """The bytes of those requests in the receive buffer, sizes included."""

    def cut(self, count: int) -> None:
        """Keep the first `count` requests; the others stay in the receive buffer."""
        del self.requests[count:]

    def keep(self) -> None:
        """Give the requests records of their own: these lie where the next ones will."""
        self.requests = [
            request._replace(records=memoryview(bytearray(request.records)))
            for request in self.requests
        ]

    def by_pattern(self) -> dict[ProducePattern, list[int]]:
        """Which of the requests, by number, are for one partition."""
        numbers: dict[ProducePattern, list[int]] = {}
        for number, request in enumerate(self.requests):
            numbers.setdefault(request.pattern, []).append(number)
        return numbers


class ProducePatterns:
    """The patterns of one connection."""

    __slots__ = ("_ends", "_last", "_patterns")

    def __init__(self) -> None:
        self._patterns: dict[bytes, ProducePattern] = {}
        self._ends: tuple[int, ...] = ()
        """How many bytes are alike: it depends on the length of the topic's name."""
        self._last: ProducePattern | None = None
        """Of the last request: that the next one has it, too, is likely."""

    def peek(self, reader: FrameReader) -> ProduceRun | None:
        """Return the requests of known patterns that come next in the receive buffer, if any.

        They stay there until `take`, so that a caller may cut the run.
        """
        if not self._patterns:
            return None
        data, view, start, end = reader.held()
        run = ProduceRun()
        bounds = (start, end, reader.size_bytes_max, _RUN_MAX)
        run.found_bytes = self._collect(data, view, bounds, run.requests) - start
        run.found_count = len(run.requests)
        return run if run.found_count else None

    def take(self, reader: FrameReader, run: ProduceRun) -> None:
        """Take the requests of a run, as far as it was not cut, from the receive buffer."""
        size_bytes = run.found_bytes
        count = len(run.requests)
        if count < run.found_count:
            data, view, start, end = reader.held()
            bounds = (start, end, reader.size_bytes_max, count)
            size_bytes = self._collect(data, view, bounds, []) - start
        reader.skip(size_bytes)

    def forget(self, pattern: ProducePattern) -> None:
        """Leave requests of a pattern to the codec until one is learned again."""
        self._last = None
        self._patterns.pop(pattern.alike, None)

    def _collect(
        self,
        data: bytearray,
        view: memoryview,
        bounds: tuple[int, int, int, int],
        requests: list[Alike],
    ) -> int:
        """Collect frames up to the first that is incomplete or unknown; return its position.

        `bounds` are the position of the first frame, the end of the received bytes, the maximum
        size of a frame, and the maximum number of frames.
        """
        position, end, size_bytes_max, count_max = bounds
        while end - position > _INT32_BYTES + _ALIKE_AT and len(requests) < count_max:
            size_bytes = _int32(data, position)
            begin = position + _INT32_BYTES
            if size_bytes <= _ALIKE_AT or size_bytes > size_bytes_max or size_bytes > end - begin:
                break
            frame_end = begin + size_bytes
            pattern = self._known(data, begin, frame_end)
            if pattern is None:
                break
            at = pattern.records_at(data, begin, frame_end)
            if not at:
                break
            position = frame_end
            if pattern.is_flexible:
                frame_end -= _NO_TAGS_BYTES
            number = _int32(data, begin + _CORRELATION_ID_AT)
            requests.append(_new_tuple(Alike, (pattern, number, view[at:frame_end])))
        return position

    def _known(self, data: bytearray, position: int, end: int) -> ProducePattern | None:
        pattern = self._last
        if pattern is not None and pattern.begins(data, position, end):
            return pattern
        begin = position + _ALIKE_AT
        for alike_bytes in self._ends:
            if alike_bytes > end - begin:
                continue
            pattern = self._patterns.get(bytes(data[begin : begin + alike_bytes]))
            if pattern is not None and pattern.begins(data, position, end):
                self._last = pattern
                return pattern
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
        length_bytes = _INT32_BYTES
        if request.api.is_flexible(request.version):
            length_bytes = len(uvarint(size_bytes + 1))
        start = bytes(head[_INT32_BYTES:])
        if frame[: len(start)] != start or frame[len(start) + size_bytes :] != b"".join(rest):
            return  # It can be written in another way, too.
        alike = start[: len(start) - length_bytes]
        if len(self._patterns) >= PATTERNS_MAX:
            del self._patterns[next(iter(self._patterns))]
        self._last = None
        self._patterns[alike[_ALIKE_AT:]] = ProducePattern(request, topic.name, data.index, alike)
        self._ends = tuple({len(known) for known in self._patterns})


def _int32(data: bytes | bytearray, position: int) -> int:
    raw = data[position]
    raw = raw << 8 | data[position + 1]
    raw = raw << 8 | data[position + 2]
    raw = raw << 8 | data[position + 3]
    return raw - 2 * _INT32_END if raw >= _INT32_END else raw


def _is_plain(version: int, request: ProduceRequest) -> bool:
    """Whether it is of records for one partition, outside of transactions, and wants an answer."""
    if version < VERSION_MIN or request.transactional_id is not None or request.acks not in ACKS:
        return False
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return False
    records = request.topic_data[0].partition_data[0].records
    return isinstance(records, memoryview) and len(records) > 0
