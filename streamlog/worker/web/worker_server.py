"""Door: the worker's HTTP server, which is bound first and opened when the worker can answer.

It serves the worker's own pages, the questions of other workers, the tables, and the pages that the
app declares, as routes. Imported only with the `web` extra, see `http_wiring`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    contextmanager,
)
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from streamlog import repeated
from streamlog.dsl.services import REQUEST, WebPage
from streamlog.errors import StreamlogError
from streamlog.worker.access.questions import RowHolder
from streamlog.worker.access.routed_tables import RoutedTables
from streamlog.worker.health.worker_health import Figures, TaskHealth, WorkerState
from streamlog.worker.web.metrics import WorkerExposition
from streamlog.worker.web.table_pages import peer_routes, table_routes
from streamlog.worker.web.web_server import (
    BROKEN,
    WebListener,
    error_answer,
    json_answer,
    listening,
    serving,
)
from streamlog.worker.web.web_server import make_site as site_of

logger = repeated.logger(__name__)


def app_routes(pages: Sequence[WebPage]) -> list[Route]:
    """A route for each."""
    return [Route(page.path, _endpoint(page), methods=["GET", "POST"]) for page in pages]


def _endpoint(page: WebPage) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(request: Request) -> Response:
        given = dict(request.path_params)
        if REQUEST in page.wants:
            given[REQUEST] = request
        try:
            return response_of(await page.run(**given))
        except StreamlogError as error:
            # Such as a table whose owner does not answer just now: the page's user can come again.
            logger.warning("page %s: %s", request.url.path, error)
            return error_answer(error)
        except (msgspec.MsgspecError, TypeError) as error:
            logger.exception("page %s failed", request.url.path)
            return json_answer({"error": f"the page {page.path} failed: {error}"}, BROKEN)

    return answer


def response_of(found: object) -> Response:
    """What a page has returned, as an answer."""
    match found:
        case Response():
            return found
        case str():
            return HTMLResponse(found)
        case bytes():
            return Response(found, media_type="application/octet-stream")
        case _:
            return json_answer(found)


class WorkerServer:
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
def bound(address: str, pages: Sequence[WebPage] = ()) -> Iterator[WorkerServer]:
    """Take HOST:PORT; port 0 is a free one. `pages` are the app's own.

    Raises:
        ConfigError: it is not of that form.
        ListenError: it is taken, or not one of this machine's.
    """
    with listening(address) as listener:
        yield WorkerServer(listener, pages)
