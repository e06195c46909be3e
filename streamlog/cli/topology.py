"""The `topology` command, and how a difference between two versions looks in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from streamlog.cli.session import LogOption, Session, with_log
from streamlog.cli.terminal import out, warnings_logged

if TYPE_CHECKING:
    from streamlog.log import Log
    from streamlog.worker.versions import Change

STYLES = {"+": "green", "-": "red", "~": "yellow", "!": "bold red", " ": "dim"}


def topology(
    context: typer.Context,
    *,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Against the version that ran last, with the state it loses."),
    ] = False,
    log: LogOption = None,
) -> None:
    """What the app computes: its sub-topologies, nodes and state."""
    session: Session = context.obj
    with warnings_logged():
        built = session.the_app().topology()
    if not diff:
        typer.echo(built.describe())
        return
    from streamlog.clock import SystemClock  # noqa: PLC0415 - the other commands start faster
    from streamlog.worker.versions import Versions  # noqa: PLC0415 - the same

    async def compare(opened: Log) -> Change:
        return await Versions(opened, built, SystemClock()).compare()

    change = with_log(session, log, compare)
    out().print(f"topology {built.app_id}: {version(change)}")
    print_difference(change)


def version(change: Change) -> str:
    """Which version it is, and against what."""
    if change.before is None:
        return "the first version"
    if change.is_settled:
        return f"version {change.number}, as it ran before"
    return f"version {change.number}, against version {change.before.number}"


def print_difference(change: Change) -> None:
    """A line each, signed and in colour."""
    console = out()
    for line in change.difference.lines():
        style = STYLES[line[0]]
        console.print(f"  [{style}]{escape(line)}[/{style}]", soft_wrap=True)
