"""Rotation: which files are one log under its former names, and which of them is read next.

A log is renamed, copied, truncated and deleted while it is read. A reader stands in one file, which
it knows by inode, and by the checksum of the file's first bytes: an inode is given to another file
once its own is deleted, and a truncated file keeps its inode. Files of one log follow each other in
the order of their last write; the file under the log's own name is the last. (Numbers don't tell
the order: `.1` is the newest file of logrotate, and the oldest of log4j2. So a file that got its
last line after the next one got its own must be read before that one is renamed as well.)

Rule of the module: decisions over what a look at the directory has found. Not done here: the look
itself, and reading (`tail_reader`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from streamlog.replace import replace

HEAD_BYTES = 256
"""How many of a file's first bytes tell it from others; fewer if fewer were read."""
HEAD_BYTES_MIN = 64
"""A shorter head may well be that of another file."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4")
_NUMBER = r"\.\d{1,4}"
_EPOCH = r"\.\d{10}"
"""Seconds since 1970, as Apache's rotatelogs and supervisors name their files."""
_DATE = r"[.-]\d{4}-?\d{2}-?\d{2}(?:[-_T.]?\d+)*"
_ROTATED = re.compile(
    rf"(?:{_DATE}|{_NUMBER})+$|{_EPOCH}$|{_DATE}(?=\.[A-Za-z]\w*$)|\.(?:old|bak)$"
)
_LAST_NUMBER = re.compile(r"\.(\d{1,4})$")


class FilePosition(msgspec.Struct, frozen=True):
    """How far a log was read: the source offset of its part.

    Attributes:
        inode: the file.
        at: the bytes of it that were read.
        crc: the CRC-32 of its first `head_bytes(at)` bytes.
        mtime_ns: the latest modification that a file had when it was read; files whose last write
            is earlier have been read.
    """

    inode: int
    at: int = 0
    crc: int = 0
    mtime_ns: int = 0


class LogFile(NamedTuple):
    """A file of a log, as a look at its directory has found it."""

    path: str
    inode: int
    size: int
    mtime_ns: int
    is_active: bool
    """Whether it has the log's own name, so that it is the one that is written to."""


class Following(NamedTuple):
    """The file to read next, and from where.

    Attributes:
        file: the file.
        at: the bytes of it that were read already.
        lost: what was not read, for the operator; "" if nothing is missing.
    """

    file: LogFile
    at: int = 0
    lost: str = ""


def head_bytes(at: int) -> int:
    """Return how many of a file's first bytes its checksum covers when `at` bytes were read."""
    return min(at, HEAD_BYTES)


def checksum(head: bytes) -> int:
    """Return the checksum of a file's first bytes."""
    return crc32(head)


def log_name(name: str) -> str:
    """Return the name of the log that a file belongs to: its own without what rotation adds.

    `access.log.1`, `access.log-20250131` and `access.log.2.gz` belong to `access.log`;
    `app-2025-01-31.log` belongs to `app.log`.
    """
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return _ROTATED.sub("", name) or name


def in_order(files: Sequence[LogFile]) -> list[LogFile]:
    """Return the files of a log in the order in which they were written, the active one last."""
    return sorted(files, key=_order)


def _order(file: LogFile) -> tuple[bool, int, int, str]:
    # Clocks of file systems are coarse (4 ms on ext4): of two that end at one time, `.2` is older
    # than `.1`, and dates rise.
    number = _LAST_NUMBER.search(file.path)
    return file.is_active, file.mtime_ns, -int(number[1]) if number else 0, file.path


def first_file(files: Sequence[LogFile]) -> LogFile | None:
    """Return the file in which a log begins that was never read: the one that is written to."""
    return max(files, key=_order, default=None)


def next_file(position: FilePosition, files: Sequence[LogFile]) -> LogFile | None:
    """Return the file behind the one that is read, or None if that one is the last.

    If the file has been deleted, this is the first file that was written to later.
    """
    ordered = in_order(files)
    inodes = [each.inode for each in ordered]
    if position.inode in inodes:
        return next(iter(ordered[inodes.index(position.inode) + 1 :]), None)
    # 1. The reader is in 7, and `.1` is 6, which it has read.
    # 2. 7 is deleted, and the log begins anew as 8.
    # 3. `.1` must not be read again: its last write lies before what was read.
    later = [each for each in ordered if each.is_active or each.mtime_ns > position.mtime_ns]
    return next(iter(later), None)


def same_content(position: FilePosition, file: LogFile, head: bytes) -> bool:
    """Return whether a file still begins with what was read of it; `head`: its first bytes."""
    length = head_bytes(position.at)
    return file.size >= position.at and checksum(head[:length]) == position.crc


def resume(
    position: FilePosition, files: Sequence[LogFile], heads: dict[int, bytes]
) -> Following | None:
    """Return where reading continues after a standstill, or after a truncation.

    Args:
        position: how far the log was read.
        files: the files that there are now.
        heads: the first `HEAD_BYTES` of each, by inode.

    Returns:
        The file and the position in it; None if there is no file to continue with yet.
    """
    here = next((each for each in files if each.inode == position.inode), None)
    if here is not None and _is_read_file(position, here, files, heads):
        return Following(here, position.at)
    # `copytruncate`: the file continues under its copy's inode, with what was read of it. An old
    # file with an equal head is none, as its last write lies before what was read.
    copies = [
        each
        for each in files
        if position.at
        and each.mtime_ns >= position.mtime_ns
        and same_content(position, each, heads[each.inode])
    ]
    if len(copies) == 1:
        return Following(copies[0], position.at)
    # Of several copies none can be told to be the one; the active file is sure to be unread.
    is_clear = not copies
    file = next_file(replace(position, inode=0), files) if is_clear else None
    cause = "was deleted" if here is None else "was truncated or deleted"
    file = file or first_file(files)
    return file and Following(file, 0, _lost(position, cause))


def _is_read_file(
    position: FilePosition, here: LogFile, files: Sequence[LogFile], heads: dict[int, bytes]
) -> bool:
    """Whether the file with the inode is the one that was read."""
    if not same_content(position, here, heads[here.inode]):
        return False
    if position.at >= HEAD_BYTES_MIN:
        return True
    # 1. The reader is in 7, which is still empty.
    # 2. 7 is deleted; the log continues as 8, which is renamed, and then as a new 7.
    # 3. In that 7 nothing is missing, but 8 was never read: its last write is too late.
    before = (each for each in files if not each.is_active and _order(each) < _order(here))
    return all(each.mtime_ns <= position.mtime_ns for each in before)


def _lost(position: FilePosition, cause: str) -> str:
    return f"the file with inode {position.inode} {cause} behind byte {position.at}"
