"""`df.write.format("streamlog")` and `writeStream`: rows that count once, all of a job or none.

Tasks stage segments (`staging`), the driver publishes them: one operation of the broker, atomic
and idempotent by the job's id. Of a streaming query each batch is a job, named by the query and
the batch's number, so a batch that Spark repeats after a restart changes nothing. Several
brokers, and those of Kafka, get all of a job in one transaction of the driver's, within its limits
(`streamlog.client.transactional_publish`); what was staged has to lie where the driver sees it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_bridge.failures import plainly
from spark_bridge.key_places import partitioner_of
from spark_bridge.places import opened_log
from spark_bridge.staging import STAGING, TaskWriter
from spark_bridge.write_options import WriteOptions, check_columns
from streamlog.clock import SystemClock
from streamlog.errors import ConfigError
from streamlog.records.staged import StagedSegment
from streamlog.stored_log import StoredLog

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    segments: list[StagedSegment]


class Sink:
    """Where a job's rows go: made by the driver, copied to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, staged_by: str) -> None:
        """Look up the topics; what is staged goes by the name `staged_by`.

        Raises:
            ConfigError: rows can't be records, or there is no such topic.
        """
        types = {each.name: each.dataType.simpleString() for each in schema.fields}
        check_columns(types, options.topic)
        self._options = options
        self._partitions, self._takes_segments = _look(options)
        if options.topic is not None and options.topic not in self._partitions:
            there = ", ".join(sorted(self._partitions)) or "none"
            raise ConfigError(f"the log has no topic '{options.topic}' (it has: {there})")
        self.staged_by = staged_by

    @plainly()
    def stage(self, rows: Iterator[pa.RecordBatch]) -> Staged:
        """Write the rows of a task where nobody reads them."""
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        writer = TaskWriter(
            folder,
            self._partitions,
            self._options.topic,
            self._options.compression,
            SystemClock().wall_ms(),
            partial(partitioner_of, self._options),
        )
        for batch in rows:
            writer.write(batch)
        segments = writer.finish()
        if self._is_sent():
            asyncio.run(self._send(folder, segments))
            shutil.rmtree(folder)
        return Staged(segments)

    @plainly()
    def publish(self, job_id: str, messages: list[WriterCommitMessage | None]) -> None:
        """Have all that was staged count.

        Raises:
            LogError: nothing counts; says why.
        """
        segments = [each for m in messages if isinstance(m, Staged) for each in m.segments]

        async def ask() -> bool:
            async with opened_log(self._options) as log:
                done = await log.publish(
                    job_id,
                    segments,
                    staged_by=self.staged_by,
                    read=self._content,
                    compression=self._options.compression,
                )
                return done.is_repeated

        if asyncio.run(ask()):
            _log.warning("job %s had been published before: nothing was written now", job_id)
        self._forget()

    @plainly()
    def drop(self) -> None:
        """Forget what was staged, as far as that can be done."""

        async def ask() -> None:
            async with opened_log(self._options) as log:
                await log.admin().drop_staged(self.staged_by)

        if self._takes_segments:
            asyncio.run(ask())
        self._forget()

    def _forget(self) -> None:
        if not self._is_sent():
            shutil.rmtree(self._folder(), ignore_errors=True)

    def _is_sent(self) -> bool:
        """Whether tasks send their segments to the broker."""
        return self._takes_segments and self._options.path is None

    def _folder(self) -> Path:
        if self._options.path is not None:
            return Path(self._options.path) / STAGING / self.staged_by
        if self._takes_segments:
            return Path(tempfile.mkdtemp(prefix="streamlog-"))
        return Path(self._options.staging_path or tempfile.gettempdir()) / self.staged_by

    async def _send(self, folder: Path, segments: list[StagedSegment]) -> None:
        async with opened_log(self._options) as log:
            for each in segments:
                data = (folder / each.name).read_bytes()
                await log.admin().stage(self.staged_by, each.name, data)

    def _content(self, name: str) -> bytes:
        path = self._folder() / name
        if not path.exists():
            raise ConfigError(
                f"{path} is not there: towards several brokers, and those of Kafka, the option"
                " 'stagingPath' has to name a folder that all executors and the driver share"
            )
        return path.read_bytes()


class LogWriter(DataSourceArrowWriter):
    """Writes a frame as one job."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._job_id = options.job_id or f"spark-{uuid.uuid4().hex}"
        self._sink = Sink(options, schema, f"{self._job_id}-{uuid.uuid4().hex[:12]}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the job."""
        self._sink.publish(self._job_id, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        """Forget what was staged; what was published stays."""
        self._sink.drop()


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a streaming query as one job."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.query_id is None:
            raise ConfigError(
                "give the option 'checkpointLocation' to the query, or 'queryId': by it a batch"
                " that is repeated after a restart is known"
            )
        self._query_id = options.query_id
        # Spark makes another writer for the commit: nothing but the query is the same for both.
        self._sink = Sink(options, schema, f"{self._query_id}-staged")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the batch."""
        self._sink.publish(f"{self._query_id}-{batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """Forget what was staged; what was published stays."""
        self._sink.drop()


def _look(options: WriteOptions) -> tuple[dict[str, int], bool]:
    """Topics with how many partitions they have, and whether segments can be published."""
    if options.path is not None:
        with StoredLog(options.path) as stored:
            return stored.topics(), True

    async def ask() -> tuple[dict[str, int], bool]:
        async with opened_log(options) as log:
            topics = await log.admin().list_topics()
            return {each.name: each.partitions for each in topics}, await log.admin().can_publish()

    return asyncio.run(ask())
