"""Stream count: how many entries of a Redis stream were removed before they were read.

Redis counts the entries that a stream ever had (`entries-added`, Redis 7). Each was read, is still
to be read, or was removed unread, by XTRIM, MAXLEN or XDEL: a reader that counts what it reads
knows how many it has missed.

Rule: pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a stream has at one moment.

    Attributes:
        added: the entries that it ever had.
        length: the entries that it has.
    """

    added: int
    length: int


class StreamCount:
    """Counts the entries of one stream up to the last one that was read."""

    def __init__(self, seen: int | None) -> None:
        """Continue behind the `seen` first entries; None: the stream was never looked at."""
        self.seen = seen
        """The entries up to the last one that was read, those that were missed included."""

    def missed(self, state: StreamState, unread: int, *, is_all: bool) -> int:
        """Return how many entries were removed unread since the last look.

        Args:
            state: the stream, at the moment of the read.
            unread: the entries that the read has found.
            is_all: whether no entry follows them.
        """
        if self.seen is None:
            # What was removed before the first look is no business of this reader.
            self.seen = state.added - (unread if is_all else state.length)
        elif self.seen > state.added:
            # Deleted and created again, or the server has lost entries that were read.
            self.seen = max(state.added - (unread if is_all else state.length), 0)
        # With more to follow, those that are there may all be unread: a lower bound.
        missed = max(state.added - self.seen - (unread if is_all else state.length), 0)
        self.seen += missed
        return missed

    def read(self, entries: int) -> None:
        """Note that entries were read."""
        if self.seen is not None:
            self.seen += entries
