"""Sink: the port of connectors that write a topic to the outside.

A sink is a value: its fields are its settings. `open` gives a `SinkTask`, which has the state: a
connection, a transaction, a file. The runtime reads the topic, and decides when to commit.

Rule: the runtime alone decides when and what is written again. After an error a task is asked to
`abort`, and gets the same records again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

import msgspec

from streamlog.connect.arrow_columns import batch_to_arrow
from streamlog.connect.connector_errors import ConnectError
from streamlog.connect.row_schema import Schema
from streamlog.connect.sink_rows import SinkRows
from streamlog.durations import Dur
from streamlog.record import Headers, Record, TopicPartition
from streamlog.serdes.erased_types import UserObject

T = TypeVar("T")
KR_co = TypeVar("KR_co", covariant=True)
"""The type of the keys in a batch."""
VR_co = TypeVar("VR_co", covariant=True)
"""The type of the values in a batch."""
KW_contra = TypeVar("KW_contra", contravariant=True)
"""The type of the keys that a sink takes."""
VW_contra = TypeVar("VW_contra", contravariant=True)
"""The type of the values that a sink takes."""

Effect: TypeAlias = Literal["transactional", "repeatable", "appending"]
"""What it means to write the same records twice: see `Sink.effect`."""


class Batch(Generic[KR_co, VR_co]):
    """Records of one partition, in order, with rising offsets that may have gaps.

    Args:
        partition: where the records come from.
        records: the records.
        next_offset: the offset behind the last record, and behind what follows it and has no
            record (transaction markers, records that a transform left out).
        first_offset: the offset of the first record; by default what the record says.
        schema: the schema of the values; None if they are bytes or their type has none.
        key_schema: the schema of the keys; None for text or bytes.
        raw: keys and values as they lie in the log; needed only where they are not bytes.
    """

    __slots__ = (
        "_is_decoded",
        "_raw",
        "_records",
        "_rows",
        "first_offset",
        "key_schema",
        "next_offset",
        "partition",
        "schema",
    )

    def __init__(
        self,
        partition: TopicPartition,
        records: Sequence[Record[KR_co, VR_co]],
        *,
        next_offset: int,
        first_offset: int | None = None,
        schema: Schema | None = None,
        key_schema: Schema | None = None,
        raw: Sequence[tuple[bytes | None, bytes | None]] | None = None,
    ) -> None:
        self.partition = partition
        self._records: Sequence[Record[KR_co, VR_co]] | None = records
        self._rows: SinkRows | None = None
        self._is_decoded = False
        self.next_offset = next_offset
        # An empty batch still moves offsets, past markers and past records that were left out.
        if first_offset is None:
            first_offset = records[0].offset if records else next_offset
        self.first_offset = first_offset
        self.schema = schema
        self.key_schema = key_schema
        self._raw = raw

    @classmethod
    def of_rows(
        cls,
        rows: SinkRows,
        *,
        first_offset: int,
        next_offset: int,
        schema: Schema | None,
        key_schema: Schema | None,
    ) -> Batch[Any, Any]:
        """Return a batch of rows, as the runtime makes them; takes the arguments of the class."""
        batch: Batch[Any, Any] = cls(
            rows.partition,
            (),
            next_offset=next_offset,
            first_offset=first_offset,
            schema=schema,
            key_schema=key_schema,
        )
        batch._records, batch._rows = None, rows
        return batch

    @property
    def records(self) -> Sequence[Record[KR_co, VR_co]]:
        """The records. Where keys, values and offsets suffice, those cost less."""
        if self._records is None:
            self._records = () if self._rows is None else self._rows.records
        return self._records

    @property
    def keys(self) -> Sequence[KR_co]:
        """The keys, in order."""
        if self._rows is not None:
            return self._rows.keys
        return [record.key for record in self.records]

    @property
    def values(self) -> Sequence[VR_co]:
        """The values, in order."""
        if self._rows is not None:
            return self._rows.values
        return [record.value for record in self.records]

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets, in order."""
        if self._rows is not None:
            return self._rows.offsets
        return [record.offset for record in self.records]

    @property
    def topics(self) -> Sequence[str]:
        """The topics, in order: that of the partition, or those that a transform has given."""
        if self._rows is not None:
            return self._rows.topics
        return [record.topic for record in self.records]

    @property
    def times(self) -> Sequence[int] | Sequence[datetime]:
        """The times, in order: milliseconds since 1970, or datetimes where a transform was."""
        if self._rows is not None:
            return self._rows.times
        return [record.timestamp for record in self.records]

    @property
    def headers(self) -> Sequence[Headers]:
        """The headers, in order."""
        if self._rows is not None:
            return self._rows.headers
        return [record.headers for record in self.records]

    def arrow(self) -> UserObject:
        """Return the records as a `pyarrow.RecordBatch`.

        Its columns are the fields of the values (`value` if they have none), `_key`, `_timestamp`
        (microseconds, UTC) and `_offset`.

        Raises:
            BadRecords: values do not fit the schema; the error has their indexes.
            ConfigError: a time is outside of the years 1 to 9999.
        """
        return batch_to_arrow(
            self.values,
            self.schema,
            keys=self.keys,
            key_schema=self.key_schema,
            times=self.times,
            offsets=self.offsets,
        )

    def decoded(self) -> Batch[KR_co, VR_co]:
        """Return the batch without what `raw` returns, for a sink that keeps records in memory.

        A batch that was made of records is returned as it is.
        """
        if self._rows is None:
            return self
        batch: Batch[KR_co, VR_co] = Batch.of_rows(
            self._rows.decoded(),
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            schema=self.schema,
            key_schema=self.key_schema,
        )
        batch._is_decoded = True
        return batch

    def raw(self) -> Sequence[tuple[bytes | None, bytes | None]]:
        """Return keys and values as they lie in the log, not decoded.

        Raises:
            ConnectError: the batch was made of decoded records alone, as by `decoded`.
        """
        if self._raw is not None:
            return self._raw
        if self._rows is not None and not self._is_decoded:
            return [*zip(self._rows.log.keys, self._rows.log.values, strict=True)]
        # A batch of bytes that were never decoded, or one that a test made.
        pairs: list[tuple[bytes | None, bytes | None]] = []
        for record in self.records:
            key, value = record.key, record.value
            if not isinstance(key, bytes | None) or not isinstance(value, bytes | None):
                raise ConnectError(f"the batch of {self.partition} has no bytes, only values")
            pairs.append((key, value))
        return pairs

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.records if self._rows is None else self._rows)

    def __repr__(self) -> str:
        topic, number = self.partition
        return f"Batch({topic}-{number}, [{self.first_offset}, {self.next_offset}), <{len(self)}>)"


class OwnLog(Protocol):
    """Port: what a sink may know of the log that it reads, beside the records.

    Its calls raise the errors of the log's client.
    """

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups."""

    async def group_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, str]]:
        """Return what a group has committed for these partitions, with its metadata."""

    async def topic_settings(self, topic: str) -> Mapping[str, str]:
        """Return the settings that a topic has itself."""

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return the number of partitions of the topics that exist."""


class SinkContext(Protocol):
    """What a running sink gets from its runtime."""

    @property
    def name(self) -> str:
        """The connector's name; it tells its offsets in the target apart from those of others."""

    @property
    def task(self) -> int:
        """The number of the task, 0 or more."""

    @property
    def own_log(self) -> OwnLog | None:
        """The log, for a sink that mirrors more of it than records; None in a test without one."""

    def now(self) -> datetime:
        """Return the time: of the wall clock in a worker, of the driver in a test."""

    async def in_thread(self, fn: Callable[..., T], *args: UserObject) -> T:
        """Return the result of a function that blocks; it runs in the one thread of the task."""

    def count(self, what: str, by: int = 1) -> None:
        """Add to a figure of the connector's own: `streamlog_connector_<what>_total`."""


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """When what was written is committed: at the first of these.

    Attributes:
        records: the number of records, 1 or more.
        size_bytes: the bytes of their keys and values, 1 or more.
        every: the age of the first record that is not committed. With `stream_time`, the default
            counts as never: it would end every file of an hour after half a second.
        stream_time: stream time passes a multiple of this, by records and time marks alone, so
            that the cut is equal in every run; None for never. Name another `every` to end quiet
            partitions by the clock as well, after which cuts may differ from run to run.
    """

    records: Annotated[int, msgspec.Meta(ge=1)] = 5_000
    size_bytes: Annotated[int, msgspec.Meta(ge=1)] = 8 * 1024 * 1024
    every: Dur = "500ms"
    stream_time: Dur | None = None


class SinkTask(Generic[KW_contra, VW_contra]):
    """One task of a sink at work: connected inside `async with`, closed behind it.

    The calls never overlap, and come in the order
    `recover → (begin → write* → commit | abort)*`. After `Retriable` or a transient error the
    runtime aborts, waits, and starts again with the same records.
    """

    async def __aenter__(self) -> Self:
        """Connect."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close everything; nothing is committed here."""

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the next offsets that the target has committed, and fence every earlier owner.

        A partition that the target does not know is left out: the group's offset counts. By default
        the target knows none.
        """
        del partitions
        return {}

    async def begin(self) -> None:
        """Start a unit of work: what is written from here on counts together."""

    async def write(self, batch: Batch[KW_contra, VW_contra]) -> None:
        """Take records; called any number of times before a commit.

        Raises:
            BadRecords: some records can't be written; the error policy decides about them.
            Retriable: the target can't take records now.
            ConfigError: it refuses whatever is written, such as for a missing right: the task
                fails, and no record goes to the dead letters.
        """
        del batch
        raise TypeError(f"{type(self).__name__} has no method write")

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make everything since `begin` durable, and the next offsets in the same step if it can.

        Raises:
            Fenced: another task has taken over a partition.
        """

    async def abort(self) -> None:
        """Drop everything since `begin`. It has to work after any error, and twice."""

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Let go of partitions that another task gets; called after the last commit or abort."""

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Set the target's offsets, or forget them where None, as an operator has asked.

        The connector is stopped; the task is connected, and gets no other call.
        """


class Sink(msgspec.Struct, Generic[KW_contra, VW_contra], frozen=True, kw_only=True):
    """Writes a topic to the outside.

    A sink is a value whose fields are its settings; nothing is opened when it is made.
    """

    effect: ClassVar[Effect] = "appending"
    """What the target has when the same records are written twice.

    transactional: `recover` returns the target's own offsets, so records arrive exactly once.
    repeatable: a range of offsets that is written again leaves what writing it once leaves (by file
    names, keys or versions). The runtime writes the range to the log before the target commits, and
    repeats exactly that range after a crash, so records arrive exactly once.
    appending: rows of one flush may come twice; at least once."""
    streams: ClassVar[bool] = False
    """Whether batches are written as they come, perhaps minutes before the commit (files). Such a
    sink holds no lock of the target's meanwhile: its successor's `recover` would wait for it.
    False: `begin`, `write` and `commit` run in one go when a flush is due."""
    takes_bytes: ClassVar[bool] = False
    """Whether keys and values are written as they lie in the log. Then nothing is decoded for the
    sink where converters keep bytes and no transform looks at them, and no record is made."""
    incidental: ClassVar[frozenset[str]] = frozenset({"flush"})
    """Settings that may change while a range waits to be repeated, since they do not say what is
    written: `flush` among them, and for instance the addresses of a cluster's nodes."""
    transient: ClassVar[tuple[type[BaseException], ...]] = (OSError, TimeoutError)
    """Errors after which the flush is aborted and tried again, with back-off and without end."""

    flush: Flush = Flush()

    def check(self) -> None:
        """Refuse settings that do not go together, without touching anything outside.

        Raises:
            ConfigError: two settings contradict each other, or one is out of range.
        """

    def open(self, context: SinkContext) -> SinkTask[KW_contra, VW_contra]:
        """Return a task that is not connected yet."""
        del context
        raise TypeError(f"{type(self).__name__} has no method open")
