"""HandOvers: with which snapshots the state of an app has begun, in a topic of the app's own.

`<app>-hand-overs` has one record for each, written in the transaction that wrote the rows. By it a
hand-over that is repeated is known, and a worker that opens a task for the first time finds the
sorted files, which are there sooner than a long changelog is read. Rule of the file: the changelog
has all of it, too; files that are gone, damaged or too old are passed over. Not done here: the
hand-over itself (`hand_over`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import CorruptData, StreamlogError
from streamlog.log import Log
from streamlog.snapshots import Snapshot
from streamlog.tables.local_disk.rocksdb_store import RocksStore
from streamlog.tables.state.changelog import changelog_offset, store_offset
from streamlog.tables.stores.store import Change
from streamlog.worker.topics.whole_topic import DELETE_RETENTION_MS, whole_topic

logger = repeated.logger(__name__)

FORMAT_VERSION: Final = 1
FILES_AGE_MS_MAX: Final = DELETE_RETENTION_MS // 2
"""Deletions since then may have been compacted away: the changelog alone tells."""


class TaskBase(msgspec.Struct, frozen=True, kw_only=True):
    """Where the base of one task stands in its changelog."""

    fence: int
    """The offset of the owner's record that came with it."""
    progress: int
    """The offset of the last record: the task's progress. All rows come before it."""


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """What a version has become the app with."""

    version: str
    before: str
    """URL of the snapshot of the app as it was."""


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that an app's state has begun with."""

    format: int = FORMAT_VERSION
    snapshot: str
    """Its id."""
    url: str
    wall_ms: int
    cut_ms: int | None
    mode: str
    fingerprint: str
    tasks: dict[str, TaskBase]
    """Those with state, by `TaskId` as text."""
    promotion: Promotion | None = None
    """If the snapshot is that of a version that was promoted."""

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


def topic_of(app_id: str) -> str:
    """Where an app's hand-overs are."""
    return f"{app_id}-hand-overs"


def decoded(records: Iterable[tuple[int, bytes]]) -> list[HandOver]:
    """All of them, the last one last.

    Raises:
        CorruptData: one is not readable, or a newer streamlog has written it.
    """
    found: list[HandOver] = []
    for offset, data in records:
        try:
            each = msgspec.json.decode(data, type=HandOver)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the hand-over at offset {offset}: {error}") from error
        if each.format != FORMAT_VERSION:
            raise CorruptData(
                f"the hand-over at offset {offset} has format {each.format}, this streamlog reads "
                f"{FORMAT_VERSION}: a newer one has written it; use that one"
            )
        found.append(each)
    return found


async def hand_overs(log: Log, app_id: str, clock: Clock) -> list[HandOver]:
    """All hand-overs of an app that count, the last one last.

    Raises:
        CorruptData: one is not readable, or a newer streamlog has written it.
        RequestTimedOut: the log does not give what it said to have.
    """
    return decoded(await whole_topic(log, topic_of(app_id), clock))


@dataclass(frozen=True, slots=True)
class Base:
    """What a task may begin with."""

    hand_over: HandOver
    task: str

    def is_of_use(self, store: RocksStore, *, wall_ms: int) -> bool:
        """Whether its files are newer than what a store has."""
        where = self.hand_over.tasks.get(self.task)
        is_young = wall_ms - self.hand_over.wall_ms < FILES_AGE_MS_MAX
        return where is not None and is_young and changelog_offset(store) < where.progress

    def adopt(self, store: RocksStore, keep: Mapping[bytes, bytes], owner_key: bytes) -> bool:
        """Let the store hold what the snapshot has of the task; False if that can't be had.

        Waits for the disk and for the place of the snapshot. Where it fails, the store may be
        empty, or as it was; the changelog fills it either way.

        Args:
            store: of the task.
            keep: reserved rows that stay.
            owner_key: where the store remembers who owns it.
        """
        where = self.hand_over.tasks[self.task]
        number, _, partition = self.task.partition("_")
        try:
            snapshot = Snapshot.open(self.hand_over.url)
            entry = snapshot.entry(int(number), int(partition))
            if entry is None or snapshot.id != self.hand_over.snapshot:
                raise CorruptData(f"{snapshot!r} is another one, or has no task {self.task}")
            rows: list[Change] = [*keep.items(), (owner_key, where.fence.to_bytes(8, "big"))]
            # What comes next is the task's progress.
            rows.append(store_offset(where.progress))
            with snapshot.files(entry) as paths:
                store.replace(paths, rows)
        except StreamlogError as error:
            logger.info("task %s is restored from its changelog alone: %s", self.task, error)
            return False
        logger.info("task %s begins with %d rows of %s", self.task, entry.rows, snapshot.url)
        return True
