"""Reaching: how a worker is reached over HTTP, and how it reaches the rows of others.

The one place that imports `worker/web`, and only when it is asked for: the libraries come with an
extra. Rule of the file: wiring, no decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.dsl.services import REQUEST, WebPage
from streamlog.errors import ConfigError, StreamlogError
from streamlog.processing.table_rows import tables_of
from streamlog.topology import Topology
from streamlog.worker.access.questions import RowHolder
from streamlog.worker.access.routed_tables import LocalRows, Reach, RoutedTables
from streamlog.worker.assignment.streams_assignor import WorkerPeers
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
from streamlog.worker.web.web_server import pages as site_of

logger = repeated.logger(__name__)


def door_at(address: str | None, pages: Sequence[WebPage]) -> AbstractContextManager[Door | None]:
    """The worker's HTTP server, not open yet; none without an address.

    `pages` are the app's own.

    Raises:
        ConfigError: its libraries are not installed, or the address is none.
        ListenError: the address is taken.
    """
    if address is None:
        if pages:
            logger.warning(
                "nobody can see the app's pages (%s): give it web= or --web",
                ", ".join(page.path for page in pages),
            )
        return nullcontext()
    try:
        pass
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"web={address!r} needs an extra that is not installed ({error.name} is missing): "
            "pip install 'streamlog[web]'"
        ) from error
    return bound(address, pages)


def peer_at(endpoint: str) -> RowHolder:
    """Another worker of the app.

    Raises:
        ConfigError: the library to ask it with is not installed.
    """
    try:
        from streamlog.worker.web.table_pages import PeerRows  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"rows of another worker are asked for over HTTP, which needs an extra that is not "
            f"installed ({error.name} is missing): pip install 'streamlog[web]'"
        ) from error
    return PeerRows(endpoint)


def tables_over(
    topology: Topology,
    counts: Mapping[str, int],
    *,
    peers: WorkerPeers,
    local: LocalRows,
    producer: Producer,
    clock: Clock,
) -> RoutedTables:
    """The rows of all tables, wherever they are; `producer` writes those that are put."""

    async def send(
        topic: str, value: bytes | None, *, key: bytes | None
    ) -> tuple[str, int, int, int]:
        return await (await producer.send(topic, value, key=key))

    return RoutedTables(
        Reach(
            app_id=topology.app_id,
            tables=tables_of(topology),
            counts=counts,
            peers=peers,
            local=local,
            remote=peer_at,
            send=send,
            clock=clock,
        )
    )


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
