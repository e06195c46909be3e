"""Opens the state of a task: takes it over from whoever had it, and brings it up to date.

Several processes may believe that a task is theirs: one that was stopped or blocked for
longer than its session learns last that it has lost it. So a changelog has an owner, settled
by the changelog itself. (1) A opens: it writes a fence, and its offset is A's epoch. (2) A is
blocked, B takes over and writes its own fence. (3) A wakes up and writes a checkpoint, with
its epoch on every record. (4) Whoever replays skips it, as its epoch is older than the last
fence; A itself sees that its checkpoint did not land where the one before ended, looks at
what lies between, finds B's fence, and drops the task (`commit`). Changes that A wrote before
B's fence are part of what B restores. Compaction knows no owners: of a key that A wrote late it
keeps A's record. So whoever meets late records writes those keys once more, with their values.

All of that is at least once. A checkpoint that was written in a transaction has no epoch: it counts
if the transaction was committed, which the group's generation decides (`exactly_once`). There a
fence only marks how far its writer has to read, and nothing else is written outside of
transactions. So a worker that is stopped before its fence, and goes on after others have taken
over, takes nothing from them.
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
from streamlog.worker.topics.version_log import Base, OwnTopics

logger = repeated.logger(__name__)

STATE_CLEANUP_DELAY_MS = 10 * 60 * 1000
"""Default; Kafka Streams' `state.cleanup.delay.ms`."""
LOOK_MS = 60_000
"""Between two looks, if the delay is not shorter."""
LOOK_MS_MIN = 100


async def remove_abandoned(path: str, *, delay_ms: int, clock: Clock) -> None:
    """Look after the app's state directory until cancelled."""
    abandoned = AbandonedTasks(path, delay_ms=delay_ms)
    while True:
        for name in await asyncio.to_thread(abandoned.remove, clock.now_ms()):
            logger.info("task %s has moved away: its state in %s is removed", name, path)
        await asyncio.sleep(min(LOOK_MS, max(delay_ms, LOOK_MS_MIN)) / 1000)


OWNER_KEY = b"\x00owner"
"""Reserved (see `tables/state/changelog.py`): in the changelog a fence, in a store the last one's
offset."""
LATE_KEY = b"\x00late"
"""Reserved, in a store only: keys that a former owner wrote late, still to be written again."""
CLUSTER_KEY = b"\x00cluster"
"""Reserved, in a store only: the log that its changelog is in."""
CHANGELOG_KEY = b"\x00changelog"
"""Reserved, in a store only: the topic id of its changelog."""
EPOCH_HEADER = "epoch"
"""On every record of a checkpoint that is in no transaction: the offset of its writer's fence."""
LOCK_WAIT_MS = 5_000
"""A worker on the same machine that gives the task up needs time to commit and close it."""
LOCK_RETRY_MS = 100

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_EPOCH = struct.Struct(">q")
_SIZE = struct.Struct(">I")


@dataclass(slots=True)
class TaskState:
    """The open state of one task."""

    store: RocksStore
    front: DeferredStore
    """The store with the commits that wait to be written to it: for whoever reads and writes."""
    directory: TaskDirectory
    """Where the store lies; it makes the snapshots."""
    changelog: TopicPartition
    epoch: int
    """The offset of our fence."""
    next_offset: int
    """Where our next checkpoint lands if nobody else writes."""
    late: frozenset[bytes] = frozenset()
    """Keys that the task's next transaction writes again."""

    def reach(self, next_offset: int) -> None:
        """A checkpoint was written up to here.

        Raises:
            SourceLost: that is not behind the ones before: the changelog is another one by now.
        """
        if next_offset <= self.next_offset:
            raise self.lost(next_offset)
        self.next_offset = next_offset

    def settle_late(self) -> None:
        """The late keys are written again; for the thread that runs the task."""
        self.late = frozenset()
        self.front.delete(LATE_KEY)

    def lost(self, next_offset: int) -> SourceLost:
        """The error of a checkpoint that was written before `next_offset`, and not at the end."""
        topic, partition = self.changelog
        return SourceLost(
            f"changelog {topic}-{partition} was deleted and created again, or truncated, while a"
            f" task was writing to it: offset {self.next_offset} was next, and a checkpoint landed"
            f" before {next_offset}. If it was truncated, start the worker again: the state is"
            " rebuilt from what the changelog has. If it was created again, restore the topic from"
            " a backup, or go on without that state: worker --accept-state-loss",
            topic=topic,
            partition=partition,
            position=self.next_offset,
        )


def epoch_headers(epoch: int) -> Headers:
    """The headers of a checkpoint's records."""
    return ((EPOCH_HEADER, _EPOCH.pack(epoch)),)


class Fences:
    """Tells the records of owners from those of former ones, in the order of a changelog."""

    def __init__(self, owner: int = -1, late: Iterable[bytes] = ()) -> None:
        self.owner = owner
        """The offset of the last fence known."""
        self.late = set(late)
        """Keys whose newest record is a former owner's."""
        self._is_anew = False

    @classmethod
    def stored(cls, store: KeyValueStore) -> Fences:
        """As of the changelog offset that the store reflects."""
        data, late = store.get(OWNER_KEY), store.get(LATE_KEY)
        owner = -1 if data is None else _unpack(data)
        return cls(owner, [] if late is None else _unpack_keys(late))

    def admit(self, records: Iterable[LogRecord]) -> Iterable[Change]:
        """The changes to apply: fences as their offset, nothing by a former owner."""
        columns = RecordColumns.of(records)
        if self._is_anew:
            self._is_anew = False
            return chain([(LATE_KEY, None)], self.admit(columns))
        if not self.late and self._are_all_own(columns):
            # Of two commits a key may be there twice: they are applied in their order.
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
            elif epoch is None or _unpack(epoch) >= self.owner:
                changes.append((record.key, record.value))
                self.late.discard(record.key)
            else:
                self.late.add(record.key)
        if self.late != before:
            changes.append((LATE_KEY, _pack_keys(self.late)))
        return changes

    def begin_anew(self) -> None:
        """The state begins with what follows: nobody before was late. Who owns it stays."""
        self.late.clear()
        self._is_anew = True

    def _are_all_own(self, columns: RecordColumns) -> bool:
        """Whether these are checkpoints of the last owner, as almost always, and nothing else."""
        if not columns or None in columns.keys or OWNER_KEY in columns.keys:
            return False
        headers = columns.headers
        if headers is None:
            return True
        # Of one batch they are the very same object, which `count` sees at once.
        first = headers[0]
        is_own = not first or first == epoch_headers(self.owner)
        return is_own and headers.count(first) == len(headers)


class Restorer:
    """Opens one task's state, in steps, so that its worker stays in the group meanwhile."""

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
    ) -> None:
        """`base` is what the state began with, if it was handed over (see `version_log`).

        Where checkpoints are written `in_transactions`, late keys wait for the first of them.
        State on disk that is of another changelog than the one in `version_log` is refused, unless
        that was given up or the user accepts the loss.
        """
        self.changelog = changelog
        own = own_topics or OwnTopics()
        self._changelog_id = own.ids.get(changelog.topic, b"")
        self._given_up = frozenset(own.given_up)
        self._accept_state_loss = accept_state_loss
        self._in_transactions = in_transactions
        self._base = base
        self.records = 0
        """Applied so far."""
        self._log = log
        self._producer = producer
        self._path = path
        self._directory = TaskDirectory(path)
        self._budget = budget
        self._clock = clock
        self._follower: ChangelogReader | None = None

    @property
    def records_left(self) -> int | None:
        """How far the state is behind its changelog; None before that is known."""
        return None if self._follower is None else self._follower.lag

    async def run(self) -> TaskState:
        """Open a store, take the changelog over, replay what the store lacks.

        Raises:
            LogDirectoryLost: the state belongs to another log.
            CorruptData: the state on disk is damaged.
        """
        store = await self._opened_store()
        front = DeferredStore(store, self._budget.waiting)
        try:
            check_cluster(self._log, store, self._path)
            self._check_changelog(store)
            await self._adopt_base(store)
            epoch = await self._fence()
            late = await self._replay(store, front, end_offset=epoch + 1)
            if not self._in_transactions:
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
        """The newest state on this machine, in a directory of its own.

        Whoever has it may be about to give it up; if not, something older has to do.
        """
        deadline_ms = self._clock.now_ms() + LOCK_WAIT_MS
        while True:
            is_late = self._clock.now_ms() >= deadline_ms
            try:
                return self._directory.open(self._budget, skip_locked=is_late)
            except LogDirectoryLocked:
                await asyncio.sleep(LOCK_RETRY_MS / 1000)

    def _check_changelog(self, store: RocksStore) -> None:
        """Make sure that the state on disk is of this changelog.

        Raises:
            SourceLost: it is of one that was deleted.
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
                f"{what}. Restore the topic from a backup, or go on with what the new one has:"
                " worker --accept-state-loss",
                topic=topic,
                partition=partition,
                ids=(stored, self._changelog_id),
            )
        logger.warning("%s: built anew from the changelog that there is", what)
        store.delete_range(b"")
        store.put(CLUSTER_KEY, self._log.cluster_id.encode())

    async def _adopt_base(self, store: RocksStore) -> None:
        """Take the files of a snapshot, where they are newer than what is here."""
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
            # Our fence lies behind all that a former owner can have written. Up to there, what it
            # was about to commit is waited for.
            isolation="read_committed",
            front=front,
        )
        async with follower:
            self._follower = follower
            follower.warn_if_rebuilt(self._path)
            if follower.rebuilt:
                store.put(CLUSTER_KEY, self._log.cluster_id.encode())
            await follower.reach(end_offset)
        self.records = follower.records - 1  # Our own fence.
        return frozenset(Fences.stored(front).late)


def check_cluster(log: Log, store: RocksStore, path: str) -> None:
    """Make sure that the state is of this log; a store that is new belongs to it from now on.

    Raises:
        LogDirectoryLost: it belongs to another one.
    """
    here, stored = log.cluster_id.encode(), store.get(CLUSTER_KEY)
    if stored is None:
        store.put(CLUSTER_KEY, here)
    elif stored != here:
        raise LogDirectoryLost(
            f"the state in {path} belongs to log {stored.decode(errors='replace')}, but "
            f"this is log {log.cluster_id}: was the log's directory deleted or moved? "
            "Bring it back, or delete the state directory to start from what this log has"
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
    """Put what the store has behind what a former owner wrote of these keys."""
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
