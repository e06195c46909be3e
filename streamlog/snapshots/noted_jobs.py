"""JobNotes: keeps notes about the histories whose snapshots are in a store, also while they run.

They lie beside the snapshots, in `jobs/<id>`: the job as it proceeds, and its newest comparison for
each topic. Rules of the file: notes inform people, and no program decides by them; so a note that
can't be read is left out, and a job never fails because it could not write one.
"""

from __future__ import annotations

import logging
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from streamlog.errors import StreamlogError
from streamlog.snapshots.job_notes import ComparisonNote, JobNote
from streamlog.snapshots.snapshot import SnapshotStore

logger = logging.getLogger(__name__)

JOBS: Final = "jobs"
"""The directory of the notes. No job may have this id, or its snapshot would lie among them."""
JOB_FILE: Final = "job.json"
COMPARED: Final = "compared-"
REPORT_MAX: Final = 64 * 1024
"""Characters of a plan, an error, or a comparison."""
READ_MAX: Final = 300
"""Jobs whose notes are read at a time."""
T = TypeVar("T", bound=msgspec.Struct)


class JobNotes:
    """The notes in one store of snapshots."""

    def __init__(self, snapshots: SnapshotStore) -> None:
        self._store = snapshots / JOBS

    def write(self, note: JobNote) -> None:
        """Note how a job is doing."""
        short = msgspec.structs.replace(
            note, plan=note.plan[:REPORT_MAX], error=note.error[:REPORT_MAX]
        )
        self._write(note.id, JOB_FILE, short)

    def compared(self, id_: str, note: ComparisonNote) -> None:
        """Note a comparison."""
        short = msgspec.structs.replace(note, report=note.report[:REPORT_MAX])
        self._write(id_, f"{COMPARED}{_name(note.topic)}.json", short)

    def jobs(self, app_id: str) -> list[JobNote]:
        """Return the jobs of an app, the newest first."""
        names = self._store.names()[:READ_MAX]
        found = [each for name in names if (each := self._read(name, JOB_FILE, JobNote))]
        return sorted(
            (each for each in found if each.app_id == app_id), key=lambda each: -each.began_ms
        )

    def comparisons(self, id_: str) -> list[ComparisonNote]:
        """Return the newest comparison of each topic of a job."""
        job = _name(id_)
        names = [each for each in (self._store / job).names() if each.startswith(COMPARED)]
        return [each for name in names if (each := self._read(job, name, ComparisonNote))]

    def _write(self, id_: str, name: str, note: msgspec.Struct) -> None:
        try:
            self._store.add(f"{_name(id_)}/{name}", msgspec.json.encode(note))
        except Exception as error:  # noqa: BLE001 - libraries of object stores raise what they like
            logger.warning("a note about history %s can't be written: %s", id_, error)

    def _read(self, job: str, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(self._store.read(f"{job}/{name}"), type=kind)
        # A newer streamlog may write other notes; a file may be removed meanwhile.
        except (StreamlogError, msgspec.MsgspecError, ValueError, OSError):
            return None


def _name(text: str) -> str:
    # No slash, and no dot at the beginning: neither leads out of the directory.
    return quote(text, safe="").replace(".", "%2E")
