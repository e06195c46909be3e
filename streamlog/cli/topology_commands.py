"""`streamlog topology` and `stream-time`: an app's graph, and the stream times that it has stored.

`topology` prints or draws the graph, or its difference from the version that the log has recorded.
`stream-time` finds stored stream times that lie ahead of the clock, and resets them.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from streamlog.cli.session import LogOption, Session, run, with_log
from streamlog.cli.terminal import JsonOption, log_warnings, out
from streamlog.durations import TIMESTAMP_MS_MAX, moment, when_ms
from streamlog.errors import ConfigError, UsageError, quantity

if TYPE_CHECKING:
    from streamlog.app import App
    from streamlog.log import Log
    from streamlog.topology import Topology
    from streamlog.worker.operations.stream_times import TaskTime
    from streamlog.worker.topics.version_log import VersionChange


NOW = "now"


def stream_time(
    context: typer.Context,
    *,
    reset_to: Annotated[
        str | None,
        typer.Option(
            "--reset-to",
            metavar="now|TIME",
            help="Reset the tasks shown to this time (ISO 8601 with a time zone).",
        ),
    ] = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Show stored stream times that are ahead of the clock; --reset-to resets them.

    Stop the app's workers before --reset-to.
    """
    session: Session = context.obj
    app = session.require_app()
    app.log, app.security = session.log_url(log), session.security()
    with log_warnings():
        topology = app.program().topology
    run(_stream_time(app, topology, reset_to, as_json=as_json))


async def _stream_time(
    app: App, topology: Topology, reset_to: str | None, *, as_json: bool
) -> None:
    from streamlog.clock import SystemClock  # noqa: PLC0415 - other commands start faster
    from streamlog.log import Log  # noqa: PLC0415 - the same
    from streamlog.worker.operations import stream_times  # noqa: PLC0415 - the same

    clock = SystemClock()
    to_ms = None if reset_to is None else _time_of(reset_to, clock.wall_ms())
    async with Log.open(app.log, security=app.security) as log:
        if to_ms is None:
            found = await stream_times.stream_times_ahead(topology, log=log, clock=clock)
        else:
            found = await stream_times.reset_stream_times(topology, to_ms, log=log, clock=clock)
    if as_json:
        typer.echo(json.dumps([_time_object(each, to_ms) for each in found]))
        return
    if not found:
        typer.echo(f"no stored stream time of {app.id!r} is ahead of the clock")
        return
    for each in found:
        typer.echo(_line(each))
    if to_ms is None:
        typer.echo("nothing was changed; to reset these tasks: stream-time --reset-to now|TIME")
        return
    tasks = sorted({each.task for each in found})
    typer.echo(
        f"stream time of {quantity(len(tasks), 'task')} ({', '.join(tasks)}) was reset to "
        f"{moment(to_ms).isoformat()}: start the workers"
    )


def _time_object(time: TaskTime, to_ms: int | None) -> dict[str, object]:
    stored = time.stored
    return {
        "task": time.task,
        "node": stored.node,
        "source": stored.source or None,  # None: all sources
        "time_ms": stored.time_ms,
        "reset_to_ms": to_ms,
    }


def _line(time: TaskTime) -> str:
    stored = time.stored
    source = "all sources" if not stored.source else f"source {stored.source}"
    ms = stored.time_ms
    shown = moment(ms).isoformat() if ms <= TIMESTAMP_MS_MAX else f"{ms} ms (after the year 9999)"
    return f"task {time.task}  {stored.node}  {source}  {shown}"


def _time_of(text: str, now_ms: int) -> int:
    if text == NOW:
        return now_ms
    try:
        return when_ms(text)
    except ConfigError as error:
        raise UsageError(f"--reset-to takes 'now' or a time: {error}") from error


class Format(StrEnum):
    """The forms in which a topology is printed."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"
    SVG = "svg"


STYLES = {"+": "green", "-": "red", "~": "yellow", "!": "bold red", " ": "dim"}


def topology(
    context: typer.Context,
    *,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff",
            help="Compare with the version that ran last; shows which state would be lost.",
        ),
    ] = False,
    format_: Annotated[
        Format,
        typer.Option("--format", help="Text, a picture (svg), or data for other tools."),
    ] = Format.TEXT,
    log: LogOption = None,
) -> None:
    """Show what the app computes: its sub-topologies, nodes and state."""
    session: Session = context.obj
    with log_warnings():
        app = session.require_app()
        built = app.topology()
    change = _compare(session, log, app, built) if diff else None
    if format_ is not Format.TEXT:
        typer.echo(_render(built, change, format_), nl=False)
    elif change is None:
        typer.echo(built.describe())
    else:
        out(markup=True).print(f"topology {built.app_id}: {version(change)}")
        print_difference(change)


def _compare(session: Session, log: str | None, app: App, built: Topology) -> VersionChange:
    from streamlog.worker.topics.version_log import VersionLog  # noqa: PLC0415 - the same

    async def compare(opened: Log) -> VersionChange:
        return await VersionLog(opened, built, app.connectors).compare()

    return with_log(session, log, compare)


def _render(built: Topology, change: VersionChange | None, as_: Format) -> str:
    from streamlog.blueprints.blueprint import Blueprint  # noqa: PLC0415 - the same
    from streamlog.blueprints.picture import (  # noqa: PLC0415 - the same
        dot,
        mermaid,
        picture_of,
    )
    from streamlog.blueprints.svg import svg  # noqa: PLC0415 - the same

    if as_ is Format.JSON:
        data: dict[str, Any] = {"app": built.app_id, "topology": Blueprint.of(built)}
        if change is not None:
            data |= {"version": change.number, "difference": change.difference}
        return msgspec.json.format(msgspec.json.encode(data)).decode() + "\n"
    before = None if change is None or change.before is None else change.before.blueprint
    picture = picture_of(built, before)
    draw = {Format.MERMAID: mermaid, Format.DOT: dot, Format.SVG: svg}[as_]
    return draw(picture)


def version(change: VersionChange) -> str:
    """Return the version's number as text, with the version that it is compared with."""
    if change.before is None:
        return "the first version"
    if change.is_settled:
        return f"version {change.number}, unchanged"
    return f"version {change.number}, compared with version {change.before.number}"


def print_difference(change: VersionChange) -> None:
    """Print each difference on a line, in the colour of its sign."""
    console = out(markup=True)
    for line in change.difference.lines():
        style = STYLES[line[0]]
        console.print(f"  [{style}]{escape(line)}[/{style}]", soft_wrap=True)
