"""SpoolDir: reads the files that programs put into a directory, and puts them aside.

Files are taken one after the other, the oldest first. A file is renamed, moved or deleted only once
its last row is in the log. A file is known by name, inode, size and time of modification: it must
not change once it was taken, and a file with the name of an earlier one is another file.
Not done here: the formats (`file_rows`).
"""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from streamlog.allowed_paths import check_path
from streamlog.connect import (
    ConnectError,
    Field,
    Guarantee,
    Read,
    Schema,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.spool_dir.file_rows import (
    ColumnType,
    CsvOptions,
    FileFormat,
    Rows,
    read_rows,
)
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.repeated import logger

log = logger(__name__)

AfterRead: TypeAlias = Literal["rename", "move", "delete"]

DONE_MAX = 1_000
"""Files that were read and not renamed yet; the offset names all of them."""


class SpooledFile(msgspec.Struct, frozen=True):
    """A file as it was found."""

    name: str
    inode: int
    size: int
    mtime_ns: int


class SpoolOffset(msgspec.Struct, frozen=True):
    """How far a directory was read: the source offset.

    Attributes:
        file: the file that is being read; None between two files.
        row: its rows that were read.
        done: files that were read to their end, and may not have been renamed yet.
    """

    file: SpooledFile | None = None
    row: int = 0
    done: tuple[SpooledFile, ...] = ()


class SpoolDirectory:
    """The files of one directory.

    Args:
        path: the directory.
        pattern: which names are read, as `*.csv`.
        then: what becomes of a file that was read.
        suffix: what is appended to its name, for "rename".
        moved_to: the directory for "move".
    """

    def __init__(
        self, path: Path, pattern: str, then: AfterRead, suffix: str, moved_to: Path | None
    ) -> None:
        self._path = path
        self._pattern = pattern
        self._then = then
        self._suffix = suffix
        self._moved_to = moved_to

    def check(self) -> None:
        """Raise ConnectError if a file that was read could not be moved.

        Raises:
            FileNotFoundError: a directory does not exist.
        """
        device = self._path.stat().st_dev
        if self._moved_to is not None and self._moved_to.stat().st_dev != device:
            raise ConnectError(
                f"{self._moved_to} is on another file system than {self._path}, so a file can't be "
                "moved in one step"
            )

    def next_file(self, done: set[SpooledFile], now_ns: int, settle_ns: int) -> SpooledFile | None:
        """Return the oldest file that was not read; None if there is none.

        Args:
            done: files that were read.
            now_ns: the wall clock.
            settle_ns: how old the last modification must be; one in the future is old enough.
        """
        check_path("directory", self._path)
        found: list[SpooledFile] = []
        for path in self._path.iterdir():
            if not self._is_wanted(path.name):
                continue
            file = self._state(path.name)
            # A time in the future never becomes old enough, and says nothing.
            if file is None or file in done or 0 <= now_ns - file.mtime_ns < settle_ns:
                continue
            found.append(file)
        return min(found, key=lambda file: (file.mtime_ns, file.name), default=None)

    def _is_wanted(self, name: str) -> bool:
        # Hidden names are those that programs give while they write.
        is_done = self._then == "rename" and name.endswith(self._suffix)
        return not name.startswith(".") and not is_done and fnmatch(name, self._pattern)

    def _state(self, name: str) -> SpooledFile | None:
        try:
            found = (self._path / name).stat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return SpooledFile(name, found.st_ino, found.st_size, found.st_mtime_ns)

    def path_of(self, file: SpooledFile) -> Path:
        """Return the path of a file."""
        return self._path / file.name

    def verify(self, file: SpooledFile) -> None:
        """Raise ConnectError if a file has changed since it was taken.

        What was read of it may be in the log already, so neither the old nor the new rows would be
        right.
        """
        now = self._state(file.name)
        if now != file:
            what = "has vanished" if now is None else "was changed"
            raise ConnectError(
                f"{self.path_of(file)} {what} while it was read: put only files into the directory "
                "that are complete, as by renaming them into it; then reset the offset"
            )

    def dispose(self, file: SpooledFile) -> None:
        """Rename, move or delete a file that was read; one that is gone already is left."""
        # The name may have been given to a new file since: that one is still to be read.
        if self._state(file.name) != file:
            return
        path = self.path_of(file)
        for each in (self._path, self._moved_to or self._path):
            check_path("directory", each)
        match self._then:
            case "delete":
                path.unlink()
            case "rename":
                path.rename(_unused(self._path, file.name, self._suffix))
            case "move" if self._moved_to is not None:
                path.rename(_unused(self._moved_to, file.name, ""))


def _unused(directory: Path, name: str, suffix: str) -> Path:
    """Return a path that is free: with a number behind the name if it is taken."""
    number, found = 0, directory / f"{name}{suffix}"
    while found.exists():
        number += 1
        # In front of the suffix, by which the file is known to be read.
        found = directory / f"{name}.{number}{suffix}"
    return found


class SpoolDir(Source[Any, Any], frozen=True, kw_only=True):
    """Reads the files of a directory; a record is a line or a row.

    Exactly once. A file that changes after it was taken fails the task, so programs have to rename
    complete files into the directory.

    Attributes:
        directory: the directory, with its absolute path.
        pattern: which names are read; hidden ones never are.
        format: "lines" and "jsonl" (bytes as they are; blank lines of the latter are left out),
            "csv" (rows by the names in the first line) or "parquet". Files of text whose name ends
            with `.gz` are decompressed.
        then: what becomes of a file that was read: "rename", "move" or "delete".
        suffix: what "rename" appends to its name.
        moved_to: the directory for "move", on the same file system.
        key: the column of the record key, for "csv" and "parquet"; None for no key.
        delimiter: the character between fields, for "csv".
        columns: the types of columns, for "csv": "int64", "float64", "boolean"; others are text.
            An empty field of such a type is None.
        settle: how long ago a file must have been modified.
        poll: how often an empty directory is looked at.
    """

    guarantee: ClassVar[Guarantee] = "exactly_once"

    directory: str
    pattern: str = "*"
    format: FileFormat = "lines"
    then: AfterRead = "rename"
    suffix: str = ".COMPLETED"
    moved_to: str | None = None
    key: str | None = None
    delimiter: str = ","
    columns: Mapping[str, ColumnType] = {}
    settle: Dur = "1s"
    poll: Dur = "500ms"

    def check(self) -> None:
        """Raise ConfigError if the settings do not go together."""
        if not Path(self.directory).is_absolute():
            raise ConfigError(f"directory={self.directory!r} must be an absolute path")
        check_path("directory", self.directory)
        if self.moved_to is not None:
            check_path("moved_to", self.moved_to)
        if (self.then == "move") != (self.moved_to is not None):
            raise ConfigError("then='move' and moved_to need each other")
        if self.then == "rename" and not self.suffix.strip("./"):
            raise ConfigError(f"suffix={self.suffix!r} must differ from what is read")
        if self.key is not None and self.format not in {"csv", "parquet"}:
            raise ConfigError(f"key={self.key!r} needs a format with columns, not {self.format}")
        if self.columns and self.format != "csv":
            raise ConfigError(f"columns are those of csv; {self.format} has types of its own")
        if len(self.delimiter) != 1:
            raise ConfigError(f"delimiter={self.delimiter!r} is not one character")
        duration_ms(self.settle)
        if not duration_ms(self.poll):
            raise ConfigError(f"poll={self.poll!r} must be longer than 0")

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return the directory as the only part."""
        del context
        return [{"directory": self.directory}]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[Any, Any]]:
        """Yield the rows of all files, and wait for further ones."""
        del partition
        moved_to = None if self.moved_to is None else Path(self.moved_to)
        files = SpoolDirectory(Path(self.directory), self.pattern, self.then, self.suffix, moved_to)
        await context.in_thread(files.check)
        state = SpoolOffset() if offset is None else msgspec.convert(offset, SpoolOffset)
        # Their last rows are in the log, as the offset is; the process died before it renamed them.
        for each in state.done:
            await context.in_thread(files.dispose, each)
        # Ordered, as the offset lists them; the commit of a file's last row removes it.
        done: dict[SpooledFile, None] = {}
        file: SpooledFile | None = state.file
        row = state.row
        if file is not None:
            await context.in_thread(files.verify, file)
        while True:
            if file is None:
                file, row = await self._next(files, done, context), 0
                if file is None:
                    await context.sleep(self.poll)
                    continue
            async for read in self._file(files, file, row, done, context):
                yield read
            file = None

    async def _next(
        self, files: SpoolDirectory, done: Mapping[SpooledFile, None], context: SourceContext
    ) -> SpooledFile | None:
        if len(done) >= DONE_MAX:
            log.warning("%s: %s files wait for their commit", self.directory, len(done))
            return None
        now_ns = int(context.now().timestamp() * 1000) * 1_000_000
        settle_ns = duration_ms(self.settle) * 1_000_000
        found: SpooledFile | None = await context.in_thread(
            files.next_file, {*done}, now_ns, settle_ns
        )
        return found

    async def _file(
        self,
        files: SpoolDirectory,
        file: SpooledFile,
        row: int,
        done: dict[SpooledFile, None],
        context: SourceContext,
    ) -> AsyncIterator[Read[Any, Any]]:
        """Yield the rows of one file; with the last Read the file is done."""
        options = CsvOptions(self.delimiter, self.columns)
        rows = read_rows(files.path_of(file), self.format, row, options)
        # One chunk ahead, so that the last one and the end of the file are one Read.
        chunk: Rows | None = await context.in_thread(next, rows, None)
        while chunk is not None:
            following: Rows | None = await context.in_thread(next, rows, None)
            if following is None:
                break
            yield self._read(chunk, SpoolOffset(file, chunk.end, (*done,)), context)
            chunk = following
        # 1. A program appends a row to the file while its last chunk is read.
        # 2. The chunk may have the row or not; the file is renamed as soon as it is committed.
        # 3. So the last chunk is yielded only if nothing was appended until now.
        await context.in_thread(files.verify, file)
        done[file] = None
        state = SpoolOffset(done=(*done,))
        yield self._read(chunk, state, context, partial(_dispose, files, file, done))

    def _read(
        self,
        rows: Rows | None,
        state: SpoolOffset,
        context: SourceContext,
        committed: Callable[[], object] | None = None,
    ) -> Read[Any, Any]:
        offset: SourceOffset = msgspec.to_builtins(state)
        if rows is None:
            return Read((), offset, committed=committed)
        if rows.lines is not None:
            return Read.raw(rows.lines, offset, committed=committed)
        if rows.dicts is None:
            key = () if self.key is None else (self.key,)
            return Read.arrow(rows.batch, offset, key=key, committed=committed)
        records = [context.record(row, key=self._key(row)) for row in rows.dicts]
        return Read(records, offset, schema=self._schema(rows.dicts[0]), committed=committed)

    def _key(self, row: Mapping[str, object]) -> object:
        if self.key is None:
            return None
        if self.key not in row:
            raise ConnectError(f"key={self.key!r} is no column; there are {', '.join(row)}")
        return row[self.key]

    def _schema(self, row: Mapping[str, object]) -> Schema:
        fields = []
        for name in row:
            kind = self.columns.get(name, "string")
            fields.append(Field(name, Schema(kind, optional=kind != "string")))
        return Schema("struct", fields=tuple(fields))


def _dispose(files: SpoolDirectory, file: SpooledFile, done: dict[SpooledFile, None]) -> None:
    try:
        files.dispose(file)
    except OSError as error:
        # It stays in `done`, so it is not read again; the next life tries once more.
        log.warning("%s was read, but can't be put aside: %s", files.path_of(file), error)
    else:
        done.pop(file, None)
