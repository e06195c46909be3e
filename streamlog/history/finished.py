"""FinishedTask: what is left of a task when its history is over, for whoever goes on from there.

Plain data, as a task on another machine sends it. Rule of the file: nothing here says what becomes
of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from streamlog.errors import CorruptData
from streamlog.snapshots import PendingRecords, StagedRecords, TaskEntry

Count: TypeAlias = tuple[str, int]
Dropped: TypeAlias = tuple[str, str, int]


class FinishedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose history is over."""

    entry: TaskEntry
    """Its state, as the snapshot has it."""
    pending: tuple[PendingRecords, ...]
    """Records of repartition topics whose turn had not come: a source, mostly a window that is
    open, may still send an earlier one."""
    staged: tuple[StagedRecords, ...]
    """Its rows for output topics, one file per partition."""
    records: int
    """Taken, of all inputs."""
    rows: tuple[Count, ...]
    """Written, by topic; to repartition topics with their time marks."""
    drops: tuple[Dropped, ...]
    """Left out, by operator and reason."""

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> FinishedTask:
        """What `encode` gave.

        Raises:
            CorruptData: it is not that.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"what a task of a history has left is not readable: {error}") from (
                error
            )


def summed(counts: Iterable[Count]) -> dict[str, int]:
    """Added up by name."""
    found: dict[str, int] = {}
    for name, count in counts:
        found[name] = found.get(name, 0) + count
    return found
