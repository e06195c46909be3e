"""What the kernel takes for a message through a broker: the floor below the rows of `through`.

A program in C makes the system calls that a message needs, and nothing else: receive, write, wake a
thread that syncs, acknowledge, send, and receive the consumer's next fetch, 1,000 times a second.
The difference from a broker's CPU a message is the broker's own: protocol, checks, bookkeeping.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from benchmarks.harness import Reading

SOURCE: Final = Path(__file__).with_suffix(".c")
MESSAGES: Final = 5_000
TIMEOUT_S: Final = 60
WORKS: Final = {
    "0": "a message as system calls alone",
    "1": "a message as system calls alone, synced",
}
"""By whether each message is synced."""


async def figures(directory: Path, _: int) -> AsyncIterator[Reading]:
    """Not synced, then synced: CPU of the server."""
    program = directory / "message_floor"
    await _said("cc", "-O2", "-pthread", "-o", str(program), str(SOURCE))
    for is_synced, name in WORKS.items():
        cpu_us = float(await _said(str(program), str(directory), str(MESSAGES), is_synced))
        yield Reading(name, cpu_us, "us")


async def _said(*command: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True
    )
    return done.stdout
