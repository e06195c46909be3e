"""The `topology` command, and how a difference between two versions looks in a terminal."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from streamlog.cli.session import LogOption, Session, with_log
from streamlog.cli.terminal import out, warnings_logged

if TYPE_CHECKING:
    from streamlog.log import Log
    from streamlog.topology import Topology
    from streamlog.worker.versions import Change


class Format(StrEnum):
    """What a topology can be printed as."""

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
        typer.Option("--diff", help="Against the version that ran last, with the state it loses."),
    ] = False,
    format_: Annotated[
        Format,
        typer.Option("--format", help="Text, a picture (svg), or a graph for other tools."),
    ] = Format.TEXT,
    log: LogOption = None,
) -> None:
    """What the app computes: its sub-topologies, nodes and state."""
    session: Session = context.obj
    with warnings_logged():
        built = session.the_app().topology()
    change = _compared(session, log, built) if diff else None
    if format_ is not Format.TEXT:
        typer.echo(_written(built, change, format_), nl=False)
    elif change is None:
        typer.echo(built.describe())
    else:
        out(markup=True).print(f"topology {built.app_id}: {version(change)}")
        print_difference(change)


def _compared(session: Session, log: str | None, built: Topology) -> Change:
    from streamlog.clock import SystemClock  # noqa: PLC0415 - the other commands start faster
    from streamlog.worker.versions import Versions  # noqa: PLC0415 - the same

    async def compare(opened: Log) -> Change:
        return await Versions(opened, built, SystemClock()).compare()

    return with_log(session, log, compare)


def _written(built: Topology, change: Change | None, as_: Format) -> str:
    from streamlog.topology.blueprint import Blueprint  # noqa: PLC0415 - the same
    from streamlog.topology.markup import dot, mermaid  # noqa: PLC0415 - the same
    from streamlog.topology.picture import picture_of  # noqa: PLC0415 - the same
    from streamlog.topology.svg import svg  # noqa: PLC0415 - the same

    if as_ is Format.JSON:
        data: dict[str, Any] = {"app": built.app_id, "topology": Blueprint.of(built)}
        if change is not None:
            data |= {"version": change.number, "difference": change.difference}
        return msgspec.json.format(msgspec.json.encode(data)).decode() + "\n"
    before = None if change is None or change.before is None else change.before.blueprint
    picture = picture_of(built, before)
    draw = {Format.MERMAID: mermaid, Format.DOT: dot, Format.SVG: svg}[as_]
    return draw(picture)


def version(change: Change) -> str:
    """Which version it is, and against what."""
    if change.before is None:
        return "the first version"
    if change.is_settled:
        return f"version {change.number}, as it ran before"
    return f"version {change.number}, against version {change.before.number}"


def print_difference(change: Change) -> None:
    """A line each, signed and in colour."""
    console = out(markup=True)
    for line in change.difference.lines():
        style = STYLES[line[0]]
        console.print(f"  [{style}]{escape(line)}[/{style}]", soft_wrap=True)
