"""`streamlog configs`: the settings of topics and brokers, while they are served.

A shell around `Admin`. What is changed holds at once and outlives restarts; settings that hold
only from the start on belong into the broker's file (docs/configuration.md).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import typer
from rich.markup import escape
from rich.table import Table as Grid

from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import named_values, out, say
from streamlog.client.config_admin import ALL_BROKERS, Append, Change, ConfigEntry, Subtract
from streamlog.errors import UsageError

configs = typer.Typer(help="Settings of topics and brokers.", no_args_is_help=True)

DEFAULT: Final = "default"
"""Where a value comes from that nobody has set."""
HIDDEN: Final = "(shown to nobody)"
BrokerName: TypeAlias = int | Literal["all"]

Topic = Annotated[
    str | None, typer.Option("--topic", metavar="NAME", help="The settings of this topic.")
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker", metavar="ID|all", help="Of this broker, or those that hold for all brokers."
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Give it this value; repeatable."),
]
Added = Annotated[
    list[str] | None,
    typer.Option("--append", metavar="NAME=VALUE", help="Add to a list; repeatable."),
]
Taken = Annotated[
    list[str] | None,
    typer.Option("--subtract", metavar="NAME=VALUE", help="Take from a list; repeatable."),
]
Unset = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="NAME", help="Back to the default; repeatable."),
]


@configs.command("describe")
def configs_describe(
    context: typer.Context,
    *,
    topic: Topic = None,
    broker: Broker = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what has its default, with what it means.")
    ] = False,
    log: LogOption = None,
) -> None:
    """What was set for a topic or a broker, and where; by default for the one that is asked."""
    number = _broker(broker)
    session: Session = context.obj
    found = ask(session, log, lambda admin: admin.describe_configs(topic, broker=number))
    shown = [each for each in found.values() if everything or each.source != DEFAULT]
    columns = ("setting", "value", "set for", *(("meaning",) if everything else ()))
    grid = Grid(*columns)
    for each in sorted(shown, key=lambda each: each.name):
        meaning = [escape(each.documentation or "")] if everything else []
        grid.add_row(each.name, escape(_value(each)), each.source, *meaning)
    out(markup=True).print(grid)


@configs.command("alter")
def configs_alter(
    context: typer.Context,
    *,
    topic: Topic = None,
    broker: Broker = None,
    assigned: Pairs = None,
    append: Added = None,
    subtract: Taken = None,
    unset: Unset = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only look whether it would be taken.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Change settings of a topic or broker, all of them or none."""
    number = _broker(broker)
    if topic is None and number is None:
        raise UsageError("say whose settings: --topic NAME, or --broker ID|all")
    changes = _changes(assigned or [], append or [], subtract or [], unset or [])
    if not changes:
        raise UsageError("say what to change: --set, --append, --subtract or --unset")
    session: Session = context.obj
    ask(
        session,
        log,
        lambda admin: admin.alter_configs(changes, topic=topic, broker=number, validate_only=check),
    )
    whose = f"topic {topic}" if topic is not None else f"broker {broker}"
    done = "would be changed" if check else "changed"
    say(f"{done} for {whose}: {', '.join(changes)}")


def _changes(
    assigned: list[str], append: list[str], subtract: list[str], unset: list[str]
) -> dict[str, Change]:
    """What the options say.

    Raises:
        UsageError: they say two things of one setting.
    """
    appended = {k: Append(v) for k, v in named_values("--append", append).items()}
    subtracted = {k: Subtract(v) for k, v in named_values("--subtract", subtract).items()}
    said: list[tuple[str, Change]] = [
        *named_values("--set", assigned).items(),
        *appended.items(),
        *subtracted.items(),
        *((name, None) for name in unset),
    ]
    changes = dict(said)
    for name in changes:
        if sum(each == name for each, _ in said) > 1:
            raise UsageError(f"{name} can be changed in one way at a time")
    return changes


def _broker(text: str | None) -> BrokerName | None:
    if text is None:
        return None
    if text == ALL_BROKERS:
        return "all"
    if not text.isdecimal():
        raise UsageError(f"--broker takes a broker's number, or 'all', not {text!r}")
    return int(text)


def _value(entry: ConfigEntry) -> str:
    return entry.value if entry.value is not None else HIDDEN if entry.is_sensitive else ""
