"""`streamlog connect`: a worker of the Connect service, with Kafka Connect's files and REST API.

Without connector files it runs what its configs topic says, as `connect-distributed.sh` does; with
them it creates or updates those connectors first, as `connect-standalone.sh` does. Processes with
one `group.id` share the connectors; `-w N` starts several on this machine.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import msgspec
import typer

from streamlog.allowed_paths import allow_paths
from streamlog.cli.session import (
    LogOption,
    Session,
    collect_rarely,
    my_slot,
    serve,
    serve_until_orphaned,
)
from streamlog.cli.worker_command import processes_of, slot_address, supervise_processes
from streamlog.clock import SystemClock
from streamlog.connect_service.configured import ALLOW_EXEC
from streamlog.connect_service.herder_shell import ConnectService, open_service
from streamlog.connect_service.rest_answers import message_of, parse_call
from streamlog.connect_service.service_files import (
    REST_DEFAULT,
    REST_SETTING,
    advertised,
    listener_of,
    log_of,
    read_connector_file,
    read_worker_file,
    rest_access,
    secrets_of,
    service_settings,
    usable_paths,
)
from streamlog.errors import ConfigError, UsageError, quantity
from streamlog.http_access.access_settings import HttpAccess
from streamlog.http_access.guarded_server import check_exposure, https_context, peer_context
from streamlog.http_access.passwords import passwords_of
from streamlog.log import Log
from streamlog.metrics.build_info import install_command
from streamlog.worker.connect.logger_levels import set_level
from streamlog.worker.process.slots import Slot

if TYPE_CHECKING:
    from streamlog.connect_service.peer_forwarding import PeerForwarding

RestOption = Annotated[
    str | None,
    typer.Option(
        "--rest",
        metavar="HOST:PORT",
        help=f"Serve Kafka Connect's REST API here. Default: {REST_DEFAULT}; port 0 picks one.",
    ),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--rest-insecure", help="Let other machines use the API without a password or without TLS."
    ),
]
UsersOption = Annotated[
    Path | None,
    typer.Option(
        "--rest-users",
        metavar="FILE",
        help="Require a password of a user in this file: see `streamlog users add --file`.",
    ),
]
SecretsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--secrets-dir",
        metavar="DIR",
        help="Let ${file:...} and ${dir:...} refer to files below it; may be given repeatedly.",
    ),
]
PathsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--allow-path",
        metavar="DIR",
        help="Let connectors use files below it, and no others; may be given repeatedly."
        " Default: all files while the API is of this machine alone, else none.",
    ),
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        "-w",
        "--workers",
        metavar="N|auto",
        help="Number of worker processes under a supervisor; auto: one per core."
        " Their REST APIs have ports that count up from that of --rest.",
    ),
]


def _of_worker_file(value: str | None) -> None:
    """Refuse an option that is a setting of the worker, and say which one."""
    if value is not None:
        raise UsageError(
            f"`streamlog connect` has no --group: write group.id={value} into WORKER.properties,"
            " its first argument, and give the group topics of its own: config.storage.topic,"
            " offset.storage.topic and status.storage.topic"
        )


GroupOption = Annotated[
    str | None,
    typer.Option("--group", "--group-id", "--group.id", hidden=True, callback=_of_worker_file),
]


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
    rest: RestOption = None,
    rest_users: UsersOption = None,
    rest_insecure: InsecureOption = False,
    secrets_dir: SecretsOption = None,
    allow_path: PathsOption = None,
    allow_exec: Annotated[
        bool, typer.Option("--allow-exec", help="Let connectors run commands (Exec).")
    ] = False,
    workers: WorkersOption = None,
    group: GroupOption = None,  # noqa: ARG001 - its callback refuses it
    log: LogOption = None,
) -> None:
    """Run connectors as a service, with Kafka Connect's configurations and REST API."""
    session: Session = context.obj
    _require_web()
    worker, connectors = _read_files(files or [])
    if allow_exec:
        worker[ALLOW_EXEC] = "true"
    users = "" if rest_users is None else str(rest_users)
    access = rest_access(worker, users_file=users, is_insecure=rest_insecure)
    address = rest or listener_of(worker) or REST_DEFAULT
    check_exposure(address, access, setting=REST_SETTING)
    allow_paths(usable_paths(allow_path, address))
    log = log or log_of(worker)
    # It listens, so that other processes of the group, and other commands, reach an embedded log.
    open_log = partial(Log.open, session.log_url(log), security=session.security())
    slot = my_slot()
    if slot is None and workers is not None:
        supervise_processes(processes_of(workers), open_log, _nothing_before)
        typer.echo("stopped: everything is committed")
        return
    # One worker of a supervisor makes what the files say; the others follow the topic.
    if slot is not None and slot.number != 1:
        connectors = []
    secrets = secrets_dir or []
    run = _Run(open_log(), worker, connectors, at=(address, access), secrets=secrets, slot=slot)
    collect_rarely()
    if slot is None:
        serve(run.until, "the tasks commit and end")
    else:
        serve(partial(serve_until_orphaned, slot, run.until), "")


def _require_web() -> None:
    try:
        import uvicorn  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UsageError(
            "the Connect service needs an HTTP server, which is not installed"
            f" ({error.name} is missing): {install_command('web')}"
        ) from error


async def _nothing_before(_log: Log) -> None:
    """Make no topics: the workers make those of the service, and connectors theirs."""


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
        *,
        at: tuple[str, HttpAccess],
        secrets: list[Path],
        slot: Slot | None,
    ) -> None:
        self._log, self._worker = log, worker
        address, self._access = at
        self._address = address if slot is None else slot_address(address, slot)
        self._is_supervised = slot is not None
        self._instance_id = None if slot is None else slot.instance_id
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
        from streamlog.connect_service.peer_forwarding import forwarding_of  # noqa: PLC0415 - an extra
        from streamlog.connect_service.rest_site import RestSite  # noqa: PLC0415 - an extra
        from streamlog.http_server import listen  # noqa: PLC0415 - an extra
        from streamlog.http_server import serve as serve_http  # noqa: PLC0415 - an extra

        clock = SystemClock()
        # Read first, so that a missing file ends the worker before it joins its group.
        passwords = passwords_of(self._access, clock)
        tls = https_context(self._access, clock)
        with listen(self._address, setting=REST_SETTING) as listener:
            async with (
                self._log as log,
                open_service(
                    log,
                    clock,
                    self._settings,
                    worker_id=advertised(self._worker, listener.endpoint),
                    resolve=self._resolve,
                    set_level=set_level,
                    instance_id=self._instance_id,
                ) as service,
            ):
                cluster_id = (await log.admin().describe_cluster()).cluster_id or ""
                forwarding = forwarding_of(service, cluster_id, tls=peer_context(self._access))
                site = RestSite(
                    forwarding, listener.hosts, passwords=passwords, registry=service.registry
                )
                async with serve_http(site, listener, tls=tls):
                    scheme = self._access.scheme
                    typer.echo(f"connect: REST API at {scheme}://{listener.endpoint}")
                    await self._create(service, forwarding)
                    await stop.wait()
        if not self._is_supervised:
            typer.echo("stopped: everything is committed")

    async def _create(self, service: ConnectService, forwarding: PeerForwarding) -> None:
        await service.ready.wait()
        for name, settings in self._connectors:
            # Unchanged files must not restart tasks each time the service starts.
            if service.herder.configs.connectors.get(name) == settings:
                continue
            # As a client would: another process may lead the group.
            target = f"/connectors/{quote(name, safe='')}/config"
            call = parse_call("PUT", target, msgspec.json.encode(settings))
            status, body = await forwarding.answer(call)
            if status >= HTTPStatus.BAD_REQUEST:
                raise ConfigError(f"connector {name}: {message_of(body)}")
        typer.echo(f"connect: {quantity(len(service.herder.configs.connectors), 'connector')}")
