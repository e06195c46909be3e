"""`streamlog quotas`: how much users and client ids may write and read.

A shell around `Admin`. A quota is for a user, a client id or both, each by name or as the default
of all that have none of their own; the most specific one holds (docs/configuration.md).
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer
from rich.table import Table as Grid

from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.quota_admin import shown
from streamlog.errors import UsageError

quotas = typer.Typer(
    help="Quotas: bytes a second that users and client ids may write and read.",
    no_args_is_help=True,
)

PRODUCER: Final = "producer_byte_rate"
CONSUMER: Final = "consumer_byte_rate"
Choice: TypeAlias = tuple[str | None, bool]
"""One by name, or the default."""

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Of this user.")]
AnyUser = Annotated[
    bool, typer.Option("--user-default", help="Of each user that has none of its own.")
]
ClientId = Annotated[
    str | None, typer.Option("--client-id", metavar="NAME", help="Of this client id.")
]
AnyClientId = Annotated[
    bool, typer.Option("--client-id-default", help="Of each client id that has none of its own.")
]


@quotas.command("list")
def quotas_list(context: typer.Context, log: LogOption = None) -> None:
    """All quotas that were set, in bytes a second."""
    session: Session = context.obj
    grid = Grid("user", "client id", "producer", "consumer")
    for each in ask(session, log, lambda admin: admin.describe_client_quotas()):
        entity = [
            "" if kind not in each.entity else each.entity[kind] or "(default)"
            for kind in ("user", "client-id")
        ]
        rates = [
            f"{each.rates[key]:.0f}" if key in each.rates else "" for key in (PRODUCER, CONSUMER)
        ]
        grid.add_row(*entity, *rates)
    out().print(grid)


@quotas.command("set")
def quotas_set(
    context: typer.Context,
    *,
    user: User = None,
    user_default: AnyUser = False,
    client_id: ClientId = None,
    client_id_default: AnyClientId = False,
    producer: Annotated[
        int | None, typer.Option("--producer", metavar="BYTES", help="Written in a second.")
    ] = None,
    consumer: Annotated[
        int | None, typer.Option("--consumer", metavar="BYTES", help="Read in a second.")
    ] = None,
    log: LogOption = None,
) -> None:
    """Set what somebody may write or read; it holds within a second."""
    entity = _entity((user, user_default), (client_id, client_id_default))
    given = {PRODUCER: producer, CONSUMER: consumer}
    rates: dict[str, float | None] = {k: rate for k, rate in given.items() if rate is not None}
    if not rates:
        raise UsageError("say how much: --producer BYTES, --consumer BYTES, or both")
    session: Session = context.obj
    ask(session, log, lambda admin: admin.alter_client_quotas(entity, rates), create=True)
    for name, rate in rates.items():
        say(f"{shown(entity)}: {name} is {rate}")


@quotas.command("remove")
def quotas_remove(
    context: typer.Context,
    *,
    user: User = None,
    user_default: AnyUser = False,
    client_id: ClientId = None,
    client_id_default: AnyClientId = False,
    producer: Annotated[bool, typer.Option("--producer", help="Only of what is written.")] = False,
    consumer: Annotated[bool, typer.Option("--consumer", help="Only of what is read.")] = False,
    log: LogOption = None,
) -> None:
    """Take a quota away, so that a more general one holds, or none."""
    entity = _entity((user, user_default), (client_id, client_id_default))
    names = [key for key, wanted in ((PRODUCER, producer), (CONSUMER, consumer)) if wanted]
    rates: dict[str, float | None] = dict.fromkeys(names or (PRODUCER, CONSUMER))
    session: Session = context.obj
    ask(session, log, lambda admin: admin.alter_client_quotas(entity, rates))
    say(f"{shown(entity)}: {' and '.join(rates)} removed")


def _entity(
    user: tuple[str | None, bool], client_id: tuple[str | None, bool]
) -> dict[str, str | None]:
    """For whom.

    Raises:
        UsageError: for nobody, or for one by name and as the default at once.
    """
    entity: dict[str, str | None] = {}
    for kind, (name, is_default) in (("user", user), ("client-id", client_id)):
        if name is not None and is_default:
            raise UsageError(f"--{kind} and --{kind}-default exclude each other")
        if name is not None or is_default:
            entity[kind] = name
    if not entity:
        raise UsageError(
            "say whose quota: --user, --user-default, --client-id, --client-id-default"
        )
    return entity
