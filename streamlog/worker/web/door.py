"""Door: the one thing of this room that a worker holds; bound first, opened when it can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass

from streamlog.worker.access.questions import Holder
from streamlog.worker.access.routed import RoutedTables
from streamlog.worker.figures import Figures, Standing
from streamlog.worker.web.metrics import Exposition
from streamlog.worker.web.pages import TaskHealth, pages
from streamlog.worker.web.peer_pages import peer_routes
from streamlog.worker.web.server import Listener, listening, serving
from streamlog.worker.web.table_pages import table_routes


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What of a worker is to be seen."""

    figures: Figures
    standing: Callable[[], Standing]
    rows: Holder
    """Of the tasks that run here, for other workers."""
    tables: RoutedTables
    """Of all workers, for everybody else."""


class Door:
    """An address that is taken, and a server behind it once it is open."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def open(self, inside: Inside) -> AbstractAsyncContextManager[None]:
        """Answer as long as the block lasts."""
        site = pages(
            TaskHealth(inside.standing),
            Exposition(inside.figures, inside.standing),
            more=[*table_routes(inside.tables), *peer_routes(inside.rows)],
            hosts=self.listener.hosts,
        )
        return serving(site, self.listener)


@contextmanager
def bound(address: str) -> Iterator[Door]:
    """Take HOST:PORT; port 0 is a free one.

    Raises:
        ConfigError: it is not of that form.
        ListenError: it is taken, or not one of this machine's.
    """
    with listening(address) as listener:
        yield Door(listener)
