"""Descriptors: how a process divides its file descriptors, and which files stay open.

A connection, an open file and a mapped file each cost descriptors. Each kind has a share that the
others can't use, so connections never prevent the broker from opening a file.

A log keeps the file that it appends to open, and a broker may have more logs than descriptors.
Beyond the limit, `OpenFiles` closes the least recently used files; the next use opens them again.
Use is recorded as a mark that the file's holder sets (the second-chance algorithm), so it costs no
more than that.
"""

from __future__ import annotations

import errno
import resource
import threading
from typing import NamedTuple, Protocol

RAISED_MAX = 1024 * 1024
"""The limit that `raise_limit` asks for at most, whatever the hard limit allows."""
RESERVED = 64
"""Descriptors without a share: the event loop, listeners, locks, threads, peers."""
FILES_FRACTION = 3 / 8
"""The files' share of the limit."""
OPEN_LOGS_FRACTION = 1 / 2
"""The part of the files' share for logs that stay open between two appends."""
MAPPINGS_FRACTION = 1 / 6
"""The part of the files' share for mapped indexes."""
MAPPINGS_MAX = 256
BACKLOG_MAX = 512
BACKLOG_FRACTION = 1 / 16
"""The share of the limit for connections that are accepted and may still be refused."""
DESCRIPTORS_PER_CONNECTION = 2
"""One for the transport, one for its socket writer."""
SHORT = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the system, has no free descriptor. The disk is not at fault."""


class Shares(NamedTuple):
    """The descriptors of each kind."""

    limit: int
    open_logs: int
    """Log files that stay open for appends; the least recently used ones are closed."""
    mappings: int
    """Mapped index files; the oldest ones are closed."""
    reads: int
    """Files that stay open until a client has read their bytes; beyond this, bytes are copied."""
    backlog: int
    """Connections that the kernel queues until they are accepted."""
    connections: int
    """Open connections."""


def shares(limit: int, taken: int = 0) -> Shares:
    """Divide `limit` descriptors, `taken` of which have another use."""
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
    """Raise the soft limit of this process towards its hard limit; return the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_MAX if hard == resource.RLIM_INFINITY else min(hard, RAISED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft  # macOS grants less than its hard limit.
        return wanted
    return soft_limit()


def soft_limit() -> int:
    """Return how many descriptors this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return RAISED_MAX if soft == resource.RLIM_INFINITY else min(soft, RAISED_MAX)


def hard_limit() -> int:
    """Return how many descriptors this process may raise its limit to."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return RAISED_MAX if hard == resource.RLIM_INFINITY else min(hard, RAISED_MAX)


class FileHolder(Protocol):
    """An object that keeps one file open."""

    was_used: bool
    """Set by the holder with each use, cleared by `OpenFiles`."""

    def release(self) -> None:
        """Drop the file without closing it while another thread uses it."""
        ...


class OpenFiles:
    """The holders of open files; callable from any thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.released = 0
        """Files closed to make room for others, since the start."""
        self._lock = threading.Lock()
        self._holders: dict[FileHolder, None] = {}
        """In the order in which the next to close is searched."""

    def __deepcopy__(self, memo: dict[int, object]) -> OpenFiles:
        """Return an empty set: no file of a copied disk is open."""
        return OpenFiles(self.most)

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, holder: FileHolder) -> None:
        """Add a holder; make the least recently used ones release their files."""
        with self._lock:
            self._holders.pop(holder, None)
            while len(self._holders) >= self.most:
                self._release_next()
            holder.was_used = True
            self._holders[holder] = None

    def discard(self, holder: FileHolder) -> None:
        """Remove a holder that has closed its file."""
        with self._lock:
            self._holders.pop(holder, None)

    def release_all(self) -> int:
        """Make all holders release their files; return how many did."""
        with self._lock:
            holders, self._holders = self._holders, {}
            for holder in holders:
                holder.release()
            self.released += len(holders)
        return len(holders)

    def _release_next(self) -> None:
        # Second chance: a holder with a mark loses the mark and goes to the end. If all have marks,
        # the loop comes back to the first, which has lost its mark by then.
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
