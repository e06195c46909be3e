"""The command `stream-time`: stored stream times that lie ahead of the clock, and their reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamlog.cli.running import run
from streamlog.cli.session import LogOption, Session
from streamlog.cli.terminal import warnings_logged
from streamlog.durations import TIMESTAMP_MS_MAX, moment, when_ms
from streamlog.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from streamlog.app import App
    from streamlog.topology import Topology
    from streamlog.worker.stream_times import TaskTime

NOW = "now"


def stream_time(
    context: typer.Context,
    *,
    reset_to: Annotated[
        str | None,
        typer.Option(
            "--reset-to",
            metavar="now|TIME",
            help="Set the tasks shown back to this time (ISO 8601 with a time zone).",
        ),
    ] = None,
    log: LogOption = None,
) -> None:
    """Show stored stream times that lie ahead of the clock; --reset-to sets them back.

    The app's workers have to be stopped for --reset-to.
    """
    session: Session = context.obj
    app = session.the_app()
    app.log, app.security = session.log_url(log), session.security()
    with warnings_logged():
        topology = app.program().topology
    run(_stream_time(app, topology, reset_to))


async def _stream_time(app: App, topology: Topology, reset_to: str | None) -> None:
    from streamlog.clock import SystemClock  # noqa: PLC0415 - other commands start faster
    from streamlog.log import Log  # noqa: PLC0415 - the same
    from streamlog.worker import stream_times  # noqa: PLC0415 - the same

    clock = SystemClock()
    to_ms = None if reset_to is None else _time_of(reset_to, clock.wall_ms())
    async with Log.open(app.log, security=app.security) as log:
        if to_ms is None:
            found = await stream_times.stream_times_ahead(topology, log=log, clock=clock)
        else:
            found = await stream_times.reset_stream_times(topology, to_ms, log=log, clock=clock)
    if not found:
        typer.echo(f"no stored stream time of {app.id!r} lies ahead of the clock")
        return
    for each in found:
        typer.echo(_line(each))
    if to_ms is None:
        typer.echo("nothing was changed; to set these tasks back: stream-time --reset-to now|TIME")
        return
    tasks = sorted({each.task for each in found})
    typer.echo(
        f"stream time of {len(tasks)} tasks ({', '.join(tasks)}) was reset to "
        f"{moment(to_ms).isoformat()}: start the workers"
    )


def _line(time: TaskTime) -> str:
    stored = time.stored
    source = "all sources" if not stored.source else f"source {stored.source}"
    ms = stored.time_ms
    told = moment(ms).isoformat() if ms <= TIMESTAMP_MS_MAX else f"{ms} ms (beyond the year 9999)"
    return f"task {time.task}  {stored.node}  {source}  {told}"


def _time_of(text: str, now_ms: int) -> int:
    if text == NOW:
        return now_ms
    try:
        return when_ms(text)
    except ConfigError as error:
        raise UsageError(f"--reset-to takes 'now' or a time: {error}") from error
