"""Capture: writes the state of a task into a snapshot, and completes the snapshot of all tasks.

A history's runner calls `capture` when a task has reached the cut, in this process or on another
machine, and `finish_snapshot` in the process that leads the job. Rules of the file: a snapshot has
the whole state of a task, whatever its operators are: all rows of its store and its whole progress.
It omits what belongs to the log that the task wrote to (changelog offsets, owners). Several
attempts may capture a task under different names; the entry that `finish_snapshot` gets counts.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise

from streamlog.blueprints.blueprint import Blueprint
from streamlog.errors import CorruptData
from streamlog.metrics.build_info import release
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
"""Approximate limit of keys and values in one sorted file, before compression."""
BATCH_RECORDS = 2_000
"""Pending records per record batch."""
RESERVED = b"\x00"
"""Prefix of the keys that belong to the task and its log, not to a store."""


def capture(
    task: Task,
    store: KeyValueStore | None,
    snapshots: SnapshotStore,
    *,
    attempt: str = "0",
    file_bytes: int = FILE_BYTES,
) -> TaskEntry:
    """Write the state of a task that has processed all records up to the cut.

    It takes a checkpoint of the task. The task can continue afterwards; its owner closes it.

    Args:
        task: a task without unprocessed records and without rows to emit (`Task.emit`).
        store: the task's store; None for a task without state.
        snapshots: the directory of this snapshot (`SnapshotStore(...) / job_id`).
        attempt: distinguishes attempts at one task; files of other attempts stay unchanged.
        file_bytes: approximate limit of one sorted file, in bytes.

    Raises:
        UsageError: the task has rows to emit.
        LogDirectoryError: the directory can't be written to.
    """
    if store is not None:
        # A snapshot appends nothing to a changelog, so the store keeps its offset there.
        changes = task.checkpoint()
        task.committed(changes, next_offset=changelog_offset(store))
    return entry_of(
        (task.id.subtopology, task.id.partition),
        store=store,
        progress=None if store is None else task.progress,
        offsets=task.positions,
        times=task.stream_times,
        snapshots=snapshots,
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
    snapshots: SnapshotStore,
    logs: Mapping[tuple[str, int], SourceLog] | None = None,
    attempt: str = "0",
    file_bytes: int = FILE_BYTES,
) -> TaskEntry:
    """Write the state of a task that is not open, given its store, progress and offsets.

    Raises:
        LogDirectoryError: the directory can't be written to.
    """
    subtopology, partition = task
    directory = f"{subtopology}_{partition}-{attempt}"
    files = [] if store is None else list(_files(store, snapshots, directory, file_bytes))
    part = None if progress is None else snapshots.add(f"{directory}/progress", progress.encode())
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
    snapshots: SnapshotStore, folder: str, at: tuple[str, int], records: RecordColumns
) -> PendingRecords:
    """Write the pending records of a partition of a repartition topic to a file, unchanged.

    Args:
        snapshots: the directory of this snapshot.
        folder: the folder of the task's attempt.
        at: topic and partition.
        records: one or more records.

    Raises:
        LogDirectoryError: the directory can't be written to.
    """
    topic, partition = at
    columns = FieldColumns()
    columns.extend(records.timestamps, records.keys, records.values, records.headers)
    data = b"".join(
        encode_columns(columns.part(start, start + BATCH_RECORDS))
        for start in range(0, len(columns), BATCH_RECORDS)
    )
    part = snapshots.add(f"{folder}/shuffles/{topic}/{partition}.batches", data)
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
    snapshots: SnapshotStore,
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
    """Write the manifest of a snapshot: with it, the snapshot exists.

    Args:
        snapshots: the directory of this snapshot; the last part of its path is the snapshot's ID.
        entries: one entry per task of the topology.
        topology: the topology of the program that ran.
        origin: for a version that runs beside its app, the topology under the app's names.
        partitions: number of partitions of each topic that is read, repartition topics included.
        cut_ms: the stream time of the cut, ms since 1970; None if the cut is by offsets.
        created_ms: wall-clock time, ms since 1970.
        outputs: end offsets of output topics, if the job's rows were published.
        pending: unprocessed records of repartition topics, one file per partition.
        staged: rows for output topics that the hand-over publishes.
        changelogs: for a snapshot of live tasks, the changelog offsets that it reflects.
        reads: for a history, the first offset and planned end of each partition.
        since_ms: for a history, the event time at which streams start; -1: at their first record.

    Raises:
        CorruptData: a task is missing, or has two entries.
        LogDirectoryError: the directory can't be written to.
    """
    tasks = sorted(entries, key=lambda entry: (entry.subtopology, entry.partition))
    found = [(entry.subtopology, entry.partition) for entry in tasks]
    wanted = [(s.number, n) for s in topology.subtopologies for n in range(s.tasks(partitions))]
    if found != wanted:
        # Equal sets of different length: some task is there twice.
        wrong = sorted({*found} ^ {*wanted}) or [a for a, b in pairwise(found) if a == b]
        raise CorruptData(
            f"a snapshot of {topology.app_id!r} needs one entry per task: task "
            f"{wrong[0][0]}_{wrong[0][1]} is missing, unknown, or has two entries"
        )
    manifest = Manifest(
        id=snapshots.url.rpartition("/")[2],
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
        versions={
            "streamlog": release() or "unknown",
            "python": platform.python_version(),
        },
    )
    # Last: `Snapshot.open` takes a directory without a manifest for no snapshot.
    snapshots.add(MANIFEST_FILE, manifest.encode())
    return Snapshot(manifest, snapshots)


def _files(
    store: KeyValueStore, snapshots: SnapshotStore, directory: str, file_bytes: int
) -> Iterator[StoreFile]:
    rows = ((key, value) for key, value in store.range() if not key.startswith(RESERVED))
    # Rows come in the order of their keys, which begin with the store: each store is one group.
    for name, group in groupby(rows, key=lambda row: _store_of(row[0])):
        yield from _store_files(name, group, snapshots, directory, file_bytes)


def _store_files(
    name: str,
    rows: Iterator[tuple[bytes, bytes]],
    snapshots: SnapshotStore,
    directory: str,
    file_bytes: int,
) -> Iterator[StoreFile]:
    from streamlog.tables.local_disk.rocksdb_store import write_sorted  # noqa: PLC0415 - RocksDB, only for this

    for number, first in enumerate(rows):
        # One file at a time: each is complete before the next one needs space.
        file = f"{directory}/{name.replace('/', '.')}-{number}.sst"
        with snapshots.writing(file) as path:
            count = write_sorted(first, rows, path, file_bytes=file_bytes)
            size_bytes, crc = measure_file(path)
        yield StoreFile(name=file, size_bytes=size_bytes, crc=crc, store=name, rows=count)


def _store_of(key: bytes) -> str:
    """Return the name of the store that a key's prefix holds; see `StoreSpec.prefix`."""
    return key[1 : 1 + key[0]].decode()


def _rows(found: Mapping[tuple[str, int], int]) -> tuple[Row, ...]:
    return tuple((topic, partition, number) for (topic, partition), number in sorted(found.items()))


def _is_read(topology: Topology, topic: str) -> bool:
    return bool(topology.subtopologies_of(topic))


__all__ = ["FilePart", "capture", "entry_of", "finish_snapshot", "pending_of"]
