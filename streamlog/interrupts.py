"""Ctrl-C at any moment of a command: exit code 130 and no traceback.

While modules are imported, a `KeyboardInterrupt` may turn into any other error, or be printed and
lost in a callback of the import system. So a command starts with a handler that ends the process at
once: it has nothing to clean up yet. Code with something to clean up, and every event loop, runs
with Python's own handler (`interruptible`), which raises `KeyboardInterrupt`; `cli.main` catches
it. This module is loaded first, so it imports only the smallest modules of the standard library.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Final

EXIT_INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""


def _exit_at_once(_number: int, _frame: FrameType | None) -> None:
    # Without `finally` clauses and exit handlers: an exception could get lost in an import.
    os._exit(EXIT_INTERRUPTED)


@contextmanager
def exiting_at_once() -> Iterator[None]:
    """Make Ctrl-C end the process at once within the block, which imports modules.

    Does nothing outside of the main thread, or if the program has set a handler of its own.
    """
    if not _has_default_handler():
        yield
        return
    signal.signal(signal.SIGINT, _exit_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_at_once() -> None:
    """Make Ctrl-C end the process at once, except in `interruptible` blocks.

    The interpreter's teardown ignores it: by then the command is done.
    """
    if _has_default_handler():
        signal.signal(signal.SIGINT, _exit_at_once)
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C raise `KeyboardInterrupt` within the block, so that `finally` clauses run."""
    if not _is_main_thread() or signal.getsignal(signal.SIGINT) is not _exit_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _exit_at_once)


class _QuietHook:
    """A `sys.excepthook` that exits on `KeyboardInterrupt`; other errors go to the former hook."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if _is_interrupt(error):
            sys.exit(EXIT_INTERRUPTED)
        self._before(kind, error, traceback)


def _is_interrupt(error: BaseException) -> bool:
    # Python 3.11 makes a RuntimeError of what interrupts `__set_name__`, as a class is made.
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__cause__
    return found is not None


def exit_quietly_if_uncaught() -> None:
    """Make an uncaught `KeyboardInterrupt` end a script with code 130 and no traceback.

    For scripts that define an app, also if they are interrupted while they import streamlog. It
    leaves an interactive session unchanged.
    """
    # Interactive sessions have a prompt, `ps1`.
    if not hasattr(sys, "ps1") and not isinstance(sys.excepthook, _QuietHook):
        sys.excepthook = _QuietHook()


def _has_default_handler() -> bool:
    return _is_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _is_main_thread() -> bool:
    # Other threads may not set signal handlers.
    return threading.current_thread() is threading.main_thread()
