"""Tail: reads log files while they are written, over all rotations, every line once.

Each log is a part; its offset names a file by inode and checksum, and the bytes that were read.
Lines go to the topic as bytes. Not done here: rotation, cutting lines and reading files, which have
modules of their own.
"""

from __future__ import annotations

import glob
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import ClassVar

import msgspec

from streamlog.allowed_paths import check_path, is_allowed
from streamlog.connect import (
    Guarantee,
    Read,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.tail.rotation import COMPRESSED, FilePosition, log_name
from streamlog.connectors.tail.tail_reader import StartOfLog, TailReader, TailStep
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.record import Headers
from streamlog.repeated import logger

log = logger(__name__)


def _plain_part(pattern: str) -> Path:
    """Return the path before the first part that is a pattern."""
    return Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))


RECORD_BYTES_MAX = 1024 * 1024
"""The longest record by default."""
QUIET_TO_PAUSE = 10
"""How much longer than the pause between two looks a file has been quiet."""
RECORD_BYTES_LIMIT = 8 * 1024 * 1024
"""The largest `record_bytes_max`: a Read holds at most 16 MiB."""


class Tail(Source[None, bytes], frozen=True, kw_only=True):
    r"""Reads log files as they grow; a record is a line, without its end.

    Exactly once over any number of renames, deletions of files that were read, and standstills. A
    file that is truncated is read from its beginning again; with `copytruncate`, what was not read
    before is read in the copy, but what a program writes between copy and truncation is lost, as
    no file has it.

    Attributes:
        path: a log file, or a pattern such as "/var/log/nginx/*.log"; each log is a part. Names
            that rotation gives (`.1`, `-20250131`, `.gz`) belong to their log.
        start: where a log begins that was never read: at the "beginning" of the present file, at
            its "end" (only lines that are written from then on), or with the "oldest" of the files
            that were rotated.
        first_line: a regular expression that matches the beginning of a record's first line, such
            as `\d{4}-`; lines that don't match belong to the record before them. None: each line
            is a record.
        record_wait: how long the last record waits for another line, with `first_line`.
        rotate_wait: how long a renamed file must be quiet until the next one is read.
        record_bytes_max: a longer record is cut into several.
        path_header: the name of a header for the log's path; None for no header.
        poll: how often a file is looked at that has just been written.
        poll_max: the longest pause between two looks at a quiet file. A pause is at most a tenth of
            the time that the file has been quiet, and `poll` at least.
    """

    guarantee: ClassVar[Guarantee] = "exactly_once"

    path: str
    start: StartOfLog = "beginning"
    first_line: str | None = None
    record_wait: Dur = "5s"
    rotate_wait: Dur = "5s"
    record_bytes_max: int = RECORD_BYTES_MAX
    path_header: str | None = None
    poll: Dur = "200ms"
    poll_max: Dur = "1s"

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        if not self.path or self.path.endswith("/"):
            raise ConfigError(f"path={self.path!r} names no file: write a path or a pattern")
        # Of a pattern the directory of all its files; each file is checked when it is found.
        check_path("path", _plain_part(self.path))
        if not 1 <= self.record_bytes_max <= RECORD_BYTES_LIMIT:
            raise ConfigError(
                f"record_bytes_max={self.record_bytes_max} is not from 1 to {RECORD_BYTES_LIMIT}"
            )
        for wait in (self.record_wait, self.rotate_wait, self.poll, self.poll_max):
            duration_ms(wait)
        if not duration_ms(self.poll):
            raise ConfigError(f"poll={self.poll!r} must be longer than 0")
        try:
            re.compile((self.first_line or "").encode())
        except re.error as error:
            raise ConfigError(
                f"first_line={self.first_line!r} is no regular expression: {error}"
            ) from error

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return a part for each log that the pattern matches."""
        if not glob.has_magic(self.path):
            return [{"path": self.path}]
        paths = await context.in_thread(self._paths)
        return [{"path": path} for path in paths]

    def _paths(self) -> list[str]:
        found = map(Path, glob.glob(self.path, recursive=True))  # noqa: PTH207 - it may be absolute
        logs = {
            each.with_name(log_name(each.name))
            for each in found
            if each.is_file() and self._is_allowed(each)
        }
        return sorted(str(each) for each in logs if not each.name.endswith(COMPRESSED))

    def _is_allowed(self, path: Path) -> bool:
        if is_allowed(path):
            return True
        # Not an error: the other logs that the pattern matches are read on.
        log.warning("%s matches %s, which leads out of the allowed directories", self.path, path)
        return False

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        """Yield the lines of one log, for ever."""
        path = str(partition["path"])
        reader = self._reader(path, offset)
        quiet_ms = 0
        headers: Headers = ()
        if self.path_header is not None:
            headers = ((self.path_header, path.encode()),)
        try:
            while True:
                now_ms = int(context.now().timestamp() * 1000)
                step = await context.in_thread(reader.step, now_ms)
                if step is None:
                    pause_ms = self._pause_ms(quiet_ms)
                    quiet_ms += pause_ms
                    await context.sleep(timedelta(milliseconds=pause_ms))
                    continue
                quiet_ms = 0
                _report(path, step, context)
                yield Read.raw(
                    step.records,
                    msgspec.structs.asdict(step.position),
                    headers=[headers] * len(step.records) if headers else None,
                )
        finally:
            reader.close()

    def _pause_ms(self, quiet_ms: int) -> int:
        """Return the pause before the next look at a file that has been quiet for a time."""
        # A look costs two changes of threads. With a hundred quiet files, looks at a fixed interval
        # would take several percent of a core.
        longest_ms = min(quiet_ms // QUIET_TO_PAUSE, duration_ms(self.poll_max))
        return max(longest_ms, duration_ms(self.poll))

    def _reader(self, path: str, offset: SourceOffset | None) -> TailReader:
        return TailReader(
            path,
            None if offset is None else msgspec.convert(offset, FilePosition),
            start=self.start,
            first_line=None if self.first_line is None else re.compile(self.first_line.encode()),
            record_bytes_max=self.record_bytes_max,
            rotate_wait_ms=duration_ms(self.rotate_wait),
            record_wait_ms=duration_ms(self.record_wait),
        )


def _report(path: str, step: TailStep, context: SourceContext) -> None:
    if step.notice:
        log.warning("%s: %s", path, step.notice)
        context.count("lost_files")
    if step.is_long:
        context.count("long_lines")
