"""Growth: the metadata log of one voter becomes that of three or more, while that one is stopped.

    1. the directory of each new voter is made aside, synced, and given its name
    2. the one there is takes them for voters: its `quorum-state` is replaced, in one step

A new voter has a copy of the log. Copies alone would do harm: of three, two new ones could elect
each other while the one there was, cut off before step 2, goes on alone. So one fewer than a
majority of them vote at once; the others *rejoin*, as a voter does that has lost its disk: they
vote when a leader that has them for voters has let them in, and so when they have all that was
decided. Hence every majority has among it the voter there was before, or one that knows what that
one knew. Before step 2 there is no majority at all: that one leads alone and lets nobody in, and
the next attempt finds what this one has made.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
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

VOTERS_MIN = 3
PARTIAL_SUFFIX = ".part"
"""Of a directory that is being made."""


class VoterGrowth:
    """The directory of a voter that is alone, held while it grows; made by `open`.

    A context manager: nobody else has the directory meanwhile. With the same voters it can be
    done again from any point at which it was cut off.
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
        """Whose directory it is."""
        self.voters = tuple(sorted(homes))
        self.is_done = False
        """Whether these are its voters already."""
        self._files = files
        self._path = path
        self._lock = lock
        self._draw = draw
        self._homes = {number: home for number, home in homes.items() if number != self.node_id}
        self._made: set[int] = set()
        """Whose directories are there, from before this attempt."""
        self._quorum: QuorumFiles | None = None

    @classmethod
    def open(
        cls, path: str, homes: Mapping[int, str], *, draw: Draw, files: Files | None = None
    ) -> Self:
        """Take hold of a directory, and look whether it can grow to the voters of `homes`.

        `homes` is where their directories are to be; what it says of the one there is does not
        matter. `draw` gives random numbers, `files` is the operating system's if not given.
        Nothing was changed where this raises.

        Raises:
            LogDirectoryLocked: a broker runs on it.
            LogDirectoryLost: it is no node's.
            UsageError: these can't be its voters; or something else is where one of them is to be.
            CorruptData: the metadata log, or a file beside it, is damaged.
            LogDirectoryError: the disk refused.
        """
        files = OsFiles() if files is None else files
        path = path.rstrip("/") or "/"
        try:
            identity = Catalog(files, path).identity()
            if identity is None:
                raise LogDirectoryLost(f"{path} is no data directory of a node")
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
        """The voter there is."""
        return self.identity.node_id

    @property
    def newcomers(self) -> tuple[int, ...]:
        """The others."""
        return tuple(sorted(self._homes))

    @property
    def rejoining(self) -> frozenset[int]:
        """Those of them that do not vote before they know what was decided."""
        majority = len(self.voters) // 2 + 1
        return frozenset(self.newcomers[majority - 1 :])

    @property
    def first(self) -> tuple[int, ...]:
        """Who decides at first: a majority, of which all have to be there."""
        return tuple(each for each in self.voters if each not in self.rejoining)

    def make_newcomers(self) -> None:
        """Step 1: their directories, those that are not there yet.

        Raises:
            LogDirectoryError: the disk refused.
        """
        if self._quorum is None:
            return
        for number, home in sorted(self._homes.items()):
            try:
                if number not in self._made:
                    self._make(number, home, self._quorum)
                self._files.sync_directory(parent_of(home))
            except OSError as error:
                raise directory_error(error, home) from error

    def commit(self) -> None:
        """Step 2: from now on these are the voters.

        Raises:
            LogDirectoryError: the disk refused; they are, or they are not.
        """
        if self._quorum is not None:
            self._quorum.persist(replace(self._quorum.state, voters=self.voters))
            self.is_done = True

    def close(self) -> None:
        """Let go of the directory."""
        if self._quorum is not None:
            self._quorum.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- before ----

    def _begin(self) -> None:
        before = self._check_voters()
        if set(before) == set(self.voters):
            # Or a power cut could undo it, if the attempt was killed at its last step.
            self._files.sync_directory(f"{self._path}/{FOLDER}")
            self.is_done = True
            return
        self._made = {number for number in self.newcomers if self._is_made(number)}
        self._quorum = QuorumFiles(self._files, self._path)
        self._quorum.settle()
        known = read_metadata(self._quorum).brokers
        brokers = [each for each in self.newcomers if each in known and each not in self._made]
        if brokers:
            raise UsageError(
                f"node {brokers[0]} is a broker of this cluster already, and stays one: new voters"
                " are new nodes, give them other numbers"
            )

    def _check_voters(self) -> tuple[int, ...]:
        """Those from before. Raises UsageError if they can't become what they are to be."""
        path, node_id = self._path, self.node_id
        if node_id not in self.voters:
            raise UsageError(
                f"{path} is the directory of node {node_id}, which has the metadata log: it has to"
                f" be one of the voters, and they are {_listed(self.voters)}"
            )
        if len(self.voters) < VOTERS_MIN or len(self.voters) % 2 == 0:
            raise UsageError(
                f"{len(self.voters)} voters: let there be three, or five; two are no safer than"
                " one, and four no safer than three"
            )
        state = read_state(self._files, f"{path}/{FOLDER}")
        if state is None or not state.voters:
            raise UsageError(
                f"{path} does not say yet who its voters are: start its broker once, and stop it"
            )
        is_alone = state.voters == (node_id,)
        if not is_alone and set(state.voters) != set(self.voters):
            raise UsageError(
                f"the metadata log in {path} is that of {_listed(state.voters)}: only that of a"
                " voter that is alone can grow, in the directory of that voter"
            )
        return state.voters

    def _is_made(self, number: int) -> bool:
        """Whether an attempt before this one has made it."""
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
                f"{home} is there already: remove it, or choose another place for node {number}"
            )
        return True

    # ---- a new voter ----

    def _make(self, number: int, home: str, source: QuorumFiles) -> None:
        """Make its directory; aside, so that what has its name is whole."""
        files, aside = self._files, home + PARTIAL_SUFFIX
        self._clear(aside)
        make_durable_directory(files, aside)
        identity = Identity(
            cluster_id=self.identity.cluster_id, node_id=number, directory_id=new_id()
        )
        Catalog(files, aside).write_identity(identity)
        rejoin_id = 1 + self._draw(REJOIN_IDS) if number in self.rejoining else 0
        quorum = QuorumFiles(files, aside)
        try:
            copy_log(source, quorum)
            quorum.persist(
                QuorumState(epoch=source.state.epoch, voters=self.voters, rejoin_id=rejoin_id)
            )
        finally:
            quorum.close()
        files.rename(aside, home)

    def _clear(self, aside: str) -> None:
        """Remove what an attempt has left that was cut off; two empty directories may stay."""
        for folder in (f"{aside}/{FOLDER}", aside):
            with suppress(FileNotFoundError):
                self._remove_files(folder)

    def _remove_files(self, folder: str) -> None:
        for name in self._files.list(folder):
            if name != FOLDER:
                self._files.remove(f"{folder}/{name}")


def copy_log(source: QuorumFiles, target: QuorumFiles) -> None:
    """Give a member that is new another one's log, durably."""
    snapshot, position = source.snapshot, 0
    if snapshot != EMPTY:
        while (found := source.snapshots.read(snapshot, position, SNAPSHOT_BYTES_MAX)) and found[0]:
            target.receive(snapshot, position, found[0])
            position += len(found[0])
        target.install(snapshot)
    target.append(source.log.read(source.log.start_offset, max_bytes=2**62))
    target.sync(source.log.end_offset)


def read_metadata(quorum: QuorumFiles) -> ClusterMetadata:
    """What the log of a voter that is alone amounts to: all that is in it is committed.

    Raises:
        CorruptData: something in it is no record.
    """
    metadata = ClusterMetadata()
    if quorum.snapshot != EMPTY:
        records = map(decode_record, quorum.values)
        metadata = ClusterMetadata.of_snapshot(records, quorum.snapshot.end_offset - 1)
    for entry in quorum.log.read(quorum.log.start_offset, max_bytes=2**62):
        for offset, value in records_of(entry):
            metadata.replay(decode_record(value), offset)
    return metadata


def _listed(voters: tuple[int, ...]) -> str:
    return f"nodes {', '.join(map(str, voters))}" if len(voters) > 1 else f"node {voters[0]} alone"
