"""`format("streamlog")`: topics as rows with the columns of Spark's Kafka source, and back.

One Spark task per partition, or per part of one, rows in offset order. Offsets are resolved once,
when the frame is loaded: a frame read twice, or joined with itself, sees the same rows whatever
is appended meanwhile. Reads a data directory (`path`), also beside a live broker, or a running
broker (`kafka.bootstrap.servers`). What the options mean is said in `options`.
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
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from spark_bridge.arrow_batches import spark_schema
from spark_bridge.failures import plainly
from spark_bridge.offsets import OffsetRange
from spark_bridge.options import ReadOptions, parse_options
from spark_bridge.places import place_of
from spark_bridge.pruning import pruned
from spark_bridge.shares import RangePartition, parts
from spark_bridge.streaming import LogStreamReader
from spark_bridge.write_options import parse_write_options
from spark_bridge.writing import LogStreamWriter, LogWriter
from streamlog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


class StreamlogDataSource(DataSource):
    """The data source; `register(spark)` makes it known as "streamlog"."""

    _ranges: list[OffsetRange]

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "streamlog"

    @plainly()
    def schema(self) -> str:
        """The columns. For a batch query it resolves the offsets, which stay with this instance.

        Raises:
            ConfigError: an option is wrong or a topic does not exist.
        """
        options = parse_options(self.options, streaming=None)
        if options.is_batch:
            self._ranges = place_of(parse_options(self.options)).plan()
        topics = options.topics
        if options.app is not None and options.pattern is not None:
            topics = tuple({topic for topic, _ in place_of(options).bounds()})
        return spark_schema(options, topics)

    @plainly()
    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the ranges that `schema` resolved.

        Raises:
            ConfigError: an option means nothing in a batch query, or a schema was given with
                `.schema(...)`: the columns are fixed.
        """
        options = parse_options(self.options)
        if not hasattr(self, "_ranges"):
            raise ConfigError(
                "the streamlog source has fixed columns: leave out .schema(...); for typed values"
                " there are the options 'valueSchema' and 'app'"
            )
        kind = PruningReader if options.filter_pushdown else LogReader
        return kind(options, self._ranges, value_type(options, schema))

    # Not plainly: what is raised here Spark's runner hides behind an error of its own, and only the
    # traceback still has it.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A reader of micro-batches.

        Raises:
            ConfigError: an option is wrong, or means nothing in a streaming query.
        """
        options = parse_options(self.options, streaming=True)
        return LogStreamReader(options, value_type(options, schema))

    @plainly()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """A writer of one job.

        Raises:
            ConfigError: an option is wrong, rows can't be records, or mode is "overwrite".
        """
        if overwrite:
            raise ConfigError('a log is only appended to: use .mode("append")')
        return LogWriter(parse_write_options(self.options), schema)

    @plainly()
    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        """A writer of a job per micro-batch.

        Raises:
            ConfigError: an option is wrong, rows can't be records, or output mode is "complete".
        """
        if overwrite:
            raise ConfigError('a log is only appended to: use .outputMode("append") or "update"')
        return LogStreamWriter(parse_write_options(self.options), schema)


class LogReader(DataSourceReader):
    """Reads each range in a task of its own."""

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
        """One per range, or per part of one."""
        return parts(self._options, self._ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in offset order, as Arrow batches."""
        # With no ranges at all Spark calls once with a partition of its own making.
        if isinstance(partition, RangePartition):
            with plainly():
                yield from place_of(self._options).read(partition.offsets, self._value_type)


class PruningReader(LogReader):
    """The same, and filters leave out what need not be read. A conf of Spark's has to allow it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Cut the ranges; Spark filters all the same."""
        self._ranges = pruned(self._ranges, filters)
        return filters


def value_type(options: ReadOptions, schema: StructType) -> Any:  # noqa: ANN401 - Arrow's, untyped
    """Arrow's type for typed values; None if they are bytes."""
    is_typed = options.value_schema is not None or options.app is not None
    if not is_typed or "value" not in options.columns:
        return None
    return to_arrow_type(schema["value"].dataType, timezone="UTC")
