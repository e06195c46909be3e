"""Objects: writes topics to object stores and directories, as files of Parquet, JSON lines or CSV.

Each flush of a partition is a file for each path. Its name is topic, partition and the first offset
in it. The runtime writes the range of a flush to the log before it is committed here, and repeats
exactly it after a crash: the same names, with the same rows.

Not done here: paths and names (`file_names`), the formats (`tables`), the stores (`object_stores`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from importlib import import_module
from itertools import chain
from typing import ClassVar, Self

from streamlog.allowed_paths import check_path, check_paths_in
from streamlog.connect import (
    BadRecord,
    BadRecords,
    Batch,
    ConnectError,
    Effect,
    Flush,
    Schema,
    Secret,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
    fields_of,
)
from streamlog.connect.arrow_columns import plain_array
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
    # A key that may not write is refused when the range is in the log already: the right one, or
    # another endpoint of the store, has to be able to repeat it.
    incidental: ClassVar[frozenset[str]] = frozenset({"flush", "options"})
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
        self._files: dict[tuple[TopicPartition, str], list[tuple[str, TableFile]]] = {}
        """By partition and path: each file's whole name, and the file. There are several only if
        the rows have types that no columns hold together."""
        self._latest: dict[tuple[TopicPartition, str], TableFile] = {}
        """By partition and path: the file of the newest row."""

    async def __aenter__(self) -> Self:
        """Open the store, and find out whether its settings are right; nothing is written yet.

        Raises:
            ConfigError: the store refuses.
            Retriable: the store can't be reached, or not now.
        """
        self._store = self._sink.store(self._context.in_thread)
        await self._store.check()
        return self

    async def begin(self) -> None:
        """Start without files."""
        self._forget()

    def _forget(self) -> None:
        self._files, self._latest = {}, {}

    async def write(self, batch: Batch[object, object]) -> None:
        """Add the records to their files.

        Raises:
            BadRecords: records lack a field of the path, do not fit their schema, or have another
                type in a field than the rows without a schema before them.
        """
        if len(batch):
            await self._context.in_thread(self._add, batch)

    def _add(self, batch: Batch[object, object]) -> None:
        paths = self._paths(batch)
        is_plain = batch.schema is None and all(
            isinstance(each, Mapping | None) for each in batch.values
        )
        rows: UserObject = self._dicts_of(batch) if is_plain else self._columns_of(batch)
        columns = None if is_plain else rows.schema
        why: dict[int, str] = {}
        for path, indexes in paths.items():
            rest = self._without_first_nulls(batch, path, indexes, columns)
            if not rest:
                continue
            file, some = self._file(batch, path, rest[0], columns), _rows_at(rows, rest)
            if is_plain:
                why |= {rest[at]: text for at, text in file.misfits(some).items()}
            file.add(some)
        if why:
            # Files have such rows by now: the runtime aborts, and writes the others again.
            raise BadRecords(why)

    def _columns_of(self, batch: Batch[object, object]) -> UserObject:
        pa: UserObject = import_module("pyarrow")
        rows = batch.arrow()
        if not self._sink.has_coordinates:
            return rows.drop_columns([each for each in _COORDINATES if each in rows.schema.names])
        if batch.key_schema is None and rows.column("_key").null_count == len(rows):
            # Whether later keys are text or bytes is not known yet.
            at = rows.schema.get_field_index("_key")
            rows = rows.set_column(at, "_key", pa.nulls(len(rows)))
        return rows

    def _dicts_of(self, batch: Batch[object, object]) -> list[Mapping[str, object]]:
        """Return the records as rows without a schema, with the columns that `Batch.arrow` adds."""
        rows: list[Mapping[str, object]] = []
        for record in batch.records:
            fields = {} if record.value is None else fields_of(record.value)
            time, offset = record.timestamp.astimezone(UTC), record.offset
            coordinates = {"_key": record.key, "_timestamp": time, "_offset": offset}
            rows.append({**fields, **coordinates} if self._sink.has_coordinates else {**fields})
        return rows

    def _paths(self, batch: Batch[object, object]) -> dict[str, Sequence[int]]:
        """Return the records' indexes by path."""
        path_of = self._template.paths_of(batch)
        if self._template.is_constant(batch):
            return {path_of(0): range(len(batch))}
        paths = dict[str, list[int]]()
        why = dict[int, str]()
        for index in range(len(batch)):
            try:
                paths.setdefault(path_of(index), []).append(index)
            except BadRecord as error:
                why[index] = str(error)
        if why:
            raise BadRecords(why)
        return {**paths}

    def _without_first_nulls(
        self,
        batch: Batch[object, object],
        path: str,
        indexes: Sequence[int],
        columns: UserObject | None,
    ) -> Sequence[int]:
        """Write the records without a value at the beginning, and return the other indexes.

        A null has no schema: it goes to the file of the row before, however batches were cut, and
        before the first row to the file of that one.
        """
        values = batch.values
        nulls = next(
            (at for at, index in enumerate(indexes) if values[index] is not None), len(indexes)
        )
        latest = self._latest.get((batch.partition, path))
        if nulls < len(indexes):
            files = self._files.get((batch.partition, path), ())
            if not nulls or latest is None or (len(files) == 1 and latest.takes(columns)):
                return indexes
        rows = self._dicts_of(batch)
        file = self._file(batch, path, indexes[0], None) if latest is None else latest
        file.add_nulls([rows[index] for index in indexes[:nulls]])
        return indexes[nulls:]

    def _file(
        self, batch: Batch[object, object], path: str, index: int, columns: UserObject | None
    ) -> TableFile:
        """Return the first file of a partition and path that takes such rows.

        By the rows alone, in their order: cut into other batches, they go to the same files. A new
        file is named by the offset of its first record.
        """
        files = self._files.setdefault((batch.partition, path), [])
        found = next((file for _, file in files if file.takes(columns)), None)
        if found is None:
            if sum(map(len, self._files.values())) >= PATHS_MAX:
                raise ConnectError(
                    f"a flush has more than {PATHS_MAX} files: path={self._sink.path!r} has too "
                    "many values; name fewer fields, or flush more often"
                )
            name = file_name(batch.partition, batch.offsets[index], self._suffix)
            found = TableFile(self._sink.format, self._sink.used_compression)
            files.append((path + name, found))
        self._latest[batch.partition, path] = found
        return found

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write all files; after an error the same ones are written again."""
        del offsets
        # Not cleared until all are written: the runtime may abort in between, and writes again what
        # this loop has written, under the same names.
        for name, file in chain.from_iterable(self._files.values()):
            data: bytes = await self._context.in_thread(file.finish)
            await self._store.put(name, data)
            self._context.count("files")
            self._context.count("file_bytes", len(data))
        self._forget()

    async def abort(self) -> None:
        """Forget the files."""
        self._forget()


def _rows_at(rows: UserObject, indexes: Sequence[int]) -> UserObject:
    """Return rows of a list or a `pyarrow.RecordBatch`."""
    if isinstance(rows, list):
        return [rows[index] for index in indexes]
    if isinstance(indexes, range):
        return rows.slice(indexes.start, len(indexes))
    pa: UserObject = import_module("pyarrow")
    # As an array: of a list pyarrow would make one by pandas.
    return rows.take(plain_array(pa, indexes, Schema("int64")))
