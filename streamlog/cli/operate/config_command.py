"""`streamlog config`: the settings in effect, and where each of them comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.cli.cluster_profiles import CLUSTER_VARIABLE, VARIABLES, hidden, nearest
from streamlog.cli.output.log_lines import CONFIG_VARIABLE, FORMAT_VARIABLE
from streamlog.cli.session import DEFAULT_LOG, LogOption, Session
from streamlog.cli.terminal import out, say
from streamlog.properties import read_properties

DEFAULT: Final = "default"
DEFAULTS: Final = {
    "registry": "http://127.0.0.1:8081",
    "connect": "http://127.0.0.1:8083",
    "console": "http://127.0.0.1:6066",
}
OTHERS: Final = {
    "log-format": FORMAT_VARIABLE,
    "log-config": CONFIG_VARIABLE,
}
ALONE: Final = (
    CLUSTER_VARIABLE,
    "STREAMLOG_SECURITY",
    "STREAMLOG_CONNECT_USER",
    "STREAMLOG_CONNECT_PASSWORD",
    "STREAMLOG_CONNECT_PASSWORD_FILE",
    "STREAMLOG_CONNECT_CA",
)
"""The variables of single options, and those that stand for files."""


class EffectiveSetting(msgspec.Struct, frozen=True):
    """A setting in effect."""

    name: str
    value: str | None
    origin: str


def config(
    context: typer.Context,
    *,
    show_origin: Annotated[
        bool, typer.Option("--show-origin", help="Show where each setting comes from.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    log: LogOption = None,
) -> None:
    """Show the settings in effect; values of secrets are hidden.

    Example: streamlog --cluster prod config --show-origin
    """
    source = context.get_parameter_source("log")
    is_option = source is not None and source.name == "COMMANDLINE"
    for line in ignored_variables(os.environ):
        say(line, err=True)
    found = list(settings(context.obj, log if is_option else None))
    if as_json:
        rows = [msgspec.structs.asdict(each) for each in found]
        typer.echo(json.dumps(rows if show_origin else {row["name"]: row["value"] for row in rows}))
        return
    grid = Grid("setting", "value", *(["from"] if show_origin else []))
    for each in found:
        row = [each.name, each.value or "-", *([each.origin] if show_origin else [])]
        grid.add_row(*row)
    out().print(grid)


def ignored_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable that has the prefix of streamlog's, and is none of them."""
    from streamlog.transport.security import (  # noqa: PLC0415 - other commands start faster
        ENVIRONMENT_PREFIX,
        variables,
    )

    known = [*VARIABLES.values(), *OTHERS.values(), *ALONE, *variables().values()]
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            yield f"the command line does not read {name}{nearest(name, known)}"


def settings(session: Session, option: str | None) -> Iterator[EffectiveSetting]:
    """Yield each setting in effect; `option` is the log of `--log`."""
    applied = session.profile
    cluster = None if applied is None else applied.cluster
    origins = {} if applied is None else applied.origins
    yield EffectiveSetting("cluster", cluster, origins.get("cluster", DEFAULT))
    for name, variable in OTHERS.items():
        value = os.environ.get(variable)
        # An option sets the variable as well, for the processes that a command starts.
        origin = f"option --{name}, or environment {variable}"
        yield EffectiveSetting(name, value, DEFAULT if value is None else origin)
    yield _log(session, option)
    for name, variable in VARIABLES.items():
        if name == "log":
            continue
        value = os.environ.get(variable)
        origin = origins.get(name, f"environment {variable}")
        default = DEFAULTS[name]
        yield EffectiveSetting(name, hidden(name, value or default), origin if value else DEFAULT)
    yield from _security(session)


def _log(session: Session, option: str | None) -> EffectiveSetting:
    value, variable = session.log_url(option), VARIABLES["log"]
    applied = session.profile
    if option is not None:
        origin = "option --log"
    elif variable in os.environ:
        known = {} if applied is None else applied.origins
        origin = known.get("log", f"environment {variable}")
    elif session.app is not None and value == session.app.log and value != DEFAULT_LOG:
        origin = f"app {session.app.id}"
    elif applied is not None and value == applied.project_log:
        origin = "pyproject.toml"
    else:
        origin = DEFAULT
    return EffectiveSetting("log", hidden("log", value), origin)


def _security(session: Session) -> Iterator[EffectiveSetting]:
    """Yield the security settings of each source; a later one replaces an earlier one."""
    from streamlog.transport.security import (  # noqa: PLC0415 - other commands start faster
        security_settings,
        variable_of,
    )

    found: dict[str, tuple[str, str]] = {}
    applied = session.profile
    if applied is not None:
        found |= {name: (value, applied.origins[name]) for name, value in applied.security.items()}
    for name, value in security_settings(os.environ).items():
        found[name] = (value, f"environment {variable_of(name)}")
    if session.security_file is not None:
        file = session.security_file
        found |= {name: (value, file) for name, value in read_properties(file).items()}
    for name, (value, origin) in sorted(found.items()):
        yield EffectiveSetting(name, hidden(name, value), origin)
