"""`streamlog dev`: runs an app that is being written, or a whole cluster; Ctrl-C stops it.

With a file, `one_app/dev_app` runs the app and its log. Without one, this module runs a cluster.
Each broker is a process, as on a machine of its own: kill one, and the others continue while the
supervisor starts it again. Data and settings stay in the directory for the next run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from streamlog.cli.broker_command import LISTEN_DEFAULT, parse_address
from streamlog.cli.cluster_init import NodeSetup, host_of, local_nodes, write_nodes
from streamlog.cli.one_app.dev_app import dev_app, free_port, run_dev
from streamlog.cli.session import DEFAULT_LOG, LogOption, WebOption, printer, serve
from streamlog.errors import StreamlogError, UsageError, quantity
from streamlog.properties import read_properties
from streamlog.replace import replace
from streamlog.worker.process.supervisor import Launch, Supervisor

BROKERS_USUAL = 3
DIRECTORY = Path(".streamlog/cluster")
REGISTRY_DEFAULT = "127.0.0.1:8081"
LISTENER_SETTING = "schema.registry.listener"
REGISTRY_ANY = "127.0.0.1:0"
"""For clusters beside the first: free ports."""
ASK_AGAIN_S = 0.1


FileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE[:APP]]",
        help="An app's Python file: run it, and again whenever a file changes.",
    ),
]
OpenOption = Annotated[
    bool, typer.Option("--open", help="With FILE: show the console in a browser.")
]


def dev(
    context: typer.Context,
    file: FileArgument = None,
    *,
    log: LogOption = None,
    web: WebOption = None,
    opens: OpenOption = False,
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            metavar="N",
            help=f"Number of brokers. Default: those in DIR, else {BROKERS_USUAL}.",
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="The directory for data and settings.")
    ] = DIRECTORY,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="The first broker's address; the others take the next ports. Default:"
            f" {LISTEN_DEFAULT}.",
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="HOST:PORT",
            help="The first broker's schema registry; the others take the next ports. Default:"
            f" {REGISTRY_DEFAULT}; a free port with --listen, or if that is taken.",
        ),
    ] = None,
) -> None:
    """Run an app that is being written, or without FILE a cluster of several brokers.

    Example: streamlog dev shop.py
    """
    if file is not None:
        if brokers is not None or listen is not None or registry is not None or data != DIRECTORY:
            raise UsageError(
                "--brokers, --data, --listen and --registry are for a cluster: no FILE"
            )
        run_dev(context.obj, dev_app(file, log=log or DEFAULT_LOG, web=web, opens=opens))
        return
    if log is not None or web is not None or opens:
        raise UsageError("--log, --web and --open are for an app: streamlog dev FILE")
    run_cluster(data, brokers, listen, registry)


def run_cluster(data: Path, brokers: int | None, listen: str | None, registry: str | None) -> None:
    """Run the cluster in a directory, a new one if it has none.

    Raises:
        UsageError: the directory has another cluster than these options describe.
    """
    nodes = read_nodes(data)
    if not nodes:
        nodes = local_nodes(data, brokers or BROKERS_USUAL, listen or LISTEN_DEFAULT, {})
        if registry is not None or find_spec("uvicorn") is not None:
            # Confluent's port for the usual cluster. Those beside it would find it taken.
            usual = REGISTRY_DEFAULT if listen is None else REGISTRY_ANY
            nodes = with_registries(nodes, registry or usual)
        write_nodes(nodes, None)
    elif brokers not in (None, len(nodes)):
        raise UsageError(
            f"{data} has {quantity(len(nodes), 'broker')}: omit --brokers, or remove the directory"
        )
    else:
        refuse_other_addresses(data, nodes[0], {"--listen": listen, "--registry": registry})
    supervise_nodes(data, nodes)
    typer.echo(f"stopped: data and settings stay in {data} for the next run")


def refuse_other_addresses(data: Path, first: NodeSetup, given: Mapping[str, str | None]) -> None:
    """Refuse addresses that the first broker does not have; those that it has may be repeated.

    Raises:
        UsageError: an option names another address.
    """
    there = {
        "--listen": first.settings.get("listeners", "").rpartition("://")[2],
        "--registry": first.settings.get(LISTENER_SETTING, ""),
    }
    for option, address in given.items():
        if address not in (None, there[option]):
            has = there[option] or "no such address"
            raise UsageError(
                f"the first broker in {data} has {has}, not {address}: omit {option}, or remove "
                "the directory"
            )


def with_registries(nodes: list[NodeSetup], address: str) -> list[NodeSetup]:
    """Return new nodes that each serve the schema registry, the first at `address`.

    The others take the next ports. Instead of a port that is taken, a node gets a free one; the
    settings keep it for later runs.

    Raises:
        UsageError: the address is not HOST:PORT.
    """
    host, first = parse_address(address)
    setups = []
    for index, node in enumerate(nodes):
        port = free_port(host, first + index if first else 0)
        own = {LISTENER_SETTING: f"{host_of(host)}:{port}"}
        setups.append(replace(node, settings={**node.settings, **own}))
    return setups


def read_nodes(directory: Path) -> list[NodeSetup]:
    """Return the nodes of a directory by number; empty if an earlier run made none.

    Raises:
        ConfigError: a settings file can't be read.
    """
    nodes = []
    for config in directory.glob("broker-*.properties"):
        settings = read_properties(str(config))
        number, data = int(settings.get("node.id", "1")), Path(settings.get("log.dirs", ""))
        nodes.append(NodeSetup(number=number, data=data, config=config, settings=settings))
    return sorted(nodes, key=lambda each: each.number)


def supervise_nodes(directory: Path, nodes: list[NodeSetup]) -> None:
    """Run a broker for each node until a signal.

    Raises:
        WorkerFailed: a broker ended with an error, which stopped the others.
    """
    ours, theirs = os.pipe()
    launch = Launch(
        command=[sys.executable, "-m", "streamlog", "broker", "--config"],
        # The supervisor counts its processes from 1.
        arguments=lambda number: [str(nodes[number - 1].config)],
        environment={**os.environ, "PYTHONUNBUFFERED": "1"},
        alive_fd=ours,
        noun="broker",
        loss="its next start recovers its log",
    )
    supervisor = Supervisor(
        launch,
        processes=len(nodes),
        out=printer(sys.stdout.buffer),
        err=printer(sys.stderr.buffer),
    )

    async def main(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(tell_when_ready(directory, nodes))
            await supervisor.run(stop)
            # It may still wait for brokers that never joined.
            telling.cancel()

    try:
        serve(main, "the brokers stop", at_once=supervisor.kill)
    finally:
        os.close(ours)
        os.close(theirs)


async def tell_when_ready(directory: Path, nodes: list[NodeSetup]) -> None:
    """Print the cluster's addresses once all brokers have joined."""
    from streamlog.log import KAFKA  # noqa: PLC0415 - the brokers start before this import

    addresses = ",".join(each.listeners for each in nodes)
    while not await _are_all_there(KAFKA + addresses, len(nodes)):  # noqa: ASYNC110 - they are asked
        await asyncio.sleep(ASK_AGAIN_S)
    registries = [each.settings.get(LISTENER_SETTING) for each in nodes]
    urls = ",".join(f"http://{each}" for each in registries if each)
    typer.echo(
        f"{quantity(len(nodes), 'broker')} in {directory}: bootstrap.servers={addresses}\n"
        + (f"schema.registry.url={urls}\n" if urls else "")
        + f"try: streamlog cluster status --log {KAFKA}{addresses}\n"
        "Ctrl-C here stops all brokers"
    )


async def _are_all_there(url: str, count: int) -> bool:
    from streamlog.log import Log  # noqa: PLC0415 - the same

    try:
        async with Log.open(url) as log:
            return len((await log.admin().describe_cluster()).brokers) == count
    except StreamlogError:
        return False  # The brokers are still starting; one that fails prints its own error.
