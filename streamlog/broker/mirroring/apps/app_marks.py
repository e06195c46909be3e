"""AppMarks: notes, again and again, up to where the mirrors of an app are known to be whole.

A promotion that cuts an app (`app_cut`) reads the mirrors only from the last mark on, and not
100 GB of changelog. A mark joins two looks at the source:

1. The earlier look notes the last stable offsets, and then the ends of the log of transactions.
2. The mirror of that log reaches these ends.
3. The later look notes the ends of the log of transactions, then the ends of all partitions, then
   the ends of the log of transactions once more.
4. All mirrors reach what the later look has noted. Only then is there a mark.

The log of transactions has a transaction's decision, and later its completion. It follows:

- A transaction whose decision is below the ends of 1, and whose completion is below the first ends
  of 3, had ended everywhere before the ends of partitions were noted. So it is whole here, and
  stays whole in each consistent cut.
- A transaction whose decision is at the ends of 1 or later was open, or had not begun, when the
  stable offsets were noted. So all of it is above them, and a reader that begins there sees it
  whole.

A transaction that was decided before 1 and completed after 3 is neither: some partition had no
leader for that long. Then a promotion reads from the start (`TransactionLog.unsettled`).

If compaction has thinned out the log of transactions before it could be copied, decisions are
missing. So a mark does not count if offsets are missing between the ends of 1 and the last ends
of 3.

The runner of the link takes the looks; the controller keeps the last mark of each link, so that it
survives the runner. A new runner begins anew what the old one has not finished. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import msgspec

from streamlog.broker.mirroring.link_plan import TRANSACTION_LOG
from streamlog.protocol.messages.metadata_log import MarkedPartition

Where: TypeAlias = tuple[str, int]
"""A topic and a partition, by the names of the source."""
PAUSE_MS = 60_000
"""The least time between two marks, and so about how much a promotion has to read."""
PAUSE_MS_PER_PARTITION = 60
"""More of them for many partitions: the metadata gets some 500 bytes per second at most."""
LOOK_MS_MAX = 600_000
"""After this time a look is taken anew: the source may have lost what it had then."""


class SourceEnds(msgspec.Struct, frozen=True, kw_only=True):
    """What the source had, in the order in which it was asked."""

    stable: Mapping[Where, int]
    """The last stable offset of each partition, without the log of transactions."""
    decided_before: Mapping[int, int]
    """The ends of the log of transactions, by partition."""
    ends: Mapping[Where, int]
    decided: Mapping[int, int]
    """Its ends once more."""


class AppMarks:
    """Decides when a look is due, and when there is a mark.

    Args:
        now_ms: the time.
    """

    def __init__(self, now_ms: int) -> None:
        self._earlier: SourceEnds | None = None
        self._later: SourceEnds | None = None
        self._later_ms = now_ms
        self._due_ms = now_ms

    def is_due(self, here: Mapping[Where, int], now_ms: int) -> bool:
        """Return whether to look at the source now.

        Args:
            here: the committed ends of the mirrors, as far as they are known.
            now_ms: the time.
        """
        if self._earlier is None:
            return True
        if self._later is not None and now_ms - self._later_ms < LOOK_MS_MAX:
            return False
        return now_ms >= self._due_ms and _has_decisions(self._earlier.decided, here)

    def on_look(self, look: SourceEnds, now_ms: int) -> None:
        """Note a look that was due."""
        if self._earlier is None:
            self._earlier = look
        else:
            self._later, self._later_ms = look, now_ms

    def take(
        self, here: Mapping[Where, int], topics: Collection[str], now_ms: int
    ) -> list[MarkedPartition]:
        """Return a mark if the mirrors have reached one now, otherwise an empty list.

        Args:
            here: see `is_due`.
            topics: those that the link mirrors; a mark does not wait for others.
            now_ms: the time.
        """
        earlier, later = self._earlier, self._later
        if earlier is None or later is None or not _has_decisions(later.decided, here):
            return []
        ends = {where: end for where, end in later.ends.items() if where[0] in topics}
        if any(here.get(where, -1) < end for where, end in ends.items()):
            return []
        self._earlier, self._later = later, None
        self._due_ms = now_ms + max(PAUSE_MS, PAUSE_MS_PER_PARTITION * len(ends))
        decided = [
            MarkedPartition(
                topic=TRANSACTION_LOG,
                partition=number,
                scan_from=earlier.decided.get(number, 0),
                whole_below=end,
                settled_below=later.decided_before.get(number, 0),
            )
            for number, end in sorted(later.decided.items())
        ]
        # What the earlier look does not know may be old nevertheless: the link is new to it.
        return decided + [
            MarkedPartition(
                topic=topic,
                partition=number,
                scan_from=earlier.stable.get((topic, number), 0),
                whole_below=end,
            )
            for (topic, number), end in sorted(ends.items())
        ]


def _has_decisions(decided: Mapping[int, int], here: Mapping[Where, int]) -> bool:
    return all(here.get((TRANSACTION_LOG, number), -1) >= end for number, end in decided.items())
