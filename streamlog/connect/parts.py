"""Parts: how the parts of a source and their offsets lie in Kafka Connect's offsets topic.

The key of an offset is the JSON array of the connector's name and the part, its value the offset as
a JSON object; a tombstone forgets it. These are the bytes of Kafka Connect's JsonConverter without
schemas, so the topic of a Connect cluster can be taken over, and the reverse.

Rule: two parts that are equal as JSON are one part. Java writes the fields of a part in the order
of its hash map, so a part continues under the bytes that the topic has for it. What is malformed or
of another form is passed over, as one bad record must not stop a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from streamlog.connect.source import SourceOffset, SourcePartition

_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_encode = msgspec.json.Encoder().encode
# msgspec knows no recursive aliases; what it decodes is `Json`.
_key = msgspec.json.Decoder(tuple[str, dict[str, Any]]).decode
_offset = msgspec.json.Decoder(dict[str, Any]).decode


def part_id(part: SourcePartition) -> str:
    """Return the name of a part: equal for all parts that are equal as JSON."""
    return _encode_sorted(dict(part)).decode()


def encode_offset_key(connector: str, part: SourcePartition) -> bytes:
    """Return the key of a part's offset, with the fields in the part's own order."""
    return _encode((connector, dict(part)))


def encode_offset(offset: SourceOffset | None) -> bytes | None:
    """Return the value of an offset's record; None forgets the offset."""
    return None if offset is None else _encode(dict(offset))


class OffsetBook:
    """The offsets of all sources, as the records of the offsets topic say."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], SourceOffset] = {}
        self._parts: dict[tuple[str, str], SourcePartition] = {}
        self._keys: dict[tuple[str, str], bytes] = {}

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record of the topic."""
        if key is None:
            return
        try:
            connector, part = _key(key)
            offset = None if value is None else _offset(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        at = connector, part_id(part)
        # The first bytes of a part stay its key. 1. A Java worker has written {"b":1,"a":2}.
        # 2. This worker writes the part as {"a":2,"b":1}. 3. Compaction keeps both keys for good,
        # and after a tombstone for one of them the other would bring the old offset back.
        self._keys.setdefault(at, key)
        if offset is None:
            self._offsets.pop(at, None)
            self._parts.pop(at, None)
            return
        self._offsets[at], self._parts[at] = offset, part

    def offset(self, connector: str, part: SourcePartition) -> SourceOffset | None:
        """Return the offset of a part; None if it was never read."""
        return self._offsets.get((connector, part_id(part)))

    def key(self, connector: str, part: SourcePartition) -> bytes:
        """Return the key under which the part's next offset has to be written."""
        return self._keys.get((connector, part_id(part))) or encode_offset_key(connector, part)

    def offsets_of(self, connector: str) -> Iterator[tuple[SourcePartition, SourceOffset]]:
        """Yield the parts of a connector that have an offset, by name."""
        for at in sorted(self._offsets):
            if at[0] == connector:
                yield self._parts[at], self._offsets[at]
