"""Ctrl-C before, between and after what a command does: exit code 130 and no traceback.

While modules are imported, a `KeyboardInterrupt` may come out as any other error, or be printed and
lost in a callback of the import system. So a command begins with a handler that ends the process at
once, as nothing has been begun. Whatever has to be cleaned up, and every event loop, runs with
Python's own handler (`interruptible`), which raises `KeyboardInterrupt`; `cli.main` takes it.
Imports nothing but the standard library's smallest modules: it is loaded before everything else.
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
    os._exit(EXIT_INTERRUPTED)


@contextmanager
def exiting_at_once() -> Iterator[None]:
    """Within the block, which imports modules, Ctrl-C ends the process at once.

    A handler that the program has set itself stays, and so does that of other threads.
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
    """Ctrl-C ends the process at once, outside of `interruptible` blocks.

    Only the interpreter's own teardown ignores it: by then the command is done.
    """
    if _has_default_handler():
        signal.signal(signal.SIGINT, _exit_at_once)
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, Ctrl-C raises `KeyboardInterrupt`, so that `finally` clauses run."""
    if not _is_main_thread() or signal.getsignal(signal.SIGINT) is not _exit_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _exit_at_once)


class _QuietHook:
    """`sys.excepthook` that prints no `KeyboardInterrupt`; other errors go to the hook before."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        self._before(kind, error, traceback)


def exit_quietly_if_uncaught() -> None:
    """Let a `KeyboardInterrupt` that a script does not catch end it with 130 and no traceback.

    For scripts that hold an app, and those interrupted while they import streamlog. An interactive
    session keeps its own way.
    """
    if not hasattr(sys, "ps1") and not isinstance(sys.excepthook, _QuietHook):
        sys.excepthook = _QuietHook()


def _has_default_handler() -> bool:
    return _is_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
