"""Incarnations: one order of positions over all logs that a source has had.

A source is an input partition upstream. If its topic is deleted and created again, or its log
truncated, positions start again at a lower number; the tag of a record's provenance then changes.
Here the positions under each tag are moved behind those under the tags before, so whoever drops
repetitions compares like with like: a record of the new topic is new, and a repetition from the
old one stays a repetition. Pure, and part of the progress of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from streamlog.processing.provenance import identity, untagged
from streamlog.windows.emit import Source

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
        own = untagged(tagged_identity)
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
