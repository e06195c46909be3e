"""SnapshotFiles: what all records before an offset amount to, in one file each (KIP-630).

A snapshot is written aside, synced and renamed, so one that has its name is whole; its batches
have their CRCs, and it ends with a footer. The newest two are kept: whoever is being sent the
older one can go on. Errors are the system's `OSError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from streamlog.broker.quorum.log_entries import decode_snapshot
from streamlog.broker.quorum.raft_messages import SnapshotId
from streamlog.broker.storage.files import Files, read_file, write_whole
from streamlog.errors import CorruptData

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

    def ids(self) -> list[SnapshotId]:
        """All that are there, the newest last."""
        names = (_NAME.fullmatch(name) for name in self._files.list(self._directory))
        return sorted(SnapshotId(int(name[1]), int(name[2])) for name in names if name)

    def newest_sound(self) -> tuple[SnapshotId, list[bytes]] | None:
        """The newest one that is what it should be, and its values.

        A damaged one is removed: the log before it may still be there, or another member has it.
        """
        for snapshot in reversed(self.ids()):
            try:
                return snapshot, list(self.values(snapshot))
            except CorruptData:
                self._files.remove(self._path(snapshot))
        return None

    def values(self, snapshot: SnapshotId) -> Iterator[bytes]:
        """The values in a snapshot.

        Raises:
            CorruptData: it is damaged.
        """
        return decode_snapshot(read_file(self._files, self._path(snapshot)))

    def write(self, snapshot: SnapshotId, batches: Iterable[bytes]) -> None:
        """Write one, durably, and let go of those before the last but one."""
        position = 0
        for batch in batches:
            self.receive(snapshot, position, batch)
            position += len(batch)
        self.settle(snapshot)

    def receive(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """Write bytes of one that is not whole yet; position 0 begins it anew."""
        file = self._files.open(self._path(snapshot) + PARTIAL_SUFFIX, writable=True)
        try:
            if position == 0:
                file.truncate(0)
            write_whole(file, data, position)
        finally:
            file.close()

    def settle(self, snapshot: SnapshotId) -> None:
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

    def discard(self, snapshot: SnapshotId) -> None:
        """Let go of what there is of one that can't be written."""
        with suppress(OSError):
            self._files.remove(self._path(snapshot) + PARTIAL_SUFFIX)

    def read(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, int] | None:
        """Bytes of one, and how many it has; None if it is not there any more."""
        try:
            file = self._files.open(self._path(snapshot))
        except FileNotFoundError:
            return None
        try:
            return file.read(max_bytes, position), file.size()
        finally:
            file.close()

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._directory}/{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"
