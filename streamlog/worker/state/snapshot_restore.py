"""Snapshot restore: lets the state of a task begin with a snapshot from object storage.

Without it, a task that comes to an empty disk reads its whole changelog. With it, the task fetches
the files of the newest snapshot that the changelog confirms, and reads what followed. State that is
on this disk stays if it is about as new.

Rules: a snapshot is compared with the changelog before its download, as state on disk is after a
restart (`find_departure`): topic id, bounds, leader epochs, and the last record that was read.
Whatever is wrong with it or with the store, the next snapshot is tried, and then the changelog
alone. Not done here: reading the rest of the changelog (`changelog_reader`), and writing snapshots
(`snapshot_uploads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import TypeVar

from streamlog import repeated
from streamlog.client.consumer import Consumer
from streamlog.clock import Clock
from streamlog.errors import StreamlogError, quantity
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.snapshots.task_manifest import TaskManifest
from streamlog.snapshots.task_snapshots import SnapshotMetrics, TaskSnapshots, changes_of
from streamlog.snapshots.upload_plan import ChangelogBounds, candidates
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.local_disk.task_directory import TaskDirectory
from streamlog.tables.state.changelog import changelog_offset, store_offset
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.worker.state.changelog_reader import find_complete_offset, find_departure

logger = repeated.logger(__name__)

T = TypeVar("T")
"""The result of a transfer."""

SAVED_MIN = 100_000
"""The number of changelog offsets that a snapshot has to save: reading as many takes less than the
requests for a snapshot."""
MIB = 1024 * 1024


class SnapshotRestore:
    """Begins the stores of one task with its snapshots."""

    def __init__(
        self,
        log: Log,
        snapshots: TaskSnapshots,
        *,
        changelog: TopicPartition,
        clock: Clock,
        metrics: SnapshotMetrics,
        saved_min: int | None = None,
    ) -> None:
        """Create a restore; `saved_min` is `SAVED_MIN` by default."""
        self._log = log
        self.snapshots = snapshots
        """The snapshots of the task."""
        self._changelog = changelog
        self._clock = clock
        self._metrics = metrics
        self._saved_min = SAVED_MIN if saved_min is None else saved_min

    async def begin(
        self,
        directory: TaskDirectory,
        store: RocksStore,
        budget: RocksBudget,
        *,
        is_standby: bool = False,
    ) -> RocksStore:
        """Return the store to continue with: the given one, or one with a snapshot's content.

        Args:
            directory: of the task.
            store: opened there; it is closed if another one is returned.
            budget: shared by the stores of the process.
            is_standby: whether the store is a standby's.

        Raises:
            LogDirectoryError: no store can be opened; the given one is closed.
        """
        try:
            for manifest in await self._candidates(store):
                began_ms = self._clock.now_ms()
                if not await self._fetch(manifest, directory.fetched):
                    continue
                # The whole snapshot is here and checked: from now on the state that was on this
                # disk is what the task falls back to, and no longer what it begins with.
                store.close()
                store = _open_fetched(directory, budget, is_standby=is_standby)
                if self._is_content_of(manifest, store):
                    self._note_use(manifest, took_ms=self._clock.now_ms() - began_ms)
                    break
        except BaseException:
            # The caller knows the given store only, and may be cancelled after another was opened.
            store.close()
            raise
        return store

    async def _fetch(self, manifest: TaskManifest, directory: str) -> bool:
        """Fetch the files of a snapshot; returns whether all are there and right."""
        try:
            await transfer(partial(self.snapshots.download, manifest, directory))
        except StreamlogError as error:
            self._metrics.restores.series("failed").add()
            logger.warning("task %s: %s", self.snapshots.identity.task, error)
            return False
        return True

    def _note_use(self, manifest: TaskManifest, *, took_ms: int) -> None:
        self._metrics.restores.series("used").add()
        self._metrics.restored_bytes.add(manifest.size_bytes)
        logger.info(
            "task %s begins with the snapshot at offset %d: %s, %.1f MiB in %.1f s from %s",
            self.snapshots.identity.task,
            manifest.offset,
            quantity(len(manifest.files), "file"),
            manifest.size_bytes / MIB,
            took_ms / 1000,
            self.snapshots.url,
        )

    def _is_content_of(self, manifest: TaskManifest, store: RocksStore) -> bool:
        """Return whether a store has the content of a snapshot; RocksDB may have refused it."""
        if changelog_offset(store) == manifest.offset:
            return True
        self._metrics.restores.series("failed").add()
        logger.warning(
            "task %s: the snapshot at offset %d can't be opened, trying older state",
            self.snapshots.identity.task,
            manifest.offset,
        )
        return False

    async def _candidates(self, store: RocksStore) -> Sequence[TaskManifest]:
        """Return the snapshots to try, the best first."""
        try:
            manifests = await transfer(lambda _stop: self.snapshots.find())
        except StreamlogError as error:
            logger.warning(
                "task %s is restored without snapshots: %s", self.snapshots.identity.task, error
            )
            return ()
        if not manifests:
            return ()
        # As the restore reads: an end beyond it would be no place for the state to be at.
        consumer = self._log.consumer(auto_offset_reset="none", isolation_level="read_committed")
        async with consumer:
            bounds = await self._bounds(consumer)
            found = candidates(
                manifests,
                self.snapshots.identity,
                bounds,
                local_offset=changelog_offset(store),
                saved_min=self._saved_min,
            )
            return [each for each in found if await self._is_of_changelog(each, consumer, bounds)]

    async def _bounds(self, consumer: Consumer) -> ChangelogBounds:
        at = self._changelog
        begin = (await consumer.begin_offsets([at]))[at]
        end = (await consumer.end_offsets([at]))[at]
        wall_ms = self._clock.wall_ms()
        complete = await find_complete_offset(
            self._log,
            consumer,
            at,
            wall_ms=wall_ms,
            bounds=(begin, end),
            isolation="read_committed",
        )
        return ChangelogBounds(begin=begin, end=end, complete=complete)

    async def _is_of_changelog(
        self, manifest: TaskManifest, consumer: Consumer, bounds: ChangelogBounds
    ) -> bool:
        """Return whether the changelog holds the records that the snapshot was made from."""
        # The rows by which state on disk is compared with its changelog, as if they were on disk.
        rows = MemoryStore()
        rows.write([*changes_of(manifest), store_offset(manifest.offset)])
        why = await find_departure(
            self._log,
            consumer,
            self._changelog,
            rows,
            topic_id=await consumer.topic_id(self._changelog.topic),
            begin=bounds.begin,
        )
        if why:
            logger.warning(
                "the snapshot of task %s at offset %d does not match its changelog and is not "
                "used: %s",
                self.snapshots.identity.task,
                manifest.offset,
                why,
            )
        return not why


def _open_fetched(directory: TaskDirectory, budget: RocksBudget, *, is_standby: bool) -> RocksStore:
    fetched = directory.fetched
    try:
        return directory.open(budget, skip_locked=True, is_standby=is_standby, first=fetched)
    finally:
        # The store has links to the files; or it could not be opened, and nothing needs them.
        directory.let_go(fetched)


async def transfer(work: Callable[[Event], T]) -> T:
    """Run blocking work on a thread; if the caller is cancelled, stop the work and wait for it."""
    # A thread can't be cancelled. If the caller left before it ends, it would write to a directory
    # that the next owner of the task removes.
    stop = Event()
    done = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([done])
        raise
