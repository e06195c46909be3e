"""Restore: opens the state of a task, takes it over from a former owner, and brings it up to date.

Several processes may believe that they own a task: a process that was blocked for longer than its
session is the last to learn that it has lost the task. So the changelog itself decides which
process is its owner:

1. A opens the state: it writes a fence, whose offset is A's epoch.
2. A is blocked. B takes over and writes a fence of its own.
3. A continues and writes a checkpoint, with A's epoch on every record.
4. A replay skips these records, as their epoch is older than the last fence. A itself finds that
   its checkpoint does not start where the one before ended, reads the records in between, finds B's
   fence, and drops the task (`commit`).

Changes that A wrote before B's fence are part of the state that B restores. Compaction knows no
owners: it keeps A's late record of a key, as the newest. So an owner that meets late records writes
their keys again, with its own values.

All of that is for at-least-once. With exactly-once, a checkpoint has no epoch: it counts if its
transaction is committed, which the group's generation decides (`exactly_once`). A fence then only
marks how far its writer has to read, and everything else is written in transactions. So a worker
that is blocked before its fence, and continues after others have taken over, takes nothing from
them.

Not done here: reading the changelog (`changelog_reader`), and the checkpoints (`commit`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeAlias, cast

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.errors import CorruptData, LogDirectoryLocked, LogDirectoryLost, SourceLost
from streamlog.log import Log
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.local_disk.task_directory import AbandonedTasks, TaskDirectory
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.tables.stores.store import Change, Changes, KeyValueStore
from streamlog.worker.state.changelog_reader import ChangelogReader, offload
from streamlog.worker.state.snapshot_restore import SnapshotRestore
from streamlog.worker.topics.version_log import Base, OwnTopics

logger = repeated.logger(__name__)

STATE_CLEANUP_DELAY_MS = 10 * 60 * 1000
"""Default; Kafka Streams' `state.cleanup.delay.ms`."""
LOOK_MS = 60_000
"""The interval between two looks, unless the delay is shorter."""
LOOK_MS_MIN = 100


async def remove_abandoned(path: str, *, delay_ms: int, clock: Clock) -> None:
    """Remove the state of tasks that have moved away, after a delay, until cancelled."""
    abandoned = AbandonedTasks(path, delay_ms=delay_ms)
    while True:
        for name in await asyncio.to_thread(abandoned.remove, clock.now_ms()):
            logger.info("task %s has moved away: its state in %s was removed", name, path)
        await asyncio.sleep(min(LOOK_MS, max(delay_ms, LOOK_MS_MIN)) / 1000)


OWNER_KEY = b"\x00owner"
"""A reserved key (see `tables/state/changelog.py`): in the changelog a fence, in a store the offset
of the last fence."""
LATE_KEY = b"\x00late"
"""A reserved key of a store: the keys that a former owner wrote late, to be written again."""
CLUSTER_KEY = b"\x00cluster"
"""A reserved key of a store: the id of the changelog's cluster."""
CHANGELOG_KEY = b"\x00changelog"
"""A reserved key of a store: the topic id of the changelog."""
EPOCH_HEADER = "epoch"
"""The header of checkpoint records outside of transactions: the offset of the writer's fence."""
LOCK_WAIT_MS = 5_000
"""How long to wait for a worker on this machine that commits and closes the task."""
LOCK_RETRY_MS = 100

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_EPOCH = struct.Struct(">q")
_SIZE = struct.Struct(">I")


@dataclass(slots=True)
class TaskState:
    """The open state of one task."""

    store: RocksStore
    front: DeferredStore
    """The store with the commits that are not written to it yet; all reads and writes go here."""
    directory: TaskDirectory
    """The directory of the store, which makes the snapshots."""
    changelog: TopicPartition
    epoch: int
    """The offset of this owner's fence."""
    next_offset: int
    """The offset of the next checkpoint if no other worker writes."""
    late: frozenset[bytes] = frozenset()
    """The keys that the task's next transaction writes again."""

    def reach(self, next_offset: int) -> None:
        """Note the offset after a checkpoint that was written.

        Raises:
            SourceLost: the offset is not larger than the last one: the changelog was truncated, or
                created again.
        """
        # Equal is wrong too: each checkpoint has at least one record.
        if next_offset <= self.next_offset:
            raise self.lost(next_offset)
        self.next_offset = next_offset

    def settle_late(self) -> None:
        """Forget the late keys, which were written again; call it on the task's thread."""
        self.late = frozenset()
        self.front.delete(LATE_KEY)

    def lost(self, next_offset: int) -> SourceLost:
        """Return the error for a checkpoint that was written below the expected offset."""
        topic, partition = self.changelog
        return SourceLost(
            f"changelog {topic}-{partition} was deleted and created again, or truncated, while a"
            f" task was writing to it: offset {self.next_offset} was next, and a checkpoint was"
            f" written before {next_offset}. If it was truncated, start the worker again: the state"
            " is rebuilt from the changelog. If it was created again, restore the topic from a"
            " backup, or continue without that state: worker --accept-state-loss",
            topic=topic,
            partition=partition,
            position=self.next_offset,
        )


def epoch_headers(epoch: int) -> Headers:
    """Return the headers of the records of a checkpoint outside of transactions."""
    return ((EPOCH_HEADER, _EPOCH.pack(epoch)),)


class Fences:
    """Separates the records of a changelog's owner from late records of former owners."""

    def __init__(self, owner: int = -1, late: Iterable[bytes] = ()) -> None:
        self.owner = owner
        """The offset of the last known fence."""
        self.late = set(late)
        """The keys whose newest record is a former owner's."""
        self._is_anew = False

    @classmethod
    def stored(cls, store: KeyValueStore) -> Fences:
        """Return the fences as of the changelog offset that a store reflects."""
        data, late = store.get(OWNER_KEY), store.get(LATE_KEY)
        owner = -1 if data is None else _unpack(data)
        # -1: the store has not seen a fence, so every epoch counts.
        return cls(owner, [] if late is None else _unpack_keys(late))

    def admit(self, records: Iterable[LogRecord]) -> Iterable[Change]:
        """Return the changes to apply: without late records, and with fences as their offsets."""
        columns = RecordColumns.of(records)
        if self._is_anew:
            self._is_anew = False
            return chain([(LATE_KEY, None)], self.admit(columns))
        if not self.late and self._are_all_own(columns):
            # A key may occur twice, in two commits; changes are applied in order.
            return Changes(cast("list[bytes]", columns.keys), columns.values)
        changes: list[Change] = []
        before = frozenset(self.late)
        for record in columns:
            if record.key is None:
                raise CorruptData(f"changelog record {record.offset} has no key")
            epoch = next((v for name, v in record.headers if name == EPOCH_HEADER), None)
            if record.key == OWNER_KEY:
                self.owner = record.offset
                changes.append((OWNER_KEY, _EPOCH.pack(record.offset)))
            # No epoch: the record was written in a transaction, and counts because that is
            # committed. `>=`: compaction removes a fence once a later one follows, so a record may
            # come without the fence of its writer before it.
            elif epoch is None or _unpack(epoch) >= self.owner:
                changes.append((record.key, record.value))
                self.late.discard(record.key)
            else:
                # Skipped here, but compaction keeps it as the newest record of its key: the owner
                # has to write the key again.
                self.late.add(record.key)
        if self.late != before:
            changes.append((LATE_KEY, _pack_keys(self.late)))
        return changes

    def begin_anew(self) -> None:
        """Start anew after a hand-over: no late keys remain, but the owner does."""
        self.late.clear()
        self._is_anew = True

    def _are_all_own(self, columns: RecordColumns) -> bool:
        """Return whether all records are checkpoints of the last owner, which is the usual case."""
        if not columns or None in columns.keys or OWNER_KEY in columns.keys:
            return False
        headers = columns.headers
        if headers is None:
            return True
        # The headers of one batch are one object, so `count` compares identities.
        first = headers[0]
        is_own = not first or first == epoch_headers(self.owner)
        return is_own and headers.count(first) == len(headers)


class Restorer:
    """Opens one task's state in slices, so that its worker stays in the group meanwhile."""

    def __init__(
        self,
        log: Log,
        producer: Producer,
        *,
        changelog: TopicPartition,
        path: str,
        budget: RocksBudget,
        clock: Clock,
        base: Base | None = None,
        own_topics: OwnTopics | None = None,
        accept_state_loss: bool = False,
        in_transactions: bool = False,
        snapshots: SnapshotRestore | None = None,
    ) -> None:
        """Create a restorer.

        Args:
            log: the log.
            producer: writes the fence.
            changelog: the changelog's partition.
            path: the directory of the task's state.
            budget: the memory of RocksDB.
            clock: the clock.
            base: the snapshot that the state began with, if it was handed over.
            own_topics: the recorded topic ids; state of another changelog is refused, unless that
                one was given up.
            accept_state_loss: whether state of another changelog is deleted instead.
            in_transactions: whether checkpoints are written in transactions; late keys then wait
                for the first one.
            snapshots: the task's snapshots in object storage, to begin with; None: there are none.
        """
        self.changelog = changelog
        own = own_topics or OwnTopics()
        self._changelog_id = own.ids.get(changelog.topic, b"")
        self._given_up = frozenset(own.given_up)
        self._accept_state_loss = accept_state_loss
        self._in_transactions = in_transactions
        self._base = base
        self.records = 0
        """The number of records applied."""
        self._log = log
        self._producer = producer
        self._path = path
        self._directory = TaskDirectory(path)
        self._budget = budget
        self._clock = clock
        self._snapshots = snapshots
        self._follower: ChangelogReader | None = None

    @property
    def records_left(self) -> int | None:
        """The number of changelog records left to read; None while unknown."""
        return None if self._follower is None else self._follower.lag

    @property
    def position(self) -> int:
        """The changelog offset before which everything is in the store; 0 before the first read."""
        return 0 if self._follower is None else self._follower.position

    async def run(self) -> TaskState:
        """Open a store, write the fence, and replay the records that the store lacks.

        Raises:
            LogDirectoryLost: the state belongs to another log.
            CorruptData: the state on disk is damaged.
        """
        store = await self._opened_store()
        try:
            check_cluster(self._log, store, self._path)
            self._check_changelog(store)
            if self._snapshots is not None:
                store = await self._snapshots.begin(self._directory, store, self._budget)
                check_cluster(self._log, store, self._path)
        except BaseException:
            store.close()
            raise
        front = DeferredStore(store, self._budget.waiting)
        try:
            await self._adopt_base(store)
            # Before the replay: the fence is where the replay ends, and what a former owner writes
            # from now on is late.
            epoch = await self._fence()
            late = await self._replay(store, front, end_offset=epoch + 1)
            if not self._in_transactions:
                # Exactly once, they wait for the first transaction: written outside of one, they
                # could replace rows of a worker that has taken over meanwhile.
                await self._write_again(front, late, epoch)
                late = frozenset()
            if self._changelog_id:
                store.put(CHANGELOG_KEY, self._changelog_id)
            self._directory.remove_old()
        except BaseException:
            front.close()
            raise
        return TaskState(store, front, self._directory, self.changelog, epoch, epoch + 1, late)

    async def _opened_store(self) -> RocksStore:
        """Open the newest state on this machine.

        Another worker may hold it and close it soon. If it does not, older state is opened.
        """
        deadline_ms = self._clock.now_ms() + LOCK_WAIT_MS
        while True:
            is_late = self._clock.now_ms() >= deadline_ms
            try:
                return self._directory.open(self._budget, skip_locked=is_late)
            except LogDirectoryLocked:
                await asyncio.sleep(LOCK_RETRY_MS / 1000)

    def _check_changelog(self, store: RocksStore) -> None:
        """Check that the state on disk was built from this changelog.

        Raises:
            SourceLost: it was built from a changelog that was deleted.
        """
        stored = store.get(CHANGELOG_KEY)
        if not stored or not self._changelog_id or stored == self._changelog_id:
            return
        topic, partition = self.changelog
        what = (
            f"the state in {self._path} is of a changelog {topic}-{partition} that was deleted"
            f" (id {id_text(stored)}, now {id_text(self._changelog_id)})"
        )
        if stored not in self._given_up and not self._accept_state_loss:
            raise SourceLost(
                f"{what}. Restore the topic from a backup, or continue with the content of the new"
                " one: worker --accept-state-loss",
                topic=topic,
                partition=partition,
                ids=(stored, self._changelog_id),
            )
        logger.warning("%s: rebuilt from the present changelog", what)
        store.delete_range(b"")
        # `delete_range` has removed the reserved keys as well.
        store.put(CLUSTER_KEY, self._log.cluster_id.encode())

    async def _adopt_base(self, store: RocksStore) -> None:
        """Fill the store from the files of a snapshot if they are newer than the store."""
        base, wall_ms = self._base, self._clock.wall_ms()
        if base is None or not base.is_of_use(store, wall_ms=wall_ms):
            return
        keep = {CLUSTER_KEY: self._log.cluster_id.encode()}
        if not await offload(partial(base.adopt, store, keep, OWNER_KEY)):
            await offload(partial(store.replace, (), [*keep.items()]))

    async def _fence(self) -> int:
        fence = (self._clock.wall_ms(), OWNER_KEY, b"", ())
        sent = await (await self._producer.send_batch(*self.changelog, [fence], atomic=True))
        return sent.offset

    async def _write_again(self, front: DeferredStore, late: frozenset[bytes], epoch: int) -> None:
        now_ms = self._clock.wall_ms()
        await rewrite_late_keys(
            self._producer, self.changelog, front, late, epoch=epoch, wall_ms=now_ms
        )
        front.delete(LATE_KEY)

    async def _replay(
        self, store: RocksStore, front: DeferredStore, *, end_offset: int
    ) -> frozenset[bytes]:
        follower = ChangelogReader(
            self._log,
            store,
            changelog=self.changelog,
            admission=Fences.stored,
            clock=self._clock,
            # The fence comes after every record that a former owner can still commit. Reading up to
            # it with `read_committed` waits until the former owner's transaction has ended.
            isolation="read_committed",
            front=front,
        )
        async with follower:
            self._follower = follower
            follower.warn_if_rebuilt(self._path)
            # The rebuild has emptied the store, its reserved keys included.
            if follower.rebuilt:
                store.put(CLUSTER_KEY, self._log.cluster_id.encode())
            await follower.reach(end_offset)
        self.records = follower.records - 1  # Without this owner's fence.
        return frozenset(Fences.stored(front).late)


def check_cluster(log: Log, store: RocksStore, path: str) -> None:
    """Check that the state belongs to this log; a new store belongs to it from now on.

    Raises:
        LogDirectoryLost: the state belongs to another log.
    """
    here, stored = log.cluster_id.encode(), store.get(CLUSTER_KEY)
    if stored is None:
        store.put(CLUSTER_KEY, here)
    elif stored != here:
        raise LogDirectoryLost(
            f"the state in {path} belongs to log {stored.decode(errors='replace')}, but "
            f"this is log {log.cluster_id}: has the app moved to another cluster, or was the log's "
            "directory deleted? Delete the state directory to restore the state from this log's "
            "changelogs, or start the worker with the log that it belongs to"
        )


async def rewrite_late_keys(
    producer: Producer,
    changelog: TopicPartition,
    store: KeyValueStore,
    keys: Iterable[bytes],
    *,
    epoch: int,
    wall_ms: int,
) -> None:
    """Write the store's values of these keys again, after the late records of a former owner."""
    headers = epoch_headers(epoch)
    batch = [(wall_ms, key, store.get(key), headers) for key in sorted(keys)]
    if batch:
        await (await producer.send_batch(*changelog, batch, atomic=True))


def _pack_keys(keys: Iterable[bytes]) -> bytes:
    return b"".join(_SIZE.pack(len(key)) + key for key in sorted(keys))


def _unpack_keys(data: bytes) -> list[bytes]:
    keys: list[bytes] = []
    position = 0
    while position < len(data):
        (size_bytes,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size + size_bytes
        keys.append(data[position - size_bytes : position])
    return keys


def _unpack(data: bytes) -> int:
    if len(data) != _EPOCH.size:
        raise CorruptData(f"{data!r} is not the epoch of a changelog's owner")
    epoch: int = _EPOCH.unpack(data)[0]
    return epoch
