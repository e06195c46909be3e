"""Worker server: the HTTP server of a worker, bound first and opened when the worker can answer.

It serves health and metrics, the queries of other workers, the tables, the pages that the app
declares, and sites from above, such as the console. Rule: needs the extra `[web]`, so only
`http_wiring` imports it. Not done here: the listener (`web_server`), and the answers
(`table_pages`, `worker_metrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    contextmanager,
)
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.dsl.services import REQUEST, WebPage
from streamlog.errors import StreamlogError
from streamlog.http_access.access_settings import HttpAccess
from streamlog.http_access.guarded_server import check_exposure, https_context, peer_context
from streamlog.http_access.passwords import PasswordGuard, passwords_of
from streamlog.http_access.user_file import UserFile
from streamlog.http_server import WebListener, listen, serve
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.worker.access.questions import RowHolder
from streamlog.worker.access.routed_tables import RoutedTables
from streamlog.worker.health.hot_keys import HotKeys
from streamlog.worker.health.worker_health import TaskHealth, WorkerState
from streamlog.worker.health.worker_metrics import WorkerMetrics
from streamlog.worker.web.hot_key_pages import hot_key_route
from streamlog.worker.web.peer_http import PeerLogin
from streamlog.worker.web.table_pages import PEER_PATHS, peer_routes, table_routes
from streamlog.worker.web.web_server import (
    BROKEN,
    error_answer,
    json_answer,
    leading_to,
    mounted,
)
from streamlog.worker.web.web_server import make_site as site_of

logger = repeated.logger(__name__)


def app_routes(pages: Sequence[WebPage]) -> list[Route]:
    """Return the routes of the app's pages."""
    return [Route(page.path, _endpoint(page), methods=["GET", "POST"]) for page in pages]


def _endpoint(page: WebPage) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(request: Request) -> Response:
        given = dict(request.path_params)
        # The function of a page gets the request only if it has a parameter for it.
        if REQUEST in page.wants:
            given[REQUEST] = request
        try:
            return response_of(await page.run(**given))
        except StreamlogError as error:
            # For example a table whose owner does not answer at present: a later request may work.
            logger.warning("page %s: %s", request.url.path, error)
            return error_answer(error)
        except (msgspec.MsgspecError, TypeError) as error:
            logger.exception("page %s failed", request.url.path)
            return json_answer({"error": f"the page {page.path} failed: {error}"}, BROKEN)

    return answer


def response_of(found: object) -> Response:
    """Return the response for the value that a page function has returned."""
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
    """A bound address, and the server on it while it is open."""

    def __init__(
        self, listener: WebListener, pages: Sequence[WebPage], access: HttpAccess, clock: Clock
    ) -> None:
        """Read the files of users and certificates; see `bind`."""
        self.listener = listener
        self.passwords = passwords_of(access, clock)
        """The users; None: requests need no password."""
        self.peer_tls = peer_context(access)
        """Encrypts requests to other workers; None: they are not."""
        self._tls = https_context(access, clock)
        self._pages = pages
        key = None if self.passwords is None else partial(_workers_key, self.passwords.users)
        if key is not None:
            key()  # A file without the workers' key is refused at the start.
        self.login = PeerLogin(key, self.peer_tls, clock)
        """How the workers of the app show each other who they are."""

    def open(
        self,
        *,
        metrics: WorkerMetrics,
        state: Callable[[], WorkerState],
        rows: RowHolder,
        tables: RoutedTables,
        hot_keys: HotKeys,
        topics: Mapping[str, TopicSpec],
        sites: Mapping[str, ASGIApp],
        front: str | None = None,
    ) -> AbstractAsyncContextManager[None]:
        """Answer requests while the block lasts.

        Args:
            metrics: what the worker counts.
            state: returns the worker's present state.
            rows: the rows of this worker's tasks, for other workers.
            tables: the rows of all workers, for users.
            hot_keys: counts the keys of this worker's inputs on demand.
            topics: the app's topics by name, which say how keys are read.
            sites: applications by the path that they are below.
            front: the path that `/` leads to, unless the app has a page there; None: nowhere.
        """
        site = site_of(
            TaskHealth(state),
            metrics.registry,
            more=[
                *table_routes(tables),
                *peer_routes(rows, self.login),
                hot_key_route(hot_keys, topics),
                # Before the app's pages, as all that is ours: a page can't hide it.
                *(mounted(path, site) for path, site in sites.items()),
                *app_routes(self._pages),
                *([] if front is None else [leading_to(f"{front}/")]),
            ],
            hosts=self.listener.hosts,
        )
        guarded: ASGIApp = site
        if self.passwords is not None:
            guarded = PasswordGuard(site, self.passwords, is_open=partial(_is_open, tuple(sites)))
        return serve(guarded, self.listener, tls=self._tls)


def _is_open(sites: Sequence[str], path: str) -> bool:
    # A load balancer has no password, workers sign their requests, and sites ask for it themselves.
    return path in {"/live", "/ready", *PEER_PATHS} or any(
        path.startswith(f"{at}/") for at in sites
    )


def _workers_key(users: UserFile) -> bytes:
    return users.workers_key


@contextmanager
def bind(
    address: str, pages: Sequence[WebPage], access: HttpAccess, clock: Clock
) -> Iterator[WorkerServer]:
    """Bind HOST:PORT without answering yet; port 0 takes a free one.

    Args:
        address: HOST:PORT.
        pages: the pages that the app declares.
        access: who may use the server, and its certificates.
        clock: the time.

    Raises:
        ConfigError: the address is malformed, others can reach it without a login, or a file of
            `access` can't be used.
        ListenError: the address is taken, or doesn't belong to this machine.
    """
    check_exposure(address, access, setting="web")
    with listen(address) as listener:
        yield WorkerServer(listener, pages, access, clock)
