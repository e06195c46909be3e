"""Task snapshots: writes the state of one task to an object store, and fetches it from there.

An upload has four steps, and a crash between any two of them leaves the former snapshots as they
are:

1. The files that the store lacks are written. Most are there: RocksDB's sorted files never change,
   and each snapshot shares those that its database has not replaced since.
2. All files are looked up once more: another owner may have removed one as superfluous.
3. The manifest is written. From here on the snapshot exists.
4. Older snapshots are removed, their manifests first, so that none ever lacks a file.

A download checks size and SHA-256 of each file, and leaves a directory only if all are right. Both
stop between two pieces of a file once `stop` is set. Calls block; they belong on a thread. Not done
here: when to upload (`worker/state/snapshot_uploads`), and which snapshot to use
(`worker/state/snapshot_restore`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from threading import Event
from typing import Final

import msgspec

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import CorruptData, LogDirectoryError, StreamlogError
from streamlog.metrics.registry import Registry
from streamlog.snapshots.object_store import (
    CHUNK_BYTES,
    ObjectFolder,
    ObjectMissing,
    ObjectStoreFailed,
)
from streamlog.snapshots.task_manifest import (
    MANIFEST_BYTES_MAX,
    MANIFESTS,
    NewerFormat,
    StateIdentity,
    StoredFile,
    TaskManifest,
    decode_manifest,
)
from streamlog.snapshots.upload_plan import Objects, Removal, files_to_upload, plan_removal
from streamlog.tables.stores.store import Change

logger = repeated.logger(__name__)

DOWNLOADS: Final = 4
"""Files that are fetched at one time. Each takes up to two pieces of memory."""
LOOKS_MAX: Final = 3
"""The most looks for files that another owner removes while they are about to be named."""
LEFT_OUT: Final = ("LOCK", "LOG")
"""Files of a checkpoint that are not part of the database."""


class TransferStopped(StreamlogError):
    """The task was closed during an upload or a download."""


def ignore_step(_step: str) -> None:
    """Do nothing; the default of `on_step`."""


class Throttle:
    """Bounds the rate of uploads; one thread uses it."""

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_ms = 0.0
        """When the bytes so far have had their time."""

    def wait(self, size_bytes: int, stop: Event) -> None:
        """Wait until `size_bytes` may be sent, or until `stop` is set."""
        now_ms = self._clock.now_ms()
        # `max`: time in which nothing was sent is not saved up for a burst.
        begin_ms = max(self._free_ms, now_ms)
        self._free_ms = begin_ms + 1000 * size_bytes / self._bytes_per_s
        if begin_ms > now_ms:
            stop.wait((begin_ms - now_ms) / 1000)


class SnapshotMetrics:
    """What a worker counts about snapshots of its tasks."""

    def __init__(self, registry: Registry) -> None:
        self.snapshots = registry.counters(
            "streamlog_snapshots_total",
            "Snapshots of tasks in object storage, by whether they were written or failed.",
            "result",
        )
        self.uploaded_bytes = registry.counter(
            "streamlog_snapshot_uploaded_bytes_total", "Bytes of files written for snapshots."
        )
        self.reused_bytes = registry.counter(
            "streamlog_snapshot_reused_bytes_total",
            "Bytes of files that snapshots share with earlier ones.",
        )
        self.restores = registry.counters(
            "streamlog_snapshot_restores_total",
            "Snapshots that tasks were to begin with, by whether they were used or failed.",
            "result",
        )
        self.restored_bytes = registry.counter(
            "streamlog_snapshot_restored_bytes_total", "Bytes of snapshots that tasks began with."
        )


class Upload(msgspec.Struct, frozen=True):
    """A snapshot that was written."""

    manifest: TaskManifest
    uploaded_bytes: int
    """Size of the files that the store lacked."""

    @property
    def reused_bytes(self) -> int:
        """Size of the files that the store had."""
        return self.manifest.size_bytes - self.uploaded_bytes


class TaskSnapshots:
    """The snapshots of one task; one thread at a time uses them."""

    def __init__(
        self,
        store: ObjectFolder,
        identity: StateIdentity,
        *,
        on_step: Callable[[str], None] = ignore_step,
    ) -> None:
        """Name the snapshots of a task.

        Args:
            store: where they are kept.
            identity: of the task's state.
            on_step: called at each point where a crash can interrupt an upload; for tests.
        """
        self.identity = identity
        self.prefix = f"{identity.app_id}/{identity.task}"
        self.newest: TaskManifest | None = None
        """The newest snapshot of this identity, as of the last look or upload."""
        self._store = store
        self._on_step = on_step
        self._manifests: dict[str, TaskManifest | None] = {}
        """Manifests by name, which never change; None: damaged."""
        self._digests: dict[tuple[str, int, int, int], str] = {}
        """SHA-256 of files on this disk, by name, inode, size and time of modification."""

    @property
    def url(self) -> str:
        """Where the snapshots of the task are."""
        return f"{self._store.url}/{self.prefix}"

    def find(self) -> list[TaskManifest]:
        """Return all manifests that can be read, in no order.

        Raises:
            ObjectStoreFailed: the store can't be read.
        """
        found, _ = self._read_manifests(self._store.objects(f"{self.prefix}/{MANIFESTS}"))
        whole = [each for each in found.values() if each is not None]
        own = [each for each in whole if each.identity == self.identity]
        self.newest = max(own, key=lambda each: each.offset, default=None)
        return whole

    def upload(
        self,
        directory: str,
        *,
        offset: int,
        reserved: tuple[tuple[bytes, bytes], ...],
        wall_ms: int,
        throttle: Throttle,
        stop: Event,
    ) -> Upload:
        """Write a snapshot, and remove those that it makes superfluous.

        Args:
            directory: a checkpoint of the task's database, which nothing changes meanwhile.
            offset: the changelog offset that it reflects.
            reserved: the database's rows for `TaskManifest.reserved`.
            wall_ms: the time of the checkpoint, ms since 1970.
            throttle: bounds the rate.
            stop: ends the upload.

        Raises:
            TransferStopped: `stop` was set.
            ObjectStoreFailed: the store refuses, or can't be reached.
            LogDirectoryError: the directory can't be read.
        """
        manifest = TaskManifest(
            identity=self.identity,
            offset=offset,
            created_ms=wall_ms,
            reserved=reserved,
            files=tuple(self._measure(directory, stop)),
        )
        uploaded = self._put_files(directory, manifest, throttle, stop)
        name = manifest.name()
        self._store.put(f"{self.prefix}/{name}", [manifest.encode()])
        self._manifests[name] = self.newest = manifest
        self._on_step("manifest written")
        try:
            self._remove_superfluous(manifest)
        except ObjectStoreFailed as error:
            # The snapshot exists, and the next one removes what is left.
            logger.warning("old snapshots at %s stay for now: %s", self.url, error)
        return Upload(manifest, uploaded)

    def download(self, manifest: TaskManifest, directory: str, stop: Event) -> None:
        """Fetch the files of a snapshot into a new directory; after an error there is none.

        Raises:
            TransferStopped: `stop` was set.
            CorruptData: a file is missing or damaged.
            ObjectStoreFailed: the store can't be read.
            LogDirectoryError: the directory can't be written.
        """
        # Large files first: the last ones that run alone are short.
        files = sorted(manifest.files, key=lambda file: file.size_bytes, reverse=True)
        with _new_directory(directory), ThreadPoolExecutor(DOWNLOADS, "streamlog-get") as threads:
            works = [threads.submit(self._fetch, file, directory, stop) for file in files]
            try:
                for work in works:
                    work.result()
            finally:
                # After a failure, files that have not begun are not worth their time.
                for work in works:
                    work.cancel()

    def _fetch(self, file: StoredFile, directory: str, stop: Event) -> None:
        digest, size_bytes = hashlib.sha256(), 0
        path = f"{directory}/{file.name}"
        with open(path, "wb", buffering=0) as target:  # noqa: PTH123 - as above
            for piece in self._store.pieces(f"{self.prefix}/{file.object_name}"):
                if stop.is_set():
                    raise TransferStopped("the task was closed while its snapshot was fetched")
                size_bytes += len(piece)
                if size_bytes > file.size_bytes:
                    break  # Too long: reading on would only fill the disk.
                digest.update(piece)
                _write(target.fileno(), piece)
            # RocksDB syncs its sorted files too: after a power cut they are whole, or not there.
            os.fdatasync(target.fileno())
        if (size_bytes, digest.hexdigest()) != (file.size_bytes, file.sha256):
            raise CorruptData(
                f"{self.url}/{file.object_name} ({file.name}) is damaged: it is not what its name "
                "says"
            )
        self._digests[_key(file.name, os.stat(path))] = file.sha256  # noqa: PTH116 - as above

    def _measure(self, directory: str, stop: Event) -> Iterator[StoredFile]:
        """Yield the files of a checkpoint; those that were measured before are not read again."""
        digests: dict[tuple[str, int, int, int], str] = {}
        try:
            for name in sorted(os.listdir(directory)):  # noqa: PTH208 - as above
                # RocksDB makes a lock and an event log of its own wherever it opens a database.
                if name.startswith(LEFT_OUT):
                    continue
                found = os.stat(f"{directory}/{name}")  # noqa: PTH116 - as above
                # A checkpoint links to files of the database: the inode tells an old file from a
                # new one of its name, as after a restore.
                key = _key(name, found)
                digest = self._digests.get(key) or _digest(f"{directory}/{name}", stop)
                digests[key] = digest
                yield StoredFile(name=name, size_bytes=found.st_size, sha256=digest)
        except OSError as error:
            raise LogDirectoryError(
                f"the state in {directory} can't be read for a snapshot: {error.strerror}"
            ) from error
        self._digests = digests

    def _put_files(
        self, directory: str, manifest: TaskManifest, throttle: Throttle, stop: Event
    ) -> int:
        """Write the files that the store lacks; returns their size.

        Raises:
            ObjectStoreFailed: it can't be written, or files vanish again and again.
        """
        written: dict[str, int] = {}
        for _ in range(LOOKS_MAX):
            lacking = files_to_upload(manifest.files, self._store.objects(self.prefix))
            if not lacking:
                return sum(written.values())
            for file in lacking:
                self._on_step("file begun")
                # A small file goes as one request; only large ones are worth an upload in parts.
                pieces = _read(f"{directory}/{file.name}", throttle, stop)
                if file.size_bytes <= CHUNK_BYTES:
                    self._store.put(f"{self.prefix}/{file.object_name}", [*pieces])
                else:
                    self._store.put(f"{self.prefix}/{file.object_name}", pieces)
                written[file.sha256] = file.size_bytes
                self._on_step("file written")
        raise ObjectStoreFailed(f"files at {self.url} vanish: does another app write there?")

    def _remove_superfluous(self, written: TaskManifest) -> None:
        objects = self._store.objects(self.prefix)
        names = {name: each for name, each in objects.items() if name.startswith(f"{MANIFESTS}/")}
        short = {name.removeprefix(f"{MANIFESTS}/"): each for name, each in names.items()}
        manifests, has_unknown = self._read_manifests(short)
        # Its time of writing is "now" by the store's clock, which dates all other objects too.
        own = objects.get(written.name())
        if own is None:
            return  # Another owner has removed it: that one looks after the rest.
        removal: Removal = plan_removal(
            written, manifests, objects, now_ms=own.modified_ms, has_unknown=has_unknown
        )
        for name in removal.manifests:
            self._store.remove([f"{self.prefix}/{name}"])
            self._on_step("manifest removed")
        for name in removal.files:
            self._store.remove([f"{self.prefix}/{name}"])
            self._on_step("file removed")

    def _read_manifests(self, objects: Objects) -> tuple[dict[str, TaskManifest | None], bool]:
        """Return the manifests by name, and whether there are some whose files are not known."""
        found: dict[str, TaskManifest | None] = {}
        has_unknown = False
        for short in objects:
            name = f"{MANIFESTS}/{short}"
            try:
                if name not in self._manifests:
                    data = self._store.read(f"{self.prefix}/{name}", bytes_max=MANIFEST_BYTES_MAX)
                    self._manifests[name] = decode_manifest(data, name)
                found[name] = self._manifests[name]
            except ObjectMissing:
                continue  # Another owner has removed it since the list was made.
            except NewerFormat as error:
                logger.info("a snapshot at %s is not used: %s", self.url, error)
                has_unknown = True
            except CorruptData as error:
                logger.warning("a snapshot at %s is not used: %s", self.url, error)
                found[name] = None
        # Damaged ones are read again at the next look: it may have been the network.
        self._manifests = {name: each for name, each in found.items() if each is not None}
        return found, has_unknown


def reserved_rows(rows: dict[bytes, bytes | None]) -> tuple[tuple[bytes, bytes], ...]:
    """Return rows as a manifest holds them; those without a value are left out."""
    return tuple((key, value) for key, value in sorted(rows.items()) if value is not None)


def changes_of(manifest: TaskManifest) -> list[Change]:
    """Return the reserved rows of a manifest as changes to a store."""
    return [*manifest.reserved]


@contextmanager
def _new_directory(path: str) -> Iterator[None]:
    """Make a directory for the block; an error in the block removes it.

    Raises:
        LogDirectoryError: it can't be made or written.
    """
    shutil.rmtree(path, ignore_errors=True)  # Left by a process that was killed.
    try:
        os.makedirs(path)  # noqa: PTH103 - as above
        yield
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise LogDirectoryError(
            f"a snapshot can't be written to {path}: {error.strerror}"
        ) from error
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


@contextmanager
def _open_to_read(path: str) -> Iterator[FileIO]:
    """Open a file of a checkpoint for the block.

    Raises:
        LogDirectoryError: it can't be opened or read.
    """
    try:
        with FileIO(path) as file:
            yield file
    except OSError as error:
        raise LogDirectoryError(
            f"the state in {path} can't be read for a snapshot: {error.strerror}"
        ) from error


def _read(path: str, throttle: Throttle, stop: Event) -> Iterator[bytes]:
    with _open_to_read(path) as file:
        while data := file.read(CHUNK_BYTES):
            # Before the piece leaves, so that the first one waits for what was sent before it.
            throttle.wait(len(data), stop)
            if stop.is_set():
                raise TransferStopped("the task was closed while its state was uploaded")
            yield data


def _digest(path: str, stop: Event) -> str:
    digest = hashlib.sha256()
    with _open_to_read(path) as file:
        while data := file.read(CHUNK_BYTES):
            digest.update(data)
            if stop.is_set():
                raise TransferStopped("the task was closed while its state was measured")
    return digest.hexdigest()


def _write(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _key(name: str, found: os.stat_result) -> tuple[str, int, int, int]:
    return name, found.st_ino, found.st_size, found.st_mtime_ns
