"""Lines: of a file, of standard input, and what `send` makes of one.

A regular file is read as it is; a pipe or terminal by the event loop, so that its lines are sent
while others are waited for, and Ctrl-C ends the wait. Rule of the file: an error names file and
line.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
from collections.abc import AsyncIterator
from typing import BinaryIO, Final, NamedTuple

from streamlog.errors import UsageError

STANDARD_INPUT: Final = "-"
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A line is a record, and a log takes far smaller ones by default."""


class Line(NamedTuple):
    """A line with its place."""

    number: int
    """From 1."""
    key: str | None
    value: str


async def lines_of(name: str, *, key_separator: str | None) -> AsyncIterator[Line]:
    """The lines of a file, or of standard input if its name is `-`, without their ends.

    Raises:
        UsageError: the file can't be read, or a line is too long, not UTF-8, or has no separator.
    """
    number = 0
    async for data in _opened(name):
        number += 1
        where = f"{name}, line {number}"
        if len(data) > LINE_BYTES_MAX:
            raise UsageError(f"{where} is longer than {LINE_BYTES_MAX} bytes")
        yield parsed(number, data, where, key_separator)


def parsed(number: int, data: bytes, where: str, key_separator: str | None) -> Line:
    """What one line says; a byte order mark in front of the first is left out.

    Raises:
        UsageError: it is not UTF-8, or has no separator.
    """
    if number == 1:
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not UTF-8: {error}") from error
    text = text.removesuffix("\n").removesuffix("\r")
    if key_separator is None:
        return Line(number, None, text)
    key, found, value = text.partition(key_separator)
    if not found:
        raise UsageError(f"{where} has no key separator {key_separator!r}")
    return Line(number, key, value)


async def _opened(name: str) -> AsyncIterator[bytes]:
    try:
        with os.fdopen(os.dup(0), "rb") if name == STANDARD_INPUT else open(name, "rb") as file:  # noqa: ASYNC230, PTH123 - a regular file does not block
            read = _regular if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else _piped
            async for data in read(file):
                yield data
    except OSError as error:
        raise UsageError(f"can't read {name}: {error.strerror}") from error


async def _regular(file: BinaryIO) -> AsyncIterator[bytes]:
    while data := file.readline(LINE_BYTES_MAX + 1):
        yield data


async def _piped(file: BinaryIO) -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        while data := await _line(reader):
            yield data
    finally:
        transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil()
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError:
        return bytes(LINE_BYTES_MAX + 1)
