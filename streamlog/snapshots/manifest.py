"""Manifest: what a snapshot consists of, as one JSON document, written last.

A snapshot is one consistent cut: per source partition the first offset whose stream time has come
to the cut (`cut_ms`), and for each task all that it knows when everything before has been taken in:
its rows as sorted files, and its progress, which is positions, stream times, pending windows,
timers and join buffers as far as they are no rows. Rules of the file: pure; a file is told by its
checksum (CRC-32C), so one that was cut short, or belongs to another attempt, is never taken for the
right one; who reads a newer format than it knows says so. What is the same program is told by the
fingerprint of the topology, which sees operators, stores, serdes and windows but no functions, and
not the app's id. Not done here: reading and writing files (`places`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.topology_difference import difference
from streamlog.errors import CorruptData, TopologyError
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
    """Below the snapshot's directory."""
    size_bytes: int
    crc: int
    """CRC-32C of all of it."""


class StoreFile(FilePart, frozen=True, kw_only=True):
    """Rows of one store, sorted."""

    store: str
    rows: int


class StagedRecords(FilePart, frozen=True, kw_only=True):
    """Records of one partition as record batches, still to be written to the log."""

    topic: str
    partition: int
    records: int


class PendingRecords(StagedRecords, frozen=True, kw_only=True):
    """Records of a repartition topic whose turn had not come at the cut.

    Who goes on writes them to the topic, as they are, before anything else. `position` is the
    offset that the task's progress has for the first of them.
    """

    position: int


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Which log an input offset of a task belongs to, for who continues there (KIP-320)."""

    topic: str
    partition: int
    topic_id: str = ""
    """As hexadecimal text; empty if brokers tell none."""
    epoch: int = -1
    """The leader epoch of the record before the offset; -1 if it is unknown."""
    epoch_start: int = -1
    """Where that epoch began; -1 if it is unknown."""
    cuts: int = 0
    """How many times the log was found truncated below what the task had read."""


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What one task has left. Plain data: a task on another machine sends it as JSON."""

    subtopology: int
    partition: int
    files: tuple[StoreFile, ...]
    """In the order of their keys."""
    progress: FilePart | None
    """None: the task has no state, only positions and times."""
    offsets: tuple[Row, ...]
    """Of its inputs: the next offset to be read."""
    times: tuple[Row, ...]
    """Of its inputs: how far event time has come, in milliseconds; -1 if nothing was read."""
    sources: tuple[SourceEntry, ...] = ()
    """Of its inputs, repartition topics left out: which logs they are."""

    @property
    def task(self) -> str:
        """As `TaskId` is written."""
        return f"{self.subtopology}_{self.partition}"

    @property
    def rows(self) -> int:
        """Of all stores."""
        return sum(file.rows for file in self.files)

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> TaskEntry:
        """What `encode` gave.

        Raises:
            CorruptData: it is not that.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(
                f"the entry of a task in a snapshot is not readable: {error}"
            ) from error


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a snapshot but its files."""

    format: int = FORMAT_VERSION
    id: str
    """Of the job that made it; handing over the same id twice does nothing the second time."""
    app_id: str
    fingerprint: str
    blueprint: Blueprint
    """The topology, to say what differs if the fingerprint does."""
    cut_ms: int | None
    """The stream time T of the cut; None: what the log held when the job was planned."""
    created_ms: int
    """By the clock on the wall."""
    partitions: dict[str, int]
    """Of every topic that the app reads, repartition topics included."""
    tasks: tuple[TaskEntry, ...]
    outputs: tuple[Row, ...] = ()
    """End offsets of the output topics, as of the publication of the job's rows, if it did that."""
    pending: tuple[PendingRecords, ...] = ()
    """What waits at the cut between two stages."""
    staged: tuple[StagedRecords, ...] = ()
    """Rows of the job for its output topics that were not published: the hand-over does it.
    Several of one partition in their order."""
    changelogs: tuple[Row, ...] = ()
    """Of a snapshot of live tasks: the offsets of their changelogs that it reflects."""
    reads: tuple[tuple[str, int, int, int], ...] = ()
    """Of a history, per partition that it read from the log: topic, partition, where it began, and
    the end that it was planned up to. By them it can be run again."""
    since_ms: int = -1
    """Of a history: older records of streams were left out; -1: none were."""
    versions: dict[str, str] = {}
    """Of streamlog and Python, for who looks into it."""

    @property
    def offsets(self) -> dict[PartitionKey, int]:
        """Per input partition, repartition topics left out, the first offset that is not in it."""
        return _lowest(row for entry in self.tasks for row in entry.offsets if self._is_source(row))

    @property
    def times(self) -> dict[PartitionKey, int]:
        """Per input partition, how far event time had come there, in milliseconds."""
        rows = (row for entry in self.tasks for row in entry.times if self._is_source(row))
        return {(topic, partition): ms for topic, partition, ms in rows}

    @property
    def rows(self) -> int:
        """Of all stores of all tasks."""
        return sum(entry.rows for entry in self.tasks)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def files(self) -> list[FilePart]:
        """All files beside the manifest."""
        found: list[FilePart] = []
        for entry in self.tasks:
            found += entry.files
            if entry.progress is not None:
                found.append(entry.progress)
        return [*found, *self.pending, *self.staged]

    def encode(self) -> bytes:
        """As JSON, for people to read as well."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """What `encode` gave.

        Raises:
            CorruptData: it is not that, or a newer streamlog has written it.
        """
        try:
            found = msgspec.json.decode(data, type=_Format)
            if found.format == FORMAT_VERSION:
                return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the manifest of a snapshot is not readable: {error}") from error
        raise CorruptData(
            f"the snapshot has format {found.format}, this streamlog reads {FORMAT_VERSION}: a "
            "newer one has written it; use that one, or make the snapshot again"
        )

    def check(
        self, topology: Topology, counts: Mapping[str, int], *, origin: Topology | None = None
    ) -> None:
        """Whether a program can go on from it.

        Args:
            topology: of the program.
            counts: how many partitions the topics of the log have; of those that are not there
                yet nothing is asked.
            origin: of a version that runs beside its app, the topology as the app has it.

        Raises:
            TopologyError: the program computes something else, or a topic has grown or shrunk.
        """
        self._check_topology(origin or topology)
        ids = dict(_same_topics(topology, self.app_id))
        for topic, count in sorted(counts.items()):
            planned = self.partitions.get(ids.get(topic, topic), count)
            if planned != count:
                raise TopologyError(
                    f"topic {topic!r} has {count} partitions, but snapshot {self.id!r} was made "
                    f"for {planned}: keys lie elsewhere now; make the snapshot again"
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
            f"snapshot {self.id!r} was made by another program of app {self.app_id!r} than this "
            f"one of {topology.app_id!r}:\n{lines}\nmake it again with this program, or hand it "
            "over with the one that made it"
        )

    def _check_complete(self) -> None:
        ids = Counter(entry.task for entry in self.tasks)
        if twice := sorted(task for task, count in ids.items() if count > 1):
            raise CorruptData(f"snapshot {self.id!r} holds task {twice[0]} twice")

    def _is_source(self, row: Row) -> bool:
        return not row[0].startswith(f"{self.app_id}-") or not row[0].endswith("-repartition")


class _Format(msgspec.Struct):
    format: int


def fingerprint_of(topology: Topology) -> str:
    """What tells one topology from another, whatever the app is called: 32 hexadecimal digits."""
    # Internal topics begin with the app's id: the same program under another one is the same.
    neutral = _renamed(msgspec.to_builtins(Blueprint.of(topology)), f"{topology.app_id}-", "-")
    return hashlib.sha256(msgspec.json.encode(neutral, order="deterministic")).hexdigest()[:32]


def _renamed(data: Any, before: str, after: str) -> Any:  # noqa: ANN401 - JSON
    """The same data with another beginning of all names that begin so."""
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
    """The internal topics of an app, and their names in another app of the same program."""
    mine = f"{topology.app_id}-"
    return [
        (name, f"{app_id}-{name.removeprefix(mine)}")
        for name, spec in topology.topics.items()
        if spec.internal
    ]


def _lowest(rows: Iterable[Row]) -> dict[PartitionKey, int]:
    found: dict[PartitionKey, int] = {}
    for topic, partition, offset in rows:
        at = (topic, partition)
        found[at] = min(offset, found.get(at, offset))
    return found


REPARTITION: Final = "-repartition"
NO_POSITION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """Where a snapshot comes down."""

    app_id: str
    """Of the app that made it."""
    new_id: str
    """Of the app that goes on."""
    positions: Mapping[tuple[str, int], int]
    """Per repartition topic, by its new name, and partition: where reading goes on."""
    era: int
    """Of the app that goes on (see `processing/task_progress`)."""
    merges: bool = True
    """Whether the sources behind a repartition topic are merged by time: exactly once."""

    def name(self, topic: str) -> str:
        """What a topic is called where the app goes on."""
        if topic.startswith(f"{self.app_id}-") and topic.endswith(REPARTITION):
            return f"{self.new_id}-{topic.removeprefix(f'{self.app_id}-')}"
        return topic

    def rebased(
        self, progress: TaskProgress, partition: int, topics: Iterable[str] = ()
    ) -> TaskProgress:
        """The progress of a task there.

        Args:
            progress: as the history has left it.
            partition: the task's.
            topics: that it reads, by their new names: of one from which nothing came the progress
                says nothing, but what lies in there from earlier days is none of its business.
        """
        sections: dict[str, Any] = self._named(dict(progress.sections))
        inputs = dict(sections.get(INPUTS_SECTION, {}))
        offsets: dict[tuple[str, int], int] = {}
        known = {(self.name(topic), number): at for (topic, number), at in progress.offsets.items()}
        silent = {(topic, partition): 0 for topic in topics if topic.endswith(REPARTITION)}
        for here, before in {**silent, **known}.items():
            if here in silent.keys() - known.keys() - self.positions.keys():
                continue
            offsets[here] = self.positions.get(here, before)
            if here in self.positions and here[0] in inputs:
                moved = self.positions[here] - before
                inputs[here[0]] = self._input(inputs[here[0]], self.positions[here], moved)
        logs = {
            here: log
            for (topic, number), log in progress.logs.items()
            # Of a repartition topic it is another one here.
            if (here := (self.name(topic), number)) not in self.positions
        }
        sections = {**sections, INPUTS_SECTION: inputs, ERA: self.era}
        return TaskProgress(offsets=offsets, logs=logs, sections=sections)

    def _input(self, data: Mapping[str, Any], position: int, moved: int) -> dict[str, Any]:
        """What is known of the sources of a repartition topic's partition."""
        sources: list[list[Any]] = []
        for name, number, at, index, time_ms, _, *more in data["sources"]:
            if not self.merges:
                # Sources that are in the log themselves are told by their offsets there; others
                # had those of the history.
                place = [NO_POSITION, 0] if name.endswith(REPARTITION) else [at, index]
                sources.append([name, number, *place, time_ms, 0])
                continue
            # Without these two it was not merged before: the next owner begins without, too.
            after = [max(more[0] + moved, position), more[1]] if more else []
            sources.append([name, number, at, index, time_ms, BUSY_MS, *after])
        if self.merges:
            return {**data, "sources": sources}
        own = {"time_ms": data["time_ms"], "sources": sources, "stream": _stream(sources)}
        return {**own, "tags": data.get("tags", [])}

    def _named(self, data: Any) -> Any:  # noqa: ANN401 - JSON
        """The same data with the names of repartition topics as they are there."""
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
    """The progress of a live task as a history would have left it.

    In the log there are gaps between records, as at the ends of transactions; in a snapshot what
    waits is numbered without, from the position on.

    Args:
        progress: of the task.
        tails: per partition of a repartition topic, the offsets of the records that are there from
            the task's position on.
    """
    sections: dict[str, Any] = dict(progress.sections)
    inputs = dict(sections.get(INPUTS_SECTION, {}))
    for (topic, partition), offsets in tails.items():
        data = inputs.get(topic)
        if data is None or "sequence" not in data:
            continue
        position = progress.offsets.get((topic, partition), 0)
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
