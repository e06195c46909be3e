"""Batch: records on their way through the steps of a task, as columns.

A batch is a run of records that one input delivered in the order of the task. Steps work on whole
columns, in loops that run in C where that gives exact results, and produce new columns. What they
do not touch (offsets, stream times, raw bytes, headers) stays in the `BatchOrigin`, and `rows` maps
each record to its entry there. Serdes convert whole columns where they can. Rule of the module:
columns are never changed in place. An error always belongs to one record, and `failure` adds its
coordinates; a `sys.exit` in a user's function counts as an error of the record. Not done here: what
happens to a record that fails (`error_handling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import datetime
from itertools import compress
from typing import Protocol, TypeVar, cast

from streamlog.durations import moment
from streamlog.errors import ProcessingError, StreamlogError
from streamlog.processing.provenance import identity
from streamlog.record import Headers, Record, Windowed
from streamlog.records.record_columns import all_of_type, called, has_none, suffixed
from streamlog.serdes import (
    BytesSerde,
    IntSerde,
    JsonSerde,
    PackedSerde,
    StrSerde,
    WindowedSerde,
    span_of,
)
from streamlog.serdes.erased_types import AnyRecord, AnySerde, UserKey, UserValue
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source


def exit_failure(stop: BaseException) -> Exception:
    """Return the error of a function that tried to end the process."""
    failure = RuntimeError(
        f"{_location(stop)} raised {stop!r}, and a function can't end its worker: raise an error to"
        " fail, or return"
    )
    failure.__cause__ = stop
    return failure


def _location(stop: BaseException) -> str:
    """Return the function that raised it, with its file and line."""
    at = stop.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None:
        return "the function"
    code = at.tb_frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{at.tb_lineno})"


_FAST_READERS = (StrSerde, JsonSerde, PackedSerde)
_FAST_WRITERS = (StrSerde, IntSerde, JsonSerde, PackedSerde)
_BYTES: frozenset[type] = frozenset({bytes, type(None)})


def deserialize_column(serde: AnySerde, column: Sequence[bytes | None]) -> list[UserValue]:
    """Return `loads` of each entry.

    Raises:
        Exception: an entry is unreadable; it does not say which one.
    """
    if type(serde) is BytesSerde:
        return list(column)
    # By the exact class: a derived class may decode differently.
    if type(serde) in _FAST_READERS:
        return called(serde.decode, column)  # type: ignore[attr-defined]
    return called(serde.loads, column)


def serialize_column(serde: AnySerde, column: Sequence[UserValue]) -> list[bytes | None]:
    """Return `dumps` of each entry.

    Raises:
        Exception: an entry cannot be written; it does not say which one.
    """
    if type(serde) is BytesSerde and all_of_type(column, _BYTES):
        return list(column)
    # `encode` would also write values of some other types, which `dumps` refuses.
    if type(serde) in _FAST_WRITERS and all_of_type(column, serde.exact):  # type: ignore[attr-defined]
        found = called(serde.encode, column)  # type: ignore[attr-defined]
        if type(serde) is not JsonSerde or serde.is_exact(found):
            return found
    return called(serde.dumps, column)


T = TypeVar("T")
"""An entry of a column."""


class TimeSource:
    """What records of a task come from, and whose stream time they carry.

    An input partition, or a windowed aggregation that emits on close. `time_ms` is the event time
    that all of it has reached; `quiet_ms` is for how long nothing has come from it; `at_end` is
    whether everything that exists has been taken.
    """

    def __init__(
        self, source: Source, key: AnySerde | None = None, value: AnySerde | None = None
    ) -> None:
        """`key` and `value` are the serdes that decoded its raw bytes, if it has any."""
        self.source = source
        self.identity = identity(source)
        self.provenance = self.identity
        """The source, as the headers of records in repartition topics name it."""
        self.key = key
        self.value = value
        self.time_ms = UNKNOWN_MS
        self.marked_ms = UNKNOWN_MS
        """The time that time marks of the log have given it; of inputs."""
        self.turn_ms = UNKNOWN_MS
        """After a repartition, the smallest merge key that later records can have."""
        self.quiet_ms = 0
        self.at_end = False

    @property
    def united_ms(self) -> int:
        """The time that it has reached, for a node that takes several time sources as one."""
        return max(self.turn_ms, self.time_ms)

    def source_times(self) -> list[tuple[Source, int, int]]:
        """Return its sources with their stream times and quiet times, in milliseconds."""
        return [(self.source, self.time_ms, self.quiet_ms)]

    def update_end(self, feeds: Iterable[TimeSource], *, is_holding: bool = False) -> None:
        """Update the quiet time and the end, as the time source of rows that a step produces.

        Args:
            feeds: the time sources that the step's records come from.
            is_holding: whether rows wait in the step; then it is neither quiet nor at its end.
        """
        feeds = list(feeds)
        self.quiet_ms = 0 if is_holding else min((feed.quiet_ms for feed in feeds), default=0)
        self.at_end = not is_holding and all(feed.at_end for feed in feeds)

    def held_ms(self, idle_after_ms: int | None) -> int:  # noqa: ARG002 - of those that merge
        """Return the time beyond which a source that is read to its end holds back the others.

        This is a limit on top of `time_ms` and the records' stream times. Sources quiet for
        `idle_after_ms` do not count.
        """
        return FAR_MS


class BatchOrigin:
    """Where the records of a batch came from: columns with an entry per record taken."""

    __slots__ = (
        "feed",
        "headers",
        "log_times",
        "moments",
        "offsets",
        "partition",
        "positions",
        "raw_keys",
        "raw_values",
        "sources",
        "stamp",
        "times",
        "topic",
        "turns",
        "watermarks",
    )

    def __init__(
        self,
        feed: TimeSource,
        *,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        positions: Sequence[int],
        times: Sequence[int],
        watermarks: Sequence[int],
        turns: Sequence[int] | None = None,
        moments: Sequence[int] | None = None,
        sources: Sequence[Source] | None = None,
        raw_keys: Sequence[bytes | None] | None = None,
        raw_values: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        stamp: Callable[[int], bytes] | None = None,
        log_times: Sequence[int] | None = None,
    ) -> None:
        self.feed = feed
        self.topic = topic
        self.partition = partition
        self.offsets = offsets
        """Offsets of the records, for messages."""
        self.positions = positions
        """What identifies a record within its time source: offsets, or numbers of rows."""
        self.times = times
        """Stream time of each record's own source, the record included."""
        self.watermarks = watermarks
        """Stream time of the whole time source at each record; the record's results carry it."""
        self.turns = watermarks if turns is None else turns
        """The merge key of each record's results after a repartition."""
        self.moments = self.turns if moments is None else moments
        """The time at each record for a node that takes several time sources as one."""
        self.sources = sources
        """Each record's own source; None: all come from the time source itself."""
        self.raw_keys = raw_keys
        self.raw_values = raw_values
        self.headers = headers
        """None: no record has any."""
        self.stamp = stamp
        """Returns what identifies the record of a row in its source upstream; None: the source is
        the time source itself."""
        self.log_times = log_times
        """The records' timestamps in the log of their topic; None: rows of a step, or records
        of a repartition topic."""

    @classmethod
    def of_rows(
        cls,
        feed: TimeSource,
        numbers: Sequence[int],
        times: Sequence[int],
        *,
        raw_keys: Sequence[bytes | None] | None = None,
        raw_values: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] = (),
    ) -> BatchOrigin:
        """Create the origin of rows that a step produces, with numbers for offsets."""
        topic, partition = feed.source
        return cls(
            feed,
            topic=topic,
            partition=partition,
            offsets=numbers,
            positions=numbers,
            times=times,
            watermarks=times,
            raw_keys=raw_keys,
            raw_values=raw_values,
            headers=headers if any(headers) else None,
        )

    def at_node(self, feed: TimeSource, times: Sequence[int]) -> BatchOrigin:
        """Return the origin with the times that the records have at one node (`node_time`)."""
        return BatchOrigin(
            feed,
            topic=self.topic,
            partition=self.partition,
            offsets=self.offsets,
            positions=self.positions,
            times=times,
            watermarks=times,
            turns=self.turns,
            moments=times,
            sources=self.sources,
            raw_keys=self.raw_keys,
            raw_values=self.raw_values,
            headers=self.headers,
            stamp=self.stamp,
            log_times=self.log_times,
        )

    def with_headers(self, headers: Sequence[Headers]) -> BatchOrigin:
        """Return the origin with other headers, one entry per row."""
        found = copy(self)
        found.headers = headers if any(headers) else None
        return found

    def at_rows(self, rows: Sequence[int]) -> BatchOrigin:
        """Return the origin with an entry for each of these rows, which may repeat."""
        found, stamp = copy(self), self.stamp
        for name in _COLUMNS:
            column = getattr(self, name)
            if column is not None:
                setattr(found, name, [column[row] for row in rows])
        found.stamp = None if stamp is None else lambda at: stamp(rows[at])
        return found

    def record_id(self, row: int) -> bytes:
        """Return what identifies a record, independent of when and where it is processed."""
        if self.stamp is not None:
            return self.stamp(row)
        return b"%d " % self.positions[row] + self.feed.identity


_COLUMNS = (
    *("offsets", "positions", "times", "watermarks", "turns", "moments", "sources"),
    *("raw_keys", "raw_values", "headers", "log_times"),
)
"""What an origin has an entry of for each row."""


class WindowedKeys:
    """The keys of windowed results, created only on demand.

    Most are written as they are: the bytes of the key, then those of the window.
    """

    __slots__ = ("_key", "_raws", "_windows")

    def __init__(self, key: AnySerde, raws: list[bytes], windows: Sequence[ResultWindow]) -> None:
        """`key` is the serde of the raw keys; `windows` has the window of each."""
        self._key = key
        self._raws = raws
        self._windows = windows

    def where(self, selected: Sequence[object]) -> WindowedKeys:
        """Return the keys for which `selected` is true."""
        raws, windows = compress(self._raws, selected), compress(self._windows, selected)
        return WindowedKeys(self._key, list(raws), list(windows))

    def objects(self) -> list[Windowed[UserKey]]:
        """Return the keys as the user sees them."""
        keys = deserialize_column(self._key, self._raws)
        pairs = zip(keys, self._windows, strict=True)
        return [Windowed(key, window.start, window.end) for key, window in pairs]

    def written_by(self, serde: AnySerde) -> list[bytes] | None:
        """Return the keys as this serde writes them; None if that requires the objects."""
        if type(serde) is not WindowedSerde or serde.layout is None:
            return None
        layout = serde.layout
        if serde.key_serde is self._key:
            return suffixed(self._raws, self._windows, layout.of)
        try:
            raws = serialize_column(serde.key_serde, deserialize_column(self._key, self._raws))
            return suffixed(
                cast("list[bytes]", raws), self._windows, lambda span: layout.dumps(*span_of(span))
            )
        except Exception:  # noqa: BLE001 - a serde of the user: writing the objects finds the key
            return None


class RawKeys:
    """Keys as bytes that are certain to decode, decoded only on demand."""

    __slots__ = ("_key", "_raws")

    def __init__(self, key: AnySerde, raws: Sequence[bytes | None]) -> None:
        self._key = key
        self._raws = raws

    def part(self, run: slice) -> RawKeys:
        """Return the keys of a run."""
        return RawKeys(self._key, self._raws[run])

    def where(self, selected: Sequence[object]) -> RawKeys:
        """Return the keys for which `selected` is true."""
        return RawKeys(self._key, list(compress(self._raws, selected)))

    def objects(self) -> list[UserValue]:
        """Return the keys as the user sees them."""
        return deserialize_column(self._key, self._raws)

    def written_by(self, serde: AnySerde) -> Sequence[bytes | None] | None:
        """Return the keys as this serde writes them; None if that requires the objects."""
        return self._raws if serde is self._key else None


class ResultWindow(Protocol):
    """The window of a result: its start and end, and both as bytes (`windowed_bytes`)."""

    @property
    def start_ms(self) -> int:
        """Start of the window, inclusive."""

    @property
    def end_ms(self) -> int:
        """End of the window."""

    @property
    def start(self) -> datetime:
        """Start of the window, inclusive."""

    @property
    def end(self) -> datetime:
        """End of the window."""

    @property
    def suffix(self) -> bytes:
        """Start and end as bytes."""


class Batch:
    """Records with a key, a value and a timestamp each.

    `rows` is a range only if it stands for all entries of the origin, in order.
    """

    __slots__ = (
        "_keys",
        "_unmade",
        "keys_are_raw",
        "old_values",
        "origin",
        "rows",
        "timestamps",
        "values",
        "values_are_raw",
    )

    def __init__(
        self,
        origin: BatchOrigin,
        rows: Sequence[int],
        keys: Sequence[UserKey] | WindowedKeys | RawKeys,
        values: Sequence[UserValue],
        timestamps: Sequence[int],
    ) -> None:
        self.origin = origin
        self.rows = rows
        self._unmade: WindowedKeys | RawKeys | None = None
        self._keys: Sequence[UserKey] | None = None
        if isinstance(keys, WindowedKeys | RawKeys):
            self._unmade = keys
        else:
            self._keys = keys
        self.values = values
        self.timestamps = timestamps
        self.keys_are_raw = True
        """The keys are those that came in, so the origin has their bytes."""
        self.values_are_raw = True
        self.old_values: Sequence[UserValue] | None = None
        """In changes of a table, the value that each change replaces; None if there was none.

        Only where a step downstream needs them (`Subtopology.sends_old_values`). Along one edge
        they form a chain: the old value of a change is the value that the key's last change sent
        on.
        """

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keys(self) -> Sequence[UserKey]:
        """The keys, decoded."""
        if self._keys is None:
            self._keys = () if self._unmade is None else self._unmade.objects()
        return self._keys

    @property
    def has_null_keys(self) -> bool:
        """Whether a record has no key."""
        return not isinstance(self._unmade, WindowedKeys) and has_none(self.keys)

    def with_values(self, values: Sequence[UserValue]) -> Batch:
        """Return the records with other values."""
        batch = Batch(self.origin, self.rows, self._unmade or self.keys, values, self.timestamps)
        batch._keys = self._keys
        batch.keys_are_raw = self.keys_are_raw
        batch.values_are_raw = False
        return batch

    def with_keys(self, keys: Sequence[UserKey]) -> Batch:
        """Return the records with other keys."""
        batch = Batch(self.origin, self.rows, keys, self.values, self.timestamps)
        batch.keys_are_raw = False
        batch.values_are_raw = self.values_are_raw
        return batch

    def with_origin(self, origin: BatchOrigin) -> Batch:
        """Return the records with another origin."""
        batch = self.with_old_values(self.old_values)
        batch.origin = origin
        return batch

    def with_headers(self, headers: Sequence[Headers]) -> Batch:
        """Return the records with other headers, one entry per record."""
        origin, rows = self.origin, self.rows
        if isinstance(rows, range):
            return self.with_origin(origin.with_headers(headers))
        if len({*rows}) == len(rows):
            column: list[Headers] = [()] * len(origin.offsets)
            for row, each in zip(rows, headers, strict=True):
                column[row] = each
            return self.with_origin(origin.with_headers(column))
        # 1. A flat_map makes two records of row 7, which share what the origin says of row 7.
        # 2. Their headers may differ: each gets a row of its own. Their position stays one, so both
        #    have the identity that they had (`RepartitionStep`, `ProcessorStep`).
        batch = self.with_origin(origin.at_rows(rows).with_headers(headers))
        # A list and no range: records were left out or repeated on the way here (`node_time`).
        batch.rows = [*range(len(rows))]
        return batch

    def with_old_values(self, old_values: Sequence[UserValue] | None) -> Batch:
        """Return the changes of a table with the values that they replace."""
        keys = self._unmade or self.keys
        batch = Batch(self.origin, self.rows, keys, self.values, self.timestamps)
        batch._keys = self._keys
        batch.keys_are_raw = self.keys_are_raw
        batch.values_are_raw = self.values_are_raw
        batch.old_values = old_values
        return batch

    def where(self, kept: Iterable[object]) -> Batch:
        """Return the records for which `kept` is true."""
        selected = list(kept)
        # Keys that are not decoded yet stay so, and decoded ones are not decoded again.
        unmade, keys = self._unmade, self._keys
        kept_keys = None if keys is None else list(compress(keys, selected))
        batch = Batch(
            self.origin,
            list(compress(self.rows, selected)),
            kept_keys or () if unmade is None else unmade.where(selected),
            list(compress(self.values, selected)),
            list(compress(self.timestamps, selected)),
        )
        batch._keys = kept_keys
        batch.keys_are_raw = self.keys_are_raw
        batch.values_are_raw = self.values_are_raw
        if self.old_values is not None:
            batch.old_values = list(compress(self.old_values, selected))
        return batch

    def of_origin(self, column: Sequence[T]) -> Sequence[T]:
        """Return a column of the origin, reduced to the entries of these records."""
        if isinstance(self.rows, range):
            return column
        return [column[row] for row in self.rows]

    def raw_keys(self, serde: AnySerde, node: str) -> Sequence[bytes | None]:
        """Return the keys as bytes: those that came in, if the keys and the serde are unchanged."""
        # The very serde, not an equal one: another serde may write the key in other bytes, and the
        # bytes decide its partition.
        raw = self.origin.raw_keys
        if self.keys_are_raw and raw is not None and self.origin.feed.key is serde:
            return self.of_origin(raw)
        written = None if self._unmade is None else self._unmade.written_by(serde)
        return self.encode_column(self.keys, serde, node) if written is None else written

    def raw_values(self, serde: AnySerde, node: str) -> Sequence[bytes | None]:
        """Return the values as bytes: those that came in, if values and serde are unchanged."""
        raw = self.origin.raw_values
        if self.values_are_raw and raw is not None and self.origin.feed.value is serde:
            return self.of_origin(raw)
        return self.encode_column(self.values, serde, node)

    def encode_column(
        self, column: Sequence[UserValue], serde: AnySerde, node: str
    ) -> Sequence[bytes | None]:
        """Return the column as bytes; None stays None.

        Raises:
            ProcessingError: the serde failed; with the coordinates of the record.
        """
        try:
            return serialize_column(serde, column)
        except Exception:  # noqa: BLE001 - a serde of the user: found and raised again below
            # Encode again one by one, to find the record and the reason.
            dumps = serde.dumps
            return self.apply_function(
                node, lambda item: None if item is None else dumps(item), column
            )

    def apply_function(
        self, node: str, fn: Callable[..., T], *columns: Sequence[UserValue]
    ) -> list[T]:
        """Return the result of the user's function for each record.

        Raises:
            ProcessingError: the function raised; with the coordinates of the record.
        """
        results, error = map_until_error(fn, *columns)
        if error is not None:
            raise self.failure(node, len(results), error) from error
        return results

    def failure(self, node: str, at: int, error: Exception) -> ProcessingError:
        """Return the error of the record at this index of the batch, for the caller to raise."""
        origin = self.origin
        return processing_error(
            node, origin.topic, origin.partition, origin.offsets[self.rows[at]], error
        )

    def records(self) -> list[AnyRecord]:
        """Return the records as the user sees them."""
        return [self.record(at) for at in range(len(self.rows))]

    def record(self, at: int) -> AnyRecord:
        """Return one record as the user sees it."""
        origin, row = self.origin, self.rows[at]
        return Record(
            self.keys[at],
            self.values[at],
            moment(self.timestamps[at]),
            origin.headers[row] if origin.headers is not None else (),
            origin.topic,
            origin.partition,
            origin.offsets[row],
        )


def map_until_error(
    fn: Callable[..., T], *columns: Sequence[UserValue]
) -> tuple[list[T], Exception | None]:
    """Return the function's results for the entries before the first error, and that error."""
    results: list[T] = []
    try:
        # `extend` keeps the results before an error: their number is the index of the error.
        results.extend(map(fn, *columns))
    except Exception as error:  # noqa: BLE001 - the user's code: the caller adds coordinates
        return results, error
    except SystemExit as stop:
        return results, exit_failure(stop)
    if len(results) < len(columns[0]):
        # Only a StopIteration out of the function ends `map` early.
        return results, RuntimeError("the function raised StopIteration")
    return results, None


def processing_error(
    node: str, topic: str, partition: int, offset: int, error: Exception
) -> ProcessingError:
    """Return an error with a record's coordinates and the node that failed."""
    if isinstance(error, ProcessingError):
        return error
    cause = str(error) if isinstance(error, StreamlogError) else f"{type(error).__name__}: {error}"
    # A source fails on a record that the log does not have yet.
    where = (
        f"at offset {offset} of {topic}-{partition}" if offset >= 0 else f"on a record for {topic}"
    )
    return ProcessingError(
        f"{node!r} failed {where}: {cause}",
        topic=topic,
        partition=partition,
        offset=offset,
        node=node,
    )
