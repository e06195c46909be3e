"""Loading: the commands of streamlog by name, each imported when it is asked for.

Rule of the file: a command is a function or a `typer.Typer` in the module that the table names.
Help for all of them, and only that, imports all of them. Commands are those of Typer's own copy of
Click, which it shows nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

import typer
from typer.main import get_command, get_group

COMMANDS: Final = {
    "worker": "worker:worker",
    "broker": "broker:broker",
    "dev": "dev:dev",
    "send": "records:send",
    "consume": "consuming:consume",
    "topology": "topology:topology",
    "backfill": "history:backfill",
    "compare": "history:compare",
    "hand-over": "history:hand_over",
    "promote": "history:promote",
    "stream-time": "stream_time:stream_time",
    "doctor": "doctor:doctor",
    "topics": "topics:topics",
    "configs": "configs:configs",
    "groups": "groups:groups",
    "log": "log:log_commands",
    "users": "users:users",
    "acls": "acls:acls",
    "quotas": "quotas:quotas",
    "dlq": "dlq:dlq",
    "cluster": "cluster:cluster",
}
"""Where each is, as MODULE:NAME in this package; in the order of `streamlog --help`."""


@cache
def loaded(name: str) -> Any:  # noqa: ANN401 - see above
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
