"""Publication: the staged rows of a history, into their topics, all at once and once.

The files go to the broker first, where nobody sees them; then one request makes all of them count.
It is told apart by the job's id, so a job that is run again after its end was not heard of changes
nothing. Brokers of Kafka can't do that. Not done here: state and offsets, which a hand-over
publishes together with the rows.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from streamlog.client.admin import Admin
from streamlog.errors import ConfigError
from streamlog.history.finished import FinishedTask
from streamlog.history.readers import LogReader
from streamlog.processing.record_queue import TopicPartition
from streamlog.records.staged import StagedSegment
from streamlog.snapshots import SnapshotPlace, StagedRecords


def published(
    job_id: str, tasks: Iterable[FinishedTask], place: SnapshotPlace, reader: LogReader
) -> dict[TopicPartition, int]:
    """Publish what the tasks have staged; returns the offset behind it in each partition.

    Raises:
        ConfigError: the log's broker can't publish.
        LogError: the broker has refused; nothing counts.
        RequestTimedOut: nobody knows whether it was published; run the job again under its id.
    """
    staged = [part for task in tasks for part in task.staged]
    return reader.run(_published(reader.log.admin(), job_id, staged, place))


async def check(reader: LogReader) -> None:
    """Refuse logs that can't publish, before anything is run.

    Raises:
        ConfigError: the log's broker is none of streamlog's.
    """
    if not await reader.log.admin().can_publish():
        raise ConfigError(
            "outputs='publish' needs brokers of streamlog, which publish a job at once: on Kafka "
            "stage the rows, compare them, and let a version of its own write them live"
        )


async def _published(
    admin: Admin, job_id: str, staged: Iterable[StagedRecords], place: SnapshotPlace
) -> dict[TopicPartition, int]:
    segments: list[StagedSegment] = []
    for part in staged:
        name = part.name.replace("/", ".")
        with (
            place.checked(part) as path,
            open(path, "rb") as file,  # noqa: ASYNC230, PTH123 - on a loop that waits for nothing else
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data,
            memoryview(data) as view,
        ):
            await admin.stage(job_id, name, view)
        segments.append(
            StagedSegment(part.topic, part.partition, name, part.size_bytes, part.records, part.crc)
        )
    done = await admin.publish(job_id, segments=segments)
    return {
        (at.topic, at.partition): found.last_offset + 1
        for at, found in done.ranges.items()
        if found.last_offset >= 0
    }
