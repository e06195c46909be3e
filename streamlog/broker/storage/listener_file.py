"""ListenerFile: where other processes find the broker that has a data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.storage.reserve import unless_full

if TYPE_CHECKING:
    from streamlog.broker.storage.catalog import Catalog


class ListenerFile:
    """The file in the directory of `catalog`; what a full disk refuses is written later."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._owed: tuple[str, int] | None = None

    @property
    def is_owed(self) -> bool:
        """Whether there was no room for it."""
        return self._owed is not None

    def write(self, host: str, port: int) -> None:
        """The broker listens there. Raises OSError, but not for want of space."""
        self._owed = (host, port)
        with unless_full(f"where this broker listens ({host}:{port})"):
            self.settle()

    def settle(self) -> None:
        """Write what there was no room for.

        Raises:
            OSError: the disk refused.
        """
        if self._owed is not None:
            self._catalog.write_listener(*self._owed)
            self._owed = None
