"""AssistantDesk: where an assistant's tools find the log, the workers and the Connect service.

Rule of the module: nothing is open between two calls. So the server starts while the log is down,
and an embedded log is free for other processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from streamlog.cli.assistant.bounded_answers import Answer, arguments_of, schema_of
from streamlog.cli.operate.connectors_command import worker_urls
from streamlog.cli.session import Session, hinted
from streamlog.clock import Clock
from streamlog.console.connect_desk import ConnectAccess, ConnectDesk, RemoteConnect
from streamlog.console.turns import Turns
from streamlog.errors import LogError, UsageError
from streamlog.log import Log
from streamlog.registry_client import RegistrySettings
from streamlog.worker.connect.app_herder import PREFIX

A = TypeVar("A", bound=msgspec.Struct)
UNREADY = 503
"""What a worker answers that restores its state: the body says how far it is."""


@dataclass(frozen=True)
class AssistantDesk:
    """What the tools of one server ask."""

    session: Session
    clock: Clock
    turns: Turns
    given_log: str | None = None
    """The log of the command's option."""
    module: str = "MODULE"
    """What `-A` names."""
    worker: ConnectAccess | None = None
    connect: ConnectAccess | None = None

    @property
    def log_url(self) -> str:
        """The log's URL."""
        return self.session.log_url(self.given_log)

    @asynccontextmanager
    async def log(self) -> AsyncIterator[Log]:
        """Open the log for one call."""
        async with self.session.open(self.given_log) as opened:
            try:
                yield opened
            except LogError as error:
                raise await hinted(opened, error) from error

    def registry_of(self, log: Log) -> RegistrySettings | None:
        """Return the registry of the app, else the one that the log serves, if there is one."""
        app, url = self.session.app, log.registry_url
        given = None if app is None else app.schema_registry
        return RegistrySettings.of(url) if given is None and url else given

    @asynccontextmanager
    async def asked_worker(self) -> AsyncIterator[RemoteConnect]:
        """Ask a worker of the app over HTTP in the block.

        Raises:
            UsageError: no worker is known.
        """
        found = self.worker or await self._found_worker()
        if found is None:
            raise UsageError(
                "no worker is known: start streamlog mcp with --worker http://HOST:PORT, the"
                " address of a worker that runs with --web, or with -A MODULE"
            )
        worker = RemoteConnect(found, name="the worker", answers={UNREADY})
        try:
            yield worker
        finally:
            worker.close()

    @asynccontextmanager
    async def asked_connect(self) -> AsyncIterator[ConnectDesk]:
        """Ask the Connect service in the block, else a worker of the app.

        Raises:
            UsageError: none is known.
        """
        found = self.connect
        if found is None and (worker := self.worker or await self._found_worker()):
            found = msgspec.structs.replace(worker, url=worker.url.rstrip("/") + PREFIX)
        if found is None:
            raise UsageError(
                "no Connect service is known: start streamlog mcp with --connect http://HOST:8083,"
                " or with -A MODULE"
            )
        desk = ConnectDesk(RemoteConnect(found))
        try:
            yield desk
        finally:
            desk.close()

    async def _found_worker(self) -> ConnectAccess | None:
        """Return a worker that the group of the app names; no password goes to its address."""
        app = self.session.app
        if app is None:
            return None
        async with self.log() as log:
            urls = await worker_urls(log, app)
        return ConnectAccess(urls[0]) if urls else None


class AssistantTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool: what it is for, what it takes, and what it does."""

    name: str
    title: str
    about: str
    schema: Mapping[str, object]
    call: Callable[[AssistantDesk, Mapping[str, object]], Awaitable[Answer]]
    from_records: str = ""
    """The part of its answers that comes from records; empty: none does."""
    is_planning: bool = False
    """Whether it belongs to changes, and is served only where these are allowed."""
    is_changing: bool = False


def tool(
    takes: type[A],
    answer: Callable[[AssistantDesk, A], Awaitable[Answer]],
    *,
    title: str,
    from_records: str = "",
    is_planning: bool = False,
    is_changing: bool = False,
) -> AssistantTool:
    """Return a function as a tool: its name and its docstring are the tool's."""

    async def call(desk: AssistantDesk, given: Mapping[str, object]) -> Answer:
        return await answer(desk, arguments_of(takes, given))

    return AssistantTool(
        name=answer.__name__,
        title=title,
        about=" ".join((answer.__doc__ or "").split()),
        schema=schema_of(takes),
        call=call,
        from_records=from_records,
        is_planning=is_planning or is_changing,
        is_changing=is_changing,
    )
