"""Provenance: where a record on a repartition topic comes from, in a header of the record.

Each record carries its source (an input partition of the upstream task, or a windowed aggregation
there), its position in the source (offset or row number), an index among the records that one
position produced, and the source's stream time. Three things rest on it:

1. An upstream task that crashes after sending and before its checkpoint sends the same records
   again. Positions of one source only grow in the log, so a record at or below the last position
   is a repetition and is dropped.
2. Lateness is judged by the time of the record's own source, and windows close at the minimum over
   all sources, so results do not depend on which source was read faster.
3. A time mark (a record without key and value) tells a partition what its records do not: that a
   source has advanced, or how long it has been quiet.

A topic that is created again, or a log that is truncated, restarts its positions at a lower number.
The tag of the source then changes, and `Incarnations` moves the positions under each tag behind
those of the tags before it. Rule of the module: pure; the byte layouts never change.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

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


class ProvenanceMark(NamedTuple):
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


def add_tag(source: bytes, topic_id: bytes, cuts: int) -> bytes:
    """The identity of a source together with the log that positions of it belong to.

    Positions start again in a topic that was deleted and created again, and in a log that was
    truncated, so they are compared only under the same tag.
    """
    if not topic_id and not cuts:
        return source
    return source + _TAG_SEPARATOR + topic_id[:_TAG_ID_BYTES] + (_CUTS.pack(cuts) if cuts else b"")


def strip_tag(source: bytes) -> bytes:
    """The identity of a source without the tag."""
    end = source.find(_TAG_SEPARATOR, _PARTITION.size)
    return source if end < 0 else source[:end]


def source_of(data: bytes) -> Source:
    """The source that these bytes stand for.

    Raises:
        CorruptData: they stand for none.
    """
    try:
        name = strip_tag(data)[_PARTITION.size :].decode()
        return name, _PARTITION.unpack_from(data)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptData(f"not the source of a record: {data!r}") from error


def pack_mark(mark: ProvenanceMark, source: bytes) -> bytes:
    """The header's value of a time mark."""
    return _MARK.pack(*mark) + source


def mark_headers(mark: ProvenanceMark, source: bytes, marked_ms: int) -> Headers:
    """The headers of a time mark; `marked_ms` is what marks of the log have told, if any has."""
    own = (MARK, pack_mark(mark, source))
    return (own,) if marked_ms < 0 else ((PASSED, _PASSED.pack(marked_ms)), own)


def mark_sent_ms(headers: Headers) -> int:
    """What marks of the log have told of the source of a time mark; -1: nothing new."""
    name, data = headers[0]
    if name != PASSED or data is None:
        return -1
    time_ms: int = _PASSED.unpack(data)[0]
    return time_ms


def unpack_mark(data: bytes) -> tuple[ProvenanceMark, bytes]:
    """The mark, and the identity of its source.

    Raises:
        CorruptData: it is too short to be one.
    """
    if len(data) < _MARK.size:
        raise CorruptData(f"not a time mark: {data!r}")
    return ProvenanceMark(*_MARK.unpack_from(data)), data[_MARK.size :]


TAGS_MAX: Final = 16
"""Tags remembered per source."""

S = TypeVar("S")
"""What is known of one source."""


class Incarnations(Generic[S]):
    """What is known of each source, and the base of its positions, by tagged identity."""

    def __init__(self, states: Mapping[Source, S], last_position: Callable[[S], int]) -> None:
        """`last_position` tells the last position that a source was heard with, -1 for none."""
        self._last_position = last_position
        self._sources = {identity(source): source for source in states}
        self._found: dict[bytes, tuple[S, int]] = {
            identity(source): (state, 0) for source, state in states.items()
        }
        self._tags: dict[bytes, list[tuple[bytes, int]]] = {}

    def get(self, tagged_identity: bytes) -> tuple[S, int] | None:
        """The state of a source, and what is added to positions under this tag.

        None if there is no such source.
        """
        found = self._found.get(tagged_identity)
        return found if found is not None else self._first(tagged_identity)

    def _first(self, tagged_identity: bytes) -> tuple[S, int] | None:
        """A tag that was not heard before."""
        own = strip_tag(tagged_identity)
        known = self._found.get(own)
        if known is None:
            return None
        state, tags = known[0], self._tags.setdefault(own, [])
        # What came without a tag, as from a history, has the positions of the first log.
        base = self._last_position(state) + 1 if tags else 0
        tags.append((tagged_identity, base))
        self._found[tagged_identity] = (state, base)
        for gone, _ in tags[:-TAGS_MAX]:
            del self._found[gone]
        del tags[:-TAGS_MAX]
        return state, base

    def to_data(self) -> list[list[object]]:
        """What a restart has to know: per source its tags and their bases, in order."""
        return [
            [*self._sources[own], [[each[len(own) :].hex(), base] for each, base in tags]]
            for own, tags in self._tags.items()
        ]

    def load(self, data: Iterable[Iterable[Any]]) -> None:
        """Take over what `to_data` gave; of sources that there are."""
        for name, partition, tags in data:
            own = identity((name, partition))
            known = self._found.get(own)
            if known is None:
                continue
            self._tags[own] = [(own + bytes.fromhex(tag), base) for tag, base in tags]
            self._found |= {tagged: (known[0], base) for tagged, base in self._tags[own]}
