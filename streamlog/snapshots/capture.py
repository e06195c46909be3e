"""Capture: what a task knows, put into a snapshot; and the snapshot made of what all of them gave.

A runner of a history calls `capture` when a task has reached the cut, in this process or on another
machine, and `finish_snapshot` in the process that leads the job. Rules of the file: a snapshot has
everything of a task, whatever its operators are: all rows of its store and its whole progress. It
omits what belongs to the log that the task wrote to (changelog offsets, owners). Several attempts,
under different names, may capture a task; the entry that `finish_snapshot` receives decides.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby, pairwise

from streamlog.blueprints.blueprint import Blueprint
from streamlog.errors import CorruptData
from streamlog.processing.task import Task
from streamlog.records.builder import encode_columns
from streamlog.records.record_columns import FieldColumns, RecordColumns
from streamlog.snapshots.manifest import (
    MANIFEST_FILE,
    FilePart,
    Manifest,
    PendingRecords,
    Row,
    SourceEntry,
    StagedRecords,
    StoreFile,
    TaskEntry,
    fingerprint_of,
)
from streamlog.snapshots.snapshot import Snapshot, SnapshotStore, measure_file
from streamlog.tables.state.changelog import SourceLog, TaskProgress, changelog_offset
from streamlog.tables.stores.store import KeyValueStore
from streamlog.topology import Topology

FILE_BYTES = 128 * 1024 * 1024
"""Keys and values in one sorted file, before compression."""
BATCH_RECORDS = 2_000
"""Of what waits between two stages, in one batch."""
RESERVED = b"\x00"
"""What keys begin with that belong to the task and its log, and to no store."""


def capture(
    task: Task,
    store: KeyValueStore | None,
    place: SnapshotStore,
    *,
    attempt: str = "0",
    file_bytes: int = FILE_BYTES,
) -> TaskEntry:
    """Put into `place` all that a task knows that has taken everything up to the cut.

    The task is brought to a checkpoint; it may go on afterwards, and has to be closed by its owner.

    Args:
        task: with nothing left to take. Rows that wait for a commit were handed on (`Task.emit`).
        store: that the task was made with; None for a task without state.
        place: of this one snapshot (`SnapshotStore(...) / job_id`).
        attempt: tells attempts at the same task from each other; files of others stay untouched.
        file_bytes: of one sorted file, at most about so much.

    Raises:
        UsageError: rows wait for a commit.
        LogDirectoryError: the place can't be written to.
    """
    if store is not None:
        changes = task.checkpoint()
        task.committed(changes, next_offset=changelog_offset(store))
    return entry_of(
        (task.id.subtopology, task.id.partition),
        store=store,
        progress=None if store is None else task.progress,
        offsets=task.positions,
        times=task.stream_times,
        place=place,
        attempt=attempt,
        file_bytes=file_bytes,
    )


def entry_of(
    task: tuple[int, int],
    *,
    store: KeyValueStore | None,
    progress: TaskProgress | None,
    offsets: Mapping[tuple[str, int], int],
    times: Mapping[tuple[str, int], int],
    place: SnapshotStore,
    logs: Mapping[tuple[str, int], SourceLog] | None = None,
    attempt: str = "0",
    file_bytes: int = FILE_BYTES,
) -> TaskEntry:
    """As `capture`, of what a task has left behind in a store.

    Raises:
        LogDirectoryError: the place can't be written to.
    """
    subtopology, partition = task
    directory = f"{subtopology}_{partition}-{attempt}"
    files = [] if store is None else list(_files(store, place, directory, file_bytes))
    part = None if progress is None else place.add(f"{directory}/progress", progress.encode())
    return TaskEntry(
        subtopology=subtopology,
        partition=partition,
        files=tuple(files),
        progress=part,
        offsets=_rows(offsets),
        times=_rows(times),
        sources=tuple(
            SourceEntry(
                topic=topic,
                partition=number,
                topic_id=log.topic_id.hex(),
                epoch=log.leader_epoch,
                cuts=log.cuts,
            )
            for (topic, number), log in sorted((logs or {}).items())
        ),
    )


def pending_of(
    place: SnapshotStore, folder: str, at: tuple[str, int], records: RecordColumns
) -> PendingRecords:
    """Records of a partition of a repartition topic that wait at the cut, as they are, in a file.

    Args:
        place: of this one snapshot.
        folder: of the task and attempt.
        at: topic and partition.
        records: at least one.

    Raises:
        LogDirectoryError: the place can't be written to.
    """
    topic, partition = at
    columns = FieldColumns()
    columns.extend(records.timestamps, records.keys, records.values, records.headers)
    data = b"".join(
        encode_columns(columns.part(start, start + BATCH_RECORDS))
        for start in range(0, len(columns), BATCH_RECORDS)
    )
    part = place.add(f"{folder}/shuffles/{topic}/{partition}.batches", data)
    return PendingRecords(
        name=part.name,
        size_bytes=part.size_bytes,
        crc=part.crc,
        topic=topic,
        partition=partition,
        records=len(records),
        position=records.offsets[0],
    )


def finish_snapshot(
    place: SnapshotStore,
    entries: Iterable[TaskEntry],
    *,
    topology: Topology,
    origin: Topology | None = None,
    partitions: Mapping[str, int],
    cut_ms: int | None,
    created_ms: int,
    outputs: Mapping[tuple[str, int], int] | None = None,
    pending: Iterable[PendingRecords] = (),
    staged: Iterable[StagedRecords] = (),
    changelogs: Mapping[tuple[str, int], int] | None = None,
    reads: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    since_ms: int = -1,
) -> Snapshot:
    """The snapshot made of these tasks; from now on it exists.

    Args:
        place: of this one snapshot; its last part is the snapshot's id.
        entries: one for each task of the topology.
        topology: of the program that was run.
        origin: of a version that runs beside its app, the topology as the app has it.
        partitions: how many partitions each topic that it reads has, repartition topics included.
        cut_ms: the stream time of the cut, if it was one.
        created_ms: by the clock on the wall.
        outputs: end offsets of output topics, if the job's rows were published.
        pending: records between two stages whose turn had not come, one file per partition.
        staged: rows for output topics that are to be published by the hand-over.
        changelogs: of a snapshot of live tasks, what of their changelogs it reflects.
        reads: of a history, where it began in each partition, and up to where it was planned.
        since_ms: of a history that begins at a time, that time.

    Raises:
        CorruptData: a task is missing, or is there twice.
        LogDirectoryError: the place can't be written to.
    """
    tasks = sorted(entries, key=lambda entry: (entry.subtopology, entry.partition))
    found = [(entry.subtopology, entry.partition) for entry in tasks]
    wanted = [(s.number, n) for s in topology.subtopologies for n in range(s.tasks(partitions))]
    if found != wanted:
        wrong = sorted({*found} ^ {*wanted}) or [a for a, b in pairwise(found) if a == b]
        raise CorruptData(
            f"a snapshot of {topology.app_id!r} needs every task once; this is not so of task "
            f"{wrong[0][0]}_{wrong[0][1]}"
        )
    manifest = Manifest(
        id=place.url.rpartition("/")[2],
        app_id=topology.app_id,
        fingerprint=fingerprint_of(origin or topology),
        blueprint=Blueprint.of(origin or topology),
        cut_ms=cut_ms,
        created_ms=created_ms,
        partitions={name: n for name, n in sorted(partitions.items()) if _is_read(topology, name)},
        tasks=tuple(tasks),
        outputs=_rows(outputs or {}),
        pending=tuple(pending),
        staged=tuple(staged),
        changelogs=_rows(changelogs or {}),
        reads=tuple((*at, *bounds) for at, bounds in sorted((reads or {}).items())),
        since_ms=since_ms,
        versions={"streamlog": _version(), "python": platform.python_version()},
    )
    place.add(MANIFEST_FILE, manifest.encode())
    return Snapshot(manifest, place)


def _files(
    store: KeyValueStore, place: SnapshotStore, directory: str, file_bytes: int
) -> Iterator[StoreFile]:
    rows = ((key, value) for key, value in store.range() if not key.startswith(RESERVED))
    for name, group in groupby(rows, key=lambda row: _store_of(row[0])):
        yield from _store_files(name, group, place, directory, file_bytes)


def _store_files(
    name: str,
    rows: Iterator[tuple[bytes, bytes]],
    place: SnapshotStore,
    directory: str,
    file_bytes: int,
) -> Iterator[StoreFile]:
    from streamlog.tables.local_disk.rocksdb_store import write_sorted  # noqa: PLC0415 - RocksDB, only for this

    for number, first in enumerate(rows):
        # One file at a time: each is at its place before the next one takes the disk.
        file = f"{directory}/{name.replace('/', '.')}-{number}.sst"
        with place.writing(file) as path:
            count = write_sorted(first, rows, path, file_bytes=file_bytes)
            size_bytes, crc = measure_file(path)
        yield StoreFile(name=file, size_bytes=size_bytes, crc=crc, store=name, rows=count)


def _store_of(key: bytes) -> str:
    """The name that each key of a store begins with; see `StoreSpec.prefix`."""
    return key[1 : 1 + key[0]].decode()


def _rows(found: Mapping[tuple[str, int], int]) -> tuple[Row, ...]:
    return tuple((topic, partition, number) for (topic, partition), number in sorted(found.items()))


def _is_read(topology: Topology, topic: str) -> bool:
    return bool(topology.subtopologies_of(topic))


def _version() -> str:
    try:
        return version("streamlog")
    except PackageNotFoundError:
        return "unknown"


__all__ = ["FilePart", "capture", "entry_of", "finish_snapshot", "pending_of"]
