"""A worker with its console, and what asks it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx

from streamlog import App
from streamlog.connect_service.rest_site import site_of as connect_site_of
from streamlog.console.worker_console.worker_site import site_of
from streamlog.log import Log
from streamlog.transport.security import Security
from streamlog.worker.program import WorkerStart
from streamlog.worker.worker import Worker


@asynccontextmanager
async def worker_console(
    app: App,
    path: Path,
    auth: tuple[str, str] | None = None,
    security: Security | None = None,
    bound_s: float = 60,
) -> AsyncIterator[tuple[httpx.AsyncClient, Log]]:
    """Run a worker with a console in the block; yields a browser's client, and the worker's log."""
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    program = replace(app.program(), state_dir=f"{path}/state", web="127.0.0.1:0")

    def announce(start: WorkerStart) -> None:
        started.set_result(start)

    worker = Worker(
        program,
        log_url=f"embedded:{path}/log",
        announce=announce,
        connect_site=connect_site_of,
        console_site=partial(site_of, security=security),
    )
    async with asyncio.timeout(bound_s), asyncio.TaskGroup() as group:
        group.create_task(worker.run(stop))
        start: WorkerStart = await started
        url = f"http://{start.web}"
        async with httpx.AsyncClient(base_url=url, auth=auth, timeout=60) as browser:
            yield browser, start.log
        stop.set()
