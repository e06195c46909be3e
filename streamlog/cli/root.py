"""The command line: the options before a command's name, the table of commands, and `main`.

It reads arguments, sets up logging and turns an error into one line and an exit code
(`docs/cli.md`). The first Ctrl-C asks a command to stop, the second ends it. `-A` adds the commands
that the app declares; they can't have the name of a streamlog command.

Rule: the module of a command is imported when the command is called, so that a broker starts
without the modules of streams. Only `streamlog --help` imports them all.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from streamlog.cli.cluster_profiles import ClusterOption, apply_profiles
from streamlog.cli.output.log_lines import LogConfigOption, LogFormatOption, set_up_logging
from streamlog.cli.session import Session, load_app, run, use_registry_of
from streamlog.cli.terminal import fail, first_of
from streamlog.errors import StreamlogError, UsageError
from streamlog.interrupts import EXIT_INTERRUPTED, exit_at_once, interruptible
from streamlog.metrics.build_info import release

if TYPE_CHECKING:
    from streamlog.app import App


COMMANDS: Final = {
    "worker": "worker_command:worker",
    "broker": "broker_command:broker",
    "dev": "dev_command:dev",
    "send": "records_commands:send",
    "consume": "consume_command:consume",
    "topology": "topology_commands:topology",
    "backfill": "history_commands:backfill",
    "compare": "history_commands:compare",
    "hand-over": "history_commands:hand_over",
    "promote": "history_commands:promote",
    "stream-time": "topology_commands:stream_time",
    "reset": "one_app.state_commands:reset",
    "state": "one_app.state_commands:state",
    "config": "operate.config_command:config",
    "doctor": "doctor:doctor",
    "top": "operate.top_command:top",
    "topics": "topics_command:topics",
    "configs": "topics_command:configs",
    "client-metrics": "topics_command:client_metrics",
    "groups": "groups_command:groups",
    "transactions": "operate.transactions_command:transactions",
    "log": "log_command:log_commands",
    "users": "access_commands:users",
    "acls": "access_commands:acls",
    "quotas": "access_commands:quotas",
    "dlq": "dlq_command:dlq",
    "cluster": "cluster_command:cluster",
    "mirror": "operate.mirror_command:mirror",
    "canary": "operate.canary_command:canary",
    "generate": "operate.generate_command:generate",
    "contracts": "operate.contracts_command:contracts",
    "schemas": "operate.schemas_command:schemas",
    "connect": "operate.connect_command:connect",
    "connectors": "operate.connectors_command:connectors",
    "mcp": "assistant.mcp_command:mcp",
}
"""Each command as MODULE:NAME in this package, in the order of `streamlog --help`."""
CONTEXT: Final = {"help_option_names": ["-h", "--help"]}
"""The settings of the root's context, which those of all commands inherit."""


@cache
def load_command(name: str) -> Any:  # noqa: ANN401 - see above
    """Import and return a command of the table."""
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(f"streamlog.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        return command_of(name, found)
    group = get_group(found)
    group.name = name
    return with_plain_flags(group)


def command_of(name: str, function: Callable[..., Any]) -> Any:  # noqa: ANN401 - the same
    """Return a function as a command that Typer can call."""
    typed = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    typed.command(name)(function)
    return with_plain_flags(get_command(typed))


def with_plain_flags(command: Any) -> Any:  # noqa: ANN401 - see above
    """Return a command and all below it without types behind flags in their help."""
    hide_types_of_flags(command.get_params(command.context_class(command, **CONTEXT)))
    for each in getattr(command, "commands", {}).values():
        with_plain_flags(each)
    return command


def hide_types_of_flags(options: Iterable[Any]) -> None:
    """Let the help show no type behind a flag: Typer's `--json <bool>` looks like a value."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""


class WithAppCommands(TyperGroup):
    """The commands of streamlog and of the app that `-A` names.

    Contexts and commands are typed `Any`: they belong to the copy of Click that Typer hides.
    """

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - see the class
        super().__init__(**attributes)
        # Only names, for suggestions after a typing error; `load_command` imports the commands.
        self.commands = dict.fromkeys(COMMANDS, cast("Any", None))

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - see the class
        """Return the options before a command's name."""
        found = super().get_params(ctx)
        hide_types_of_flags(found)
        return found

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - see the class
        """Return the names of all commands, streamlog's own first."""
        app = _app_of(ctx)
        return [*COMMANDS, *([] if app is None else app.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - see the class
        """Return a command by name, or None.

        Raises:
            UsageError: both streamlog and the app have a command of this name.
        """
        own = load_command(cmd_name) if cmd_name in COMMANDS else None
        app = _app_of(ctx)
        if app is None or cmd_name not in app.commands:
            return own
        if own is not None:
            raise UsageError(
                f"app {app.id!r} declares a command {cmd_name!r}, and streamlog has one of that "
                "name: rename the app's command"
            )
        return command_of(cmd_name, _runnable(app, app.commands[cmd_name].run))


def _app_of(ctx: Any) -> App | None:  # noqa: ANN401 - the same
    given = ctx.params.get("app")
    if given is not None:
        return load_app(given)
    return ctx.obj.app if isinstance(ctx.obj, Session) else None


def _runnable(app: App, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an app's command; an async one runs with the app's log open, so that it can send."""
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
        await use_registry_of(log, app)
        async with log.producer() as producer:
            producer.partition_by(program.partitioners)
            program.bind(producer)
            await call()


cli = typer.Typer(
    name="streamlog",
    cls=WithAppCommands,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001 - Typer calls it so
    if is_asked:
        typer.echo(f"streamlog {release() or '(not installed)'}")
        raise typer.Exit


@cli.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    app: Annotated[
        str | None,
        typer.Option(
            "-A", "--app", metavar="MODULE[:APP]", help="The app's module, as Python imports it."
        ),
    ] = None,
    *,
    cluster: ClusterOption = None,
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
        bool, typer.Option("-v", "--verbose", help="Log every step, commits included.")
    ] = False,
    log_format: LogFormatOption = None,
    log_config: LogConfigOption = None,
) -> None:
    """Stream processing on a log that speaks the Kafka protocol."""
    set_up_logging(verbose=verbose, line_format=log_format, file=log_config)
    session = context.ensure_object(Session)
    session.security_file = None if security is None else str(security)
    session.profile = apply_profiles(cluster, os.environ, has_app=app is not None)
    if app is not None:
        session.app = load_app(app)
    if context.invoked_subcommand is None and session.app is not None:
        from streamlog.cli.worker_command import worker  # noqa: PLC0415 - see above

        worker(context)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def main(app: App | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        app: the app, as if `-A` named it; the default command is then `worker`.
    """
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
