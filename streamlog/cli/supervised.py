"""Supervised: a process that another one has started, hears and ends; what both of them need.

A process that finds a slot in its environment has a supervisor, and ends when that is gone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, BinaryIO

from streamlog.interrupts import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from streamlog.worker.slots import Slot

ORPHAN_S = 5
"""How long a process whose supervisor is gone may take to end in order."""


def my_slot() -> Slot | None:
    """What a supervisor has told this process; its own children are not to hear it."""
    from streamlog.worker.slots import SLOT_VARIABLE, Slot  # noqa: PLC0415 - brokers start faster

    text = os.environ.pop(SLOT_VARIABLE, None)
    return None if text is None else Slot.decode(text)


async def until_left_alone(
    slot: Slot, work: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event
) -> None:
    """Work until `stop` is set, here or because the supervisor is gone."""
    loop = asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        with suppress(OSError):
            os.read(slot.alive_fd, 1)
        with suppress(OSError):
            os.write(2, b"the supervisor is gone: finishing\n")
        with suppress(RuntimeError):  # The loop is closed: it has ended already.
            loop.call_soon_threadsafe(stop.set)
        sleep(ORPHAN_S)
        os._exit(EXIT_INTERRUPTED)

    threading.Thread(target=wait_for_the_end, name="supervisor", daemon=True).start()
    await work(stop)


def printer(stream: BinaryIO) -> Callable[[bytes], None]:
    """Prints what a supervisor has heard; nobody may be there to read it."""

    def write(lines: bytes) -> None:
        with suppress(BrokenPipeError):  # Nobody reads it any more; the processes go on.
            stream.write(lines)
            stream.flush()

    return write
