"""Lowering: windows of whole numbers, folded by Spark itself.

Rows of `foldable` are put into their windows, those that are late are counted, the rest is grouped
by task, window and key; before the shuffle as well as behind it, and on disk if memory is short.
What is left, a row for each key and window, goes to the task in the order in which windows close.
The windows are those of `processing/window_fold`: aligned to the epoch, none begins before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as sql

from spark_bridge.foldable import RECORD, SOURCE, columns_of
from streamlog.history.folded import SourceEnd
from streamlog.history.lowering import NotLowered
from streamlog.history.plan import Plan, Stage
from streamlog.history.staging import sources_of
from streamlog.processing.windowed import FoldedRow
from streamlog.topology import WholeNumbers
from streamlog.windows.definitions import Hopping, Tumbling, Windows
from streamlog.windows.emit import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

LATE, FOLDED = 5, 6
"""Kinds of rows, beside those of `foldable` and `shuffles`: in the order in which they are read."""
GROUP = ("task", "kind", "end", "start", "key")
ORDER = ("kind", "end", "start", "key")

_decode = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def number_columns(plan: Plan) -> list[tuple[str, str]]:
    """The columns that rows of this plan have for the stages that are lowered."""
    lowered = [stage for stage in plan.stages if stage.lowering is not None]
    if not lowered:
        return []
    return columns_of(max(len(numbers_of(stage).columns) for stage in lowered))


def numbers_of(stage: Stage) -> WholeNumbers:
    """What the states of a stage that is lowered are.

    Raises:
        NotLowered: it is not.
    """
    if stage.lowering is None:
        raise NotLowered(f"stage {stage.number} is not lowered")
    return stage.lowering.numbers(stage.subtopology)


def folded(rows: DataFrame, stage: Stage) -> DataFrame:
    """The rows of all windows of a stage; how far sources have come; how many records were late."""
    if stage.lowering is None:
        raise NotLowered(f"stage {stage.number} is not lowered")
    windows = stage.lowering.aggregate(stage.subtopology).windows
    numbers = numbers_of(stage)
    is_record = sql.col("kind") == RECORD
    placed = _placed(rows, windows, is_record).withColumn(
        "late", is_record & (sql.col("end") + windows.grace_ms <= sql.col("time"))
    )
    is_kept = is_record & ~sql.col("late")
    kind = sql.when(sql.col("late"), LATE).when(is_kept, FOLDED).otherwise(sql.col("kind"))
    # Of sources, the rank is in place of a window.
    end = sql.when(is_kept, sql.col("end")).otherwise(sql.coalesce("rank", sql.lit(0)))
    start = sql.when(is_kept, sql.col("start")).otherwise(0)
    key = sql.when(~sql.col("late"), sql.col("key"))
    columns = [sql.count(sql.lit(1)).alias("count"), sql.max("timestamp").alias("timestamp")]
    columns += [
        _fold(each.name, sql.col(f"number_{at}")).alias(f"number_{at}")
        for at, each in enumerate(numbers.columns)
        if each.name != "count"
    ]
    grouped = placed.select(
        "task",
        kind.alias("kind"),
        end.cast("bigint").alias("end"),
        start.cast("bigint").alias("start"),
        key.alias("key"),
        "timestamp",
        *(f"number_{at}" for at in range(len(numbers.columns))),
    )
    return grouped.groupBy(*GROUP).agg(*columns)


def _placed(rows: DataFrame, windows: Windows, is_record: Column) -> DataFrame:
    """Each record with start and end of its window; once for each window if they overlap."""
    at, size_ms = sql.col("timestamp"), windows.size_ms
    if isinstance(windows, Hopping):
        step_ms = windows.step_ms
        last = at - sql.pmod(at, sql.lit(step_ms))
        before = at - size_ms
        first = sql.greatest(before - sql.pmod(before, sql.lit(step_ms)) + step_ms, sql.lit(0))
        starts = sql.when(is_record, sql.sequence(first, last, sql.lit(step_ms).cast("bigint")))
        none = sql.array(sql.lit(0).cast("bigint"))
        rows = rows.withColumn("start", sql.explode(starts.otherwise(none)))
        return rows.withColumn("end", sql.col("start") + size_ms)
    if not isinstance(windows, Tumbling):
        raise NotLowered(f"{windows.described} are not lowered")
    border = at - sql.pmod(at - windows.offset_ms, sql.lit(size_ms))
    return rows.withColumns({"start": sql.greatest(border, sql.lit(0)), "end": border + size_ms})


def _fold(name: str, number: Column) -> Column:
    if name == "sum":
        return sql.try_sum(number)
    return sql.min(number) if name == "min" else sql.max(number)


def seeded(rows: DataFrame, seeds: DataFrame) -> DataFrame:
    """With a row for each task, so that it runs if nothing else comes."""
    missing = [field for field in rows.schema.fields if field.name not in GROUP]
    same = seeds.select(
        "task",
        "kind",
        *(sql.lit(0).cast("bigint").alias(name) for name in ("end", "start")),
        sql.lit(None).cast("binary").alias("key"),
        *(sql.lit(None).cast(field.dataType).alias(field.name) for field in missing),
    )
    return same.unionByName(rows)


class FoldedReader:
    """The rows that are for one task of a stage that is lowered, in order."""

    def __init__(self, plan: Plan, stage: Stage, batches: Iterator[pa.RecordBatch]) -> None:
        if stage.lowering is None:
            raise NotLowered(f"stage {stage.number} is not lowered")
        self._sources = sources_of(stage.subtopology, stage.lowering.topic, plan.counts)
        self._numbers = numbers_of(stage)
        self._batches = batches
        self._first = next(batches)
        self.partition: int = self._first.column("task")[0].as_py()
        """Of the task."""
        self.late = 0
        """How many records came too late, once for each window that was closed to them."""
        self._ends: dict[Source, SourceEnd] = {}

    def read_ends(self) -> Mapping[Source, SourceEnd]:
        """How far each source has come; to be called before `rows`.

        Raises:
            NotLowered: nothing was heard of one of them.
        """
        batch: pa.RecordBatch | None = self._first
        while batch is not None:
            kinds = batch.column("kind").to_pylist()
            _check_task(batch, self.partition)
            heads = sum(kind != FOLDED for kind in kinds)
            for at in range(heads):
                self._take(batch, at, kinds[at])
            if heads < len(kinds):
                self._first = batch.slice(heads)
                break
            batch = next(self._batches, None)
        else:
            self._batches = iter(())
            self._first = self._first.slice(0, 0)
        if missing := [source for source in self._sources if source not in self._ends]:
            raise NotLowered(f"nothing was heard of {missing[0]}")
        return {source: self._ends[source] for source in self._sources}

    def rows(self) -> Iterator[Sequence[FoldedRow]]:
        """The rows of all windows, by (end, start, key)."""
        return map(self._checked, chain([self._first], self._batches))

    def _checked(self, batch: pa.RecordBatch) -> Sequence[FoldedRow]:
        _check_task(batch, self.partition)
        return self._folded(batch)

    def _take(self, batch: pa.RecordBatch, at: int, kind: int) -> None:
        if kind == LATE:
            self.late += batch.column("count")[at].as_py()
        elif kind == SOURCE:
            rank = batch.column("end")[at].as_py()
            self._ends[self._sources[rank]] = SourceEnd(*_decode(batch.column("key")[at].as_py()))

    def _folded(self, batch: pa.RecordBatch) -> Sequence[FoldedRow]:
        columns = [
            batch.column("count" if each.name == "count" else f"number_{at}").to_pylist()
            for at, each in enumerate(self._numbers.columns)
        ]
        if any(None in column for column in columns):
            raise NotLowered("a sum does not fit into 64 bits")
        states: Sequence[Any] = columns[0]
        if self._numbers.is_row:
            states = list(map(list, zip(*columns, strict=True)))
        names = ("end", "start", "key", "timestamp")
        return list(zip(*(batch.column(name).to_pylist() for name in names), states, strict=True))


def _check_task(batch: pa.RecordBatch, partition: int) -> None:
    if set(batch.column("task").to_pylist()) - {partition}:
        raise RuntimeError(
            "Spark has put rows of two tasks of a history into one: is a plugin, or a setting, "
            "changing its repartitioning?"
        )
