"""`streamlog broker`: runs one broker until Ctrl-C, alone or as a node of a cluster.

A thin shell: settings come from a file, and options of the command line take precedence.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener, listeners_of
from streamlog.broker.config.security import PLAINTEXT
from streamlog.cli.session import (
    FrozenPartitions,
    WebOption,
    give_back_freed_memory,
    my_slot,
    serve,
    serve_until_orphaned,
    wait_until_set,
)
from streamlog.clock import SystemClock
from streamlog.errors import ConfigError, UsageError
from streamlog.metrics.build_info import install_command
from streamlog.metrics.export import MeasuredService, exporting
from streamlog.properties import read_properties
from streamlog.replace import replace

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

LISTEN_DEFAULT = "127.0.0.1:9092"
PORT_MAX = 65_535
LOOK_MS = 1_000
"""How often an idle broker checks that its data directory still exists."""
LOOKS_TO_GIVE_BACK = 60
"""Checks between two returns of freed memory to the system."""


RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="HOST:PORT",
        help="Serve the schema registry there; port 0 picks a free one. Default:"
        " schema.registry.listener in FILE.",
    ),
]


class FlushChoice(StrEnum):
    """When a broker acknowledges a record."""

    ALWAYS = "always"
    OS = "os"


def broker(
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="The data directory; again for each further disk. Default: log.dirs in FILE.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="The address to listen on; port 0 picks a free one. Default: listeners in FILE,"
            f" else {LISTEN_DEFAULT}.",
        ),
    ] = None,
    flush: Annotated[
        FlushChoice | None,
        typer.Option(
            "--flush", help="When a record is acknowledged: once on disk, or once the OS has it."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="The broker's settings, one NAME=VALUE per line."
        ),
    ] = None,
    *,
    web: WebOption = None,
    registry: RegistryOption = None,
) -> None:
    """Serve a log directory to Kafka clients until Ctrl-C."""
    settings = broker_config(config, flush)
    if web is not None:
        settings = replace(settings, web=web)
    if registry is not None:
        settings = replace(settings, registry=replace(settings.registry, listener=registry))
    if data:
        settings = replace(settings, log_dirs=",".join(map(str, data)))
    if not settings.log_dirs:
        raise UsageError("broker needs --data DIR, or log.dirs=DIR in --config FILE")
    settings = _with_listener(settings, listen)
    listeners = listeners_of(settings.security)
    if not listeners:
        host, port = parse_address(listen or LISTEN_DEFAULT)
        listeners = (Listener(host=host, port=port),)
    run_broker(settings, listeners)


def _with_listener(settings: BrokerConfig, listen: str | None) -> BrokerConfig:
    """Return settings without the file's listeners, if the command line gives one."""
    if listen is None:
        return settings
    # The file's listeners go, and with them the addresses that it advertises.
    security = replace(settings.security, listeners="", advertised_listeners="")
    return replace(settings, security=security)


def run_broker(settings: BrokerConfig, listeners: Sequence[Listener]) -> None:
    """Run a broker until a signal; raises what `Broker.open` and `SocketServer` raise."""
    from streamlog.broker.broker import Broker  # noqa: PLC0415 - the other commands start faster
    from streamlog.broker.server.socket_server import SocketServer  # noqa: PLC0415 - the same

    data, *others = settings.directories
    named = ", ".join(settings.directories)

    async def main(stop: asyncio.Event) -> None:
        async with (
            Broker.open(data, others=others, config=settings) as opened,
            web_of(opened),
            otel_of(opened),
            SocketServer(opened, listeners) as listening,
            registry_of(opened),
        ):
            for server in listening.servers:
                protocol = server.listener.protocol
                security = "" if protocol == PLAINTEXT else f"{protocol}, "
                typer.echo(
                    f"listening on {server.host}:{server.port} "
                    f"({security}log {named}, cluster {opened.cluster_id}); Ctrl-C stops"
                )
            # These objects stay: a full collection that walked them would stall every client.
            gc.collect()
            frozen = FrozenPartitions(lambda: opened.partition_turnover)
            frozen.freeze()
            gc.callbacks.append(frozen.on_collection)
            for look in itertools.count(1):
                if await wait_until_set(stop, LOOK_MS):
                    break
                opened.directory.check()
                # In a thread, because the C library walks the whole heap.
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
    """Serve health, metrics and the console in the block, if the broker's settings ask for it.

    Raises:
        ConfigError: the extra is not installed, or the setting is not HOST:PORT.
        ListenError: the address is taken.
    """
    address = opened.directory.config.web
    if not address:
        yield
        return
    try:
        from streamlog.cli.broker_web import serve_health  # noqa: PLC0415 - an extra, loaded on request
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"web.listener={address} needs an extra that is not installed ({error.name} is"
            f" missing): {install_command('web')}"
        ) from error
    async with serve_health(opened, address) as where:
        typer.echo(f"web       {where}")
        yield


@asynccontextmanager
async def registry_of(opened: Broker) -> AsyncIterator[None]:
    """Serve the schema registry in the block, if the broker's settings ask for it.

    Raises:
        ConfigError: an extra is not installed, or the setting is not HOST:PORT, or not secure.
        ListenError: the address is taken.
    """
    from streamlog.registry.running_registry import serve_if_configured  # noqa: PLC0415 - the same

    async with serve_if_configured(opened) as url:
        if url is not None:
            typer.echo(f"registry  {url}")
        yield


@asynccontextmanager
async def otel_of(opened: Broker) -> AsyncIterator[None]:
    """Export metrics by OTLP in the block, if the broker's settings ask for it.

    Raises:
        ConfigError: the extra is not installed, or a variable of OpenTelemetry can't be used.
    """
    directory = opened.directory
    if not directory.config.otel_metrics:
        yield
        return
    # A node's id is unique in its cluster alone.
    cluster, node = opened.cluster_id, str(directory.node_id)
    service = MeasuredService(
        "streamlog-broker",
        f"{cluster}-{node}",
        {"kafka.cluster.id": cluster, "kafka.node.id": node},
    )
    wall_ms = SystemClock().wall_ms
    async with exporting(directory.metrics, service, setting="otel.metrics", wall_ms=wall_ms):
        yield


def broker_config(file: Path | None, flush: FlushChoice | None) -> BrokerConfig:
    """Return a broker's settings from a file; the command line takes precedence.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    given = {} if file is None else read_properties(str(file))
    if flush is not None:
        given["flush"] = flush
    return BrokerConfig().override(given)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT", or "[::1]:9092" for IPv6.

    Raises:
        UsageError: the text is not of that form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX or not host:
        raise UsageError(f"{text!r} is not HOST:PORT, such as {LISTEN_DEFAULT}")
    return host.strip("[]"), int(port)
