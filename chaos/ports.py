"""Ports for processes that have to know each other's before they start.

A port that was found free and given up again may be taken by anybody a moment later: by an outgoing
connection, or by the test beside this one. So these lie below those that systems give to outgoing
connections, and a lock on a file stands for each as long as it is used.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

FIRST, LAST = 20_000, 30_000
"""Linux gives outgoing connections ports from 32768 on, others from 49152 on."""


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """So many ports that nobody listens on, and that no other test gets meanwhile."""
    directory = Path(tempfile.gettempdir()) / f"streamlog-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    candidates = random.sample(range(FIRST, LAST), LAST - FIRST)
    with ExitStack() as locks:
        ports: list[int] = []
        while len(ports) < count:
            port = candidates.pop()
            if _is_locked(directory / str(port), locks) and _is_free(port):
                ports.append(port)
        yield ports


def _is_locked(path: Path, locks: ExitStack) -> bool:
    """Whether the lock is ours now."""
    file = locks.enter_context(path.open("w"))
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
