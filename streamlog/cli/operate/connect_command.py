"""`streamlog connect`: a worker of the Connect service, with Kafka Connect's files and REST API.

Without connector files it runs what its configs topic says, as `connect-distributed.sh` does; with
them it creates or updates those connectors first, as `connect-standalone.sh` does. One process runs
a group: a second one takes over, and the first ends.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from streamlog.cli.session import LogOption, Session, serve
from streamlog.clock import SystemClock
from streamlog.connect.herding.herder_requests import ConnectRefusal, PutConnector
from streamlog.connect_service.configured import ALLOW_EXEC
from streamlog.connect_service.connector_offsets import ConnectorOffsets
from streamlog.connect_service.herder_shell import ConnectService, open_service
from streamlog.connect_service.rest_answers import ConnectRest, set_level
from streamlog.connect_service.rest_site import REST_DEFAULT, SETTING, RestSite, check_exposure
from streamlog.connect_service.service_files import (
    BOOTSTRAP,
    read_connector_file,
    read_worker_file,
    secrets_of,
    service_settings,
)
from streamlog.errors import ConfigError, quantity
from streamlog.http_server import listen
from streamlog.http_server import serve as serve_http
from streamlog.log import Log


def connect(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[WORKER.properties] [CONNECTOR.properties|json ...]",
            help="The worker's settings, then connectors to create or update.",
        ),
    ] = None,
    *,
    rest: Annotated[
        str | None,
        typer.Option(
            "--rest",
            metavar="HOST:PORT",
            help=f"Serve Kafka Connect's REST API here. Default: {REST_DEFAULT}; port 0 picks one.",
        ),
    ] = None,
    rest_insecure: Annotated[
        bool,
        typer.Option("--rest-insecure", help="Let other machines use the API without a password."),
    ] = False,
    secrets_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--secrets-dir",
            metavar="DIR",
            help="Let ${file:...} and ${dir:...} refer to files below it; may be given repeatedly.",
        ),
    ] = None,
    allow_exec: Annotated[
        bool, typer.Option("--allow-exec", help="Let connectors run commands (Exec).")
    ] = False,
    log: LogOption = None,
) -> None:
    """Run connectors as a service, with Kafka Connect's configurations and REST API."""
    session: Session = context.obj
    worker, connectors = _read_files(files or [])
    if allow_exec:
        worker[ALLOW_EXEC] = "true"
    address = rest or _listener(worker.get("listeners", "")) or REST_DEFAULT
    check_exposure(address, is_insecure=rest_insecure)
    if log is None and BOOTSTRAP in worker:
        log = f"kafka://{worker[BOOTSTRAP]}"
    opened = session.open(log, create=True)
    run = _Run(opened, worker, connectors, address, secrets_dir or [])
    serve(run.until, "the tasks commit and end")


def _read_files(files: list[Path]) -> tuple[dict[str, str], list[tuple[str, dict[str, str]]]]:
    """Return the worker's settings, and the connectors of the other files."""
    first = files[0] if files and files[0].suffix != ".json" else None
    worker = read_worker_file(first)
    # A first file with a connector's class is a connector: there is no worker's file then.
    if "connector.class" in worker:
        first, worker = None, {}
    return worker, [read_connector_file(path) for path in files if path != first]


class _Run:
    """The service of this process."""

    def __init__(
        self,
        log: Log,
        worker: dict[str, str],
        connectors: list[tuple[str, dict[str, str]]],
        address: str,
        secrets: list[Path],
    ) -> None:
        self._log, self._address = log, address
        self._settings = service_settings(worker)
        self._connectors, self._resolve = connectors, secrets_of(secrets)

    async def until(self, stop: asyncio.Event) -> None:
        """Serve until the event is set.

        Raises:
            StreamlogError: the log can't be used, or another process has taken the group over.
        """
        try:
            await self._serve(stop)
        except BaseExceptionGroup as group:
            found: BaseException = group
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            raise found from group

    async def _serve(self, stop: asyncio.Event) -> None:
        with listen(self._address, setting=SETTING) as listener:
            async with (
                self._log as log,
                open_service(
                    log,
                    SystemClock(),
                    self._settings,
                    worker_id=listener.endpoint,
                    resolve=self._resolve,
                    set_level=set_level,
                ) as service,
            ):
                cluster_id = (await log.admin().describe_cluster()).cluster_id or ""
                site = RestSite(
                    ConnectRest(service, ConnectorOffsets(service), cluster_id=cluster_id),
                    listener.hosts,
                )
                async with serve_http(site, listener):
                    typer.echo(f"connect: REST API at http://{listener.endpoint}")
                    await self._create(service)
                    await stop.wait()
        typer.echo("stopped: everything is committed")

    async def _create(self, service: ConnectService) -> None:
        await service.ready.wait()
        for name, settings in self._connectors:
            # Unchanged files must not restart tasks each time the service starts.
            if service.herder.configs.connectors.get(name) == settings:
                continue
            try:
                await service.ask(PutConnector(name, settings))
            except ConnectRefusal as error:
                raise ConfigError(f"connector {name}: {error}") from error
        typer.echo(f"connect: {quantity(len(service.herder.configs.connectors), 'connector')}")


def _listener(text: str) -> str:
    """Return HOST:PORT of the first listener of a worker's file."""
    first = text.partition(",")[0].strip()
    if first.lower().startswith("https://"):
        raise ConfigError("listeners: https is not supported; put a proxy in front of the API")
    return first.removeprefix("http://").removeprefix("HTTP://")
