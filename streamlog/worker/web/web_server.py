"""Web server: the site of a worker or a broker, with its health and its metrics.

Not done here: the server itself (`http_server`), TLS and passwords (`http_access`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route

from streamlog import repeated
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    RequestTimedOut,
    StreamlogError,
    UsageError,
)
from streamlog.metrics.prometheus import CONTENT_TYPE, exposition
from streamlog.metrics.registry import Registry
from streamlog.worker.health.worker_health import HealthReport

if TYPE_CHECKING:
    from starlette.types import ASGIApp

OK = 200
MALFORMED = 400
NOT_FOUND = 404
NOT_HERE = 409
BROKEN = 500
UNAVAILABLE = 503


def json_answer(
    content: object, status: int = OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer as JSON, with caching disabled; an error is a whole line."""
    # People see errors in a terminal, where the prompt would follow on the line of the error.
    end = b"\n" if status >= MALFORMED else b""
    return Response(
        msgspec.json.encode(content) + end,
        status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def error_answer(error: StreamlogError) -> Response:
    """Return an error as JSON; with `retry-after` if the request may succeed later."""
    status = status_of(error)
    headers = {"retry-after": "1"} if status == UNAVAILABLE else None
    return json_answer({"error": str(error)}, status, headers)


def status_of(error: StreamlogError) -> int:
    """Return the HTTP status of an error: 4xx for the request's fault, 5xx for the worker's."""
    match error:
        # Before its base `UsageError`: a setting that a worker lacks is not the fault of the
        # request.
        case ConfigError() | RequestTimedOut() | ConnectionLost():
            return UNAVAILABLE
        case UsageError():
            return MALFORMED
        case _:
            return UNAVAILABLE if error.retriable else BROKEN


logger = repeated.logger(__name__)


class Health(Protocol):
    """Port: the health of the worker."""

    def live(self) -> HealthReport:
        """Report whether the process works; if it does not, a restart would help."""

    def ready(self) -> HealthReport:
        """Report whether all tasks of the worker run."""


def mounted(path: str, site: ASGIApp) -> Mount:
    """Return the route to an application and all paths below it."""
    below = Mount(path, app=site)
    # Names in paths may hold line breaks, at which the pattern would end.
    below.path_regex = re.compile(below.path_regex.pattern, re.DOTALL)
    return below


def leading_to(path: str) -> Route:
    """Return the route of `/`, which leads to another path."""

    async def lead(_request: Request) -> Response:
        return RedirectResponse(path)

    return Route("/", lead)


def make_site(
    health: Health,
    registry: Registry,
    *,
    more: Sequence[BaseRoute] = (),
    hosts: Sequence[str] = ("*",),
) -> Starlette:
    """Return the ASGI application of the server.

    Args:
        health: answers `/live` and `/ready`.
        registry: the metrics that `/metrics` shows.
        more: further routes.
        hosts: the allowed values of a request's Host header; "*" allows any.
    """

    async def live(_request: Request) -> Response:
        return _health_answer(health.live())

    async def ready(_request: Request) -> Response:
        return _health_answer(health.ready())

    async def metrics(_request: Request) -> Response:
        return Response(await exposition(registry), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/live", live),
            Route("/ready", ready),
            Route("/metrics", metrics),
            *more,
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _answer_refusal, Exception: _answer_failure},
    )


def _health_answer(report: HealthReport) -> Response:
    return json_answer(report.facts, OK if report.is_well else UNAVAILABLE)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    status, headers = BROKEN, None
    message = str(error)
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers
        message = f"{request.method} {request.url.path}: {error.detail}"
        if allowed := _methods_of(request):
            headers = {"Allow": allowed}
            message += f"; {request.url.path} takes {allowed}"
    paths = ["/live", "/ready", "/metrics", "/tables", "/hot-keys"]
    return json_answer({"error": message, "paths": paths}, status, headers)


def _methods_of(request: Request) -> str:
    """Return the methods that the path of a request takes, if it takes some but not this one."""
    # Starlette names those of the first route alone, and a path may have one for each method.
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    partial = [each for each in routes if each.matches(request.scope)[0] is Match.PARTIAL]
    return ", ".join(sorted({method for each in partial for method in each.methods or ()}))


async def _answer_failure(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return json_answer({"error": f"{type(error).__name__}: {error}; see the worker's log"}, BROKEN)
