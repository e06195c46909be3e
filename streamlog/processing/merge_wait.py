"""MergeWait: what waits in the merge of a repartition topic's partition, and for whom.

Records of a source that is ahead wait for those that are behind. Most often somebody upstream is
slow or was begun late; but one record of the far future has the same effect, since from there on
its whole source is ahead of all others. So both ends are named.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.durations import moment
from streamlog.windows.emit import UNKNOWN_MS, Source

MUCH = 0.5
"""Of the bound: from here on it is worth telling."""
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWait:
    """Records that wait in one partition of a repartition topic."""

    topic: str
    partition: int
    size_bytes: int
    """By estimate."""
    bound_bytes: int
    """Beyond this, records are taken before their turn and counted as "out of order"."""
    behind: Source
    """The source that is waited for: topic and partition."""
    behind_ms: int
    """How far event time has come there."""
    ahead: Source
    """The source of which most waits."""
    ahead_ms: int

    @property
    def is_much(self) -> bool:
        """Whether it should be told."""
        return self.size_bytes >= MUCH * self.bound_bytes

    @property
    def apart_ms(self) -> int:
        """What lies between the two in event time; 0 as long as one has not been heard of."""
        if UNKNOWN_MS in {self.behind_ms, self.ahead_ms}:
            return 0
        return max(self.ahead_ms - self.behind_ms, 0)

    def told(self) -> str:
        """In a line: what waits, for whom, and what to look at."""
        return (
            f"{self.size_bytes / _MIB:.1f} of {self.bound_bytes / _MIB:.1f} MiB wait in "
            f"{self.topic}-{self.partition} for {place_of(self.behind)} "
            f"({_standing(self.behind_ms)}), most of it from {place_of(self.ahead)} "
            f"({_standing(self.ahead_ms)}): what writes the first one is "
            "behind, or a record of the second one has a time of the far future"
        )


def place_of(source: Source) -> str:
    """A source, as users write a partition."""
    topic, partition = source
    return f"{topic}-{partition}"


def time_of(time_ms: int) -> str:
    """An event time, as a moment if there is one."""
    try:
        return moment(time_ms).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return f"{time_ms} ms"


def _standing(time_ms: int) -> str:
    return "nothing has come" if time_ms == UNKNOWN_MS else f"at {time_of(time_ms)}"
