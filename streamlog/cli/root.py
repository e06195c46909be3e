"""The command line as a whole: what is given before a command's name, the commands, and `main`.

A shell around rooms below: it reads arguments, sets up logging, turns the first Ctrl-C into
a request to stop and the second into an end, and errors into one clear line and an exit code
(`docs/cli.md`). No domain decision is taken here. Rule of the file: a command's module is imported
when the command is asked for (`loading`): a broker starts without what streams need.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from streamlog.cli.app_commands import WithAppCommands
from streamlog.cli.session import Session, load_app
from streamlog.cli.terminal import fail, first_of, set_up_logging
from streamlog.errors import StreamlogError, UsageError
from streamlog.interrupts import EXIT_INTERRUPTED, exit_at_once_from_now_on

if TYPE_CHECKING:
    from streamlog.app import App

cli = typer.Typer(
    name="streamlog",
    cls=WithAppCommands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001 - Typer calls it so
    if is_asked:
        from importlib.metadata import version  # noqa: PLC0415 - other commands start faster

        typer.echo(f"streamlog {version('streamlog')}")
        raise typer.Exit


@cli.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    app: Annotated[
        str | None,
        typer.Option("-A", "--app", metavar="MODULE[:APP]", help="The app's module, as imported."),
    ] = None,
    *,
    security: Annotated[
        Path | None,
        typer.Option(
            "--security",
            metavar="FILE",
            envvar="STREAMLOG_SECURITY",
            help="Settings for brokers with TLS or SASL, such as security.protocol=SASL_SSL.",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback has done all there is to do
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Log everything, commits included.")
    ] = False,
) -> None:
    """Stream processing on a log that speaks the Kafka protocol."""
    set_up_logging(verbose=verbose)
    session = context.ensure_object(Session)
    session.security_file = None if security is None else str(security)
    if app is not None:
        session.app = load_app(app)
    if context.invoked_subcommand is None and session.app is not None:
        from streamlog.cli.worker import worker  # noqa: PLC0415 - see above

        worker(context)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def main(app: App | None = None) -> NoReturn:
    """Run the command line and exit; with an app, `-A` is given and the default is `worker`."""
    exit_at_once_from_now_on()
    try:
        cli(obj=Session(app))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BaseExceptionGroup as group:
        fail(first_of(group))
    except StreamlogError as error:
        fail(error)
    sys.exit(0)
