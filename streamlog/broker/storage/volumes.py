"""Volume, Volumes: the directories of one broker (`log.dirs`), each on a disk of its own (KIP-112).

The first directory contains everything that belongs to no single partition: the lists of topics and
of checkpoints (`catalog`), the metadata log, and staged files. The others contain an identity, a
lock, and partition folders. `topics.json` in the first says in which directory each partition is,
so one write of one file decides where a partition is from then on.

Rules of this module: a directory belongs to one first directory, and is refused beside another,
whose list does not know its partitions. A new partition goes to the directory with the fewest, and
to a cordoned one (KIP-1066) only if no other works. A
disk that fails takes only the partitions in its directory with it, unless it is the first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.storage.catalog import LOCK, Catalog, Identity, describe_holder, new_id
from streamlog.broker.storage.data_directory import Folders, partition_folders
from streamlog.broker.storage.disk.files import (
    DiskFiles,
    directory_error,
    make_durable_directory,
    unless_full,
    write_whole,
)
from streamlog.broker.storage.disk.os_files import process_id
from streamlog.errors import (
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryLocked,
    LogDirectoryLost,
    StreamlogError,
)
from streamlog.replace import replace

if TYPE_CHECKING:
    from streamlog.broker.storage.disk.files import DiskSpace, File, Files
    from streamlog.broker.storage.log.partition_log import PartitionLog

_logger = repeated.logger(__name__)

SYNCED_ALONE_MAX = 64
"""Above this, a stop, or a start after a crash, syncs the disk as a whole. That may also write what
other programs have left in the page cache, but thousands of syncs in a row take minutes."""


class Volume:
    """One directory of a broker."""

    def __init__(
        self, files: Files, path: str, *, directory_id: str = "", lock: File | None = None
    ) -> None:
        self.files = files
        self.path = path
        self.directory_id = directory_id
        self.folders = Folders(files, path)
        self.lock = lock
        self.failure: LogDirectoryError | None = None
        """Why nothing more is read or written there; None while the disk works."""

    def check(self) -> None:
        """Check that the directory still exists.

        Raises:
            LogDirectoryLost: it has been deleted.
        """
        if self.lock is not None and not self.lock.is_linked():
            raise LogDirectoryLost(
                f"{self.path} has vanished while it was in use: the log stops here; restore the"
                " data directory, or start with a new one"
            )

    def space(self) -> DiskSpace:
        """Return the space of its disk.

        Raises:
            LogDirectoryError: the disk refused.
        """
        if self.failure is not None:
            raise self.failure
        try:
            return self.files.space(self.path)
        except OSError as error:
            raise directory_error(error, self.path) from error

    def close(self) -> None:
        """Release the lock."""
        if self.lock is not None:
            self.lock.close()


class Volumes:
    """The directories of a broker, the first one first."""

    def __init__(self, first: Volume) -> None:
        self.first = first
        self._all = [first]
        self._preferred: dict[tuple[str, int], Volume] = {}
        """The directories that were chosen for partitions before they are created."""

    def __iter__(self) -> Iterator[Volume]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, volume: Volume) -> None:
        """Add a directory."""
        self._all.append(volume)

    def working(self) -> list[Volume]:
        """Return the directories whose disks have not failed."""
        return [each for each in self._all if each.failure is None]

    def of(self, directory_id: str | None) -> Volume | None:
        """Return the directory with an id; None stands for the first. None if there is none."""
        if directory_id is None:
            return self.first
        return next((each for each in self._all if each.directory_id == directory_id), None)

    def prefer(self, topic: str, partition: int, volume: Volume) -> None:
        """Create a partition in this directory, once it belongs to this broker."""
        self._preferred[topic, partition] = volume

    def choose(
        self,
        topic: str,
        numbers: Iterable[int],
        partitions: Mapping[Volume, int],
        cordoned: Collection[str],
    ) -> dict[int, Volume]:
        """Return the directories of new partitions, while each directory has so many.

        Each goes to the one that was preferred for it, or to the one with the fewest; of several,
        to the one listed first. One whose path is cordoned is only chosen if no other one works:
        the controller counts on the replica that it has placed on this broker.
        """
        paths = [each.path for each in self._all]
        for unknown in {*cordoned} - {*paths}:
            text = "cordoned.log.dirs has %s, which is not in log.dirs: %s"
            _logger.warning(text, unknown, ", ".join(paths))
        working = self.working() or self._all
        able = [each for each in working if each.path not in cordoned] or working
        counts = Counter(partitions)
        chosen: dict[int, Volume] = {}
        for number in numbers:
            preferred = self._preferred.pop((topic, number), None)
            volume = preferred if preferred in able else min(able, key=counts.__getitem__)
            chosen[number] = volume
            counts[volume] += 1
        return chosen

    def close(self) -> None:
        """Release all locks."""
        for each in self._all:
            each.close()


def lock_directory(files: Files, path: str, wall_ms: int) -> File:
    """Create a directory if it does not exist, and lock it.

    Raises:
        LogDirectoryLocked: another process holds it; the message has its address.
        LogDirectoryFailed: the disk refused.
    """
    try:
        make_durable_directory(files, path)
        lock = files.lock(f"{path}/{LOCK}")
    except OSError as error:
        raise LogDirectoryFailed(
            f"{path} can't be a data directory ({error.strerror}): check the path and its"
            " permissions"
        ) from error
    if lock is None:
        raise LogDirectoryLocked(
            f"{describe_holder(files, path)}: connect to that process, or stop it"
        )
    try:
        holder = json.dumps({"process_id": process_id(), "since_ms": wall_ms})
        with unless_full("the id of the process that holds the lock"):
            lock.truncate(0)
            write_whole(lock, holder.encode(), 0)
    except OSError as error:
        lock.close()
        raise directory_error(error, path) from error
    return lock


def open_volume(files: Files, path: str, first: Identity, *, wall_ms: int) -> Volume:
    """Lock another directory of the broker that has the identity `first`; format a new one.

    Raises:
        LogDirectoryError: it can't be used, or it belongs to another first directory.
        CorruptData: its identity is damaged.
    """
    files = DiskFiles(files)
    lock = lock_directory(files, path, wall_ms)
    try:
        identity = _identify(files, path, first)
        files.reserve.hold(files, path)
    except OSError as error:
        lock.close()
        raise directory_error(error, path) from error
    except BaseException:
        # Also if the identity is damaged: a lock that stays open would refuse the next try of this
        # process.
        lock.close()
        raise
    return Volume(files, path, directory_id=identity.directory_id, lock=lock)


def _identify(files: Files, path: str, first: Identity) -> Identity:
    """Return the identity of another directory than the first; a new one gets one.

    Raises:
        LogDirectoryLost: its identity is missing, or it belongs to another first directory.
        OSError: the disk refused.
    """
    catalog = Catalog(files, path)
    identity = catalog.identity()
    if identity is None:
        left = partition_folders(files.list(path))
        # 1. A disk loses `meta.properties`, and keeps its partitions. 2. Formatted as new, it would
        # get another id. 3. `topics.json` has its partitions under the old one, which `Volumes.of`
        # would not find, although their files are there. So a missing identity alone makes no new
        # directory.
        if left:
            raise LogDirectoryLost(
                f"{path} has partitions ({left[0]}) and no meta.properties: restore that file"
                " from a copy, or start with an empty directory"
            )
        identity = replace(first, directory_id=new_id(), metadata_id=first.directory_id)
        catalog.write_identity(identity)
    # A first directory has no `metadata_id`: it names itself, which tells it from one of the others
    # when the order of log.dirs has changed.
    if identity.metadata_id != first.directory_id:
        raise LogDirectoryLost(
            f"the partitions in {path} are listed in the data directory with the id"
            f" {identity.metadata_id or identity.directory_id}, which is not the first one in"
            " log.dirs: put that one first, or use an empty directory"
        )
    return identity


def end_recovery(volume: Volume, logs: Collection[PartitionLog]) -> None:
    """Sync what opening the logs of a directory found, and count it as synced.

    Raises:
        OSError, LogDirectoryFailed: the disk refused.
    """
    many = sum(log.awaits_sync for log in logs) > SYNCED_ALONE_MAX
    is_on_disk = many and volume.files.sync_disk(volume.path)
    for log in logs:
        log.end_recovery(is_on_disk=is_on_disk)


def close_logs(volume: Volume, logs: Collection[PartitionLog]) -> list[StreamlogError]:
    """Sync and close the logs of a directory; return what failed.

    A log takes several syncs of some milliseconds: 5,000 logs take minutes, and systemd kills a
    broker that has not stopped after 90 s. One sync of the disk covers many of them.
    """
    failures: list[StreamlogError] = []
    settled: list[PartitionLog] = []
    awaiting = 0
    for log in logs:
        with collected(failures):
            awaiting += log.settle()
            settled.append(log)
    is_on_disk = False
    if awaiting > SYNCED_ALONE_MAX:
        try:
            is_on_disk = volume.files.sync_disk(volume.path)
        except OSError as error:
            # Not tried again log by log: the kernel may have dropped what it could not write.
            return [*failures, directory_error(error, volume.path)]
    for log in settled:
        with collected(failures):
            log.close(is_on_disk=is_on_disk)
    return failures


@contextmanager
def collected(failures: list[StreamlogError]) -> Iterator[None]:
    """Add the error that the block raises to those before."""
    try:
        yield
    except StreamlogError as error:
        failures.append(error)
