"""Snapshots: everything that an app knows at one consistent cut of its inputs, as files.

A history runner writes a snapshot: `capture` in each task, then `finish_snapshot` in the process
that leads the job. Live workers start from it.
"""

from streamlog.snapshots.manifest import (
    FilePart,
    Manifest,
    PendingRecords,
    SourceEntry,
    StagedRecords,
    StoreFile,
    TaskEntry,
    fingerprint_of,
)
from streamlog.snapshots.snapshot import Snapshot, SnapshotStore, default_snapshot_store

__all__ = [
    "FilePart",
    "Manifest",
    "PendingRecords",
    "Snapshot",
    "SnapshotStore",
    "SourceEntry",
    "StagedRecords",
    "StoreFile",
    "TaskEntry",
    "default_snapshot_store",
    "fingerprint_of",
]
