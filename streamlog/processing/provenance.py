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
from typing import Final, Generic, NamedTuple, TypeVar

from streamlog.errors import CorruptData
from streamlog.record import Headers
from streamlog.serdes.erased_types import JsonValue
from streamlog.windows.emit import Source

PROVENANCE = "streamlog.from"
"""Header of a record."""
MARK = "streamlog.time"
"""Header of a time mark."""

PASSED = "streamlog.passed"
"""Header next to that of a time mark: the time that marks of the log have given the source."""

_RECORD = struct.Struct(">qqqI")
_MARK = struct.Struct(">qqq")
_PASSED = struct.Struct(">q")
_PARTITION = struct.Struct(">I")
_TAG_SEPARATOR = b"\0"
_TAG_ID_BYTES = 8
"""The part of a topic id that tells apart the topics of one name."""
_CUTS = struct.Struct(">I")

pack_record = _RECORD.pack
"""Merge key, time, position and index; the identity of the source follows."""
unpack_record = _RECORD.unpack_from
RECORD_BYTES = _RECORD.size
TIME_BYTES = 16
"""Size of the merge key and the time, which come first."""


BUSY_MS = -1
"""In place of `quiet_ms`: the source is not read to its end, more records come soon."""


class Stamps(NamedTuple):
    """The provenance of a batch's records as columns: the fields of `pack_record`."""

    source: bytes
    """The identity of the source that all records have."""
    turns: Sequence[int]
    times: Sequence[int]
    positions: Sequence[int]
    indexes: Sequence[int]

    def pack(self) -> list[bytes]:
        """Return the header value of each record."""
        source = self.source
        columns = zip(self.turns, self.times, self.positions, self.indexes, strict=True)
        return [pack_record(*fields) + source for fields in columns]


class ProvenanceMark(NamedTuple):
    """A source has reached `time_ms`, and its later records have a merge key of at least `turn_ms`.

    `quiet_ms` is for how long it has been read to its end, or BUSY_MS while it is not.
    """

    turn_ms: int
    time_ms: int
    quiet_ms: int

    @property
    def at_end(self) -> bool:
        """Whether the source was read to its end: its log has no record left that is not here."""
        return self.quiet_ms >= 0


def identity(source: Source) -> bytes:
    """Return a source as bytes."""
    name, partition = source
    return _PARTITION.pack(partition) + name.encode()


def add_tag(source: bytes, topic_id: bytes, cuts: int) -> bytes:
    """Return a source's identity with a tag for the log that its positions belong to.

    Positions restart in a topic that was deleted and created again, and in a log that was
    truncated, so they are compared only under equal tags.
    """
    if not topic_id and not cuts:
        return source
    return source + _TAG_SEPARATOR + topic_id[:_TAG_ID_BYTES] + (_CUTS.pack(cuts) if cuts else b"")


def strip_tag(source: bytes) -> bytes:
    """Return the identity of a source without the tag."""
    end = source.find(_TAG_SEPARATOR, _PARTITION.size)
    return source if end < 0 else source[:end]


def source_of(data: bytes) -> Source:
    """Decode the identity of a source.

    Raises:
        CorruptData: the bytes are not an identity.
    """
    try:
        name = strip_tag(data)[_PARTITION.size :].decode()
        return name, _PARTITION.unpack_from(data)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptData(f"not the source of a record: {data!r}") from error


def pack_mark(mark: ProvenanceMark, source: bytes) -> bytes:
    """Return the header value of a time mark."""
    return _MARK.pack(*mark) + source


def mark_headers(mark: ProvenanceMark, source: bytes, marked_ms: int) -> Headers:
    """Return the headers of a time mark; `marked_ms` is the time that the log's marks gave.

    Negative if they gave none.
    """
    own = (MARK, pack_mark(mark, source))
    return (own,) if marked_ms < 0 else ((PASSED, _PASSED.pack(marked_ms)), own)


def mark_sent_ms(headers: Headers) -> int:
    """Return the time that the log's marks have given the source; -1 if the header has none."""
    name, data = headers[0]
    if name != PASSED or data is None:
        return -1
    time_ms: int = _PASSED.unpack(data)[0]
    return time_ms


def unpack_mark(data: bytes) -> tuple[ProvenanceMark, bytes]:
    """Return the mark, and the identity of its source.

    Raises:
        CorruptData: the bytes are too short for a mark.
    """
    if len(data) < _MARK.size:
        raise CorruptData(f"not a time mark: {data!r}")
    return ProvenanceMark(*_MARK.unpack_from(data)), data[_MARK.size :]


TAGS_MAX: Final = 16
"""The number of tags kept per source."""

S = TypeVar("S")
"""The state of one source."""


class Incarnations(Generic[S]):
    """The state of each source and the base of its positions, by tagged identity."""

    def __init__(
        self,
        states: Mapping[Source, S],
        last_position: Callable[[S], int],
        gone: Callable[[Source], S | None] = lambda _: None,
    ) -> None:
        """Create the states of sources without tags.

        Args:
            states: those of the sources that exist.
            last_position: returns the last position of a source's records, or -1 if it has none.
            gone: returns a new state for a source that is gone; None if there was no such source.
        """
        self._last_position, self._gone = last_position, gone
        self._sources = {identity(source): source for source in states}
        self._found: dict[bytes, tuple[S, int]] = {
            identity(source): (state, 0) for source, state in states.items()
        }
        self._tags: dict[bytes, list[tuple[bytes, int]]] = {}

    def state(self, source: Source) -> S | None:
        """Return the state of a source, which may be gone; None if there was no such source."""
        own = identity(source)
        if own not in self._found and (state := self._gone(source)) is not None:
            self._sources[own] = source
            self._found[own] = (state, 0)
        found = self._found.get(own)
        return found[0] if found is not None else None

    def get(self, tagged_identity: bytes) -> tuple[S, int] | None:
        """Return the state of a source, and the base to add to positions under this tag.

        None if there is no such source.
        """
        found = self._found.get(tagged_identity)
        return found if found is not None else self._first(tagged_identity)

    def _first(self, tagged_identity: bytes) -> tuple[S, int] | None:
        """Register a tag that is new, and return its state and base."""
        own = strip_tag(tagged_identity)
        state = self.state(source_of(own))
        if state is None:
            return None
        if tagged_identity == own:
            return self._found[own]
        tags = self._tags.setdefault(own, [])
        # 1. The first tag: base 0. Records without a tag (from a history) number the same log.
        # 2. The topic was created again after position 99: the second tag has base 100, so its
        #    position 0 counts as 100 and is not mistaken for a repetition.
        # 3. A late record under the first tag at position 50: still 50, hence a repetition.
        base = self._last_position(state) + 1 if tags else 0
        tags.append((tagged_identity, base))
        self._found[tagged_identity] = (state, base)
        for gone, _ in tags[:-TAGS_MAX]:
            del self._found[gone]
        del tags[:-TAGS_MAX]
        return state, base

    def to_data(self) -> list[list[object]]:
        """Return what a restart needs: per source its tags and their bases, in order."""
        return [
            [*self._sources[own], [[each[len(own) :].hex(), base] for each, base in tags]]
            for own, tags in self._tags.items()
        ]

    def load(self, data: Iterable[Iterable[JsonValue]]) -> None:
        """Restore what `to_data` returned, for the sources that still exist."""
        for name, partition, tags in data:
            own = identity((name, partition))
            known = self._found.get(own)
            if known is None:
                continue
            self._tags[own] = [(own + bytes.fromhex(tag), base) for tag, base in tags]
            self._found |= {tagged: (known[0], base) for tagged, base in self._tags[own]}
