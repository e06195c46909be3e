"""Objects: writes topics to object stores and directories, as files of Parquet, JSON lines or CSV.

Each flush of a partition is a file for each path. Its name is topic, partition and the first offset
in it. The runtime writes the range of a flush to the log before it is committed here, and repeats
exactly it after a crash: the same names, with the same rows.

Not done here: paths and names (`file_names`), the formats (`tables`), the stores (`object_stores`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from typing import ClassVar, Self

from streamlog.allowed_paths import check_path, check_paths_in
from streamlog.connect import (
    BadRecord,
    BadRecords,
    Batch,
    ConnectError,
    Effect,
    Flush,
    Secret,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
    fields_of,
)
from streamlog.connectors.objects.file_names import PathTemplate, file_name
from streamlog.connectors.objects.object_stores import (
    CloudStore,
    LocalStore,
    ObjectStore,
    local_path,
    secret_option,
)
from streamlog.connectors.tables import (
    TEXT_COMPRESSIONS,
    TableCompression,
    TableFile,
    TableFormat,
    table_suffix,
)
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import UserObject

FLUSH_BYTES_LIMIT = 256 * 1024 * 1024
"""The largest `flush.size_bytes`: what a flush writes is in memory until then."""
_COORDINATES = ("_key", "_timestamp", "_offset")
PATHS_MAX = 1_000
"""The most files of one flush; a template by a field with many values would make millions."""


class Objects(Sink[object, object], frozen=True, kw_only=True):
    """Writes files: `URL/PATH/topic+partition+offset.parquet`.

    Exactly once, in any store: a flush that is written again writes the same files. The columns are
    the fields of the value, then `_key`, `_timestamp` and `_offset`.

    Attributes:
        url: `s3://BUCKET/PREFIX`, `gs://...`, `az://...`, or a directory of this machine:
            `/data/lake`, `./lake`, `file:///data/lake`.
        format: "parquet", "jsonl" or "csv".
        path: directories below the URL, of `{topic}`, `{partition}`, `{timestamp:%Y-%m-%d}` (UTC),
            `{key}` and `{value.NAME}`, which are quoted; a missing value is Hive's default.
        compression: "snappy", "zstd", "gzip" or "none" for Parquet; "none" or "gzip" for text.
            None: "snappy" for Parquet, "none" for text.
        options: settings of the store by obstore's names: `region`, `endpoint`, `access_key_id`.
        secret: S3's secret access key, Azure's access key, or the service account key of Google as
            JSON. None: obstore takes credentials from the environment.
        flush: when files are closed; by default at 500,000 records, 64 MiB of keys and values, or
            after 5 minutes.
    """

    effect: ClassVar[Effect] = "repeatable"
    streams: ClassVar[bool] = True
    has_coordinates: ClassVar[bool] = True
    """Whether files have the columns `_key`, `_timestamp` and `_offset`."""

    url: str
    format: TableFormat = "parquet"
    path: str = "{topic}/"
    compression: TableCompression | None = None
    options: Mapping[str, str] = {}
    secret: Secret | None = None
    flush: Flush = Flush(records=500_000, size_bytes=64 * 1024 * 1024, every="5m")

    @property
    def used_compression(self) -> TableCompression:
        """The compression of the files."""
        return self.compression or ("snappy" if self.format == "parquet" else "none")

    @property
    def suffix(self) -> str:
        """The end of a file's name."""
        return table_suffix(self.format, self.used_compression)

    def check(self) -> None:
        """Raise ConfigError if the settings do not go together."""
        PathTemplate(self.path)
        directory = local_path(self.url)
        if directory is not None:
            check_path("url", directory)
        check_paths_in("options", self.options)
        if directory is not None and (self.options or self.secret):
            raise ConfigError(
                f"url={self.url!r} is a directory, which has no options and no secret"
            )
        if self.format != "parquet" and self.used_compression not in TEXT_COMPRESSIONS:
            raise ConfigError(
                f"compression={self.compression!r} is Parquet's: {self.format} has "
                f"{' and '.join(TEXT_COMPRESSIONS)}"
            )
        if self.flush.size_bytes > FLUSH_BYTES_LIMIT:
            raise ConfigError(
                f"flush.size_bytes={self.flush.size_bytes} exceeds {FLUSH_BYTES_LIMIT}: a file is "
                "in memory until it is closed"
            )

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet."""
        return ObjectsTask(self, context)

    def store(self, in_thread: Callable[..., UserObject]) -> ObjectStore:
        """Return the store.

        Raises:
            ConfigError: its library is not installed, or it does not know an option.
        """
        root = local_path(self.url)
        if root is not None:
            return LocalStore(root, in_thread)
        options = dict(self.options)
        if self.secret is not None:
            options[secret_option(self.url)] = self.secret.reveal()
        return CloudStore(self.url, options)


class ObjectsTask(SinkTask[object, object]):
    """The files of the present flush, in memory until it is committed."""

    def __init__(self, sink: Objects, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._template = PathTemplate(sink.path)
        self._suffix = sink.suffix
        self._files: dict[tuple[TopicPartition, str], tuple[str, TableFile]] = {}
        """By partition and path: the file's whole name, and the file."""

    async def __aenter__(self) -> Self:
        """Open the store; nothing is sent yet."""
        self._store = self._sink.store(self._context.in_thread)
        return self

    async def begin(self) -> None:
        """Start without files."""
        self._files = {}

    async def write(self, batch: Batch[object, object]) -> None:
        """Add the records to their files."""
        if len(batch):
            await self._context.in_thread(self._add, batch)

    def _add(self, batch: Batch[object, object]) -> None:
        paths = self._paths(batch)
        if batch.schema is None and all(isinstance(each, Mapping) for each in batch.values):
            self._add_dicts(batch, paths)
            return
        # As `_paths`, this may refuse records, so both come before any file is changed.
        rows = batch.arrow()
        if not self._sink.has_coordinates:
            rows = rows.drop_columns([each for each in _COORDINATES if each in rows.schema.names])
        if len(paths) == 1:
            self._file(batch, next(iter(paths)), 0).add(rows)
            return
        for path, indexes in paths.items():
            self._file(batch, path, indexes[0]).add(rows.take(indexes))

    def _add_dicts(self, batch: Batch[object, object], paths: dict[str, list[int]]) -> None:
        """Add rows that have no schema, with the columns that `Batch.arrow` adds."""
        rows = [
            {
                **fields_of(record.value),
                "_key": record.key,
                "_timestamp": record.timestamp.astimezone(UTC),
                "_offset": record.offset,
            }
            if self._sink.has_coordinates
            else {**fields_of(record.value)}
            for record in batch.records
        ]
        for path, indexes in paths.items():
            chosen = rows if len(paths) == 1 else [rows[index] for index in indexes]
            self._file(batch, path, indexes[0]).add_dicts(chosen)

    def _paths(self, batch: Batch[object, object]) -> dict[str, list[int]]:
        """Return the records' indexes by path."""
        path_of = self._template.paths_of(batch)
        if self._template.is_constant(batch):
            return {path_of(0): [0]}
        paths = dict[str, list[int]]()
        why = dict[int, str]()
        for index in range(len(batch)):
            try:
                paths.setdefault(path_of(index), []).append(index)
            except BadRecord as error:
                why[index] = str(error)
        if why:
            raise BadRecords(why)
        return paths

    def _file(self, batch: Batch[object, object], path: str, index: int) -> TableFile:
        """Return the file of a partition and path; a new one is named by a record's offset."""
        found = self._files.get((batch.partition, path))
        if found is None:
            if len(self._files) >= PATHS_MAX:
                raise ConnectError(
                    f"a flush has more than {PATHS_MAX} files: path={self._sink.path!r} has too "
                    "many values; name fewer fields, or flush more often"
                )
            name = file_name(batch.partition, batch.offsets[index], self._suffix)
            found = path + name, TableFile(self._sink.format, self._sink.used_compression)
            self._files[batch.partition, path] = found
        return found[1]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write all files; after an error the same ones are written again."""
        del offsets
        # Not cleared until all are written: the runtime may abort in between, and writes again what
        # this loop has written, under the same names.
        for name, file in self._files.values():
            data: bytes = await self._context.in_thread(file.finish)
            await self._store.put(name, data)
            self._context.count("files")
            self._context.count("file_bytes", len(data))
        self._files = {}

    async def abort(self) -> None:
        """Forget the files."""
        self._files = {}
