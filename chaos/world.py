"""World: namespaces of our own, in which a cluster has a network that can be broken.

Everything happens in a process of its own network, mounts and processes, made by `unshare`: for
root at once, for others by a user namespace, where the system allows it. Whatever ends it, nothing
is left behind: links, rules and brokers go with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

INSIDE = "CHAOS_INSIDE"
"""Set in the environment of who is in there."""
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
TOOLS = ("unshare", "ip", "bridge", "mount")


def command() -> list[str] | None:
    """What has to stand before a command that is to run in a world of its own.

    None if this system allows none.
    """
    if any(shutil.which(tool) is None for tool in TOOLS):
        return None
    users = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    entry = ["unshare", *users, *NAMESPACES]
    tried = subprocess.run(
        [*entry, "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, check=False
    )
    return None if tried.returncode else entry


def is_inside() -> bool:
    """Whether this process is in a world of its own."""
    return INSIDE in os.environ


def enter(module: str, arguments: Sequence[str]) -> None:
    """Go on in a world of its own: the process is replaced; returns if there can be none."""
    entry = command()
    if entry is None:
        return
    os.environ[INSIDE] = "1"
    sys.stdout.flush()
    os.execvp(entry[0], [*entry, sys.executable, "-m", module, *arguments])  # noqa: S606 - as meant


def settle() -> None:
    """At the begin inside: the first process of its own dies by no signal unless it says so."""
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
