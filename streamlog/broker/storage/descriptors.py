"""Descriptors: how a process divides the file descriptors that the system allows it.

A connection, an open file and a mapped file each cost descriptors. Each kind has a share that the
others can't take, so connections never keep the broker from opening a file.
"""

from __future__ import annotations

import errno
import resource
from typing import NamedTuple

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
