"""Door: the one thing of this room that a worker holds; bound first, opened when it can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

from streamlog.dsl.services import WebPage
from streamlog.worker.access.questions import RowHolder
from streamlog.worker.access.routed import RoutedTables
from streamlog.worker.health.health import TaskHealth
from streamlog.worker.health.worker_figures import Figures, WorkerState
from streamlog.worker.web.app_pages import app_routes
from streamlog.worker.web.metrics import WorkerExposition
from streamlog.worker.web.pages import pages as site_of
from streamlog.worker.web.peer_pages import peer_routes
from streamlog.worker.web.table_pages import table_routes
from streamlog.worker.web.web_server import WebListener, listening, serving


class Door:
    """An address that is taken, and a server behind it once it is open."""

    def __init__(self, listener: WebListener, pages: Sequence[WebPage]) -> None:
        self.listener = listener
        self._pages = pages

    def open(
        self,
        *,
        figures: Figures,
        standing: Callable[[], WorkerState],
        rows: RowHolder,
        tables: RoutedTables,
    ) -> AbstractAsyncContextManager[None]:
        """Answer as long as the block lasts.

        Args:
            figures: what the worker has done.
            standing: where it stands.
            rows: of the tasks here, for other workers.
            tables: of all workers, for everybody else.
        """
        site = site_of(
            TaskHealth(standing),
            WorkerExposition(figures, standing),
            more=[*table_routes(tables), *peer_routes(rows), *app_routes(self._pages)],
            hosts=self.listener.hosts,
        )
        return serving(site, self.listener)


@contextmanager
def bound(address: str, pages: Sequence[WebPage] = ()) -> Iterator[Door]:
    """Take HOST:PORT; port 0 is a free one. `pages` are the app's own.

    Raises:
        ConfigError: it is not of that form.
        ListenError: it is taken, or not one of this machine's.
    """
    with listening(address) as listener:
        yield Door(listener, pages)
