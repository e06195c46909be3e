"""LostAndFound: what a mirror cuts off, kept as files.

1. Cluster `a` leads `orders`, is cut off, and still takes records at offsets 100 to 119. 2. Cluster
`b`, which has copied up to 100, is promoted. 3. `a` is to follow `b`, and cuts its log at 100. The
20 records are not in the log of either any more; they are in `a`, in the file
`lost-and-found/orders-0-100.log` of the data directory of the partition's leader, as record batches
one after another. What the promotion of an app cuts off goes there, too. No file is overwritten or
removed: that is for an operator to do.

Rule of this module: the file is on disk before the log is cut. A broker that stops in between cuts
again, and finds the file of the same content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.storage.disk.files import (
    directory_error,
    make_durable_directory,
    write_whole,
)
from streamlog.broker.storage.disk.offload import Threads, os_thread

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partition
    from streamlog.broker.storage.disk.files import File, Files
    from streamlog.broker.storage.log_directory import LogDirectory

FOLDER = "lost-and-found"
PIECE_BYTES = 1024 * 1024
"""How much is copied before other work of the broker gets its turn."""
UNFINISHED = "unfinished"
NAME_MAX = 200
"""Characters of a topic's name in that of a file."""
DIGEST_DIGITS = 16

_log = repeated.logger(__name__)


class LostAndFound:
    """Keeps records of this broker's partitions.

    Args:
        directory: where the logs are.
        threads: where files are synced.
    """

    def __init__(self, directory: LogDirectory, *, threads: Threads = os_thread) -> None:
        self._directory = directory
        self._threads = threads
        self._offsets = directory.metrics.counter(
            "streamlog_mirror_lost_and_found_offsets_total",
            "Offsets that a mirror has cut off: its source, or the cut of its app, ends before.",
        )

    async def keep(
        self, partition: Partition, offset: int, why: str = "its source does not have"
    ) -> str:
        """Write the records from `offset` on to a file, durably; return its path.

        `why` begins the line of the log, before the offsets.

        Raises:
            LogDirectoryError: the disk refused.
            CorruptData: the log is damaged.
        """
        volume = self._directory.volume_of(partition.topic, partition.index)
        files, folder = volume.files, f"{volume.path}/{FOLDER}"
        name = f"{folder}/{file_name(partition.topic)}-{partition.index}"
        unfinished = f"{name}.{UNFINISHED}"
        end_offset = partition.log.log_end_offset
        try:
            make_durable_directory(files, folder)
            await self._write(files, unfinished, partition, offset)
            path, is_new = await _free(files, f"{name}-{offset}", unfinished)
            if is_new:
                files.rename(unfinished, path)
                files.sync_directory(folder)
            else:
                files.remove(unfinished)
        except OSError as error:
            raise directory_error(error, volume.path) from error
        if is_new:
            self._offsets.add(end_offset - offset)
        _log.warning(
            "%s-%d: %s offsets %d to %d: they are cut off, and kept in %s",
            *(partition.topic, partition.index, why, offset, end_offset - 1, path),
        )
        return path

    async def _write(self, files: Files, path: str, partition: Partition, offset: int) -> None:
        file = files.open(path, writable=True)
        try:
            file.truncate(0)
            position = 0
            for piece in _pieces(partition, offset):
                write_whole(file, piece, position)
                position += len(piece)
                await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            with self._threads("streamlog-lost-and-found") as thread:
                await loop.run_in_executor(thread, file.sync)
        except OSError:
            # Half of it is of no use, and would take up the room that the log lacks.
            file.truncate(0)
            raise
        finally:
            file.close()


def file_name(topic: str) -> str:
    """Return how names of files begin that are about a topic.

    A topic's name has up to 249 characters, a file's up to 255, and offsets have 19.
    """
    if len(topic) <= NAME_MAX:
        return topic
    # No topic has a tilde in its name, so that this name is no other topic's.
    digest = sha256(topic.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{topic[: NAME_MAX - DIGEST_DIGITS - 1]}~{digest}"


def _pieces(partition: Partition, offset: int) -> Iterator[bytes]:
    """Yield the batches from `offset` to the end of a log."""
    log = partition.log
    while True:
        # Retention may delete records meanwhile.
        offset = max(offset, log.log_start_offset)
        if offset >= log.log_end_offset:
            return
        found = log.range(offset, max_bytes=PIECE_BYTES)
        offset = log.read_end_offset
        yield bytes(found) if isinstance(found, bytes | bytearray | memoryview) else found.read()


async def _free(files: Files, name: str, unfinished: str) -> tuple[str, bool]:
    """Return the path for a file, and whether there is none of its content yet."""
    number = 1
    while True:
        path = f"{name}.log" if number == 1 else f"{name}-{number}.log"
        try:
            other = files.open(path)
        except FileNotFoundError:
            return path, True
        mine = files.open(unfinished)
        try:
            if await _is_same(mine, other):
                return path, False
        finally:
            mine.close()
            other.close()
        number += 1


async def _is_same(one: File, other: File) -> bool:
    if one.size() != other.size():
        return False
    for position in range(0, one.size(), PIECE_BYTES):
        if one.read(PIECE_BYTES, position) != other.read(PIECE_BYTES, position):
            return False
        await asyncio.sleep(0)
    return True
