"""LogDisk: what errors of the system mean for one log.

A disk that is full refuses a write, and the log goes on when there is space again. A file that
has vanished, or a sync that has failed, ends it: the `failure` stays, and nothing more is taken.
A damaged place is told once and disturbs nobody else. Rule of the file: no error of the system
leaves a log as what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamlog.broker.storage.files import directory_error
from streamlog.broker.storage.segment import LOG_SUFFIX
from streamlog.errors import (
    CorruptData,
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryFull,
    LogDirectoryLost,
    OffsetOutOfRange,
    TooManyOpenFiles,
)

if TYPE_CHECKING:
    from streamlog.broker.storage.files import Files
    from streamlog.broker.storage.segment import Segment

LINK_CHECK_MS = 100
"""A log whose file somebody has deleted takes what comes until it is noticed, this late at most."""


class LogDisk:
    """The disk of the log `name` in `directory`; `tell` is told of damaged places."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        name: str,
        read_only: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.failure: LogDirectoryError | None = None
        """Why the log takes nothing more."""
        self._files = files
        self._directory = directory
        self._name = name
        self._read_only = read_only
        self._tell = tell
        self._link_check_ms = 0

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the system come out as what they mean for the data directory."""
        try:
            yield
        except CorruptData as error:
            self._tell(str(error))
            raise
        except OSError as error:
            if self._read_only and self._retired_meanwhile(error):
                raise OffsetOutOfRange(
                    f"{self._name}: {error.filename or 'a segment'} was deleted while it was read"
                ) from error
            raise self.noted(error) from error

    def failed(self, error: OSError) -> LogDirectoryError:
        """It is not to be trusted any more; a lack of descriptors says nothing about it."""
        failure = directory_error(error, self._directory)
        if not isinstance(failure, TooManyOpenFiles):
            self.failure = failure
        return failure

    def noted(self, error: OSError) -> LogDirectoryError:
        """It has refused; only what has vanished stays so."""
        failure = directory_error(error, self._directory)
        if isinstance(failure, LogDirectoryFull):
            self._files.reserve.is_short = True
        if not isinstance(failure, LogDirectoryFailed):
            self.failure = failure
        return failure

    def check_linked(self, segment: Segment, now_ms: int) -> None:
        """Look now and then whether the file that is written to is still there.

        Raises:
            LogDirectoryLost: somebody has deleted it.
        """
        if now_ms < self._link_check_ms:
            return
        if not segment.linked():
            self.failure = LogDirectoryLost(
                f"{segment.path} has vanished while it was in use: the log of {self._name}"
                " stops here; put the data directory back in its place, or start with a new one"
            )
            raise self.failure
        self._link_check_ms = now_ms + LINK_CHECK_MS

    def _retired_meanwhile(self, error: OSError) -> bool:
        """Whether the broker that owns this log has removed a segment since it was opened."""
        if not isinstance(error, FileNotFoundError):
            return False
        try:
            return any(name.endswith(LOG_SUFFIX) for name in self._files.list(self._directory))
        except FileNotFoundError:
            return False
