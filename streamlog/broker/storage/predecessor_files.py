"""PredecessorFiles: what a data directory has kept in files before there was a metadata log.

Read once, to begin the log with it, and removed then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from streamlog.broker.storage.catalog import ACLS, MALFORMED, USERS, AlteredSettings, Catalog
from streamlog.broker.storage.files import directory_error

if TYPE_CHECKING:
    from streamlog.broker.storage.producers import ProducerStates

Kept = TypeVar("Kept")


class PredecessorFiles:
    """Those of one directory; every method raises LogDirectoryError if the disk refuses."""

    def __init__(self, catalog: Catalog, path: str, producers: Iterable[ProducerStates]) -> None:
        """`producers` are those that the logs of the directory know."""
        self._catalog = catalog
        self._path = path
        self._producers = producers

    def settings(self) -> AlteredSettings:
        """Settings of the broker, and quotas, that were altered.

        Raises:
            CorruptData: the file is damaged.
        """
        with self._disk():
            return self._catalog.broker_settings()

    def users(self, read: Callable[[dict[str, Any]], Kept]) -> Kept | None:
        """What was kept of users, as `read` understands it; None if nothing.

        Raises:
            CorruptData: the file is damaged.
        """
        return self._kept(USERS, read)

    def acls(self, read: Callable[[dict[str, Any]], Kept]) -> Kept | None:
        """The same of ACLs, and raises the same."""
        return self._kept(ACLS, read)

    def next_producer_id(self) -> int:
        """The first producer id that was not given out; if no file tells, that no log knows.

        Raises:
            CorruptData: the file is damaged.
        """
        with self._disk():
            known = self._catalog.next_producer_id()
        if known is not None:
            return known
        found = (max(each.last_offsets(), default=-1) for each in self._producers)
        return max(found, default=-1) + 1

    def remove(self) -> None:
        """What they said is in the metadata log now."""
        with self._disk():
            self._catalog.remove_predecessors()

    def _kept(self, name: str, read: Callable[[dict[str, Any]], Kept]) -> Kept | None:
        with self._disk():
            content = self._catalog.kept(name)
        try:
            return None if content is None else read(content)
        except MALFORMED as error:
            raise self._catalog.damaged(name, error) from error

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise directory_error(error, self._path) from error
