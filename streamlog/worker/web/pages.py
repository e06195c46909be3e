"""What the worker's server answers under which path.

`/live`: whether the process works at all; who watches it may kill it otherwise. `/ready`:
whether the worker does all of its share; 503 while tasks are being restored, with how many.
`/metrics`: for Prometheus. `/tables` and what other workers ask have files of their own. Rule of
the file: every answer but the metrics is JSON, and an error says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamlog import repeated
from streamlog.worker.health.health import HealthReport
from streamlog.worker.web.answers import BROKEN, OK, UNAVAILABLE, json_answer
from streamlog.worker.web.metrics import CONTENT_TYPE

logger = repeated.logger(__name__)


class Health(Protocol):
    """Port: how the worker is."""

    def live(self) -> HealthReport:
        """Whether it works at all: not well means that a restart would help."""

    def ready(self) -> HealthReport:
        """Whether it does all of its share."""


class ExpositionPage(Protocol):
    """Port: what it counts."""

    def text(self) -> bytes:
        """All metrics as they are now, in Prometheus' text format."""


def pages(
    health: Health,
    exposition: ExpositionPage,
    *,
    more: Sequence[Route] = (),
    hosts: Sequence[str] = ("*",),
) -> Starlette:
    """The server's application.

    Args:
        health: asked by `/live` and `/ready`.
        exposition: shown at `/metrics`.
        more: other paths.
        hosts: the names that requests have to call this server by.
    """

    async def live(_request: Request) -> Response:
        return _reported(health.live())

    async def ready(_request: Request) -> Response:
        return _reported(health.ready())

    async def metrics(_request: Request) -> Response:
        return Response(exposition.text(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/live", live),
            Route("/ready", ready),
            Route("/metrics", metrics),
            *more,
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )


def _reported(report: HealthReport) -> Response:
    return json_answer(report.facts, OK if report.is_well else UNAVAILABLE)


async def _refused(request: Request, error: Exception) -> Response:
    status, headers = BROKEN, None
    what = str(error)
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers
        what = f"{request.method} {request.url.path}: {error.detail}"
    paths = ["/live", "/ready", "/metrics", "/tables"]
    return json_answer({"error": what, "paths": paths}, status, headers)


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return json_answer({"error": f"{type(error).__name__}: {error}; see the worker's log"}, BROKEN)
