"""A registry to talk to: a real broker in a thread, and requests to it over HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.server.socket_server import Acceptor
from streamlog.registry.running_registry import serve_if_configured

DEADLINE_S = 60
JSON_TYPE = "application/vnd.schemaregistry.v1+json"


class RestResponse(NamedTuple):
    status: int
    content: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> int:
        return int(self.content["error_code"])


class RunningRegistry:
    """A registry at a URL."""

    def __init__(self, url: str, broker: str = "", context: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.broker = broker
        """The address of the broker, HOST:PORT."""
        self._context = context

    def ask(
        self,
        method: str,
        path: str,
        content: object = None,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RestResponse:
        if content is not None:
            body = json.dumps(content).encode()
        request = urllib.request.Request(  # noqa: S310 - http to ourselves
            self.url + path,
            data=body,
            method=method,
            headers={"content-type": JSON_TYPE, **(headers or {})},
        )
        try:
            with urllib.request.urlopen(  # noqa: S310 - the same
                request, timeout=DEADLINE_S, context=self._context
            ) as response:
                status, data, got = response.status, response.read(), dict(response.headers)
        except urllib.error.HTTPError as error:
            with error:
                status, data, got = error.code, error.read(), dict(error.headers)
        try:
            return RestResponse(status, json.loads(data), got)
        except ValueError:
            return RestResponse(status, data.decode(), got)

    def get(self, path: str) -> Any:
        """Return the content of a successful GET."""
        found = self.ask("GET", path)
        assert found.status == 200, found
        return found.content

    def register(self, subject: str, schema: object, **more: object) -> int:
        """Register a schema, given as JSON or as text; return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found = self.ask(
            "POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": text, **more}
        )
        assert found.status == 200, found
        return int(found.content["id"])


@contextmanager
def run_registry(
    data: Path,
    settings: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Iterator[RunningRegistry]:
    """Run a broker with a registry in a thread while the block lasts."""
    config = BrokerConfig().override(
        {"schema.registry.listener": "127.0.0.1:0", **(settings or {})}
    )
    started: list[RunningRegistry] = []
    failed: list[BaseException] = []
    ready = threading.Event()
    loop_of: list[asyncio.AbstractEventLoop] = []
    stop = asyncio.Event()

    async def main() -> None:
        loop_of.append(asyncio.get_running_loop())
        async with (
            Broker.open(str(data), config=config) as broker,
            Acceptor(broker, "127.0.0.1", 0) as listening,
            serve_if_configured(broker) as url,
        ):
            assert url is not None
            started.append(RunningRegistry(url, f"127.0.0.1:{listening.port}", context))
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="registry")
    thread.start()
    try:
        assert ready.wait(DEADLINE_S)
        if failed:
            raise failed[0]
        yield started[0]
    finally:
        if loop_of and not failed:
            loop_of[0].call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)
    if failed:
        raise failed[0]
