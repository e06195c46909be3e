"""DirectoryLives: by which the controller tells a data directory from an older copy of it.

A directory gets an id at each start of a broker on it: a *life*. Before the broker registers, the
id is written down behind those before it; once the registration was answered, alone. So the life
that registered last is always among those in the directory, wherever the process was killed. It is
not if the directory was put back from a backup or a snapshot: then records that the cluster counts
on may be missing, and the controller does not count what is there.
"""

from __future__ import annotations

from collections.abc import Callable

from streamlog import repeated
from streamlog.broker.storage.catalog import Catalog
from streamlog.errors import CorruptData

_log = repeated.logger(__name__)


class DirectoryLives:
    """The lives of one data directory, in its `catalog`; `draw` makes an id."""

    def __init__(self, catalog: Catalog, path: str, draw: Callable[[], bytes]) -> None:
        self._catalog = catalog
        self._path = path
        self._draw = draw
        self._own: bytes | None = None

    def _read(self) -> tuple[list[bytes], bool]:
        """The lives in the directory, and whether they can be told."""
        try:
            return self._catalog.lives(), True
        except CorruptData as error:
            _log.warning("%s; until the next start it is not compared with older copies", error)
            return [], False

    def begin(self) -> list[bytes]:
        """Begin a life; returns what to register with: the lives so far, this one last.

        On a disk that takes no file the life before goes on. Where the lives can't be read, none is
        told, and the directory is not compared this time.
        """
        lives, is_told = self._read()
        own = self._draw()
        try:
            self._catalog.write_lives([*lives, own])
        except OSError as error:
            _log.warning("%s: this start can't be written down: %s", self._path, error.strerror)
            return lives
        self._own = own
        return [*lives, own] if is_told else []

    @property
    def were_begun(self) -> bool:
        """Whether a broker was started on this directory before."""
        lives, is_told = self._read()
        return bool(lives) or not is_told

    def keep(self) -> None:
        """The controller knows this life: the ones before it are of no use any more."""
        if self._own is None:
            return
        try:
            self._catalog.write_lives([self._own])
        except OSError as error:
            _log.warning("%s: earlier starts can't be forgotten: %s", self._path, error.strerror)
