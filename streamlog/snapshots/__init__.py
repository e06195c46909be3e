"""Snapshots: everything that an app knows at one consistent cut of its inputs, as files.

A history runner writes one (`capture`: in each task, then `finished` where the job is led), live
workers begin with it.
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
from streamlog.snapshots.places import SnapshotPlace, default_place
from streamlog.snapshots.snapshot import Snapshot

__all__ = [
    "FilePart",
    "Manifest",
    "PendingRecords",
    "Snapshot",
    "SnapshotPlace",
    "SourceEntry",
    "StagedRecords",
    "StoreFile",
    "TaskEntry",
    "default_place",
    "fingerprint_of",
]
