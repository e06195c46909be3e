"""QuorumFiles: all that a member has on disk, in `__cluster_metadata-0/` of its data directory.

    quorum-state                        epoch, vote, whether it is rejoining, who the voters are
    flushed-end                         how far the log was on disk
    00000000000000000000.log            entries of the log, from that offset on
    00000000000000000120-0000000003.checkpoint   what all records before 120 amount to

Rule of the file: what is counted is on disk, and that it was is on disk, too. So `sync` writes the
flushed end after the log, and `truncate` before it. A member whose log ends before its flushed
end, or that has lost its state, may have forgotten what it confirmed or whom it voted for: it has
to rejoin. Methods raise LogDirectoryError where the disk refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from streamlog.broker.quorum.epoch_chain import EpochChain
from streamlog.broker.quorum.metadata_log import MetadataLog
from streamlog.broker.quorum.raft_messages import EMPTY, Entry, QuorumState, SnapshotId
from streamlog.broker.quorum.snapshot_files import SnapshotFiles
from streamlog.broker.quorum.state_file import FlushedEnd, read_state, write_state
from streamlog.broker.quorum_config import BROKER_ROLE
from streamlog.broker.storage.files import Files, directory_error, make_durable_directory
from streamlog.errors import ConfigError, CorruptData

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
            newest = self.snapshots.newest_sound()
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
            self.log.discard_unsound()
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

    def install(self, snapshot: SnapshotId) -> list[bytes]:
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

    def receive(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """Write bytes of a snapshot that is being received."""
        with self._disk():
            self.snapshots.receive(snapshot, position, data)

    def trim(self, snapshot: SnapshotId) -> None:
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

    def write_snapshot(self, snapshot: SnapshotId, batches: Iterable[bytes]) -> None:
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
