"""`streamlog broker`: one broker of a log, until Ctrl-C; alone, or with others that it is told of.

A shell: settings come from a file and from the command line, which comes first.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener, listeners_of
from streamlog.broker.config.security import PLAINTEXT
from streamlog.cli.session import (
    WebOption,
    give_back_freed_memory,
    my_slot,
    serve,
    serve_until_orphaned,
    wait_until_set,
)
from streamlog.errors import ConfigError, UsageError
from streamlog.properties import read_properties

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

LISTEN_DEFAULT = "127.0.0.1:9092"
PORT_MAX = 65_535
LOOK_MS = 1_000
"""How often a broker that nobody writes to looks whether its directory is still there."""
LOOKS_TO_GIVE_BACK = 60
"""From one time that freed memory goes back to the system to the next one."""


class FlushChoice(StrEnum):
    """When a broker acknowledges a record."""

    ALWAYS = "always"
    OS = "os"


def broker(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="The log's directory. Default: log.dirs in FILE"
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=f"Port 0 takes a free one. Default: the listeners in FILE, else {LISTEN_DEFAULT}",
        ),
    ] = None,
    flush: Annotated[
        FlushChoice | None,
        typer.Option(
            "--flush", help="Acknowledge what is on disk, or what the operating system has."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings of the broker, NAME=VALUE a line."),
    ] = None,
    web: WebOption = None,
) -> None:
    """Serve a log directory to Kafka clients until Ctrl-C."""
    settings = broker_config(config, flush)
    if web is not None:
        settings = replace(settings, web=web)
    if data is not None:
        settings = replace(settings, log_dirs=str(data))
    if not settings.log_dirs:
        raise UsageError("where is its data? Give --data DIR, or log.dirs=DIR in --config FILE")
    if listen is not None:
        settings = replace(
            settings, security=replace(settings.security, listeners="", advertised_listeners="")
        )
    listeners = listeners_of(settings.security)
    if not listeners:
        host, port = parse_address(listen or LISTEN_DEFAULT)
        listeners = (Listener(host=host, port=port),)
    run_broker(settings, listeners)


def run_broker(settings: BrokerConfig, listeners: Sequence[Listener]) -> None:
    """Until a signal ends it. Raises what opening the directory and listening raise."""
    from streamlog.broker.broker import Broker  # noqa: PLC0415 - the other commands start faster
    from streamlog.broker.server.socket_server import SocketServer  # noqa: PLC0415 - the same

    data = settings.log_dirs

    async def main(stop: asyncio.Event) -> None:
        async with (
            Broker.open(data, config=settings) as opened,
            web_of(opened),
            SocketServer(opened, listeners) as listening,
        ):
            for server in listening.servers:
                protocol = server.listener.protocol
                security = "" if protocol == PLAINTEXT else f"{protocol}, "
                typer.echo(
                    f"listening on {server.host}:{server.port} "
                    f"({security}log {data}, cluster {opened.cluster_id}); Ctrl-C stops"
                )
            # What is there now stays: a full collection that walks it holds every client up.
            gc.collect()
            gc.freeze()
            for look in itertools.count(1):
                if await wait_until_set(stop, LOOK_MS):
                    break
                opened.directory.check()
                if look % LOOKS_TO_GIVE_BACK == 0:
                    await asyncio.to_thread(give_back_freed_memory)

    slot = my_slot()
    if slot is None:
        serve(main, "closing the log")
        typer.echo("stopped: the log is closed")
    else:
        serve(partial(serve_until_orphaned, slot, main), "")


@asynccontextmanager
async def web_of(opened: Broker) -> AsyncIterator[None]:
    """The broker's HTTP server, if its settings ask for one.

    Raises:
        ConfigError: its libraries are not installed, or the address is none.
        ListenError: the address is taken.
    """
    address = opened.directory.config.web
    if not address:
        yield
        return
    try:
        from streamlog.cli.broker_web import serve_health  # noqa: PLC0415 - an extra, for who asks
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"web.listener={address} needs an extra that is not installed ({error.name} is"
            " missing): pip install 'streamlog[web]'"
        ) from error
    async with serve_health(opened, address) as where:
        typer.echo(f"web       http://{where}")
        yield


def broker_config(file: Path | None, flush: FlushChoice | None) -> BrokerConfig:
    """The settings of a broker from a file, and from the command line, which comes first.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    given = {} if file is None else read_properties(str(file))
    if flush is not None:
        given["flush"] = flush
    return BrokerConfig().override(given)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; "[::1]:9092" for IPv6.

    Raises:
        UsageError: it is not of that form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX or not host:
        raise UsageError(f"{text!r} is not HOST:PORT, such as {LISTEN_DEFAULT}")
    return host.strip("[]"), int(port)
