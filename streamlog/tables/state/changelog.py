"""The changelog of a task: its state as records, and how to restore it.

A checkpoint is a list of records that the runner sends as one batch (decision 001): each change as
(store prefix + key, value), with a missing value for a deletion, and under a reserved key the
`TaskProgress`: the input offsets that the state contains. The store uses the same keys, and also
holds the changelog offset that it reflects. Rule of the file: applying records is idempotent and in
order, and the offset is written last, so a crash at any point is repaired by replaying from the
stored offset. Not done here: reading and sending records (the runner's job) and caching
(`store_transaction`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from streamlog.errors import CorruptData
from streamlog.tables.stores.store import Change, Changes, KeyValueStore

Offsets: TypeAlias = Mapping[tuple[str, int], int]
"""An offset per topic and partition."""

PROGRESS_KEY = b"\x00progress"
"""Reserved: keys of stores begin with the length of the store's name, which is never 0."""

OFFSET_KEY = b"\x00changelog-offset"
"""Reserved, in the store only: the next changelog offset to apply."""

READ_KEY = b"\x00changelog-read"
"""Reserved, in the store only: the position up to which the changelog was read, and its log."""

BASE_KEY = b"\x00base"
"""Reserved, in a changelog only: the state starts anew with the records that follow. All earlier
records are void, whichever of them compaction has left."""

TRUNCATED = "it was truncated"
"""The beginning of `why` if the changelog no longer has records that the store reflects."""

ROWS_FROM, ROWS_TO = b"\x01", b"\xff\xff"
"""The bounds of all keys of stores: no key begins with a byte below 1, or with FF FF."""

WRITE_KEYS_MAX = 1_000
"""Keys per write: one write holds the interpreter's lock until it is done (5 ms)."""

NO_EPOCH = -1
"""An unknown leader epoch."""

FORMAT_VERSION = 2
"""The version of the encoded progress; `TaskProgress.decode` refuses other versions."""

_OFFSET = struct.Struct(">q")
_READ = struct.Struct(">qi16sqI")


class SourceLog(NamedTuple):
    """The log that an input offset belongs to.

    A topic that is deleted and created again under its name is another log, and so is, from some
    offset on, a log that was truncated.
    """

    topic_id: bytes = b""
    """The id of the topic; empty if the broker reports none."""
    leader_epoch: int = NO_EPOCH
    """The leader epoch of the record before the offset."""
    cuts: int = 0
    """How many times the log was found truncated below what the task had read."""


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    """Progress as JSON; rows instead of a mapping, because JSON's keys are text."""

    version: int
    offsets: list[tuple[str, int, int, str, int, int]]
    sections: dict[str, object]


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_Wire).decode


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The input offsets that a state contains, and the state of the engine's parts.

    `offsets` is the next offset to read per input partition, and `logs` is the log that it belongs
    to, where that is known. `sections` belong to the parts of the engine, each under its own name
    (stream time, provenance, ...): plain data, that is None, bool, int, float, str, and lists and
    dicts (with str keys) of these.
    """

    offsets: Offsets = msgspec.field(default_factory=dict)
    logs: Mapping[tuple[str, int], SourceLog] = msgspec.field(default_factory=dict)
    sections: Mapping[str, object] = msgspec.field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the progress as bytes; equal progress has equal bytes."""
        rows: list[tuple[str, int, int, str, int, int]] = []
        for partition, offset in sorted(self.offsets.items()):
            log = self.logs.get(partition, SourceLog())
            rows.append((*partition, offset, log.topic_id.hex(), log.leader_epoch, log.cuts))
        return _encode(_Wire(FORMAT_VERSION, rows, dict(self.sections)))

    @classmethod
    def decode(cls, data: bytes) -> TaskProgress:
        """Return the progress in these bytes; tuples in the sections become lists.

        Raises:
            CorruptData: the bytes are not progress, or a newer streamlog has written them.
        """
        try:
            wire = _decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the progress of a task is not readable: {error}") from error
        if wire.version != FORMAT_VERSION:
            raise CorruptData(
                f"the progress of a task has format {wire.version}, and this streamlog reads "
                f"{FORMAT_VERSION}: a newer version has written it; use that version, or reset the "
                "app"
            )
        offsets = {(topic, partition): at for topic, partition, at, *_ in wire.offsets}
        try:
            found = {
                (topic, partition): SourceLog(bytes.fromhex(topic_id), epoch, cuts)
                for topic, partition, _, topic_id, epoch, cuts in wire.offsets
            }
        except ValueError as error:
            raise CorruptData(f"the progress of a task is not readable: {error}") from error
        logs = {partition: log for partition, log in found.items() if log != SourceLog()}
        return cls(offsets=offsets, logs=logs, sections=wire.sections)


def checkpoint(changes: Changes, progress: TaskProgress) -> Changes:
    """Return the records of one commit, in the order in which they are sent and applied."""
    return changes.followed_by(PROGRESS_KEY, progress.encode())


def apply_records(store: KeyValueStore, records: Iterable[Change], *, next_offset: int) -> None:
    """Apply changelog records to the store, which then reflects the log before `next_offset`.

    Writes in slices. After a crash between two slices the store has some of the records and the old
    offset; replaying from there results in an equal state.
    """
    # 2,500 records from offset 100, in slices of 1,000, the last one with the offset 2600:
    # 1. A crash after the first slice: the store says 100 and has 1,000 of the records. The
    #    restart applies all 2,500 again, which overwrites the 1,000 with equal values.
    # 2. A crash after the last slice: the store says 2600; nothing is replayed.
    offset = store_offset(next_offset)
    if isinstance(records, Changes):
        start = 0
        while len(records) - start >= WRITE_KEYS_MAX:
            store.write(records.part(start, start + WRITE_KEYS_MAX))
            start += WRITE_KEYS_MAX
        store.write(records.part(start, len(records)).followed_by(*offset))
        return
    remaining = iter(records)
    while len(head := list(islice(remaining, WRITE_KEYS_MAX))) == WRITE_KEYS_MAX:
        store.write(head)
    store.write([*head, offset])


def changelog_offset(store: KeyValueStore) -> int:
    """Return the next changelog offset to apply: the store reflects the log before it."""
    data = store.get(OFFSET_KEY)
    if data is None:
        return 0
    if len(data) != _OFFSET.size:
        raise CorruptData(
            f"the store's changelog offset is not readable: {data!r}; delete the state "
            "directory, the changelog restores it"
        )
    offset: int = _OFFSET.unpack(data)[0]
    return offset


def store_offset(next_offset: int) -> Change:
    """Return the row that says that the store reflects the changelog before this offset."""
    return OFFSET_KEY, _OFFSET.pack(next_offset)


class ReadUpTo(NamedTuple):
    """The position up to which a changelog was read into a store; the task writes what follows."""

    offset: int
    leader_epoch: int
    """The leader epoch of the record before the position."""
    topic_id: bytes
    """The topic id of the changelog; zero if the broker reports none."""
    last_offset: int = -1
    """The offset of the last record before the position; -1 if there is none."""
    last_crc: int = 0
    """The checksum of that record's key and value: see `crc_of`."""

    def row(self) -> Change:
        """Return the position as the store keeps it."""
        return READ_KEY, _READ.pack(*self)


def crc_of(key: bytes | None, value: bytes | None) -> int:
    """Return a checksum that tells a record from another one at the same offset."""
    return crc32(value or b"", crc32(key or b""))


def stored_read_up_to(store: KeyValueStore) -> ReadUpTo | None:
    """Return the position that the store keeps; None if it keeps none."""
    data = store.get(READ_KEY)
    return None if data is None or len(data) != _READ.size else ReadUpTo(*_READ.unpack(data))


def stored_progress(store: KeyValueStore) -> TaskProgress | None:
    """Return the progress that the store reflects; None if nothing has been committed yet."""
    data = store.get(PROGRESS_KEY)
    return None if data is None else TaskProgress.decode(data)


class Restoration:
    """Brings a store up to date with a changelog, from the offset that the store reflects.

    A store that can't be continued, because the log no longer has the records that would follow (it
    was truncated or compacted), is emptied and rebuilt: `rebuilt` says so, and `why` gives the
    reason.
    """

    __slots__ = ("_store", "end_offset", "is_new", "position", "start_offset", "why")

    def __init__(
        self,
        store: KeyValueStore,
        *,
        start_offset: int,
        end_offset: int,
        complete_offset: int = 0,
        departure: str = "",
    ) -> None:
        """`start_offset` and `end_offset` are the changelog's, read before restoring.

        Before `complete_offset` compaction may have removed deletions: a store that reflects less
        than that can't be continued. `departure` says why the changelog is not the one that the
        store was made from; it is empty if it is that one.
        """
        self._store = store
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.position = changelog_offset(store)
        self.is_new = self.position == 0 and stored_progress(store) is None
        """Whether the store had no state at all."""
        self.why = "" if self.is_new else departure or self._misfit(complete_offset)
        """Why the store can't be continued; empty if it can."""
        if self.rebuilt:
            store.delete_range(b"")
        if self.rebuilt or self.is_new:
            self.position = start_offset

    def _misfit(self, complete_offset: int) -> str:
        if self.position > self.end_offset:
            return f"{TRUNCATED}: it ends at {self.end_offset}"
        # Equal is fine: the first record that remains is the next one to apply.
        if self.position < self.start_offset:
            return f"it begins at {self.start_offset}"
        # 1. The store reflects offsets below 50 and has row k; the deletion of k is at offset 60.
        # 2. Compaction removes the deletion, because it is old enough; `complete_offset` is 61.
        # 3. Applying the records from 50 on would never delete k: the store starts anew.
        if self.position < complete_offset:
            return "compaction may have removed deletions that are to be applied"
        return ""

    @property
    def rebuilt(self) -> bool:
        """Whether the store was emptied."""
        return bool(self.why)

    @property
    def done(self) -> bool:
        """Whether everything before `end_offset` has been applied."""
        return self.position >= self.end_offset

    @property
    def remaining(self) -> int:
        """Offsets left; an upper bound of the records, because a compacted log has gaps."""
        return max(self.end_offset - self.position, 0)

    def resume_in(self, store: KeyValueStore) -> None:
        """Apply further records to this store, which wraps the store of the beginning."""
        self._store = store

    def apply(self, records: Iterable[Change], *, next_offset: int) -> None:
        """Apply records from `position` on, in order; `next_offset` is where reading continues.

        It may be beyond the last record, because control records and gaps carry no change.

        Raises:
            CorruptData: the log goes backwards.
        """
        if next_offset < self.position:
            raise CorruptData(
                f"the changelog went back from offset {self.position} to {next_offset}: "
                "records must be applied in the order of the log"
            )
        apply_records(self._store, records, next_offset=next_offset)
        self.position = next_offset

    def read_up_to(self, read: ReadUpTo | None) -> None:
        """Store the position up to which the log was read; None removes it: the log is unknown."""
        self._store.write([(READ_KEY, None) if read is None else read.row()])

    def begin_anew(self) -> None:
        """Remove all rows: a base follows in the changelog."""
        # The changelog offset stays: after a crash, the restart reads the base from there again.
        self._store.delete_range(ROWS_FROM, ROWS_TO)
        self._store.write([(PROGRESS_KEY, None)])

    def progress(self) -> TaskProgress | None:
        """Return the progress as of `position`; None if the log holds none yet."""
        return stored_progress(self._store)
