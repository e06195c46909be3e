"""A service over an embedded log, and its REST API without HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from streamlog.clock import SystemClock
from streamlog.connect_service.connector_offsets import ConnectorOffsets
from streamlog.connect_service.herder_shell import (
    ConnectService,
    ServiceSettings,
    open_service,
)
from streamlog.connect_service.rest_answers import ConnectRest, parse_call, set_level
from streamlog.log import Log

WAIT_S = 30


class Client:
    """Asks a service as a client of the REST API does."""

    def __init__(self, service: ConnectService) -> None:
        self.service = service
        self._rest = ConnectRest(service, ConnectorOffsets(service), cluster_id="a-cluster")

    async def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        return await self._rest.answer(parse_call(method, target, data))

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
async def running(directory: Path, **others: str) -> AsyncIterator[Client]:
    """Run a service; its commits are quick."""
    settings = ServiceSettings(
        commit_ms=20, offsets_partitions=3, status_partitions=1, others=others
    )
    async with (
        Log.open(f"embedded:{directory}") as log,
        open_service(
            log,
            SystemClock(),
            settings,
            worker_id="127.0.0.1:8083",
            resolve=lambda text: text.replace("${env:WORD}", "secret"),
            set_level=set_level,
        ) as service,
    ):
        client = Client(service)
        await service.ready.wait()
        yield client
