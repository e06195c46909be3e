"""The command line as a whole: options before a command's name, the commands, and `main`.

A shell around other rooms: it reads arguments, sets up logging, turns the first Ctrl-C into a
request to stop and the second into an end, and errors into one clear line and an exit code
(`docs/cli.md`). An app's own commands are found once the app is known, after `-A`; they cannot take
the name of a streamlog command.

Rule: the module of a command is imported when the command is called, so a broker starts without
what streams need. Only the help for all commands imports all of them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from streamlog.cli.session import Session, load_app, run
from streamlog.cli.terminal import fail, first_of, set_up_logging
from streamlog.errors import StreamlogError, UsageError
from streamlog.interrupts import EXIT_INTERRUPTED, exit_at_once, interruptible

if TYPE_CHECKING:
    from streamlog.app import App


COMMANDS: Final = {
    "worker": "worker_command:worker",
    "broker": "broker_command:broker",
    "dev": "dev_command:dev",
    "send": "records_commands:send",
    "consume": "records_commands:consume",
    "topology": "topology_commands:topology",
    "backfill": "history_commands:backfill",
    "compare": "history_commands:compare",
    "hand-over": "history_commands:hand_over",
    "promote": "history_commands:promote",
    "stream-time": "topology_commands:stream_time",
    "doctor": "doctor:doctor",
    "topics": "topics_command:topics",
    "configs": "topics_command:configs",
    "groups": "groups_command:groups",
    "log": "log_command:log_commands",
    "users": "access_commands:users",
    "acls": "access_commands:acls",
    "quotas": "access_commands:quotas",
    "dlq": "dlq_command:dlq",
    "cluster": "cluster_command:cluster",
}
"""Where each is, as MODULE:NAME in this package; in the order of `streamlog --help`."""


@cache
def load_command(name: str) -> Any:  # noqa: ANN401 - see above
    """The command of this name, which is in the table."""
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(f"streamlog.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        return command_of(name, found)
    group = get_group(found)
    group.name = name
    return group


def command_of(name: str, function: Callable[..., Any]) -> Any:  # noqa: ANN401 - the same
    """A function as a command."""
    typed = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    typed.command(name)(function)
    return get_command(typed)


class WithAppCommands(TyperGroup):
    """The commands of streamlog, and those of the app that was given.

    Contexts and commands are those of Typer's own copy of Click, which it shows nobody.
    """

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - see the class
        super().__init__(**attributes)
        # Names for who has mistyped one; what they stand for is `loaded`.
        self.commands = dict.fromkeys(COMMANDS, cast("Any", None))

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - see the class
        """All names, streamlog's first."""
        app = _app_of(ctx)
        return [*COMMANDS, *([] if app is None else app.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - see the class
        """The command of this name.

        Raises:
            UsageError: both have one.
        """
        own = load_command(cmd_name) if cmd_name in COMMANDS else None
        app = _app_of(ctx)
        if app is None or cmd_name not in app.commands:
            return own
        if own is not None:
            raise UsageError(
                f"app {app.id!r} declares a command {cmd_name!r}, which streamlog has: give the "
                "app's another name"
            )
        return command_of(cmd_name, _runnable(app, app.commands[cmd_name].run))


def _app_of(ctx: Any) -> App | None:  # noqa: ANN401 - the same
    given = ctx.params.get("app")
    if given is not None:
        return load_app(given)
    return ctx.obj.app if isinstance(ctx.obj, Session) else None


def _runnable(app: App, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function to be called; an async one with the app's log open, so that it can send."""
    if not inspect.iscoroutinefunction(fn):
        return interruptible()(fn)

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> None:
        run(_with_log(app, lambda: fn(*args, **kwargs)))

    return call


async def _with_log(app: App, call: Callable[[], Any]) -> None:
    from streamlog.log import Log  # noqa: PLC0415 - other commands start faster
    from streamlog.worker.topics.app_topics import declare_topics  # noqa: PLC0415 - the same

    program = app.program()
    async with Log.open(app.log, listen=False, create=True, security=app.security) as log:
        await declare_topics(log, app.topics)
        async with log.producer() as producer:
            producer.partition_by(program.partitioners)
            program.bind(producer)
            await call()


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
        from streamlog.cli.worker_command import worker  # noqa: PLC0415 - see above

        worker(context)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def main(app: App | None = None) -> NoReturn:
    """Run the command line and exit; with an app, `-A` is given and the default is `worker`."""
    exit_at_once()
    try:
        cli(obj=Session(app))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BaseExceptionGroup as group:
        fail(first_of(group))
    except StreamlogError as error:
        fail(error)
    sys.exit(0)
