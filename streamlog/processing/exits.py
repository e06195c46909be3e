"""Exits: what becomes of `sys.exit` in a function of the user's.

SystemExit and KeyboardInterrupt are no `Exception`, so they would end a worker past every policy
and without the record's coordinates. They are the function's failure like any other error.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final

EXITS: Final = (SystemExit, KeyboardInterrupt)


def exit_failure(stop: BaseException) -> Exception:
    """The failure of a function that tried to end the process.

    Raises:
        KeyboardInterrupt: it was Ctrl-C in a program that has no event loop to take it.
    """
    if isinstance(stop, KeyboardInterrupt) and _may_be_ctrl_c():
        raise stop
    failure = RuntimeError(
        f"{_place(stop)} raised {stop!r}, and a function can't end its worker: raise an error to"
        " fail, or return"
    )
    failure.__cause__ = stop
    return failure


def _may_be_ctrl_c() -> bool:
    """Whether Python raises KeyboardInterrupt here for the user's Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _place(stop: BaseException) -> str:
    """The function that raised it, and where."""
    at = stop.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None:
        return "the function"
    code = at.tb_frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{at.tb_lineno})"
