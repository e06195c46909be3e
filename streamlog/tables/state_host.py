"""What a state directory says of itself without being opened: which disk it is, whose state it has.

Workers with the same directory open each other's state, so a task moves between them without
reading its changelog. Two machines may share a name, but hardly a device and an inode as well;
if they do, a move takes longer than it had to.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator

from streamlog.tables.directories import SNAPSHOTS
from streamlog.tables.rocksdb import make_directory

_TASK = re.compile(r"(\d+)_(\d+)")


def state_host(path: str) -> str:
    """A name that is the same for all processes on this state directory, which is made.

    Raises:
        LogDirectoryError: it can't be made.
    """
    make_directory(path)
    found = os.stat(path)  # noqa: PTH116 - paths are text in all of the engine
    return f"{socket.gethostname()}:{found.st_dev}:{found.st_ino}"


def tasks_with_state(path: str) -> Iterator[tuple[int, int]]:
    """Sub-topology and partition of the tasks that have state in this directory."""
    try:
        names = os.listdir(path)  # noqa: PTH208 - as above
    except FileNotFoundError:
        return
    for name in sorted(names):
        found = _TASK.fullmatch(name)
        if found is not None and {*os.listdir(f"{path}/{name}")} - {SNAPSHOTS}:  # noqa: PTH208 - as above
            yield int(found[1]), int(found[2])
