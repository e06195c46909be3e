"""Provenance: where a record on a repartition topic came from, in a header of the record.

Each carries its source (an input partition of the task upstream, or a windowed aggregation
there), the source's position (offset or row number), an index among the records that one
position gave, and the source's stream time. Three things rest on it:

1. A task upstream crashes after sending and before its checkpoint, starts again and sends the
   same records again. Positions of one source only grow in the log, so what is not above the
   last position seen is a repetition and is dropped.
2. Lateness is judged against the time of the record's own source, and windows close at the
   minimum over all sources, so results do not depend on which source was read faster.
3. A time mark (a record without key and value) tells a partition what its records did not:
   that a source has advanced, or has been quiet for so long.

Rule of the file: bytes only, big-endian. The idea is that of 06 in Kafka's KIP-129, without
transactions: sinks may hold repetitions after a crash, state never does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from streamlog.errors import CorruptData
from streamlog.record import Headers
from streamlog.windows.emit import Source

PROVENANCE = "streamlog.from"
"""Header of a record."""
MARK = "streamlog.time"
"""Header of a time mark."""

PASSED = "streamlog.passed"
"""Header beside that of a time mark: how far a mark of the log has told the source to have come."""

_RECORD = struct.Struct(">qqqI")
_MARK = struct.Struct(">qqq")
_PASSED = struct.Struct(">q")
_PARTITION = struct.Struct(">I")
_TAG_SEPARATOR = b"\0"
_TAG_ID_BYTES = 8
"""Of a topic id: enough to tell the topics of one name apart."""
_CUTS = struct.Struct(">I")

pack_record = _RECORD.pack
"""Turn, time, position and index; the identity of the source follows."""
unpack_record = _RECORD.unpack_from
RECORD_BYTES = _RECORD.size
TIME_BYTES = 16
"""Turn and time, in front."""


BUSY_MS = -1
"""In place of `Mark.quiet_ms`: the source is not read to its end, more comes soon."""


class Stamps(NamedTuple):
    """Where the records of a batch came from, as columns: what `pack_record` packs, unpacked."""

    source: bytes
    """The identity of the one source of all of them."""
    turns: Sequence[int]
    times: Sequence[int]
    positions: Sequence[int]
    indexes: Sequence[int]

    def packed(self) -> list[bytes]:
        """The value of each record's header."""
        source = self.source
        columns = zip(self.turns, self.times, self.positions, self.indexes, strict=True)
        return [pack_record(*fields) + source for fields in columns]


class Mark(NamedTuple):
    """A source has come to `time_ms`, and nothing that comes of it has an earlier turn.

    `quiet_ms` is for how long it has been read to its end, or BUSY_MS while it is not.
    """

    turn_ms: int
    time_ms: int
    quiet_ms: int

    @property
    def at_end(self) -> bool:
        """Whether the source was read to its end: nothing that is there already comes of it."""
        return self.quiet_ms >= 0


def identity(source: Source) -> bytes:
    """A source as bytes."""
    name, partition = source
    return _PARTITION.pack(partition) + name.encode()


def tagged(source: bytes, topic_id: bytes, cuts: int) -> bytes:
    """The identity of a source together with the log that positions of it belong to.

    Positions start again in a topic that was deleted and created again, and in a log that was
    truncated, so they are compared only under the same tag.
    """
    if not topic_id and not cuts:
        return source
    return source + _TAG_SEPARATOR + topic_id[:_TAG_ID_BYTES] + (_CUTS.pack(cuts) if cuts else b"")


def untagged(source: bytes) -> bytes:
    """The identity of a source without the tag."""
    end = source.find(_TAG_SEPARATOR, _PARTITION.size)
    return source if end < 0 else source[:end]


def source_of(data: bytes) -> Source:
    """The source that these bytes stand for.

    Raises:
        CorruptData: they stand for none.
    """
    try:
        name = untagged(data)[_PARTITION.size :].decode()
        return name, _PARTITION.unpack_from(data)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptData(f"not the source of a record: {data!r}") from error


def pack_mark(mark: Mark, source: bytes) -> bytes:
    """The header's value of a time mark."""
    return _MARK.pack(*mark) + source


def mark_headers(mark: Mark, source: bytes, marked_ms: int) -> Headers:
    """The headers of a time mark; `marked_ms` is what marks of the log have told, if any has."""
    own = (MARK, pack_mark(mark, source))
    return (own,) if marked_ms < 0 else ((PASSED, _PASSED.pack(marked_ms)), own)


def marked_ms_of(headers: Headers) -> int:
    """What marks of the log have told of the source of a time mark; -1: nothing new."""
    name, data = headers[0]
    if name != PASSED or data is None:
        return -1
    time_ms: int = _PASSED.unpack(data)[0]
    return time_ms


def unpack_mark(data: bytes) -> tuple[Mark, bytes]:
    """The mark, and the identity of its source.

    Raises:
        CorruptData: it is too short to be one.
    """
    if len(data) < _MARK.size:
        raise CorruptData(f"not a time mark: {data!r}")
    return Mark(*_MARK.unpack_from(data)), data[_MARK.size :]
