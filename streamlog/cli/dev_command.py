"""`streamlog dev`: a whole cluster on this machine, to try things out; one Ctrl-C stops it.

Its brokers are processes of their own, as they would be on machines of their own: one can be
killed, and the others go on; another one takes its place. Their data stays for the next time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from streamlog.cli.broker_command import LISTEN_DEFAULT
from streamlog.cli.cluster_init import NodeSetup, local_nodes, write_nodes
from streamlog.cli.session import printer, serve
from streamlog.errors import StreamlogError, UsageError
from streamlog.properties import read_properties
from streamlog.worker.process.supervisor import Launch, Supervisor

BROKERS_USUAL = 3
DIRECTORY = Path(".streamlog/cluster")
ASK_AGAIN_S = 0.1


def dev(
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers", metavar="N", help=f"How many. Default: {BROKERS_USUAL}, or those of DIR"
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="For their data and settings.")
    ] = DIRECTORY,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=f"Of the first; the others take the ports after it. Default: {LISTEN_DEFAULT}",
        ),
    ] = None,
) -> None:
    """Run a cluster on this machine until Ctrl-C: several brokers under one supervisor."""
    seats = read_nodes(data)
    if not seats:
        seats = local_nodes(data, brokers or BROKERS_USUAL, listen or LISTEN_DEFAULT, {})
        write_nodes(seats, None)
    elif brokers not in (None, len(seats)):
        raise UsageError(f"{data} has {len(seats)} brokers: remove it, or leave out --brokers")
    elif listen is not None:
        raise UsageError(f"{data} says already where its brokers listen: leave out --listen")
    supervise_nodes(data, seats)
    typer.echo(f"stopped: {data} has everything for the next time")


def read_nodes(directory: Path) -> list[NodeSetup]:
    """The nodes that were made in a directory before.

    Raises:
        ConfigError: settings can't be read.
    """
    seats = []
    for config in directory.glob("broker-*.properties"):
        settings = read_properties(str(config))
        number, data = int(settings.get("node.id", "1")), Path(settings.get("log.dirs", ""))
        seats.append(NodeSetup(number=number, data=data, config=config, settings=settings))
    return sorted(seats, key=lambda each: each.number)


def supervise_nodes(directory: Path, seats: list[NodeSetup]) -> None:
    """Run the brokers of these seats until a signal ends them.

    Raises:
        WorkerFailed: one of them has ended with an error, and so did the others then.
    """
    ours, theirs = os.pipe()
    launch = Launch(
        command=[sys.executable, "-m", "streamlog", "broker", "--config"],
        arguments=lambda number: [str(seats[number - 1].config)],
        environment={**os.environ, "PYTHONUNBUFFERED": "1"},
        alive_fd=ours,
        noun="broker",
        loss="its next start looks through its log",
    )
    supervisor = Supervisor(
        launch,
        processes=len(seats),
        out=printer(sys.stdout.buffer),
        err=printer(sys.stderr.buffer),
    )

    async def main(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(tell_when_ready(directory, seats))
            await supervisor.run(stop)
            telling.cancel()

    try:
        serve(main, "the brokers stop", at_once=supervisor.kill)
    finally:
        os.close(ours)
        os.close(theirs)


async def tell_when_ready(directory: Path, seats: list[NodeSetup]) -> None:
    """Say where clients find the cluster, once all of its brokers are there."""
    from streamlog.log import KAFKA  # noqa: PLC0415 - the brokers are started before

    addresses = ",".join(each.listeners for each in seats)
    while not await _are_all_there(KAFKA + addresses, len(seats)):  # noqa: ASYNC110 - they are asked
        await asyncio.sleep(ASK_AGAIN_S)
    typer.echo(
        f"{len(seats)} brokers in {directory}: bootstrap.servers={addresses}\n"
        f"try: streamlog cluster status --log {KAFKA}{addresses}\n"
        "Ctrl-C here stops all"
    )


async def _are_all_there(url: str, count: int) -> bool:
    from streamlog.log import Log  # noqa: PLC0415 - the same

    try:
        async with Log.open(url) as log:
            return len((await log.admin().describe_cluster()).brokers) == count
    except StreamlogError:
        return False  # They are on their way; what is wrong with one is told by itself.
