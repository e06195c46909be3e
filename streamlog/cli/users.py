"""`streamlog users`: who has a password on a log.

Passwords come from a prompt that does not show them, or from standard input; never from the
command line, which every other user of the machine can read. Nobody can look one up.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table as Grid

from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.errors import UsageError
from streamlog.protocol.scram import ITERATIONS_DEFAULT, ITERATIONS_MIN

users = typer.Typer(
    help="Users with passwords, for listeners with SASL (PLAIN, SCRAM).", no_args_is_help=True
)

User = Annotated[str, typer.Argument(metavar="USER", help="The name, without 'User:'.")]


@users.command()
def add(
    context: typer.Context,
    user: User,
    iterations: Annotated[
        int, typer.Option("--iterations", min=ITERATIONS_MIN, help="How slow guessing is.")
    ] = ITERATIONS_DEFAULT,
    log: LogOption = None,
) -> None:
    """Give a user a password, read from a prompt or from standard input; replaces the old one."""
    session: Session = context.obj
    password = _password(user)
    ask(
        session,
        log,
        lambda admin: admin.set_password(user, password, iterations=iterations),
        create=True,
    )
    say(f"{user} has a password")


@users.command()
def remove(context: typer.Context, user: User, log: LogOption = None) -> None:
    """Take a user's password away. Who has come in stays until the connection or session ends."""
    session: Session = context.obj
    ask(session, log, lambda admin: admin.remove_user(user))
    say(f"removed {user}")


@users.command("list")
def list_users(context: typer.Context, log: LogOption = None) -> None:
    """Everybody who has a password, and the mechanisms that prove it."""
    session: Session = context.obj
    described = ask(session, log, lambda admin: admin.list_users())
    grid = Grid("user", "mechanisms")
    for name, mechanisms in sorted(described.items()):
        grid.add_row(name, ", ".join(each.sasl_name for each in sorted(mechanisms)))
    out().print(grid)


def _password(user: str) -> str:
    if sys.stdin.isatty():
        given: str = typer.prompt(f"password of {user}", hide_input=True, confirmation_prompt=True)
    else:
        given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise UsageError("there was no password: type one, or pipe one in")
    return given
