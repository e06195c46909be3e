"""`format("streamlog_state")`: the state of an app's tasks as rows, without the app.

    spark.read.format("streamlog_state").load("./.streamlog/state/shop")

The path is a state directory, or the path or URL of a snapshot, as for `streamlog state`. One Spark
task reads one task of the app, so each of Spark's Python processes must reach the path. What is
read is found once, when the frame is loaded; but a running worker changes its directory,
so only snapshots give equal rows twice. The option `types` names the log in which the app's workers
have recorded the types of rows, with `kafka.` options for the connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_bridge.python_failures import without_traceback
from spark_bridge.source_options import KAFKA
from streamlog.blueprints.blueprint import Blueprint
from streamlog.errors import ConfigError
from streamlog.history.readers import LogReader
from streamlog.snapshots.state_reader import StoredTask, rows_of, shown, stored_tasks
from streamlog.snapshots.store_types import NO_TYPES, StoreTypes, types_of_all
from streamlog.transport.security import Security

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA: Final = (
    "task string, store string, key string, value string, window_start timestamp,"
    " window_end timestamp, time timestamp, key_bytes binary, value_bytes binary"
)
_TIME = pa.timestamp("us", tz="UTC")
_ARROW = pa.schema(
    {
        "task": pa.string(),
        "store": pa.string(),
        "key": pa.string(),
        "value": pa.string(),
        "window_start": _TIME,
        "window_end": _TIME,
        "time": _TIME,
        "key_bytes": pa.binary(),
        "value_bytes": pa.binary(),
    }
)
BATCH_ROWS: Final = 4_096
OPTIONS: Final = ("path", "store", "types")
EMBEDDED: Final = "embedded:"


class StatePartition(InputPartition):
    """The state of one task."""

    def __init__(self, task: StoredTask) -> None:
        self.task = task


class StateDataSource(DataSource):
    """Spark's data source "streamlog_state"; `register(spark)` adds it to a session."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "streamlog_state"

    def schema(self) -> str:
        """Return the columns, which are those of every state."""
        return SCHEMA

    @without_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the columns are fixed
        """Return a reader of the tasks that the path holds.

        Raises:
            ConfigError: an option is unknown, or there is no path.
            UsageError: the path holds no state.
        """
        for name in self.options:
            if name not in OPTIONS and not name.startswith(KAFKA):
                raise ConfigError(f"unknown option {name!r}; there are: {', '.join(OPTIONS)}")
        path = self.options.get("path")
        if not path:
            raise ConfigError(
                'name a state directory or a snapshot: .load("./.streamlog/state/shop")'
            )
        # Spark's Python processes have working directories of their own.
        where = path if "://" in path else str(Path(path).absolute())
        tasks = stored_tasks(where)
        return StateReader(tasks, self.options.get("store"), self._blueprints(tasks))

    def _blueprints(self, tasks: Sequence[StoredTask]) -> Sequence[Blueprint]:
        """Return what the app's workers have recorded in the log of the option `types`."""
        url = self.options.get("types")
        if url is None:
            return ()
        if url.startswith(EMBEDDED):
            url = EMBEDDED + str(Path(url.removeprefix(EMBEDDED)).absolute())
        client = {
            name.removeprefix(KAFKA): value
            for name, value in self.options.items()
            if name.startswith(KAFKA)
        }
        with LogReader(url, Security.of(client) if client else None) as reader:
            return reader.blueprints({each.app_id for each in tasks})


class StateReader(DataSourceReader):
    """Reads each task of the app in a Spark task."""

    def __init__(
        self, tasks: Sequence[StoredTask], store: str | None, blueprints: Sequence[Blueprint]
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._blueprints = blueprints

    def partitions(self) -> Sequence[InputPartition]:
        """Return one input per task."""
        return [StatePartition(each) for each in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task as Arrow batches, in the order of their keys."""
        # Without any task, Spark calls once with an InputPartition of its own.
        if not isinstance(partition, StatePartition):
            return
        with without_traceback():
            # Made here: what reads bytes holds decoders, which can't be sent to this process.
            types = types_of_all(self._blueprints)
            rows = _rows(partition.task, self._store, types)
            while batch := [*islice(rows, BATCH_ROWS)]:
                yield pa.RecordBatch.from_pylist(batch, schema=_ARROW)


def _rows(
    task: StoredTask, store: str | None, types: Mapping[str, StoreTypes]
) -> Iterator[dict[str, Any]]:
    for name, key, value in rows_of(task, store):
        row = shown(task.name, name, key, value, types.get(name, NO_TYPES))
        start, end = row.window or (None, None)
        yield {
            "task": row.task,
            "store": row.store,
            # What has no known layout is null here; its bytes tell what it is.
            "key": None if "key" in row.raw else _text(row.key),
            "value": None if "value" in row.raw else json.dumps(row.value, ensure_ascii=False),
            "window_start": _time(start),
            "window_end": _time(end),
            "time": _time(row.time),
            "key_bytes": key,
            "value_bytes": value,
        }


def _text(key: object) -> str:
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
