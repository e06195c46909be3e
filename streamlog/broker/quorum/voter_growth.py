"""VoterGrowth: the metadata log of a single voter gets two or more further voters, offline.

    1. the directory of each new voter is written under another name, synced, and renamed
    2. the `quorum-state` of the original voter is replaced, and names all voters

Rules of this module: every new voter gets a copy of the log, but not all of them vote at once.
One fewer than a majority do; the others *rejoin*, like a voter that has lost its disk: they vote
once a leader that counts them among its voters lets them in, and so have everything that was
committed. Without that rule:
  1. Voter 1 grows to {1, 2, 3}; a crash interrupts the growth before step 2.
  2. Voter 1 starts, leads alone, and commits records. 3. Voters 2 and 3 start: they are two of
     three, elect each other, and lack these records.
With it, every majority contains the original voter, or a voter that was let in by a leader. Before
step 2 the original voter leads alone and lets no other node in, and the next attempt continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
from streamlog.broker.quorum.metadata.metadata_records import decode_record
from streamlog.broker.quorum.raft.log_entries import records_of
from streamlog.broker.quorum.raft.quorum_files import FOLDER, QuorumFiles, read_state
from streamlog.broker.quorum.raft.raft_messages import EMPTY, REJOIN_IDS, QuorumState
from streamlog.broker.quorum.raft.raft_state import Draw
from streamlog.broker.quorum.raft.raft_wire import SNAPSHOT_BYTES_MAX
from streamlog.broker.storage.catalog import LOCK, Catalog, Identity, describe_holder, new_id
from streamlog.broker.storage.disk.files import (
    File,
    Files,
    directory_error,
    make_durable_directory,
    parent_of,
)
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.errors import LogDirectoryLocked, LogDirectoryLost, UsageError
from streamlog.replace import replace

VOTERS_MIN = 3
PARTIAL_SUFFIX = ".part"
"""The suffix of a directory that is not complete."""


class VoterGrowth:
    """The growth of a single voter, whose directory it locks; made by `open`.

    It is a context manager, which unlocks the directory at its end. To continue an interrupted
    growth, repeat it with the same voters.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        homes: Mapping[int, str],
        *,
        identity: Identity,
        lock: File,
        draw: Draw,
    ) -> None:
        self.identity = identity
        """The identity in the original voter's directory."""
        self.voters = tuple(sorted(homes))
        self.is_done = False
        """Whether the original voter already has these voters."""
        self._files = files
        self._path = path
        self._lock = lock
        self._draw = draw
        self._homes = {number: home for number, home in homes.items() if number != self.node_id}
        self._completed: set[int] = set()
        """The new voters whose directories an earlier attempt has completed."""
        self._quorum: QuorumFiles | None = None

    @classmethod
    def open(
        cls, path: str, homes: Mapping[int, str], *, draw: Draw, files: Files | None = None
    ) -> Self:
        """Lock a voter's directory, and check that it can grow. Changes nothing if it raises.

        Args:
            path: the data directory of the original voter.
            homes: the data directory of each voter, by node id; the original one's is ignored.
            draw: the source of random numbers.
            files: the file system, the operating system's if not given.

        Raises:
            LogDirectoryLocked: a broker runs on the directory.
            LogDirectoryLost: it is not the data directory of a node.
            UsageError: these can't be the voters, or a new directory exists already.
            CorruptData: the metadata log, or a file next to it, is damaged.
            LogDirectoryError: the disk failed.
        """
        files = OsFiles() if files is None else files
        path = path.rstrip("/") or "/"
        try:
            identity = Catalog(files, path).identity()
            if identity is None:
                raise LogDirectoryLost(f"{path} is not the data directory of a node")
            lock = files.lock(f"{path}/{LOCK}")
        except OSError as error:
            raise directory_error(error, path) from error
        if lock is None:
            raise LogDirectoryLocked(f"{describe_holder(files, path)}: stop it first")
        growth = cls(files, path, homes, identity=identity, lock=lock, draw=draw)
        try:
            growth._begin()
        except OSError as error:
            growth.close()
            raise directory_error(error, path) from error
        except BaseException:
            growth.close()
            raise
        return growth

    @property
    def node_id(self) -> int:
        """The node id of the original voter."""
        return self.identity.node_id

    @property
    def newcomers(self) -> tuple[int, ...]:
        """The node ids of the new voters, in order."""
        return tuple(sorted(self._homes))

    @property
    def rejoining(self) -> frozenset[int]:
        """The new voters that do not vote before a leader lets them in."""
        # `majority - 1` new voters and the original one are exactly a majority.
        majority = len(self.voters) // 2 + 1
        return frozenset(self.newcomers[majority - 1 :])

    @property
    def first(self) -> tuple[int, ...]:
        """The voters that vote at once. They are just a majority, so all of them have to be up."""
        return tuple(each for each in self.voters if each not in self.rejoining)

    def make_newcomers(self) -> None:
        """Step 1: write the directories of new voters that do not exist yet.

        Raises:
            LogDirectoryError: the disk failed.
        """
        if self._quorum is None:
            return
        for number, home in sorted(self._homes.items()):
            try:
                if number not in self._completed:
                    self._make(number, home, self._quorum)
                # For a directory of an earlier attempt too, which may have ended before this.
                self._files.sync_directory(parent_of(home))
            except OSError as error:
                raise directory_error(error, home) from error

    def commit(self) -> None:
        """Step 2: name the voters in the original voter's `quorum-state`.

        Raises:
            LogDirectoryError: the disk failed; the file has the old voters or the new ones.
        """
        if self._quorum is not None:
            self._quorum.persist(replace(self._quorum.state, voters=self.voters))
            self.is_done = True

    def close(self) -> None:
        """Close the files and unlock the directory."""
        if self._quorum is not None:
            self._quorum.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- checks ----

    def _begin(self) -> None:
        before = self._check_voters()
        if set(before) == set(self.voters):
            # An attempt killed after its last rename may not have synced it: a power cut now could
            # bring the old voters back.
            self._files.sync_directory(f"{self._path}/{FOLDER}")
            self.is_done = True
            return
        self._completed = {number for number in self.newcomers if self._is_made(number)}
        self._quorum = QuorumFiles(self._files, self._path)
        self._quorum.settle()
        known = read_metadata(self._quorum).brokers
        brokers = [each for each in self.newcomers if each in known and each not in self._completed]
        if brokers:
            raise UsageError(
                f"node {brokers[0]} is a broker of this cluster already, and can't become a voter:"
                " give the new voters other node ids"
            )

    def _check_voters(self) -> tuple[int, ...]:
        """Return the present voters. Raises UsageError if they can't grow to the new ones."""
        path, node_id = self._path, self.node_id
        if node_id not in self.voters:
            raise UsageError(
                f"{path} is the directory of node {node_id}, which has the metadata log, so it has"
                f" to be one of the voters; the voters given are {_list_nodes(self.voters)}"
            )
        if len(self.voters) < VOTERS_MIN or len(self.voters) % 2 == 0:
            raise UsageError(
                f"the number of voters is {len(self.voters)}: use three or five; two are no safer"
                " than one, and four no safer than three"
            )
        state = read_state(self._files, f"{path}/{FOLDER}")
        if state is None or not state.voters:
            raise UsageError(
                f"{path} does not name its voters yet: start its broker once, and stop it"
            )
        is_alone = state.voters == (node_id,)
        if not is_alone and set(state.voters) != set(self.voters):
            raise UsageError(
                f"the metadata log in {path} is that of {_list_nodes(state.voters)}: only a quorum"
                " of one voter can grow, in the directory of that voter"
            )
        return state.voters

    def _is_made(self, number: int) -> bool:
        """Return whether an earlier attempt has completed a new voter's directory."""
        home = self._homes[number]
        try:
            self._files.list(home)
            identity = Catalog(self._files, home).identity()
            state = read_state(self._files, f"{home}/{FOLDER}")
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            identity = state = None
        is_its = identity is not None and (identity.cluster_id, identity.node_id) == (
            self.identity.cluster_id,
            number,
        )
        is_such = state is not None and (set(state.voters), bool(state.rejoin_id)) == (
            set(self.voters),
            number in self.rejoining,
        )
        if not (is_its and is_such):
            raise UsageError(
                f"{home} exists already: remove it, or choose another directory for node {number}"
            )
        return True

    # ---- a new voter ----

    def _make(self, number: int, home: str, source: QuorumFiles) -> None:
        """Write a new voter's directory under another name, so that `home` is always complete."""
        files, partial = self._files, home + PARTIAL_SUFFIX
        self._clear(partial)
        make_durable_directory(files, partial)
        identity = Identity(
            cluster_id=self.identity.cluster_id, node_id=number, directory_id=new_id()
        )
        Catalog(files, partial).write_identity(identity)
        rejoin_id = 1 + self._draw(REJOIN_IDS) if number in self.rejoining else 0
        quorum = QuorumFiles(files, partial)
        try:
            copy_log(source, quorum)
            quorum.persist(
                QuorumState(epoch=source.state.epoch, voters=self.voters, rejoin_id=rejoin_id)
            )
        finally:
            quorum.close()
        # Last, after everything in the directory is synced: `home` is complete or does not exist.
        files.rename(partial, home)

    def _clear(self, partial: str) -> None:
        """Remove the files of an interrupted attempt; two empty directories may stay."""
        for folder in (f"{partial}/{FOLDER}", partial):
            with suppress(FileNotFoundError):
                self._remove_files(folder)

    def _remove_files(self, folder: str) -> None:
        for name in self._files.list(folder):
            if name != FOLDER:
                self._files.remove(f"{folder}/{name}")


def copy_log(source: QuorumFiles, target: QuorumFiles) -> None:
    """Copy the snapshot and the log of one member to a new one, and sync them."""
    snapshot, position = source.snapshot, 0
    if snapshot != EMPTY:
        while (found := source.snapshots.read(snapshot, position, SNAPSHOT_BYTES_MAX)) and found[0]:
            target.receive(snapshot, position, found[0])
            position += len(found[0])
        target.install(snapshot)
    # All entries at once: few follow the last snapshot.
    target.append(source.log.read(source.log.start_offset, max_bytes=2**62))
    target.sync(source.log.end_offset)


def read_metadata(quorum: QuorumFiles) -> ClusterMetadata:
    """Return the metadata of a voter that is alone, whose log is committed entirely.

    Raises:
        CorruptData: the log contains something that is not a metadata record.
    """
    metadata = ClusterMetadata()
    if quorum.snapshot != EMPTY:
        records = map(decode_record, quorum.values)
        metadata = ClusterMetadata.of_snapshot(records, quorum.snapshot.end_offset - 1)
    for entry in quorum.log.read(quorum.log.start_offset, max_bytes=2**62):
        for offset, value in records_of(entry):
            metadata.replay(decode_record(value), offset)
    return metadata


def _list_nodes(voters: tuple[int, ...]) -> str:
    return f"nodes {', '.join(map(str, voters))}" if len(voters) > 1 else f"node {voters[0]} alone"
