"""Session: what was given before the command's name, and the log that a command talks to.

All commands import this module, those that need no client, too: so it imports clients when one is
asked for.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from streamlog.cli.running import run
from streamlog.errors import UsageError
from streamlog.interrupts import exiting_at_once
from streamlog.properties import read_properties

if TYPE_CHECKING:
    from streamlog.app import App
    from streamlog.broker.config import BrokerConfig
    from streamlog.client.admin import Admin
    from streamlog.log import Log
    from streamlog.transport.security import Security

DEFAULT_LOG = "embedded:./.streamlog/log"

T = TypeVar("T")
"""What a command asks for."""

WebOption = Annotated[
    str | None,
    typer.Option(
        "--web",
        metavar="HOST:PORT",
        help="Answer /live, /ready and /metrics there; port 0 takes a free one.",
    ),
]
LogOption = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="URL",
        help="embedded:DIR, kafka://HOST:PORT, or kafka+ssl:// with TLS. Default: the app's, else"
        f" {DEFAULT_LOG}",
    ),
]


@dataclass
class Session:
    """What was given before the command's name."""

    app: App | None = None
    security_file: str | None = None

    def the_app(self) -> App:
        """The app, for a command that needs one.

        Raises:
            UsageError: none was given.
        """
        if self.app is None:
            raise UsageError(
                "this command needs an app: streamlog -A MODULE COMMAND, where MODULE.py holds "
                "`app = App(...)`"
            )
        return self.app

    def log_url(self, given: str | None) -> str:
        """The log to talk to: the option, else the app's, else the embedded one here."""
        if given is not None:
            return given
        return DEFAULT_LOG if self.app is None else self.app.log

    def security(self) -> Security:
        """How brokers are talked to: what file and environment say, else what the app says.

        Raises:
            ConfigError: a setting is unknown, is missing, or contradicts another.
        """
        from streamlog.transport.security import (  # noqa: PLC0415 - see above
            Security,
            security_settings,
        )

        settings = security_settings(os.environ)
        if self.security_file is not None:
            settings |= read_properties(self.security_file)
        if not settings and self.app is not None and self.app.security is not None:
            return self.app.security
        return Security.of(settings)

    def open(
        self, given: str | None, *, create: bool = False, config: BrokerConfig | None = None
    ) -> Log:
        """The log, for a command that does not serve it to others.

        An embedded log that is not there is made only for who wants to `create` something in it;
        `config` is for a broker that this process runs for the command.
        """
        from streamlog.log import Log  # noqa: PLC0415 - see above

        return Log.open(
            self.log_url(given),
            listen=False,
            create=create,
            security=self.security(),
            config=config,
        )


def with_log(
    session: Session,
    log: str | None,
    use: Callable[[Log], Awaitable[T]],
    *,
    create: bool = False,
    config: BrokerConfig | None = None,
) -> T:
    """Open the log that was meant, use it, close it; see `Session.open`."""

    async def main() -> T:
        async with session.open(log, create=create, config=config) as opened:
            return await use(opened)

    return run(main())


def ask(
    session: Session,
    log: str | None,
    question: Callable[[Admin], Awaitable[T]],
    *,
    create: bool = False,
    config: BrokerConfig | None = None,
) -> T:
    """Ask the log something; see `Session.open`."""
    return with_log(
        session, log, lambda opened: question(opened.admin()), create=create, config=config
    )


def load_app(given: str) -> App:
    """The app in `MODULE` or `MODULE:NAME`; modules of the current directory count.

    Raises:
        UsageError: there is no such module, or it holds no such app.
    """
    with exiting_at_once():
        from streamlog.app import App  # noqa: PLC0415 - see above

    module_name, _, name = given.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"-A takes a module, not a file: write -A {dotted}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with exiting_at_once():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # The module is there; what it imports is not. Its traceback tells where.
        raise UsageError(
            f"there is no module {module_name!r} in {Path.cwd()} or among the installed ones"
        ) from None
    found = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if not name and "app" in found:
        return found["app"]
    there = ", ".join(f"{module_name}:{key}" for key in sorted(found)) or "none"
    wanted = f"no app {name!r}" if name else "no single app"
    raise UsageError(f"module {module_name!r} holds {wanted}; apps there: {there}")
