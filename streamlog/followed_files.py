"""Followed files: a value that is read from files, and read again once they have changed.

Certificates and users may be replaced while a process runs. The files are looked at when the value
is asked for, once a second at most. If they can't be read or do not fit together, the previous
value stays in use and an error is logged, so files may be replaced one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import ConfigError

LOOK_INTERVAL_MS: Final = 1_000
"""The least time between two looks at the files."""

T = TypeVar("T")
"""What is made of the files."""

_log = repeated.logger(__name__)


class FollowedFiles(Generic[T]):
    """The value of some files.

    Args:
        read: reads the files; raises ConfigError if they can't be used.
        paths: the files.
        clock: the time.
        name: of the value in the log, such as "certificates".

    Raises:
        ConfigError: the files can't be used.
    """

    def __init__(
        self, read: Callable[[], T], paths: Sequence[str | Path], clock: Clock, *, name: str
    ) -> None:
        self._read, self._paths, self._clock, self._name = read, paths, clock, name
        # 1. Read the old files. 2. They are replaced. 3. Take the stamps: those of the new files,
        # which would then never be read. So the stamps are taken first.
        self._stamps = self._stamped()
        self._value = read()
        self._looked_ms = clock.now_ms()

    @property
    def value(self) -> T:
        """The value, read again if the files have changed."""
        now_ms = self._clock.now_ms()
        if now_ms - self._looked_ms >= LOOK_INTERVAL_MS:
            self._looked_ms = now_ms
            self._look()
        return self._value

    def _look(self) -> None:
        stamps = self._stamped()
        if stamps == self._stamps:
            return
        # Also if the files turn out to be bad: they are read again, and the error is logged again,
        # only when they change.
        self._stamps = stamps
        try:
            self._value = self._read()
        except ConfigError as error:
            _log.error("could not reload the %s, keeping the previous ones: %s", self._name, error)
        else:
            _log.info("reloaded the %s: %s", self._name, self._paths[0])

    def _stamped(self) -> list[tuple[int, ...] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str | Path) -> tuple[int, ...] | None:
    """Return a value that changes when the file is replaced or written; None without a file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a str as well
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
