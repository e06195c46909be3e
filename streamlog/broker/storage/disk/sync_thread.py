"""SyncThread: a thread that syncs one file at a time, and does not take the interpreter lock.

A thread of Python takes the lock three times for each sync. Where the event loop has it, one of the
two waits and is woken, which costs both of them more than what they do in between. The work of this
thread (`sync_loop`) is compiled to C that needs no lock: a job comes by an eventfd, and its result
wakes the loop by another. On other systems than Linux, `begin` refuses, and the caller syncs in a
thread of its own.

Rule of this module: what has begun is reported once, with what the system has said of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from streamlog.broker.storage.disk.offload import start
from streamlog.broker.storage.disk.os_file import OsFile, serve_syncs
from streamlog.broker.storage.disk.sync_loop import CODE_BITS, END

if TYPE_CHECKING:
    from streamlog.broker.storage.disk.files import File

Synced: TypeAlias = Callable[[OSError | None, float], object]
"""Called with the error of a sync, or None, and how many seconds it took."""


class SyncThread:
    """A thread that starts with its first file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: Thread | None = None
        self._jobs = self._results = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._then: Synced | None = None

    def begin(self, file: File, then: Synced) -> bool:
        """Begin to sync a file; the running loop then calls `then`, once.

        Returns False if nothing has begun, because this thread syncs no such file. The file stays
        open until `then` is called, and no other one is begun meanwhile.

        Raises:
            NoThread: the thread could not start, and nothing has begun.
        """
        if not isinstance(file, OsFile) or (self._thread is None and not self._start()):
            return False
        self._then = then
        if sys.platform == "linux":
            os.eventfd_write(self._jobs, file.descriptor + 1)
        return True

    def close(self) -> None:
        """End the thread after the file that it syncs; no `then` is called afterwards."""
        thread, self._thread, self._then = self._thread, None, None
        if thread is None or sys.platform != "linux":
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._results)
        os.eventfd_write(self._jobs, END)
        thread.join()
        self._close_events()

    def _start(self) -> bool:
        if sys.platform != "linux":
            return False
        try:
            self._jobs = os.eventfd(0, os.EFD_CLOEXEC)
            self._results = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            # A daemon, because it may wait when a program ends that has never closed this.
            thread = Thread(
                target=serve_syncs, args=(self._jobs, self._results), name=self._name, daemon=True
            )
            start(thread)
        except OSError:
            self._close_events()  # No descriptor is free: the caller's own thread needs none.
            return False
        except BaseException:
            self._close_events()
            raise
        self._thread, self._loop = thread, asyncio.get_running_loop()
        self._loop.add_reader(self._results, self._on_result)
        return True

    def _close_events(self) -> None:
        for descriptor in (self._jobs, self._results):
            if descriptor >= 0:
                os.close(descriptor)
        self._jobs = self._results = -1

    def _on_result(self) -> None:
        result = os.eventfd_read(self._results) if sys.platform == "linux" else 0
        then, self._then = self._then, None
        code = (result & ((1 << CODE_BITS) - 1)) - 1
        if then is not None:
            error = OSError(code, os.strerror(code)) if code else None
            then(error, (result >> CODE_BITS) / 1e9)
