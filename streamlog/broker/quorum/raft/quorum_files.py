"""QuorumFiles: the files of one member of the quorum, in `__cluster_metadata-0/`.

    quorum-state                        epoch, vote, rejoin id, voters
    flushed-end                         the offset up to which the log was synced
    00000000000000000000.log            entries of the log, from that offset on
    00000000000000000120-0000000003.checkpoint   a snapshot of all records before offset 120

Rules of this module: the flushed end never exceeds what is on disk. So `sync` writes it after the
log, and `truncate` before the cut. A member whose log ends before its flushed end, or that has
lost its `quorum-state`, may have forgotten what it confirmed or voted: it has to rejoin. Methods
raise LogDirectoryError if the disk refuses.

Not done here: the layout of the log's segments (`metadata_log_files`), of entries (`log_entries`).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

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
from streamlog.replace import replace

KEPT = 2
"""Snapshots that are kept: a follower may still fetch the last but one."""
PARTIAL_SUFFIX = ".part"
"""The suffix of a snapshot that is not complete."""

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class SnapshotFiles:
    """The snapshots in a directory; incomplete ones of an earlier process are removed."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        for name in files.list(directory):
            if name.endswith(PARTIAL_SUFFIX):
                files.remove(f"{directory}/{name}")

    def ids(self) -> list[RaftSnapshotId]:
        """Return the ids of all complete snapshots, the newest last."""
        names = (_NAME.fullmatch(name) for name in self._files.list(self._directory))
        return sorted(RaftSnapshotId(int(name[1]), int(name[2])) for name in names if name)

    def newest_intact(self) -> tuple[RaftSnapshotId, list[bytes]] | None:
        """Return the newest undamaged snapshot and its values, or None.

        Damaged ones are removed: the log may still contain their records, or another member does.
        """
        for snapshot in reversed(self.ids()):
            try:
                return snapshot, list(self.values(snapshot))
            except CorruptData:
                self._files.remove(self._path(snapshot))
        return None

    def values(self, snapshot: RaftSnapshotId) -> Iterator[bytes]:
        """Iterate over the values in a snapshot.

        Raises:
            CorruptData: the snapshot is damaged.
        """
        return decode_snapshot(read_file(self._files, self._path(snapshot)))

    def write(self, snapshot: RaftSnapshotId, batches: Iterable[bytes]) -> None:
        """Write and sync a snapshot, and remove all but the last two."""
        position = 0
        for batch in batches:
            self.receive(snapshot, position, batch)
            position += len(batch)
        self.settle(snapshot)

    def receive(self, snapshot: RaftSnapshotId, position: int, data: bytes) -> None:
        """Write bytes of an incomplete snapshot; position 0 discards earlier bytes."""
        file = self._files.open(self._path(snapshot) + PARTIAL_SUFFIX, writable=True)
        try:
            if position == 0:
                file.truncate(0)
            write_whole(file, data, position)
        finally:
            file.close()

    def settle(self, snapshot: RaftSnapshotId) -> None:
        """Check and sync a snapshot whose bytes are complete, and give it its name.

        Raises:
            CorruptData: the bytes are damaged or incomplete.
        """
        path = self._path(snapshot)
        list(decode_snapshot(read_file(self._files, path + PARTIAL_SUFFIX)))
        file = self._files.open(path + PARTIAL_SUFFIX, writable=True)
        try:
            file.sync()
        finally:
            file.close()
        # The rename after the sync: a file with its final name is complete, also after a power cut.
        self._files.rename(path + PARTIAL_SUFFIX, path)
        self._files.sync_directory(self._directory)
        for each in self.ids()[:-KEPT]:
            with suppress(FileNotFoundError):
                self._files.remove(self._path(each))

    def discard(self, snapshot: RaftSnapshotId) -> None:
        """Remove the bytes of a snapshot that could not be completed."""
        with suppress(OSError):
            self._files.remove(self._path(snapshot) + PARTIAL_SUFFIX)

    def read(
        self, snapshot: RaftSnapshotId, position: int, max_bytes: int
    ) -> tuple[bytes, int] | None:
        """Return bytes of a snapshot and its size in bytes; None if it was removed."""
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
    """Return the state of a member; None if the member was never in an epoch.

    Raises:
        CorruptData: the file is damaged, so the member could vote twice in one epoch.
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
            raise ValueError("its checksum or version is wrong")
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
    """Replace and sync the state of a member.

    Raises:
        OSError: the disk refused; the file contains the old state or the new one.
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
    """The offset up to which the log has been synced, in a file of two alternating slots.

    A power cut during a write damages at most one slot; the other has the earlier offset. Methods
    raise OSError if the disk refuses.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._file: File = files.open(f"{directory}/{FLUSHED_END}", writable=True)
        found = [self._read(slot) for slot in range(2)]
        self._number, offset = max((each for each in found if each is not None), default=(0, -1))
        self.offset: int | None = None if offset < 0 else offset
        """None if neither slot can be read: never written, or damaged."""

    def write(self, offset: int) -> None:
        """Write and sync the offset."""
        self._number += 1
        head = _SLOT.pack(self._number, offset, 0)[:_CRC_AT]
        slot = (head + struct.pack(">I", crc32c(head))).ljust(_SLOT_BYTES, b"\0")
        # The slot with the older offset is overwritten.
        position = self._number % 2 * _SLOT_BYTES
        with_reserve(self._files, lambda: write_whole(self._file, slot, position))
        self._file.sync()
        self.offset = offset

    def close(self) -> None:
        """Close the file."""
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
        raise TypeError(f"{value!r} is not a node id")
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
            """Why the member may have forgotten what it confirmed; None if it has not."""
            self.snapshots = SnapshotFiles(files, self.directory)
            newest = self.snapshots.newest_intact()
            self.snapshot = newest[0] if newest else EMPTY
            self.values = newest[1] if newest else []
            """The values in the snapshot."""
            self._flushed = FlushedEnd(files, self.directory)
            self.log = MetadataLog(
                files,
                self.directory,
                start=self.snapshot,
                flushed_end=self._flushed.offset,
            )
            self._find_damage()

    @property
    def is_new(self) -> bool:
        """Whether the member has never been in an epoch."""
        return self.state == QuorumState(voters=self.state.voters) and self.log.end_offset == 0

    @property
    def has_flushed_end(self) -> bool:
        """Whether a member has used this folder: it writes the flushed end first."""
        return self._flushed.offset is not None

    @property
    def flushed_end(self) -> int:
        """The offset up to which the log is known to be on disk; 0 if not known."""
        return self._flushed.offset or 0

    def chain(self) -> EpochChain:
        """Return the epochs of the log."""
        chain = EpochChain(self.snapshot)
        chain.extend(self.log.chain())
        return chain

    def belong_to(self, voters: tuple[int, ...], node_id: int) -> None:
        """Bind the log to its voters, which do not change afterwards.

        Voters without the log could elect each other, and then make the earlier voters cut off
        what those have committed. A single voter gets others by `voter_growth`. A node that never
        voted, and does not vote now, accepts the larger set.

        Raises:
            ConfigError: the log belongs to other voters.
        """
        before = self.state.voters
        is_observer_of_growth = node_id not in {*before, *voters} and set(before) < set(voters)
        if before and set(before) != set(voters) and not is_observer_of_growth:
            raise ConfigError(
                f"the metadata log in {self.directory}, which ends at offset"
                f" {self.log.end_offset}, is that of {_list_nodes(before)}, but"
                f" controller.quorum.voters makes it that of {_list_nodes(voters)}: voters do not"
                " change, because voters without the log could elect each other and drop it. Set"
                " controller.quorum.voters to its earlier value (empty for a node that was alone)."
                f" To add nodes, start them with process.roles={BROKER_ROLE}; to add voters to a"
                " node that is alone, use `streamlog cluster grow`"
            )
        self.state = replace(self.state, voters=voters)

    def settle(self) -> None:
        """Prepare the log for use: cut off what follows its sound entries.

        Raises:
            CorruptData: entries are damaged that the member may have confirmed; use `rejoin`.
        """
        if self.damage is not None:
            raise CorruptData(self.damage)
        with self._disk():
            self.log.discard_damaged()
            self._flushed.write(self.log.end_offset)
            self._files.sync_directory(self.directory)

    def rejoin(self, rejoin_id: int) -> None:
        """Keep the sound entries, and do not vote until a leader lets this member in again.

        `rejoin_id` is not 0 for a voter, see `QuorumState`.
        """
        with self._disk():
            # The state is written before the damage is cut off: a crash in between must not leave
            # a log that looks complete under a state that votes.
            self.state = replace(
                self.state,
                epoch=max(self.state.epoch, self.chain().last_epoch),
                leader_id=None,
                rejoin_id=rejoin_id,
            )
            write_state(self._files, self.directory, self.state)
        self.damage = None
        self.settle()

    # ---- effects of Raft ----

    def persist(self, state: QuorumState) -> None:
        """Write and sync epoch and vote."""
        with self._disk():
            write_state(self._files, self.directory, state)
        self.state = state

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries at the end of the log, without a sync."""
        with self._disk():
            self.log.append(entries)

    def sync(self, end_offset: int) -> None:
        """Sync the log, then record that it is on disk up to `end_offset`; for any thread."""
        with self._disk():
            self.log.sync()
            self._flushed.write(end_offset)

    def truncate(self, end_offset: int) -> None:
        """Cut the log at `end_offset`, and sync it."""
        with self._disk():
            # The number first: after a crash in between, the log is longer than the number says,
            # which is harmless. In the other order it would be shorter, which looks like a loss:
            # the member would have to rejoin.
            self._flushed.write(min(end_offset, self._flushed.offset or 0))
            self.log.truncate(end_offset)

    def install(self, snapshot: RaftSnapshotId) -> list[bytes]:
        """Let the log begin after a snapshot that was received; return the snapshot's values.

        Raises:
            CorruptData: the snapshot's bytes are damaged or incomplete.
        """
        with self._disk():
            # The snapshot is durable before the entries go: after a crash, an opening begins with
            # the snapshot, whichever entries are left.
            self.snapshots.settle(snapshot)
            self._flushed.write(snapshot.end_offset)
            self.log.restart(snapshot)
            self.snapshot = snapshot
            return list(self.snapshots.values(snapshot))

    def receive(self, snapshot: RaftSnapshotId, position: int, data: bytes) -> None:
        """Write bytes of a snapshot that this member fetches."""
        with self._disk():
            self.snapshots.receive(snapshot, position, data)

    def trim(self, snapshot: RaftSnapshotId) -> None:
        """Delete the entries before a snapshot."""
        with self._disk():
            self.log.trim(snapshot)

    def close(self) -> None:
        """Close the files."""
        self.log.close()
        self._flushed.close()

    def roll(self) -> None:
        """Begin a new segment, so that the next snapshot makes the earlier ones obsolete."""
        with self._disk():
            self.log.roll()

    def write_snapshot(self, snapshot: RaftSnapshotId, batches: Iterable[bytes]) -> None:
        """Write and sync a snapshot; for any thread. The caller then sets `self.snapshot`."""
        try:
            self.snapshots.write(snapshot, batches)
        except OSError as error:
            self.snapshots.discard(snapshot)
            raise directory_error(error, self.directory) from error

    def _find_damage(self) -> None:
        self.damage = self.log.damage
        try:
            state = read_state(self._files, self.directory)
        except CorruptData as error:
            self.damage = str(error)
            return
        self.state = state or QuorumState()
        if self._flushed.offset is None and (state is not None or self.log.end_offset):
            self.damage = (
                f"flushed-end in {self.directory} is missing or damaged, so it is not known how far"
                " the metadata log was on disk"
            )
        last_epoch = self.chain().last_epoch
        if self.state.epoch < last_epoch:
            self.damage = (
                f"quorum-state in {self.directory} has epoch {self.state.epoch}, and the log has"
                f" epoch {last_epoch}: the file is missing, or belongs to another member"
            )

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise directory_error(error, self.directory) from error


def _list_nodes(voters: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, sorted(voters)))
    return f"nodes {listed}" if len(voters) > 1 else f"node {listed} alone"
