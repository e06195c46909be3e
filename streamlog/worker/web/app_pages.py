"""The pages that an app has declared itself, as routes.

A page is a function of the user's on the worker's event loop: what it awaits lets others work.
It returns a Response of Starlette, text (HTML), bytes, or anything that has a form in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from streamlog import repeated
from streamlog.dsl.services import REQUEST, WebPage
from streamlog.errors import StreamlogError
from streamlog.worker.web.answers import BROKEN, error_answer, json_answer

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
