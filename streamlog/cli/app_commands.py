"""Commands that an app has declared itself, beside those of streamlog.

They are looked for when the app is known, that is after `-A`. Rule of the file: an app can't take
the name of a command that streamlog has.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from typer.core import TyperGroup

from streamlog.cli.loading import COMMANDS, command_of, loaded
from streamlog.cli.running import run
from streamlog.cli.session import Session, load_app
from streamlog.errors import UsageError
from streamlog.interrupts import interruptible

if TYPE_CHECKING:
    from streamlog.app import App


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
        own = loaded(cmd_name) if cmd_name in COMMANDS else None
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
    from streamlog.worker.topics import declare_topics  # noqa: PLC0415 - the same

    program = app.program()
    async with Log.open(app.log, listen=False, create=True, security=app.security) as log:
        await declare_topics(log, app.topics)
        async with log.producer() as producer:
            producer.partition_by(program.partitioners)
            program.bind(producer)
            await call()
