"""Fast decoding of Produce requests that repeat an earlier one except for the records.

A producer that keeps a partition busy sends requests that differ only in the correlation id and the
records. So the codec decodes the first one, and later ones are recognized by their bytes up to the
records. Those that one read of the socket has brought are a `ProduceRun`, which the log can append
by one write. Their responses differ only in two numbers, so they are copies of one response that
the codec has encoded (decision 003).

The rules of the file:
- It does not know the position of any field. A request becomes a pattern only if the codec encodes
  it to the same bytes, and every request that does not repeat a pattern exactly is left to the
  codec. So a new version of the request needs no change here.
- It may be compiled, and then indexes are not checked. So no byte is read unless it is known to lie
  before the end.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from streamlog.protocol.codec import uvarint
from streamlog.protocol.frame import Request, encode_request, encode_response
from streamlog.protocol.frame_reader import FrameReader
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.protocol.schema import one_buffer

RUN_MAX: Final = 1024
"""The most requests in one run, so that one write takes them, and other connections get a turn."""
PATTERNS_MAX: Final = 256
"""The most patterns per connection; a producer has one for each partition."""
ACKS: Final = (1, -1)
"""The values of `acks` that require an answer and are valid."""
VERSION_MIN: Final = 7
"""Older versions don't support every codec, so their requests need a check (zstd, KIP-110)."""

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_OFFSET_MARK: Final = 0x7EED_FACE_FEED_0FF5
"""A marker offset that occurs nowhere else in a response: names are text, and numbers are small."""
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
"""The position behind the correlation id. From here to the length of the records, all requests of a
pattern are equal."""
_NO_TAGS = bytes(3)
"""The empty tags of partition, topic and request, which follow the records if flexible."""
_NO_TAGS_BYTES = 3


class ProducePattern:
    """The common part of the requests of one producer for one partition."""

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
        """Create the pattern of requests that begin like `frame`.

        `frame` has no size, and ends before the length of the records.
        """
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
        # One template is enough: the log start offset changes rarely.
        self._answer = _AcceptedAnswer(self, log_start_offset=0)

    def begins(self, data: bytearray, position: int, end: int) -> bool:
        """Whether a frame begins like the requests of this pattern, except for the correlation id.

        The frame is from `position` up to but not including `end`, without its size.
        """
        begin = position + _ALIKE_AT
        return (
            end - begin >= self._alike_bytes
            and _int32(data, position) == self._start
            and data[begin : begin + self._alike_bytes] == self.alike
        )

    def records_at(self, data: bytearray, position: int, end: int) -> int:
        """Return the position of the records in a frame that begins like this pattern.

        0 if the records, and empty tags if the version is flexible, are not exactly the rest of the
        frame.
        """
        # `begins` has made sure that this is not behind `end`.
        position += _ALIKE_AT + self._alike_bytes
        size_bytes = 0
        if not self.is_flexible:
            if end - position < _INT32_BYTES:
                return 0
            size_bytes = _int32(data, position)
            position += _INT32_BYTES
        else:
            # A request with tags of any kind is left to the codec. Before the tags are compared,
            # there must be at least one byte of the length in front of them.
            end -= _NO_TAGS_BYTES
            if end - position < 1 or data[end : end + _NO_TAGS_BYTES] != _NO_TAGS:
                return 0
            shift = 0
            byte = data[position]
            while byte >= _CONTINUES:
                size_bytes |= (byte - _CONTINUES) << shift
                shift += 7
                position += 1
                # Checked before the byte is read; and five bytes are the most of 32 bits.
                if position >= end or shift > _VARINT_SHIFT_MAX:
                    return 0
                byte = data[position]
            size_bytes |= byte << shift
            if size_bytes > _UINT32_MAX:
                return 0
            size_bytes -= 1  # A compact length is stored plus 1; 0 is null.
            position += 1
        return position if 0 < size_bytes == end - position else 0

    def accepted(self, correlation_id: int, base_offset: int, log_start_offset: int) -> bytes:
        """Return the response to a request whose records were appended."""
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
    """The codec's response for appended records, as a template."""

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
        """Return a copy with this correlation id and base offset."""
        return self._pack(self._size_bytes, correlation_id, self._before, base_offset, self._after)


class Alike(NamedTuple):
    """A request that repeats its pattern: the parts in which it differs."""

    pattern: ProducePattern
    correlation_id: int
    records: memoryview


class ProduceRun:
    """Consecutive requests of one connection that arrived together."""

    __slots__ = ("_reader", "error_codes", "found_bytes", "found_count", "requests")

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self.requests: list[Alike] = []
        self.found_count = 0
        """The number of requests before any was cut off."""
        self.found_bytes = 0
        """The bytes of those requests in the receive buffer, sizes included."""
        self.error_codes: list[int] = []
        """The codes of the requests that were refused, once there are responses."""

    def cut(self, count: int) -> None:
        """Keep the first `count` requests; the others stay in the receive buffer."""
        del self.requests[count:]

    def keep(self) -> None:
        """Keep the records valid when the next requests overwrite the receive buffer."""
        if self._reader.lend():
            return
        self.requests = [
            request._replace(records=memoryview(bytearray(request.records)))
            for request in self.requests
        ]

    def by_pattern(self) -> dict[ProducePattern, list[int]]:
        """Return the indexes of the requests of each pattern, and so of each partition."""
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
        """The lengths of the patterns' common parts; they depend on the topics' names."""
        self._last: ProducePattern | None = None
        """The pattern of the last request, which the next one probably repeats."""

    def peek(self, reader: FrameReader) -> ProduceRun | None:
        """Return the next requests in the receive buffer that repeat patterns; None without any.

        They stay in the buffer until `take`, so that a caller can cut the run.
        """
        if not self._patterns:
            return None
        data, view, start, end = reader.held()
        run = ProduceRun(reader)
        bounds = (start, end, reader.size_bytes_max, _RUN_MAX)
        run.found_bytes = self._collect(data, view, bounds, run.requests) - start
        run.found_count = len(run.requests)
        return run if run.found_count else None

    def take(self, reader: FrameReader, run: ProduceRun) -> None:
        """Remove the requests that are left in a run from the receive buffer."""
        # A run that was cut has fewer bytes. The sizes are not stored per request: to collect again
        # is rare, and the buffer has not changed since `peek`.
        size_bytes = run.found_bytes
        count = len(run.requests)
        if count < run.found_count:
            data, view, start, end = reader.held()
            bounds = (start, end, reader.size_bytes_max, count)
            size_bytes = self._collect(data, view, bounds, []) - start
        reader.skip(size_bytes)

    def forget(self, pattern: ProducePattern) -> None:
        """Leave the requests of a pattern to the codec, until `learn` adds it again."""
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
        # The order matters: the size is read once its bytes have arrived, and the fields once the
        # whole frame has.
        position, end, size_bytes_max, count_max = bounds
        while end - position > _INT32_BYTES + _ALIKE_AT and len(requests) < count_max:
            size_bytes = _int32(data, position)
            begin = position + _INT32_BYTES
            # A frame that is too large is left to `FrameReader`, which raises the error.
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
        # One look-up per length: the end of the common part is unknown until a pattern matches.
        # `begins` then compares the API and the version, which the key does not contain.
        for alike_bytes in self._ends:
            if alike_bytes > end - begin:
                continue
            pattern = self._patterns.get(bytes(data[begin : begin + alike_bytes]))
            if pattern is not None and pattern.begins(data, position, end):
                self._last = pattern
                return pattern
        return None

    def learn(self, frame: memoryview, request: Request) -> None:
        """Add the pattern of a decoded request, if later ones can repeat it."""
        message = request.message
        if not isinstance(message, ProduceRequest) or not _is_plain(request.version, message):
            return
        topic = message.topic_data[0]
        data = topic.partition_data[0]
        head, records, *rest = encode_request(*request[:4], message)
        size_bytes = len(records)
        # `head` ends with the length of the records, which is not common to all requests.
        length_bytes = _INT32_BYTES
        if request.api.is_flexible(request.version):
            length_bytes = len(uvarint(size_bytes + 1))
        start = bytes(head[_INT32_BYTES:])
        if frame[: len(start)] != start or frame[len(start) + size_bytes :] != b"".join(rest):
            # The client encodes the request otherwise than our codec does, for example with a
            # longer varint; so the positions in these bytes are not known.
            return
        alike = start[: len(start) - length_bytes]
        # Bounds memory: a client may name any number of topics. The oldest pattern goes.
        if len(self._patterns) >= PATTERNS_MAX:
            del self._patterns[next(iter(self._patterns))]
        self._last = None
        self._patterns[alike[_ALIKE_AT:]] = ProducePattern(request, topic.name, data.index, alike)
        self._ends = tuple({len(known) for known in self._patterns})


def _int32(data: bytes | bytearray, position: int) -> int:
    # By hand, because `struct` would make objects in the compiled build.
    raw = data[position]
    raw = raw << 8 | data[position + 1]
    raw = raw << 8 | data[position + 2]
    raw = raw << 8 | data[position + 3]
    return raw - 2 * _INT32_END if raw >= _INT32_END else raw


def _is_plain(version: int, request: ProduceRequest) -> bool:
    """Whether a request is for one partition, outside of transactions, and requires an answer."""
    if version < VERSION_MIN or request.transactional_id is not None or request.acks not in ACKS:
        return False
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return False
    records = request.topic_data[0].partition_data[0].records
    return isinstance(records, memoryview) and len(records) > 0
