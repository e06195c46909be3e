"""Exec: a source of the lines that a command writes (Flume's exec)."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from streamlog.connect import (
    ConnectError,
    Guarantee,
    Read,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.message_framing import MESSAGE_BYTES_MAX, LineFramer
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.repeated import logger

log = logger(__name__)

CHUNK_BYTES = 256 * 1024
END_S = 5
"""How long a command may take to end after it was asked to, before it is killed."""


class Exec(Source[None, bytes], frozen=True, kw_only=True):
    """Runs a command, and reads the lines of its standard output; each is a record.

    At most once: a command does not know what of its output is in the log. What it writes to its
    standard error goes to that of the worker.

    Attributes:
        command: the program and its arguments; no shell is in between.
        restart: how long after its end the command runs again; None: a command that ends with exit
            code 0 has ended for good, and any other code is an error.
        environment: variables of the command, besides those of the worker.
        directory: where it runs; None for the worker's own directory.
        line_bytes_max: a longer line is cut into several.
    """

    guarantee: ClassVar[Guarantee] = "at_most_once"

    command: Sequence[str]
    restart: Dur | None = "10s"
    environment: Mapping[str, str] = {}
    directory: str | None = None
    line_bytes_max: int = MESSAGE_BYTES_MAX

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        # A text would be taken as a sequence of letters.
        if isinstance(self.command, str) or not self.command:
            raise ConfigError(
                f"command={self.command!r} is no list: write the program and its arguments, such "
                "as ['journalctl', '-f']"
            )
        if self.restart is not None and not duration_ms(self.restart):
            raise ConfigError(f"restart={self.restart!r} must be longer than 0")
        if not 1 <= self.line_bytes_max <= MESSAGE_BYTES_MAX:
            raise ConfigError(
                f"line_bytes_max={self.line_bytes_max} is not from 1 to {MESSAGE_BYTES_MAX}"
            )

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        """Yield the lines of the command, and of those that follow it."""
        del partition, offset
        while True:
            async with self._running() as process:
                framer = LineFramer(self.line_bytes_max)
                # Not asked for more than the log takes: the command waits at its full pipe.
                while data := await self._stdout(process).read(CHUNK_BYTES):
                    yield Read.raw(framer.feed(data), {})
                yield Read.raw(framer.finish(), {})
                code = await process.wait()
            if self.restart is None:
                if code:
                    raise ConnectError(f"{self.command[0]} ended with exit code {code}")
                return
            log.warning("%s ended with exit code %s", self.command[0], code)
            context.count("command_ends")
            await context.sleep(self.restart)

    def _stdout(self, process: Process) -> asyncio.StreamReader:
        if process.stdout is None:
            raise ConnectError(f"{self.command[0]} has no standard output")
        return process.stdout

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[Process]:
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                # A command that asks something must not take the terminal of the worker.
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                cwd=self.directory,
                env={**os.environ, **self.environment},
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            # Not `transient`, as other errors of the system are: a program does not appear.
            raise ConnectError(f"{self.command[0]} can't be run: {error}") from error
        try:
            yield process
        finally:
            await _end(process)


async def _end(process: Process) -> None:
    """End a command: it is asked first, and killed if it does not end."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
