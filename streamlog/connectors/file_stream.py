"""File streams: Apache Kafka's FileStreamSource and FileStreamSink, with its settings and offsets.

The source reads the lines of one file as they are added; its part is `{"filename": ...}` and its
offset `{"position": ...}`, as in Kafka Connect, so either can continue where the other was. `Tail`
is the connector for logs: it follows rotation. The sink adds a line for each record to one file;
`Objects` writes each record once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from streamlog.allowed_paths import check_path, opener
from streamlog.connect import (
    Batch,
    ConnectError,
    Guarantee,
    Read,
    Schema,
    Sink,
    SinkContext,
    SinkTask,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
    TopicPartition,
)
from streamlog.connect.converters.converter import StringConverter
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError

POLL: Dur = "1s"
CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 8 * 1024 * 1024
"""The longest line: a Read holds at most 16 MiB."""


class FileStreamSourceConnector(Source[None, str], frozen=True, kw_only=True):
    """Reads the lines of one file as they are added; a record is a line, as text.

    Attributes:
        file: the path of the file; it may come into being later.
        batch_size: how many lines are read at once, 1 or more.
        poll: how often the end of the file is looked at.
    """

    guarantee: ClassVar[Guarantee] = "exactly_once"

    file: str
    batch_size: Annotated[int, msgspec.Meta(ge=1)] = 2_000
    poll: Dur = POLL

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        if not self.file:
            raise ConfigError("file is empty: a worker does not read its standard input")
        check_path("file", self.file)
        if duration_ms(self.poll) < 1:
            raise ConfigError("poll is 0: the file would be read without a pause")

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return the file."""
        del context
        # Apache Kafka's name of the part, so that its offsets count here, and ours there.
        return [{"filename": self.file}]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, str]]:
        """Yield the lines behind a position.

        Raises:
            ConnectError: the file is shorter than what was read of it, or a line is too long.
        """
        path = Path(str(partition["filename"]))
        position = 0 if offset is None else int(str(offset["position"]))
        while True:
            lines, position = await context.in_thread(read_lines, path, position, self.batch_size)
            if not lines:
                await context.sleep(self.poll)
                continue
            records = [context.record(line) for line in lines]
            yield Read(records, {"position": position}, schema=Schema("string"))


def read_lines(path: Path, position: int, count: int) -> tuple[list[str], int]:
    """Return whole lines behind a position, without their ends, and the position behind them.

    Raises:
        ConnectError: the file is shorter than the position, or a line is too long.
    """
    try:
        file = open(path, "rb", opener=opener)  # noqa: SIM115 - an opener; closed below
    except FileNotFoundError:
        return [], position
    lines: list[str] = []
    with file:
        size_bytes = file.seek(0, 2)
        if size_bytes < position:
            raise ConnectError(
                f"{path} has {size_bytes} bytes, and {position} were read of it: it was truncated "
                "or replaced. Reset the connector's offsets to read it from its beginning, or use "
                "the connector Tail, which follows rotation"
            )
        file.seek(position)
        taken, line = 0, file.readline(LINE_BYTES_MAX)
        # A line without an end is still being written, and is read again whole.
        while line.endswith(b"\n"):
            taken += len(line)
            lines.append(line[:-1].removesuffix(b"\r").decode(errors="replace"))
            # A Read has a limit, and the rest of a large file can wait for the next one.
            is_full = len(lines) == count or taken >= CHUNK_BYTES
            line = b"" if is_full else file.readline(LINE_BYTES_MAX)
    if len(line) == LINE_BYTES_MAX:
        raise ConnectError(f"{path}: a line is longer than {LINE_BYTES_MAX} bytes")
    return lines, position + taken


class FileStreamSinkConnector(Sink[object, object], frozen=True, kw_only=True):
    """Adds a line for each record to a file: its value as Java shows it.

    At least once: a flush that is repeated after a crash adds its lines again.

    Attributes:
        file: the path of the file; it is created if it is missing.
    """

    file: str

    def check(self) -> None:
        """Raise ConfigError if the path is empty."""
        if not self.file:
            raise ConfigError("file is empty: a worker does not write to its standard output")
        check_path("file", self.file)

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that has written nothing yet."""
        return _FileTask(Path(self.file), context)


class _FileTask(SinkTask[object, object]):
    def __init__(self, path: Path, context: SinkContext) -> None:
        self._path, self._context = path, context
        self._lines: list[str] = []

    async def begin(self) -> None:
        self._lines = []

    async def write(self, batch: Batch[object, object]) -> None:
        written = [StringConverter().encode(batch.schema, each) for each in batch.values]
        self._lines += ["null" if each is None else each.decode() for each in written]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        del offsets
        await self._context.in_thread(self._add, self._lines)
        self._lines = []

    def _add(self, lines: Sequence[str]) -> None:
        # Opened for each flush: a file that was moved away meanwhile is created again.
        with open(self._path, "a", encoding="utf-8", opener=opener) as file:
            file.writelines(f"{line}\n" for line in lines)

    async def abort(self) -> None:
        self._lines = []
