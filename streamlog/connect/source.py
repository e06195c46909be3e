"""Source: the port of connectors that read from outside into a topic.

A source is a value: its fields are its settings. `partitions` names the parts of the outside that
are read by themselves, such as the tables of a database; `read` is a generator over one part, and
yields records together with the offset behind them.

Rule: records and offset of one `Read` count together, in one transaction, or not at all. A source
keeps no state besides: what its generator needs to continue is in the offset.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

import msgspec

from streamlog.connect.row_schema import Schema
from streamlog.durations import Dur, When, moment
from streamlog.errors import ConfigError
from streamlog.record import Headers, K, Record, V
from streamlog.serdes.erased_types import AnyRecord, UserObject, UserValue

T = TypeVar("T")
KR_co = TypeVar("KR_co", covariant=True)
"""The type of the keys that are read."""
VR_co = TypeVar("VR_co", covariant=True)
"""The type of the values that are read."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value of JSON."""
SourcePartition: TypeAlias = Mapping[str, Json]
"""The name of a part of the outside that is read by itself, such as {"table": "orders"}. It is the
key of the part's offset in the log; equal as JSON is the same part."""
SourceOffset: TypeAlias = Mapping[str, Json]
"""How far a part was read, such as {"inode": 42, "at": 1000}: everything that `read` needs to
continue behind the last record."""
Guarantee: TypeAlias = Literal["exactly_once", "at_least_once", "at_most_once"]

READ_BYTES_MAX = 16 * 1024 * 1024
"""The largest Read: all of it has to fit into one transaction."""


class Transform(Protocol):
    """Changes a record on its way, or leaves it out by returning None."""

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record to carry, or None."""


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """Keys and values as columns.

    Attributes:
        values: the values; None is a tombstone.
        keys: a key for each value, or None for no keys.
        timestamps_ms: a time for each value in milliseconds since 1970, or None for now.
        headers: the headers of each value, or None for none.
        topic: the connector's own name of the topic; "" if it has one topic.
    """

    values: Sequence[UserValue]
    keys: Sequence[UserValue] | None
    timestamps_ms: Sequence[int] | None
    headers: Sequence[Headers] | None
    topic: str
    is_raw: bool
    """Whether keys and values are bytes that go to the log as they are."""

    def records(self, now: datetime) -> list[Record[Any, Any]]:
        """Return the records."""
        # Missing columns become rows of nothing, so one comprehension serves all forms.
        count = len(self.values)
        keys = self.keys or (None,) * count
        headers = self.headers or ((),) * count
        times = [now] * count if self.timestamps_ms is None else map(moment, self.timestamps_ms)
        return [
            Record(key, value, time, header, self.topic)
            for key, value, time, header in zip(keys, self.values, times, headers, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The rows of a `pyarrow.RecordBatch`, each one a record.

    Attributes:
        rows: the batch.
        key: the columns of the key.
        timestamp: the column of the event time; None for now.
        topic: the connector's own name of the topic; "" if it has one topic.
    """

    rows: UserObject
    key: tuple[str, ...]
    timestamp: str | None
    topic: str

    def __len__(self) -> int:
        """Return the number of rows."""
        count: int = self.rows.num_rows
        return count

    def records(self, now: datetime) -> list[Record[Any, Any]]:
        """Return a record for each row, whose value is the row as a dict.

        Raises:
            ConfigError: a column of key or time is not in the rows, or the time has no zone.
        """
        known = self.rows.schema.names
        for name in (*self.key, self.timestamp):
            if name is not None and name not in known:
                raise ConfigError(f"the rows have no column {name}; they have {', '.join(known)}")
        return [
            Record(self._key(row), row, self._time(row, now), (), self.topic)
            for row in _in_microseconds(self.rows).to_pylist()
        ]

    def _key(self, row: Mapping[str, UserValue]) -> UserValue:
        if len(self.key) == 1:
            return row[self.key[0]]
        return {name: row[name] for name in self.key} or None

    def _time(self, row: Mapping[str, UserValue], now: datetime) -> datetime:
        if self.timestamp is None:
            return now
        time = row[self.timestamp]
        if not isinstance(time, datetime) or time.tzinfo is None:
            raise ConfigError(
                f"the column {self.timestamp} has {time!r}, which is no point in time: give it the "
                "type timestamp with a time zone"
            )
        return time


def _in_microseconds(rows: UserObject) -> UserObject:
    """Return rows whose times Python's own classes can hold."""
    # With pandas installed, Arrow gives nanoseconds as pandas.Timestamp, which no serde knows.
    pa: UserObject = import_module("pyarrow")
    fields = []
    for each in rows.schema:
        kind = each.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            kind = pa.timestamp("us", kind.tz)
        elif pa.types.is_duration(kind) and kind.unit == "ns":
            kind = pa.duration("us")
        fields.append(each.with_type(kind))
    declared = pa.schema(fields)
    if declared == rows.schema.remove_metadata():
        return rows
    columns = [
        column.cast(field.type, safe=False) for column, field in zip(rows, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=declared)


class Read(Generic[KR_co, VR_co]):
    """One step of a source: records, and how far the part was read once they count.

    Args:
        records: the records, in order; none, if only the offset has moved.
        offset: the offset behind the records.
        schema: the schema of the values, if the declared type does not say it (rows as dicts).
        key_schema: the schema of the keys. A record that brings its own schemas, a
            `SchemaRecord`, keeps them, so that one Read may have the rows of several tables.
        committed: called on the event loop after the transaction with this Read has committed,
            and never for a Read that does not count. It acknowledges outside what is in the log.

    Attributes:
        read_columns: for `Read.raw` and `Read.columns`, the columns of the records; None otherwise.
        rows: for `Read.arrow`, the batch of rows; None otherwise.
    """

    __slots__ = (
        "_records", "committed", "key_schema", "offset", "read_columns", "rows", "schema",
    )  # fmt: skip

    def __init__(
        self,
        records: Iterable[Record[KR_co, VR_co]],
        offset: SourceOffset,
        *,
        schema: Schema | None = None,
        key_schema: Schema | None = None,
        committed: Callable[[], object] | None = None,
    ) -> None:
        self._records: Sequence[Record[KR_co, VR_co]] | None = [*records]
        self.offset = offset
        self.schema = schema
        self.key_schema = key_schema
        self.committed = committed
        self.read_columns: ReadColumns | None = None
        self.rows: RowColumns | None = None

    @classmethod
    def raw(
        cls,
        values: Sequence[bytes | None],
        offset: SourceOffset,
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        topic: str = "",
        committed: Callable[[], object] | None = None,
    ) -> Read[Any, Any]:
        """Return a step whose keys and values go to the log as they are, without a serde.

        `ByteSpans`, such as the lines that `cut_lines` finds in a chunk, are copied from the chunk
        into the batch, and cost a third of what a list of bytes costs.

        Args:
            values: the values; None is a tombstone.
            offset: the offset behind the records.
            keys: a key for each value; none by default.
            timestamps_ms: a time for each value, in milliseconds since 1970; now by default.
            headers: the headers of each value; none by default.
            topic: the connector's own name of the topic (a table's), if it feeds several.
            committed: as of `Read`.

        Raises:
            ValueError: the columns differ in length.
        """
        columns = ReadColumns(values, keys, timestamps_ms, headers, topic, is_raw=True)
        return cls._of_columns(columns, offset, committed)

    @classmethod
    def columns(
        cls,
        values: Sequence[UserValue],
        offset: SourceOffset,
        *,
        keys: Sequence[UserValue] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        topic: str = "",
        schema: Schema | None = None,
        key_schema: Schema | None = None,
        committed: Callable[[], object] | None = None,
    ) -> Read[Any, Any]:
        """Return a step whose keys and values the topic's types write, as of `Read`.

        A record costs a quarter of what it costs as a `Record`, which matters for tables.

        Args:
            values: the values, of the topic's type or dicts; None is a tombstone.
            offset: the offset behind the records.
            keys: a key for each value; none by default.
            timestamps_ms: a time for each value, in milliseconds since 1970; now by default.
            headers: the headers of each value; none by default.
            topic: the connector's own name of the topic (a table's), if it feeds several.
            schema: as of `Read`.
            key_schema: as of `Read`.
            committed: as of `Read`.

        Raises:
            ValueError: the columns differ in length.
        """
        columns = ReadColumns(values, keys, timestamps_ms, headers, topic, is_raw=False)
        read = cls._of_columns(columns, offset, committed)
        read.schema, read.key_schema = schema, key_schema
        return read

    @classmethod
    def _of_columns(
        cls,
        columns: ReadColumns,
        offset: SourceOffset,
        committed: Callable[[], object] | None,
    ) -> Read[Any, Any]:
        count = len(columns.values)
        for column in (columns.keys, columns.timestamps_ms, columns.headers):
            if column is not None and len(column) != count:
                raise ValueError(f"{count} values with {len(column)} keys, timestamps or headers")
        read = cls((), offset, committed=committed)
        # Not records: most of these reads are written as they are, and no object is made for each.
        read.read_columns = columns
        read._records = None
        return read

    @classmethod
    def arrow(
        cls,
        rows: UserObject,
        offset: SourceOffset,
        *,
        key: Sequence[str] = (),
        timestamp: str | None = None,
        topic: str = "",
        committed: Callable[[], object] | None = None,
    ) -> Read[Any, Any]:
        """Return a step with a record for each row of a `pyarrow.RecordBatch`.

        Args:
            rows: the batch; a value is a row as a dict.
            offset: the offset behind the rows.
            key: the columns of the key: one gives its value, several a dict, none no key.
            timestamp: the column of the event time; now by default.
            topic: the connector's own name of the topic, if it feeds several.
            committed: as of `Read`.
        """
        read = cls((), offset, schema=Schema.of_arrow(rows.schema), committed=committed)
        read.rows = RowColumns(rows, tuple(key), timestamp, topic)
        read._records = None
        return read

    def __len__(self) -> int:
        """Return the number of records."""
        if self.read_columns is not None:
            return len(self.read_columns.values)
        return len(self.rows) if self.rows is not None else len(self._records or ())

    def records(self, now: datetime) -> Sequence[Record[KR_co, VR_co]]:
        """Return the records; those without a time of their own have `now`.

        Keys and values of `Read.raw` are bytes, values of `Read.arrow` are dicts.
        """
        # Made once: transforms and the error policy ask for the records again.
        if self._records is None:
            if self.read_columns is not None:
                self._records = self.read_columns.records(now)
            elif self.rows is not None:
                self._records = self.rows.records(now)
        return self._records or ()

    def __repr__(self) -> str:
        return f"Read(<{len(self)} records>, {dict(self.offset)!r})"


class SourceContext(Protocol):
    """What a running source gets from its runtime."""

    @property
    def name(self) -> str:
        """The connector's name."""

    @property
    def task(self) -> int:
        """The number of the task, 0 or more."""

    def now(self) -> datetime:
        """Return the time: of the wall clock in a worker, of the driver in a test."""

    async def sleep(self, time: Dur) -> None:
        """Wait; in a test, until the driver's time has advanced as far.

        Raises:
            asyncio.CancelledError: the task stops.
        """

    async def in_thread(self, fn: Callable[..., T], *args: UserObject) -> T:
        """Return the result of a function that blocks; it runs in the one thread of the task."""

    @overload
    def record(
        self,
        value: V,
        *,
        timestamp: When | None = None,
        headers: Headers = (),
        topic: str = "",
    ) -> Record[None, V]: ...
    @overload
    def record(
        self,
        value: V,
        *,
        key: K,
        timestamp: When | None = None,
        headers: Headers = (),
        topic: str = "",
    ) -> Record[K, V]: ...
    def record(
        self,
        value: V,
        *,
        key: K | None = None,
        timestamp: When | None = None,
        headers: Headers = (),
        topic: str = "",
    ) -> Record[Any, V]:
        """Return a record to yield.

        Args:
            value: the value.
            key: the key; None by default.
            timestamp: the event time; now by default.
            headers: names and bytes.
            topic: the connector's own name of the topic (a table's), if it feeds several.
        """

    def count(self, what: str, by: int = 1) -> None:
        """Add to a figure of the connector's own: `streamlog_connector_<what>_total`."""

    def measure(self, what: str, value: float) -> None:
        """Set a gauge of the connector's own: `streamlog_connector_<what>`.

        It is shown as it was measured last, while the task runs.
        """


class Source(msgspec.Struct, Generic[KR_co, VR_co], frozen=True, kw_only=True):
    """Reads from outside into a topic.

    A source is a value whose fields are its settings; nothing is opened when it is made.
    """

    guarantee: ClassVar[Guarantee] = "exactly_once"
    """What the source promises. "exactly_once": read again from an offset, the same records come in
    the same order. It is refused where `exactly.once.support=required` asks for more; the runtime
    does the same for each."""
    transient: ClassVar[tuple[type[BaseException], ...]] = (OSError, TimeoutError)
    """Errors after which reading starts again behind the last Read, with back-off."""

    def check(self) -> None:
        """Refuse settings that do not go together, without touching anything outside.

        Raises:
            ConfigError: two settings contradict each other, or one is out of range.
        """

    def topic_names(self) -> Sequence[str]:
        """Return the source's own names of the topics that it feeds, as far as the settings tell.

        They are those in its records (`context.record(topic=)`); none by default. They say which
        rights the source needs before it has written anything.
        """
        return ()

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return the parts that exist now; by default one that needs no name, `{}`.

        The leader asks every `discover_every`, and deals the parts evenly to tasks. A part that is
        missing from the list is read no more. The answer must not depend on which worker asks.
        """
        del context
        return [{}]

    async def release(self, context: SourceContext) -> str:
        """Remove what the outside keeps for this source, and return what it was, for people.

        An operator asks for it when the connector is deleted; no task of it runs any more. A
        replication slot is such a thing: the server keeps all changes for it.

        Raises:
            ConfigError: the outside keeps nothing for a source of this kind (the default).
            ConnectError: it can't be removed now; the message says what to do.
        """
        del context
        raise ConfigError(f"{type(self).__name__}: there is nothing outside to be released")

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[KR_co, VR_co]] | Iterator[Read[KR_co, VR_co]]:
        """Yield what follows `offset`, while there may be more; a return means: never any more.

        An async generator runs on the event loop. A plain generator may block: it runs in a thread
        of its own. Either is asked for the next Read only when there is room for it, which is the
        back-pressure. It is closed when the task stops, moves or starts over, so clean up in
        `finally`. Only one reader of a part exists at a time, among all workers.

        Args:
            partition: one of the parts that `partitions` returned.
            offset: the offset of the last Read that counts; None if the part was never read. If the
                place to begin depends on the moment, yield an empty Read first: the runtime commits
                it before it asks for anything else.
            context: the runtime.

        Raises:
            BadRecord: the source can't make a record of what it read; the error policy decides.
                Give it the `offset` behind the record, or reading begins again before it, and fails
                if the source refuses the same record there.
            Retriable: the other side can't answer now; reading starts again behind the last Read.
        """
        del partition, offset, context
        raise TypeError(f"{type(self).__name__} has no method read")
