"""QuorumFiles: everything that a member has on disk, in `__cluster_metadata-0/`.

    quorum-state                        epoch, vote, whether the member is rejoining, the voters
    flushed-end                         how far the log was on disk
    00000000000000000000.log            entries of the log, from that offset on
    00000000000000000120-0000000003.checkpoint   what all records before 120 amount to

Rule: what counts is on disk, and so is the fact that it is. `sync` writes the flushed end after
the log, and `truncate` before it. A member whose log ends before its flushed end, or that has lost
its state, may have forgotten what it confirmed or whom it voted for: it has to rejoin. Methods
raise LogDirectoryError if the disk refuses.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from crc32c import crc32c

from streamlog.broker.config.cluster import BROKER_ROLE
from streamlog.broker.quorum.raft.log_entries import decode_snapshot
from streamlog.broker.quorum.raft.metadata_log_files import MetadataLog
from streamlog.broker.quorum.raft.raft_messages import EMPTY, Entry, QuorumState, RaftSnapshotId
from streamlog.broker.quorum.raft.raft_state import EpochChain
from streamlog.broker.storage.disk.files import (
    MALFORMED,
    File,
    Files,
    directory_error,
    make_durable_directory,
    read_file,
    replace_file,
    with_reserve,
    write_whole,
)
from streamlog.errors import ConfigError, CorruptData

KEPT = 2
PARTIAL_SUFFIX = ".part"

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class SnapshotFiles:
    """The snapshots in a directory."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        for name in files.list(directory):
            if name.endswith(PARTIAL_SUFFIX):
                files.remove(f"{directory}/{name}")

    def ids(self) -> list[RaftSnapshotId]:
        """All that are there, the newest last."""
        names = (_NAME.fullmatch(name) for name in self._files.list(self._directory))
        return sorted(RaftSnapshotId(int(name[1]), int(name[2])) for name in names if name)

    def newest_intact(self) -> tuple[RaftSnapshotId, list[bytes]] | None:
        """The newest one that is what it should be, and its values.

        A damaged one is removed: the log before it may still be there, or another member has it.
        """
        for snapshot in reversed(self.ids()):
            try:
                return snapshot, list(self.values(snapshot))
            except CorruptData:
                self._files.remove(self._path(snapshot))
        return None

    def values(self, snapshot: RaftSnapshotId) -> Iterator[bytes]:
        """The values in a snapshot.

        Raises:
            CorruptData: it is damaged.
        """
        return decode_snapshot(read_file(self._files, self._path(snapshot)))

    def write(self, snapshot: RaftSnapshotId, batches: Iterable[bytes]) -> None:
        """Write one, durably, and let go of those before the last but one."""
        position = 0
        for batch in batches:
            self.receive(snapshot, position, batch)
            position += len(batch)
        self.settle(snapshot)

    def receive(self, snapshot: RaftSnapshotId, position: int, data: bytes) -> None:
        """Write bytes of one that is not whole yet; position 0 begins it anew."""
        file = self._files.open(self._path(snapshot) + PARTIAL_SUFFIX, writable=True)
        try:
            if position == 0:
                file.truncate(0)
            write_whole(file, data, position)
        finally:
            file.close()

    def settle(self, snapshot: RaftSnapshotId) -> None:
        """What was received is all of it: check it, and give it its name, durably.

        Raises:
            CorruptData: it is not what was sent.
        """
        path = self._path(snapshot)
        list(decode_snapshot(read_file(self._files, path + PARTIAL_SUFFIX)))
        file = self._files.open(path + PARTIAL_SUFFIX, writable=True)
        try:
            file.sync()
        finally:
            file.close()
        self._files.rename(path + PARTIAL_SUFFIX, path)
        self._files.sync_directory(self._directory)
        for each in self.ids()[:-KEPT]:
            with suppress(FileNotFoundError):
                self._files.remove(self._path(each))

    def discard(self, snapshot: RaftSnapshotId) -> None:
        """Let go of what there is of one that can't be written."""
        with suppress(OSError):
            self._files.remove(self._path(snapshot) + PARTIAL_SUFFIX)

    def read(
        self, snapshot: RaftSnapshotId, position: int, max_bytes: int
    ) -> tuple[bytes, int] | None:
        """Bytes of one, and how many it has; None if it is not there any more."""
        try:
            file = self._files.open(self._path(snapshot))
        except FileNotFoundError:
            return None
        try:
            return file.read(max_bytes, position), file.size()
        finally:
            file.close()

    def _path(self, snapshot: RaftSnapshotId) -> str:
        return f"{self._directory}/{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"


QUORUM_STATE = "quorum-state"
FLUSHED_END = "flushed-end"

_FORMAT = 1
_SLOT = struct.Struct(">QqI")  # a running number, the offset, their CRC
_CRC_AT = 16
_SLOT_BYTES = 512  # a sector: disks write it whole or not at all


def read_state(files: Files, directory: str) -> QuorumState | None:
    """What the member knew last; None if it has never been in an epoch.

    Raises:
        CorruptData: the file is damaged: who votes by it could vote twice.
        OSError: the disk refused.
    """
    path = f"{directory}/{QUORUM_STATE}"
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    try:
        content = json.loads(data)
        checksum = content.pop("crc32c")
        if content["version"] != _FORMAT or checksum != _checksum(content):
            raise ValueError("its checksum or version does not fit")
        return QuorumState(
            epoch=int(content["epoch"]),
            voted_id=_id(content["voted_id"]),
            leader_id=_id(content["leader_id"]),
            rejoin_id=int(content["rejoin_id"]),
            voters=tuple(int(each) for each in content.get("voters", ())),
        )
    except (RecursionError, *MALFORMED) as error:
        raise CorruptData(f"{path} is damaged: {error}") from error


def write_state(files: Files, directory: str, state: QuorumState) -> None:
    """Keep it, durably.

    Raises:
        OSError: the disk refused; the old one or the new one is there.
    """
    content: dict[str, object] = {
        "version": _FORMAT,
        "epoch": state.epoch,
        "voted_id": state.voted_id,
        "leader_id": state.leader_id,
        "rejoin_id": state.rejoin_id,
        "voters": state.voters,
    }
    content["crc32c"] = _checksum(content)
    replace_file(files, f"{directory}/{QUORUM_STATE}", json.dumps(content).encode())


class FlushedEnd:
    """The offset up to which the log has been synced. Raises OSError where the disk refuses."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._file: File = files.open(f"{directory}/{FLUSHED_END}", writable=True)
        found = [self._read(slot) for slot in range(2)]
        self._number, offset = max((each for each in found if each is not None), default=(0, -1))
        self.offset: int | None = None if offset < 0 else offset
        """None if neither place can be read: it was never written, or is damaged."""

    def write(self, offset: int) -> None:
        """Keep the offset, durably."""
        self._number += 1
        head = _SLOT.pack(self._number, offset, 0)[:_CRC_AT]
        slot = (head + struct.pack(">I", crc32c(head))).ljust(_SLOT_BYTES, b"\0")
        position = self._number % 2 * _SLOT_BYTES
        with_reserve(self._files, lambda: write_whole(self._file, slot, position))
        self._file.sync()
        self.offset = offset

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def _read(self, slot: int) -> tuple[int, int] | None:
        data = self._file.read(_SLOT.size, slot * _SLOT_BYTES)
        if len(data) < _SLOT.size:
            return None
        number, offset, checksum = _SLOT.unpack(data)
        return (number, offset) if crc32c(data[:_CRC_AT]) == checksum and number else None


def _checksum(content: dict[str, object]) -> int:
    return crc32c(json.dumps(content, sort_keys=True).encode())


def _id(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{value!r} is no node")
    return value


FOLDER = "__cluster_metadata-0"


class QuorumFiles:
    """The files of one member, under `directory`.

    Raises:
        LogDirectoryError: the disk refuses.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self.directory = f"{directory}/{FOLDER}"
        with self._disk():
            make_durable_directory(files, self.directory)
            self._files = files
            self.state = QuorumState()
            self.damage: str | None = None
            """What the member may have forgotten; None if nothing."""
            self.snapshots = SnapshotFiles(files, self.directory)
            newest = self.snapshots.newest_intact()
            self.snapshot = newest[0] if newest else EMPTY
            self.values = newest[1] if newest else []
            """Of the records that the snapshot holds."""
            self._flushed = FlushedEnd(files, self.directory)
            self.log = MetadataLog(
                files,
                self.directory,
                start=self.snapshot,
                flushed_end=self._flushed.offset,
            )
            self._judge()

    @property
    def is_new(self) -> bool:
        """Whether the member has never been in an epoch."""
        return self.state == QuorumState(voters=self.state.voters) and self.log.end_offset == 0

    @property
    def has_flushed_end(self) -> bool:
        """Whether a member has used this folder: it writes the flushed end before anything else."""
        return self._flushed.offset is not None

    @property
    def flushed_end(self) -> int:
        """The offset up to which the log is known to be on disk."""
        return self._flushed.offset or 0

    def chain(self) -> EpochChain:
        """Which epochs the log is made of."""
        chain = EpochChain(self.snapshot)
        chain.extend(self.log.chain())
        return chain

    def belong_to(self, voters: tuple[int, ...], node_id: int) -> None:
        """Be the log of these voters, who are fixed, at node `node_id`.

        Voters without the log could elect each other, and then cut off what those before have
        committed: of one that was alone, all of it. It grows by `growth`; a node that has never
        voted, and does not now, goes along.

        Raises:
            ConfigError: it is that of others.
        """
        before = self.state.voters
        goes_along = node_id not in {*before, *voters} and set(before) < set(voters)
        if before and set(before) != set(voters) and not goes_along:
            raise ConfigError(
                f"the metadata log in {self.directory}, which ends at offset"
                f" {self.log.end_offset}, is that of {_named(before)}, and"
                f" controller.quorum.voters makes it that of {_named(voters)}: voters do not"
                " change, or those without the log could elect each other and drop it. Set"
                " controller.quorum.voters to what it was (empty for a node that was alone); more"
                f" nodes join with process.roles={BROKER_ROLE}, and a node that is alone takes"
                " other voters in by `streamlog cluster grow`"
            )
        self.state = replace(self.state, voters=voters)

    def settle(self) -> None:
        """Begin to use the log: what is behind its sound part is cut off.

        Raises:
            CorruptData: something is damaged that the member may have confirmed: `rejoin` instead.
        """
        if self.damage is not None:
            raise CorruptData(self.damage)
        with self._disk():
            self.log.discard_damaged()
            self._flushed.write(self.log.end_offset)
            self._files.sync_directory(self.directory)

    def rejoin(self, rejoin_id: int) -> None:
        """Keep what is sound, and neither vote nor count until a leader has let it in again."""
        with self._disk():
            self.state = replace(
                self.state,
                epoch=max(self.state.epoch, self.chain().last_epoch),
                leader_id=None,
                rejoin_id=rejoin_id,
            )
            write_state(self._files, self.directory, self.state)
        self.damage = None
        self.settle()

    # ---- what Raft decides ----

    def persist(self, state: QuorumState) -> None:
        """Keep epoch and vote, durably."""
        with self._disk():
            write_state(self._files, self.directory, state)
        self.state = state

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries at the end of the log."""
        with self._disk():
            self.log.append(entries)

    def sync(self, end_offset: int) -> None:
        """Return when the log is on disk up to `end_offset`, and that it is; for a thread."""
        with self._disk():
            self.log.sync()
            self._flushed.write(end_offset)

    def truncate(self, end_offset: int) -> None:
        """Cut the log off, durably."""
        with self._disk():
            self._flushed.write(min(end_offset, self._flushed.offset or 0))
            self.log.truncate(end_offset)

    def install(self, snapshot: RaftSnapshotId) -> list[bytes]:
        """Begin behind a snapshot that was received; the values of its records.

        Raises:
            CorruptData: it is not what was sent.
        """
        with self._disk():
            self.snapshots.settle(snapshot)
            self._flushed.write(snapshot.end_offset)
            self.log.restart(snapshot)
            self.snapshot = snapshot
            return list(self.snapshots.values(snapshot))

    def receive(self, snapshot: RaftSnapshotId, position: int, data: bytes) -> None:
        """Write bytes of a snapshot that is being received."""
        with self._disk():
            self.snapshots.receive(snapshot, position, data)

    def trim(self, snapshot: RaftSnapshotId) -> None:
        """Let go of the log before a snapshot."""
        with self._disk():
            self.log.trim(snapshot)

    def close(self) -> None:
        """Give the files back."""
        self.log.close()
        self._flushed.close()

    def roll(self) -> None:
        """Go on in a new file, as a snapshot of what is here is about to be written."""
        with self._disk():
            self.log.roll()

    def write_snapshot(self, snapshot: RaftSnapshotId, batches: Iterable[bytes]) -> None:
        """Write one, durably; for a thread. It counts when it is `self.snapshot`."""
        try:
            self.snapshots.write(snapshot, batches)
        except OSError as error:
            self.snapshots.discard(snapshot)
            raise directory_error(error, self.directory) from error

    def _judge(self) -> None:
        self.damage = self.log.damage
        try:
            state = read_state(self._files, self.directory)
        except CorruptData as error:
            self.damage = str(error)
            return
        self.state = state or QuorumState()
        if self._flushed.offset is None and (state is not None or self.log.end_offset):
            self.damage = (
                f"flushed-end in {self.directory} is missing or damaged: nobody knows how far the"
                " metadata log was on disk"
            )
        last_epoch = self.chain().last_epoch
        if self.state.epoch < last_epoch:
            self.damage = (
                f"quorum-state in {self.directory} is of epoch {self.state.epoch}, and the log of"
                f" epoch {last_epoch}: it is missing, or another member's"
            )

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise directory_error(error, self.directory) from error


def _named(voters: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, sorted(voters)))
    return f"nodes {listed}" if len(voters) > 1 else f"node {listed} alone"
