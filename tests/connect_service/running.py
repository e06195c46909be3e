"""Workers of a service over an embedded log; one of them without HTTP, or several with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from streamlog.clock import SystemClock
from streamlog.connect_service.connector_offsets import ConnectorOffsets
from streamlog.connect_service.herder_shell import (
    ConnectService,
    ServiceSettings,
    open_service,
)
from streamlog.connect_service.peer_forwarding import PeerForwarding
from streamlog.connect_service.rest_answers import ConnectRest, parse_call
from streamlog.connect_service.rest_site import RestSite
from streamlog.connect_service.service_group import GroupTimes
from streamlog.http_access.access_settings import OPEN_ACCESS, HttpAccess
from streamlog.http_access.guarded_server import https_context, peer_context
from streamlog.http_access.passwords import passwords_of
from streamlog.http_server import listen, serve
from streamlog.log import Log
from streamlog.worker.connect.logger_levels import set_level

WAIT_S = 120
COMMIT_MS = 20


class Client:
    """Asks a worker as a client of the REST API does."""

    def __init__(self, service: ConnectService, access: HttpAccess = OPEN_ACCESS) -> None:
        self.service = service
        rest = ConnectRest(service, ConnectorOffsets(service), cluster_id="a-cluster")
        self.rest = PeerForwarding(service, rest, tls=peer_context(access))

    async def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        return await self.rest.answer(parse_call(method, target, data))

    async def get(self, target: str) -> Any:
        status, body = await self.ask("GET", target)
        assert status == 200, body
        return body

    async def until(self, holds: Callable[[], bool], what: str = "") -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110 - what it waits for is elsewhere
                await asyncio.sleep(0.02)

    async def until_state(self, name: str, state: str, tasks: int | None = None) -> None:
        """Wait until a connector and its tasks are in a state."""
        async with asyncio.timeout(WAIT_S):
            while True:
                status, body = await self.ask("GET", f"/connectors/{name}/status")
                if status == 200:
                    states = [body["connector"]["state"], *(t["state"] for t in body["tasks"])]
                    is_whole = tasks is None or len(body["tasks"]) == tasks
                    if is_whole and set(states) == {state}:
                        return
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running(
    directory: Path, *, commit_ms: int = COMMIT_MS, **others: str
) -> AsyncIterator[Client]:
    """Run a service of one worker; its commits are quick."""
    async with (
        Log.open(f"embedded:{directory}") as log,
        worker(log, "127.0.0.1:8083", commit_ms=commit_ms, **others) as client,
    ):
        yield client


def resolve_word(text: str) -> str:
    """Replace the one reference to a secret that there is."""
    return text.replace("${env:WORD}", "secret")


@asynccontextmanager
async def worker(
    log: Log,
    worker_id: str,
    access: HttpAccess = OPEN_ACCESS,
    *,
    commit_ms: int = COMMIT_MS,
    resolve: Callable[[str], str] = resolve_word,
    **others: str,
) -> AsyncIterator[Client]:
    """Run a worker, once it has its first tasks."""
    at_work = opened(log, worker_id, commit_ms=commit_ms, resolve=resolve, **others)
    async with at_work as service:
        client = Client(service, access)
        await service.ready.wait()
        yield client


def opened(
    log: Log,
    worker_id: str,
    *,
    commit_ms: int = COMMIT_MS,
    resolve: Callable[[str], str] = resolve_word,
    **others: str,
) -> AbstractAsyncContextManager[ConnectService]:
    """Run a worker that may not have read anything yet."""
    settings = ServiceSettings(
        commit_ms=commit_ms,
        offsets_partitions=3,
        status_partitions=1,
        times=GroupTimes(heartbeat_interval_ms=100),
        others=others,
    )
    return open_service(
        log,
        SystemClock(),
        settings,
        worker_id=worker_id,
        resolve=resolve,
        set_level=set_level,
    )


@asynccontextmanager
async def worker_with_http(log: Log, access: HttpAccess = OPEN_ACCESS) -> AsyncIterator[Client]:
    """Run a worker whose REST API other workers reach."""
    clock = SystemClock()
    with listen("127.0.0.1:0") as listener:
        async with worker(log, listener.endpoint, access) as client:
            site = RestSite(
                client.rest,
                listener.hosts,
                passwords=passwords_of(access, clock),
                registry=client.service.registry,
            )
            async with serve(site, listener, tls=https_context(access, clock)):
                yield client
