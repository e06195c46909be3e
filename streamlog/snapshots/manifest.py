"""Manifest: the content of a snapshot as one JSON document, which is written last.

A snapshot is one consistent cut. It holds, for each source partition, the first offset whose stream
time has reached the cut (`cut_ms`), and for each task its state after all records before the cut:
its rows as sorted files, and its progress, which is positions, stream times, pending windows,
timers and join buffers that are not rows.

The fingerprint of the topology identifies a program. It covers operators, stores, serdes and
windows, but neither functions nor the app's ID. Rules of the file: pure; a file is identified by
its checksum (CRC-32C), so a truncated file, or a file of another attempt, is never used; a format
that is newer than this module is refused. Not done here: reading and writing files (`snapshot`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.topology_difference import difference
from streamlog.errors import CorruptData, TopologyError, quantity
from streamlog.processing.provenance import BUSY_MS
from streamlog.processing.task_progress import ERA_SECTION as ERA
from streamlog.processing.task_progress import INPUTS_SECTION
from streamlog.tables.state.changelog import TaskProgress
from streamlog.topology import Topology
from streamlog.windows.emit import StreamTime

FORMAT_VERSION: Final = 1
MANIFEST_FILE: Final = "manifest.json"

PartitionKey: TypeAlias = tuple[str, int]
Row: TypeAlias = tuple[str, int, int]
"""Topic, partition and a number: an offset, or a time in milliseconds."""


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a snapshot."""

    name: str
    """Path below the snapshot's directory."""
    size_bytes: int
    crc: int
    """CRC-32C of the whole file."""


class StoreFile(FilePart, frozen=True, kw_only=True):
    """A file of sorted rows of one store."""

    store: str
    rows: int


class StagedRecords(FilePart, frozen=True, kw_only=True):
    """A file of record batches of one partition that the log does not have yet."""

    topic: str
    partition: int
    records: int


class PendingRecords(StagedRecords, frozen=True, kw_only=True):
    """A file of records of a repartition topic that were unprocessed at the cut.

    The hand-over writes them to the topic, unchanged, before anything else.
    """

    position: int
    """The offset of the first record, as the task's progress counts."""


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The log that an input offset of a task belongs to, by topic ID and leader epoch.

    Workers detect by it that the topic was created again or its log truncated (KIP-320).
    """

    topic: str
    partition: int
    topic_id: str = ""
    """As hexadecimal text; empty if brokers have no topic IDs."""
    epoch: int = -1
    """The leader epoch of the record before the offset; -1: unknown."""
    epoch_start: int = -1
    """The first offset of that epoch; -1: unknown."""
    cuts: int = 0
    """How often the log was found truncated below the task's position."""


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one task in a snapshot: plain data that tasks send as JSON."""

    subtopology: int
    partition: int
    files: tuple[StoreFile, ...]
    """Sorted files, in the order of their keys."""
    progress: FilePart | None
    """None: the task has no state, only positions and times."""
    offsets: tuple[Row, ...]
    """The next offset of each input."""
    times: tuple[Row, ...]
    """The stream time of each input, ms since 1970; -1: no record was read."""
    sources: tuple[SourceEntry, ...] = ()
    """The logs of its inputs, except repartition topics."""

    @property
    def task(self) -> str:
        """The task's ID, as `TaskId` formats it."""
        return f"{self.subtopology}_{self.partition}"

    @property
    def rows(self) -> int:
        """Number of rows in all stores."""
        return sum(file.rows for file in self.files)

    def encode(self) -> bytes:
        """Return the entry as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> TaskEntry:
        """Decode what `encode` returned.

        Raises:
            CorruptData: the bytes are not such JSON.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(
                f"the entry of a task in a snapshot can't be decoded: {error}"
            ) from error


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a snapshot and its files."""

    format: int = FORMAT_VERSION
    id: str
    """ID of the job that made it; a second hand-over of one ID changes nothing."""
    app_id: str
    fingerprint: str
    blueprint: Blueprint
    """The topology, for the differences if the fingerprint does not match."""
    cut_ms: int | None
    """Stream time of the cut, ms since 1970; None: the log's end when the job was planned."""
    created_ms: int
    """Wall-clock time, ms since 1970."""
    partitions: dict[str, int]
    """Number of partitions of every topic that the app reads, repartition topics included."""
    tasks: tuple[TaskEntry, ...]
    outputs: tuple[Row, ...] = ()
    """End offsets of the output topics after the publication of the job's rows, if it published."""
    pending: tuple[PendingRecords, ...] = ()
    """Unprocessed records of repartition topics at the cut."""
    staged: tuple[StagedRecords, ...] = ()
    """Rows for output topics that the hand-over publishes; files of one partition in order."""
    changelogs: tuple[Row, ...] = ()
    """For a snapshot of live tasks: the changelog offsets that it reflects."""
    reads: tuple[tuple[str, int, int, int], ...] = ()
    """For a history: topic, partition, first offset and planned end of each partition that it read.
    With them, the history can run again."""
    since_ms: int = -1
    """For a history: streams start at this event time, ms since 1970; -1: at their first record."""
    versions: dict[str, str] = {}
    """Versions of streamlog and Python, for information."""

    @property
    def offsets(self) -> dict[PartitionKey, int]:
        """The first offset that the snapshot does not cover, by source partition."""
        return _lowest(row for entry in self.tasks for row in entry.offsets if self._is_source(row))

    @property
    def times(self) -> dict[PartitionKey, int]:
        """The stream time at the cut, ms since 1970, by source partition."""
        rows = (row for entry in self.tasks for row in entry.times if self._is_source(row))
        return {(topic, partition): ms for topic, partition, ms in rows}

    @property
    def rows(self) -> int:
        """Number of rows in all stores of all tasks."""
        return sum(entry.rows for entry in self.tasks)

    @property
    def size_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size_bytes for file in self.files)

    @property
    def files(self) -> list[FilePart]:
        """All files except the manifest."""
        found: list[FilePart] = []
        for entry in self.tasks:
            found += entry.files
            if entry.progress is not None:
                found.append(entry.progress)
        return [*found, *self.pending, *self.staged]

    def encode(self) -> bytes:
        """Return the manifest as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Decode what `encode` returned.

        Raises:
            CorruptData: the bytes are not such JSON, or a newer streamlog has written them.
        """
        try:
            # The format alone first: a newer manifest may not decode as this type.
            found = msgspec.json.decode(data, type=_Format)
            if found.format == FORMAT_VERSION:
                return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the manifest of a snapshot can't be decoded: {error}") from error
        raise CorruptData(
            f"the snapshot has format {found.format}, and this streamlog reads {FORMAT_VERSION}: "
            "use the newer streamlog that wrote it, or create the snapshot again"
        )

    def check(
        self, topology: Topology, counts: Mapping[str, int], *, origin: Topology | None = None
    ) -> None:
        """Check that a program can start from the snapshot.

        Args:
            topology: the program's topology.
            counts: number of partitions of the topics in the log; topics that don't exist yet are
                not checked.
            origin: for a version that runs beside its app, the topology under the app's names.

        Raises:
            TopologyError: the topology differs, or a topic has another number of partitions.
            CorruptData: a task has two entries.
        """
        self._check_topology(origin or topology)
        ids = dict(_same_topics(topology, self.app_id))
        for topic, count in sorted(counts.items()):
            planned = self.partitions.get(ids.get(topic, topic), count)
            if planned != count:
                raise TopologyError(
                    f"topic {topic!r} has {quantity(count, 'partition')}, but snapshot {self.id!r} "
                    f"was created for {planned}, so keys are in other partitions now: create the "
                    "snapshot again"
                )
        self._check_complete()

    def _check_topology(self, topology: Topology) -> None:
        if fingerprint_of(topology) == self.fingerprint:
            return
        mine = _renamed(
            msgspec.to_builtins(Blueprint.of(topology)), f"{topology.app_id}-", f"{self.app_id}-"
        )
        found = difference(self.blueprint, msgspec.convert(mine, Blueprint))
        lines = "\n".join(f"  {line}" for line in found.lines())
        raise TopologyError(
            f"snapshot {self.id!r} of app {self.app_id!r} was created by another program than this "
            f"one of {topology.app_id!r}:\n{lines}\ncreate it again with this program, or hand it "
            "over with the program that created it"
        )

    def _check_complete(self) -> None:
        ids = Counter(entry.task for entry in self.tasks)
        if twice := sorted(task for task, count in ids.items() if count > 1):
            raise CorruptData(f"snapshot {self.id!r} has two entries of task {twice[0]}")

    def _is_source(self, row: Row) -> bool:
        return not row[0].startswith(f"{self.app_id}-") or not row[0].endswith("-repartition")


class _Format(msgspec.Struct):
    format: int


def fingerprint_of(topology: Topology) -> str:
    """Return 32 hexadecimal digits that identify a topology, independent of the app's ID."""
    # Names of internal topics begin with the app's ID, which must not count.
    neutral = _renamed(msgspec.to_builtins(Blueprint.of(topology)), f"{topology.app_id}-", "-")
    return hashlib.sha256(msgspec.json.encode(neutral, order="deterministic")).hexdigest()[:32]


def _renamed(data: Any, before: str, after: str) -> Any:  # noqa: ANN401 - JSON
    """Replace the prefix `before` by `after` in all strings of JSON data."""
    match data:
        case str() if data.startswith(before):
            return after + data.removeprefix(before)
        case dict():
            return {_renamed(k, before, after): _renamed(v, before, after) for k, v in data.items()}
        case list():
            return [_renamed(each, before, after) for each in data]
        case _:
            return data


def _same_topics(topology: Topology, app_id: str) -> list[tuple[str, str]]:
    """Return the internal topics of a topology with their names under another app ID."""
    mine = f"{topology.app_id}-"
    return [
        (name, f"{app_id}-{name.removeprefix(mine)}")
        for name, spec in topology.topics.items()
        if spec.internal
    ]


def _lowest(rows: Iterable[Row]) -> dict[PartitionKey, int]:
    found: dict[PartitionKey, int] = {}
    for topic, partition, offset in rows:
        # Several sub-topologies may read a partition, each up to another offset.
        at = (topic, partition)
        found[at] = min(offset, found.get(at, offset))
    return found


REPARTITION: Final = "-repartition"
NO_POSITION: Final = -1


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a snapshot is handed over: the new app ID and its positions in repartition topics."""

    app_id: str
    """ID of the app that made the snapshot."""
    new_id: str
    """ID of the app that starts from it."""
    positions: Mapping[tuple[str, int], int]
    """The offset at which reading starts, by repartition topic (new name) and partition."""
    era: int
    """Era of the app that starts from it (see `processing/task_progress`)."""
    merges: bool = True
    """Whether tasks merge the sources of a repartition topic by time, as with exactly_once."""

    def name(self, topic: str) -> str:
        """Return the name of a topic under the new app ID."""
        if topic.startswith(f"{self.app_id}-") and topic.endswith(REPARTITION):
            return f"{self.new_id}-{topic.removeprefix(f'{self.app_id}-')}"
        return topic

    def rebased(
        self, progress: TaskProgress, partition: int, topics: Iterable[str] = ()
    ) -> TaskProgress:
        """Return the progress of a task with offsets, names and era of the new app.

        Args:
            progress: the progress in the snapshot.
            partition: the partition of the task.
            topics: the topics that the task reads, by their new names. The progress lacks those
                from which no record came; reading them starts at `positions`, after the records
                that an earlier run has left there.
        """
        sections: dict[str, Any] = self._named(dict(progress.sections))
        inputs = dict(sections.get(INPUTS_SECTION, {}))
        offsets: dict[tuple[str, int], int] = {}
        known = {(self.name(topic), number): at for (topic, number), at in progress.offsets.items()}
        silent = {(topic, partition): 0 for topic in topics if topic.endswith(REPARTITION)}
        for here, before in {**silent, **known}.items():
            # Neither a record in the snapshot nor one left in the topic: nothing to rebase.
            if here in silent.keys() - known.keys() - self.positions.keys():
                continue
            offsets[here] = self.positions.get(here, before)
            # 1. In the snapshot, the task has read its repartition topic up to offset 40.
            # 2. In the log, the new app reads that topic from offset 100 on.
            # 3. `moved` is 60: all offsets in the section of the input shift by it.
            if here in self.positions and here[0] in inputs:
                moved = self.positions[here] - before
                inputs[here[0]] = self._input(inputs[here[0]], self.positions[here], moved)
        logs = {
            here: log
            for (topic, number), log in progress.logs.items()
            # The new app has repartition topics of its own.
            if (here := (self.name(topic), number)) not in self.positions
        }
        sections = {**sections, INPUTS_SECTION: inputs, ERA: self.era}
        return TaskProgress(offsets=offsets, logs=logs, sections=sections)

    def _input(self, data: Mapping[str, Any], position: int, moved: int) -> dict[str, Any]:
        """Rebase the sources section of a repartition topic's partition."""
        sources: list[list[Any]] = []
        # `more` has the offset of the first record that the merge holds, and the turn of the source
        # (`MergedInput.to_data`).
        for name, number, at, index, time_ms, _, *more in data["sources"]:
            if not self.merges:
                # Positions in topics of the log stay valid. Positions in repartition topics counted
                # in topics that only the history had, so they are unknown now.
                position_of = [NO_POSITION, 0] if name.endswith(REPARTITION) else [at, index]
                sources.append([name, number, *position_of, time_ms, 0])
                continue
            # An entry without these two values was not merged: the next owner starts without them.
            after = [max(more[0] + moved, position), more[1]] if more else []
            sources.append([name, number, at, index, time_ms, BUSY_MS, *after])
        if self.merges:
            return {**data, "sources": sources}
        own = {"time_ms": data["time_ms"], "sources": sources, "stream": _stream(sources)}
        return {**own, "tags": data.get("tags", [])}

    def _named(self, data: Any) -> Any:  # noqa: ANN401 - JSON
        """Replace the names of repartition topics in JSON data by the new names."""
        match data:
            case str():
                return self.name(data)
            case dict():
                return {self.name(key): self._named(value) for key, value in data.items()}
            case list():
                return [self._named(each) for each in data]
            case _:
                return data


def renumber_progress(
    progress: TaskProgress, tails: Mapping[tuple[str, int], Sequence[int]]
) -> TaskProgress:
    """Return the progress of a live task with the numbering of a history's progress.

    A log has gaps between records, such as markers of transactions. A snapshot numbers pending
    records without gaps, from the task's position on.

    Args:
        progress: the task's progress.
        tails: by partition of a repartition topic, the offsets of its records from the task's
            position on.
    """
    sections: dict[str, Any] = dict(progress.sections)
    inputs = dict(sections.get(INPUTS_SECTION, {}))
    for (topic, partition), offsets in tails.items():
        data = inputs.get(topic)
        if data is None or "sequence" not in data:
            continue
        position = progress.offsets.get((topic, partition), 0)
        # `row[6]` is the offset of the first record that the merge holds (`MergedInput.to_data`).
        # It becomes a count from the position, without the gaps of the log.
        sources = [
            [*row[:6], position + bisect_left(offsets, row[6]), *row[7:]] for row in data["sources"]
        ]
        inputs[topic] = {**data, "sources": sources}
    sections = {**sections, INPUTS_SECTION: inputs}
    return TaskProgress(offsets=progress.offsets, logs=progress.logs, sections=sections)


def _stream(sources: list[list[Any]]) -> dict[str, Any]:
    stream = StreamTime((name, number) for name, number, *_ in sources)
    for name, number, _, _, time_ms, *_ in sources:
        stream.advance((name, number), time_ms)
    return stream.to_data()
