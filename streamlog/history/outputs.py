"""StagedOutputs: the rows that a history has staged, as files with a list of them.

A directory per job: `outputs.json`, and for each partition that was written to one file per task
that did. Rule of the file: the list is written last, so rows without one do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from streamlog.errors import CorruptData
from streamlog.history.staging import Segment, read_segment
from streamlog.processing.record_queue import TopicPartition
from streamlog.records.batch import Record

LIST_FILE: Final = "outputs.json"


class _Row(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    file: str
    records: int
    size_bytes: int
    crc32c: int


class StagedOutputs:
    """The staged rows of one job."""

    def __init__(
        self, directory: str, segments: Mapping[TopicPartition, tuple[Segment, ...]]
    ) -> None:
        self.directory = directory
        self.segments = dict(segments)
        """By partition, a file for each task; its records are in order."""

    @classmethod
    def open(cls, directory: str) -> StagedOutputs:
        """Those of a job that has come to its end.

        Raises:
            CorruptData: there are none.
        """
        root = Path(directory)
        try:
            rows = msgspec.json.decode((root / LIST_FILE).read_bytes(), type=list[_Row])
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            raise CorruptData(
                f"there are no staged rows in {directory}: {error}; run the history with "
                "outputs='stage'"
            ) from error
        found: dict[TopicPartition, list[Segment]] = {}
        for row in rows:
            segment = Segment(str(root / row.file), row.records, row.size_bytes, row.crc32c)
            found.setdefault((row.topic, row.partition), []).append(segment)
        return cls(directory, {place: tuple(many) for place, many in found.items()})

    def save(self) -> None:
        """Write the list: from now on they count."""
        root = Path(self.directory)
        rows = [
            _Row(
                topic,
                partition,
                str(Path(each.path).relative_to(root)),
                each.record_count,
                each.size_bytes,
                each.crc32c,
            )
            for (topic, partition), segments in sorted(self.segments.items())
            for each in segments
        ]
        fresh = root / f"{LIST_FILE}.tmp"
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1))
        fresh.replace(root / LIST_FILE)

    def partitions(self, topic: str) -> list[int]:
        """Those of a topic that rows were staged for."""
        return sorted(partition for name, partition in self.segments if name == topic)

    def records(self, topic: str, partition: int) -> Iterator[Record]:
        """The rows of a partition, task by task; offsets mean nothing.

        Raises:
            CorruptData: a file is damaged.
        """
        for segment in self.segments.get((topic, partition), ()):
            for batch in read_segment(segment.path):
                yield from batch.records()

    def counts(self) -> dict[str, int]:
        """Rows by topic."""
        found: dict[str, int] = {}
        for (topic, _), segments in self.segments.items():
            found[topic] = found.get(topic, 0) + sum(each.record_count for each in segments)
        return found
