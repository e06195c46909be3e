"""Descriptors: how a process divides its file descriptors, and which files stay open.

A connection, an open file and a mapped file each cost descriptors. Each kind has a share that the
others can't take, so connections never keep the broker from opening a file.

A log keeps the file that it appends to open, and a broker may have more logs than descriptors.
Beyond the bound `OpenFiles` closes the files that were not used for longest; the next use opens
them again. Recency is a mark that the holder of a file sets (second chance), so a use costs no
more than that.
"""

from __future__ import annotations

import errno
import resource
import threading
from typing import NamedTuple, Protocol

RAISED_MAX = 1024 * 1024
"""`raise_limit` asks for no more, whatever the hard limit allows."""
RESERVED = 64
"""For everything that has no share: the event loop, listeners, locks, threads, peers."""
FILES_FRACTION = 3 / 8
"""The files' share of the limit."""
OPEN_LOGS_FRACTION = 1 / 2
"""The share of the files' share that logs may keep open between two appends."""
MAPPINGS_FRACTION = 1 / 6
"""The share of the files' share that mapped indexes may hold."""
MAPPINGS_MAX = 256
BACKLOG_MAX = 512
BACKLOG_FRACTION = 1 / 16
"""Accepted at a time at most, before any of them can be refused."""
DESCRIPTORS_PER_CONNECTION = 2
"""One for the transport, one for its outlet."""
SHORT = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the system, has no descriptor left. Says nothing about a disk."""


class Shares(NamedTuple):
    """What each kind may hold."""

    limit: int
    open_logs: int
    """Log files that stay open for appending; the least recently used ones are closed."""
    mappings: int
    """Mapped index files; the oldest ones are closed."""
    reads: int
    """Files that stay open until a client has taken their bytes; beyond this, bytes are copied."""
    backlog: int
    """Connections that the kernel holds until they are accepted."""
    connections: int
    """Connections at a time."""


def shares(limit: int, taken: int = 0) -> Shares:
    """Divide `limit` descriptors, `taken` of which have other owners already."""
    free = max(limit - max(taken, RESERVED), 16)
    files = int(free * FILES_FRACTION)
    open_logs = max(int(files * OPEN_LOGS_FRACTION), 1)
    mappings = max(min(int(files * MAPPINGS_FRACTION), MAPPINGS_MAX), 1)
    backlog = max(min(int(limit * BACKLOG_FRACTION), BACKLOG_MAX), 1)
    connections = max((free - files - backlog) // DESCRIPTORS_PER_CONNECTION, 1)
    return Shares(
        limit=limit,
        open_logs=open_logs,
        mappings=mappings,
        reads=max(files - open_logs - mappings, 1),
        backlog=backlog,
        connections=connections,
    )


def raise_limit() -> int:
    """Raise the soft limit of this process towards its hard limit; returns the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_MAX if hard == resource.RLIM_INFINITY else min(hard, RAISED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft  # macOS grants less than its hard limit says.
        return wanted
    return soft_limit()


def soft_limit() -> int:
    """How many descriptors this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return RAISED_MAX if soft == resource.RLIM_INFINITY else min(soft, RAISED_MAX)


def hard_limit() -> int:
    """How many descriptors this process may be allowed at most."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return RAISED_MAX if hard == resource.RLIM_INFINITY else min(hard, RAISED_MAX)


class FileHolder(Protocol):
    """Something that keeps one file open."""

    was_used: bool
    """Set by the holder with each use, cleared here."""

    def release(self) -> None:
        """Drop the file without closing it under another thread that uses it now."""
        ...


class OpenFiles:
    """The holders of open files; callable from any thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.released = 0
        """Files that were closed to make room for others, since the start."""
        self._lock = threading.Lock()
        self._holders: dict[FileHolder, None] = {}
        """The one that is looked at next comes first."""

    def __deepcopy__(self, memo: dict[int, object]) -> OpenFiles:
        """Of a copied disk no file is open."""
        return OpenFiles(self.most)

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, holder: FileHolder) -> None:
        """Count one more, and have the least recently used ones release their files."""
        with self._lock:
            self._holders.pop(holder, None)
            while len(self._holders) >= self.most:
                self._release_next()
            holder.was_used = True
            self._holders[holder] = None

    def discard(self, holder: FileHolder) -> None:
        """It has closed its file."""
        with self._lock:
            self._holders.pop(holder, None)

    def release_all(self) -> int:
        """Have every holder release its file; returns how many did."""
        with self._lock:
            holders, self._holders = self._holders, {}
            for holder in holders:
                holder.release()
            self.released += len(holders)
        return len(holders)

    def _release_next(self) -> None:
        for _ in range(len(self._holders) + 1):
            holder = next(iter(self._holders))
            del self._holders[holder]
            if not holder.was_used:
                break
            holder.was_used = False
            self._holders[holder] = None
        else:
            holder = next(iter(self._holders))
            del self._holders[holder]
        holder.release()
        self.released += 1
