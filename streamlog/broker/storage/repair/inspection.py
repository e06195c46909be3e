"""Inspection: reads every byte of a data directory and reports what is not sound.

Nothing is changed. If no broker has the directory open, it is locked meanwhile; otherwise it is
read while the broker works. `partition_audit` checks a partition, and `partition_repair` repairs
it.

Rules of this module: files are read as they are and not through `PartitionLog`, whose recovery
would correct what has to be reported.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Self

from streamlog.broker.storage.catalog import LOCK, META, Catalog, TopicEntry, describe_holder
from streamlog.broker.storage.data_directory import Folders, partition_folder
from streamlog.broker.storage.disk.files import File, Files, directory_error, write_whole
from streamlog.broker.storage.disk.os_files import OsFiles, process_id
from streamlog.broker.storage.log.partition_log import START_OFFSET
from streamlog.broker.storage.repair.findings import Counts, Finding, InspectionReport
from streamlog.broker.storage.repair.partition_audit import PartitionAudit
from streamlog.broker.storage.repair.raw_partition import RawBatch, RawPartition
from streamlog.errors import LogDirectoryLost, UnknownTopicOrPartition, UsageError

if TYPE_CHECKING:
    from types import TracebackType

_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
LOOKS_MAX = 5
"""Attempts at a partition that a broker keeps changing."""


class Inspection:
    """A data directory under inspection. Call `open`; it is a context manager."""

    def __init__(self, files: Files, path: str, lock: File | None, holder: str | None) -> None:
        self.files = files
        self.path = path
        self.holder = holder
        """Describes the process that has the directory open and may write.

        None if there is none.
        """
        self.catalog = Catalog(files, path)
        self.is_read_only = False
        """Whether the file system accepts no writes, so that no process can write either."""
        self._lock = lock

    @classmethod
    def open(cls, path: str, *, files: Files | None = None) -> Self:
        """Lock the directory, unless another process has locked it or it is not writable.

        Raises:
            LogDirectoryLost: it does not exist, or is not a data directory.
            LogDirectoryFailed: it can't be read.
            CorruptData: its identity file is damaged.
        """
        files = OsFiles() if files is None else files
        path = path.rstrip("/") or ("/" if path else ".")
        try:
            if Catalog(files, path).identity() is None:
                raise LogDirectoryLost(f"{path} is not a data directory: it has no {META}")
            lock = files.lock(f"{path}/{LOCK}")
            if lock is not None:
                content = json.dumps({"process_id": process_id(), "since_ms": 0}).encode()
                # Other processes that want the directory see this one as its holder.
                lock.truncate(0)
                write_whole(lock, content, 0)
        except OSError as error:
            # A copy on a read-only file system can be inspected too: nothing can change it
            # meanwhile.
            if error.errno not in _NOT_WRITABLE:
                raise directory_error(error, path) from error
            return cls._unlocked(files, path, error)
        return cls(files, path, lock, describe_holder(files, path) if lock is None else None)

    @classmethod
    def _unlocked(cls, files: Files, path: str, error: OSError) -> Self:
        """Open a directory that can't be locked: a read-only copy, or another user's."""
        holder = None
        if error.errno != errno.EROFS:
            holder = f"{path} can't be locked ({error.strerror}), so a broker may be writing to it"
        inspection = cls(files, path, None, holder)
        inspection.is_read_only = True
        return inspection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory."""
        if self._lock is not None:
            self._lock.close()

    def partitions(self) -> Iterator[RawPartition]:
        """Iterate over all partitions of all topics.

        Raises:
            CorruptData: a small file of the directory is damaged.
            LogDirectoryError: it can't be read.
        """
        with self.disk():
            if not self.catalog.knows_topics():
                Folders(self.files, self.path).check_owned()
            entries, _ = self.catalog.topics()
            paths = self.catalog.directories()
            points = self.catalog.recovery_points()
            starts = self.catalog.log_start_offsets()
        for entry in sorted(entries, key=lambda each: each.name):
            for number in entry.partitions:
                folder = _folder(entry, number)
                point, start = points.get(folder, START_OFFSET), starts.get(folder, START_OFFSET)
                yield self._raw_partition(
                    entry,
                    number,
                    # Partitions in another directory of the broker are found by its path.
                    paths.get(entry.directories.get(number, ""), self.path),
                    recovery_point=point,
                    log_start_offset=start,
                )

    def partition(self, topic: str, partition: int) -> RawPartition:
        """Return one partition. Raises what `partitions` raises.

        Raises:
            UnknownTopicOrPartition: it is not in the directory.
        """
        for stored in self.partitions():
            if (stored.topic, stored.partition) == (topic, partition):
                return stored
        raise UnknownTopicOrPartition(f"{self.path} has no partition {partition} of {topic!r}")

    def log_bytes(self) -> int:
        """Return the size of all segments, which `verify` reads.

        Raises:
            CorruptData: a small file of the directory is damaged.
            LogDirectoryError: it can't be read.
        """
        total = 0
        for stored in self.partitions():
            with self.disk():
                for segment in stored.segments(stored.names(self.files)):
                    total += self._size(segment.path)
        return total

    def _size(self, path: str) -> int:
        try:
            with closing(self.files.open(path)) as file:
                return file.size()
        except FileNotFoundError:
            return 0  # A broker has removed it meanwhile.

    def verify(self, *, on_read: Callable[[int], None] | None = None) -> InspectionReport:
        """Read everything, and compare everything that can be compared.

        Args:
            on_read: called with the size of each batch that was read, in bytes.

        Raises:
            CorruptData: a small file of the directory is damaged, which prevents the inspection.
            LogDirectoryError: it can't be read.
        """
        counts = Counts()
        findings: list[Finding] = []
        for stored in self.partitions():
            with self.disk():
                findings += self._audit(stored, counts, on_read)
        return InspectionReport(tuple(findings), counts)

    def findings(self, stored: RawPartition) -> list[Finding]:
        """Inspect one partition.

        Raises:
            LogDirectoryError: it can't be read.
        """
        with self.disk():
            return self._audit(stored, Counts())

    def batches(
        self, stored: RawPartition, offset: int = START_OFFSET
    ) -> Iterator[RawBatch | Finding]:
        """Iterate over a partition from the batch that contains `offset` on, with its findings.

        Raises:
            LogDirectoryError: it can't be read.
        """
        with self.disk():
            audit = PartitionAudit(self.files, stored, is_open=self.holder is not None)
            yield from audit.walk(offset)

    def check_alone(self) -> None:
        """Check that the directory may be changed.

        Raises:
            UsageError: another process has it open, or it is read-only.
        """
        if self.is_read_only:
            raise UsageError(f"{self.path} can't be written to: repair a writable copy")
        if self.holder is not None:
            raise UsageError(f"{self.holder}; stop it first: a log is repaired offline")

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Raise system errors as errors of the data directory."""
        try:
            yield
        except OSError as error:
            raise directory_error(error, self.path) from error

    def _audit(
        self,
        stored: RawPartition,
        counts: Counts,
        on_read: Callable[[int], None] | None = None,
    ) -> list[Finding]:
        """Audit a partition.

        Repeat it if a broker has changed files, as sound ones may look wrong.
        """
        for _ in range(LOOKS_MAX):
            audit = PartitionAudit(self.files, stored, is_open=self.holder is not None)
            audit.on_read = on_read
            found = audit.findings()
            # 1. The list of files is read. 2. The broker rolls, or retention renames a file. 3. The
            #    audit misses a file that was listed, and reports missing offsets. Only findings of
            #    an audit during which no file came or went count.
            if not (found and audit.has_changed_files):
                break
        counts.add(audit.counts)
        return found

    def _raw_partition(
        self,
        entry: TopicEntry,
        number: int,
        path: str,
        *,
        recovery_point: int,
        log_start_offset: int,
    ) -> RawPartition:
        return RawPartition(
            topic=entry.name,
            partition=number,
            directory=f"{path}/{_folder(entry, number)}",
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            is_compacted="compact" in entry.configs.get("cleanup.policy", ""),
        )


def _folder(entry: TopicEntry, number: int) -> str:
    return partition_folder(entry.topic_id, number)
