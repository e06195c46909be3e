"""Publication: the staged rows of a history, into their topics, all at once and once.

One broker of streamlog gets the files first, where nobody sees them; then one request makes all of
them count. Several, and Kafka's, get the rows from here, in one transaction. Either way the job is
told apart by its id, so one that is run again after its end was not heard of changes nothing. Not
done here: state and offsets, which a hand-over publishes together with the rows.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamlog.history.finished import FinishedTask
from streamlog.history.readers import LogReader
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.records.staged_segment import StagedSegment
from streamlog.snapshots import SnapshotPlace, StagedRecords

if TYPE_CHECKING:
    from streamlog.log import Log


def published(
    job_id: str, tasks: Iterable[FinishedTask], place: SnapshotPlace, reader: LogReader
) -> dict[PartitionKey, int]:
    """Publish what the tasks have staged; returns the offset behind it in each partition.

    Raises:
        LogError: the log has refused; nothing counts.
        UsageError: the job's id is the name of a group of consumers; nothing counts.
        RequestTimedOut: nobody knows whether it was published; run the job again under its id.
    """
    staged = [part for task in tasks for part in task.staged]
    return reader.run(_published(reader.log, job_id, staged, place))


async def _published(
    log: Log, job_id: str, staged: Iterable[StagedRecords], place: SnapshotPlace
) -> dict[PartitionKey, int]:
    parts = {part.name.replace("/", "."): part for part in staged}
    segments = [
        StagedSegment(part.topic, part.partition, name, part.size_bytes, part.records, part.crc)
        for name, part in parts.items()
    ]
    admin = log.admin()
    if await admin.can_publish():
        for name, part in parts.items():
            await admin.stage(job_id, name, _content(part, place))
    done = await log.publish(job_id, segments, read=lambda name: _content(parts[name], place))
    return {(at.topic, at.partition): end for at, end in done.ends.items()}


def _content(part: StagedRecords, place: SnapshotPlace) -> memoryview:
    """What the file holds, in memory only as far as it is looked at; gone when nobody has it."""
    with place.checked(part) as path, open(path, "rb") as file:  # noqa: PTH123 - paths are text in all of the engine
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
