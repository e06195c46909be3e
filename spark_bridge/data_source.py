"""`format("streamlog")`: topics as rows with the columns of Spark's Kafka source, and back.

One Spark task reads a partition, or a part of one, in offset order. Offsets are resolved once, when
the frame is loaded: a frame that is read twice, or joined with itself, has equal rows, even if
records are appended meanwhile. Filters on partition, topic and offset cut the ranges, and Spark
applies all filters again: one that this module does not understand costs time, not rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from spark_bridge.arrow_batches import spark_schema
from spark_bridge.log_sources import log_source
from spark_bridge.log_writer import LogStreamWriter, LogWriter
from spark_bridge.offset_ranges import OffsetRange
from spark_bridge.python_failures import without_traceback
from spark_bridge.source_options import ReadOptions, parse_options, parse_write_options
from spark_bridge.stream_reader import LogStreamReader, RangePartition, input_partitions
from streamlog.errors import ConfigError
from streamlog.replace import replace

if TYPE_CHECKING:
    import pyarrow as pa


def prune(ranges: Iterable[OffsetRange], filters: Iterable[Filter]) -> list[OffsetRange]:
    """Return the parts of the ranges in which every filter may hold."""
    left = list(ranges)
    for each in filters:
        left = [part for whole in left if (part := _cut_range(whole, each)) is not None]
    return left


def _cut_range(whole: OffsetRange, wanted: Filter) -> OffsetRange | None:
    attribute = getattr(wanted, "attribute", None)
    if attribute in {("topic",), ("partition",)}:
        own = whole.topic if attribute == ("topic",) else whole.partition
        return whole if _may_match(own, wanted) else None
    if attribute != ("offset",):
        return whole
    match wanted:
        case EqualTo(value=int(value)):
            first, end = value, value + 1
        case GreaterThan(value=int(value)):
            first, end = value + 1, whole.end
        case GreaterThanOrEqual(value=int(value)):
            first, end = value, whole.end
        case LessThan(value=int(value)):
            first, end = whole.start, value
        case LessThanOrEqual(value=int(value)):
            first, end = whole.start, value + 1
        case _:
            return whole
    cut = replace(whole, start=max(whole.start, first), end=min(whole.end, end))
    return cut if cut.start < cut.end else None


def _may_match(own: str | int, wanted: Filter) -> bool:
    """Return whether records of a partition may pass a filter."""
    match wanted, own:
        # Only values of the column's type decide. For any other filter the partition may match:
        # Spark applies all filters again.
        case EqualTo(value=value), _ if type(value) is type(own):
            return bool(own == value)
        case In(value=values), _ if all(type(each) is type(own) for each in values):
            return own in values
        case GreaterThan(value=int(value)), int(number):
            return number > value
        case GreaterThanOrEqual(value=int(value)), int(number):
            return number >= value
        case LessThan(value=int(value)), int(number):
            return number < value
    return True


class StreamlogDataSource(DataSource):
    """Spark's data source "streamlog"; `register(spark)` adds it to a session."""

    _ranges: list[OffsetRange]

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "streamlog"

    @without_traceback()
    def schema(self) -> str:
        """Return the columns; for a batch query, also resolve the offsets.

        Raises:
            ConfigError: an option is wrong or a topic does not exist.
        """
        options = parse_options(self.options, streaming=None)
        # Spark asks for the schema before it says whether the query is a streaming one. The ranges
        # are resolved here, once, so that every reader of the frame has equal rows.
        if options.is_batch:
            self._ranges = log_source(parse_options(self.options)).plan()
        topics = options.topics
        is_named = options.app is not None or options.registry is not None
        if is_named and options.pattern is not None:
            topics = tuple({topic for topic, _ in log_source(options).bounds()})
        return spark_schema(options, topics)

    @without_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the ranges that `schema` resolved.

        Raises:
            ConfigError: an option is for streaming queries only, or the query sets a schema with
                `.schema(...)`: the columns are fixed.
        """
        options = parse_options(self.options)
        if not hasattr(self, "_ranges"):
            raise ConfigError(
                "the streamlog source has fixed columns: omit .schema(...); for typed values use"
                " the options 'valueSchema', 'app' or 'valueFormat'"
            )
        kind = PruningReader if options.filter_pushdown else LogBatchReader
        return kind(options, self._ranges, value_type(options, schema))

    # Without `without_traceback`: Spark's runner wraps an error of this method in its own, and only
    # the traceback shows it.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of micro-batches.

        Raises:
            ConfigError: an option is wrong, or is for batch queries only.
        """
        options = parse_options(self.options, streaming=True)
        return LogStreamReader(options, value_type(options, schema))

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return a writer of one job.

        Raises:
            ConfigError: an option is wrong, rows can't be records, or mode is "overwrite".
        """
        if overwrite:
            raise ConfigError('a log is only appended to: use .mode("append")')
        return LogWriter(parse_write_options(self.options), schema)

    @without_traceback()
    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        """Return a writer of one job per micro-batch.

        Raises:
            ConfigError: an option is wrong, rows can't be records, or output mode is "complete".
        """
        if overwrite:
            raise ConfigError('a log is only appended to: use .outputMode("append") or "update"')
        return LogStreamWriter(parse_write_options(self.options), schema)


class LogBatchReader(DataSourceReader):
    """Reads each range, or part of one, in a Spark task."""

    def __init__(
        self,
        options: ReadOptions,
        ranges: Sequence[OffsetRange],
        value_type: Any,  # noqa: ANN401 - Arrow's, untyped
    ) -> None:
        self._options = options
        self._ranges = ranges
        self._value_type = value_type

    def partitions(self) -> Sequence[InputPartition]:
        """Return one input per range, or per part of a range."""
        return input_partitions(self._options, self._ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range as Arrow batches, in offset order."""
        # Without any range, Spark calls once with an InputPartition of its own.
        if isinstance(partition, RangePartition):
            with without_traceback():
                yield from log_source(self._options).read(partition.offsets, self._value_type)


class PruningReader(LogBatchReader):
    """A batch reader that skips offsets by filters, if Spark's configuration enables pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Cut the ranges; return all filters, so that Spark applies them as well."""
        self._ranges = prune(self._ranges, filters)
        return filters


def value_type(options: ReadOptions, schema: StructType) -> Any:  # noqa: ANN401 - Arrow's, untyped
    """Return the Arrow type of typed values; None if values are bytes."""
    types = (options.value_schema, options.app, options.registry)
    is_typed = any(each is not None for each in types)
    if not is_typed or "value" not in options.columns:
        return None
    return to_arrow_type(schema["value"].dataType, timezone="UTC")
