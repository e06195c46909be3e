"""WorkerIdentity: the name by which a worker writes in transactions, the same after a restart.

Fencing is by the generation of the consumer group (KIP-447), so any name will do that no other
worker has at the same time. Two things speak for names that come back: who takes over the name of
a worker that was killed ends its transaction at once, instead of after its time; and a cluster
remembers each name for a week. So a state directory has places, numbered from 0, each a file with
a name made once by chance; a worker takes the first that nobody has locked. There are never more
names than workers have run there at the same time. Rule of the file: the lock is the kernel's, so
it ends with the process however that ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from types import TracebackType
from typing import Self

from streamlog.errors import LogDirectoryError

PLACES_MAX = 10_000
"""More workers on one state directory than any machine runs."""
_NAME = re.compile(rb"[0-9a-f]{32}")


class WorkerIdentity:
    """A place among the workers of an app on this machine. Use it in a `with` block."""

    def __init__(self, app_id: str, state_path: str) -> None:
        self._app_id = app_id
        self._path = f"{state_path}/workers"
        self._lock = -1
        self.transactional_id = ""
        """Begins with the app's id and a "-", as the names of its topics do."""

    def __enter__(self) -> Self:
        """Take the first place that is free.

        Raises:
            LogDirectoryError: the state directory can't be used.
        """
        try:
            os.makedirs(self._path, exist_ok=True)  # noqa: PTH103 - a path is text in all of the engine
            self._lock = self._first_free()
            self.transactional_id = f"{self._app_id}-{self._name()}"
        except OSError as error:
            self._release()
            raise LogDirectoryError(
                f"the state directory {self._path} can't be used: {error.strerror}; choose another "
                "one or change its permissions"
            ) from error
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release()

    def _first_free(self) -> int:
        for number in range(PLACES_MAX):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(f"{self._path}/{number}.name", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                return descriptor
        raise LogDirectoryError(f"{PLACES_MAX} workers have locked {self._path}")

    def _name(self) -> str:
        """What the file says; a new name if it says nothing yet, or was written in part."""
        found = os.pread(self._lock, 64, 0)
        if _NAME.fullmatch(found) is None:
            found = secrets.token_hex(16).encode()
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, found, 0)
        return found.decode()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
