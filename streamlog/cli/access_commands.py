"""`streamlog users`, `acls` and `quotas`: who may use a log, for what, and how much.

Shells around `Admin`. A password comes from a prompt that does not echo it, or from standard input,
never from the command line, which every user of the machine can read; none can be read back. ACLs
of an embedded log can be changed before a broker starts that checks them; a running broker that
checks none says so. A quota is for a user, a client id or both, each by name or as the default; the
most specific one applies (docs/configuration.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import typer
from rich.table import Table as Grid

from streamlog.broker.config.broker import BrokerConfig
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.admin import Admin
from streamlog.client.admin.security_admin import Acl, AclFilter, shown, word
from streamlog.errors import UsageError
from streamlog.protocol.acls import (
    ANY_HOST,
    CLUSTER,
    OPERATIONS,
    Operation,
    Pattern,
    Permission,
    ResourceType,
)
from streamlog.protocol.scram import ITERATIONS_DEFAULT, ITERATIONS_MIN

acls = typer.Typer(
    help="ACLs: who may do what, on brokers with authorizer.class.name=standard.",
    no_args_is_help=True,
)

CHECKED: Final = {"authorizer.class.name": "standard"}
"""What makes a broker that this process runs for the command know of ACLs."""

NAMED: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
"""Of what there are many, so that names and beginnings of names are told apart."""


class Allowed(StrEnum):
    """What an ACL can be about, as it is typed."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster_action"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    IDEMPOTENT_WRITE = "idempotent_write"

    @property
    def operation(self) -> Operation:
        """The same in Kafka's words."""
        return Operation[self.name]


Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME", help="A topic, '*' for all; repeatable."),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="NAME", help="A group, '*' for all; repeatable."),
]
Transactions = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="NAME", help="Likewise."),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[
    bool, typer.Option("--prefixed", help="The names are beginnings: all that begin so.")
]
Denying = Annotated[bool, typer.Option("--deny", help="ACLs that forbid; without it, that allow.")]
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="From there alone. Default: any.")
]


@dataclass(frozen=True, slots=True)
class _Resources:
    """What the options name."""

    topics: Sequence[str]
    groups: Sequence[str]
    transactional_ids: Sequence[str]
    cluster: bool

    def named(self) -> list[tuple[ResourceType, str]]:
        """Type and name of each."""
        return [
            *((ResourceType.TOPIC, name) for name in self.topics),
            *((ResourceType.GROUP, name) for name in self.groups),
            *((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_ids),
            *([(ResourceType.CLUSTER, CLUSTER)] if self.cluster else []),
        ]


@acls.command("list")
def acls_list(
    context: typer.Context,
    *,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only this one's.")
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: Cluster = False,
    log: LogOption = None,
) -> None:
    """All ACLs, or those that the resources that are named fall under."""
    named = _Resources(topic or (), group or (), transactional_id or (), cluster).named()
    filters = [
        AclFilter(resource_type=kind, name=name, pattern=Pattern.MATCH, principal=principal)
        for kind, name in named
    ] or [AclFilter(principal=principal)]

    async def look(admin: Admin) -> list[Acl]:
        found = [acl for which in filters for acl in await admin.describe_acls(which)]
        return list(dict.fromkeys(found))

    out().print(_grid(ask(context.obj, log, look, config=_config())))


@acls.command("add")
def acls_add(
    context: typer.Context,
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="Such as User:alice; User:* is everybody.")
    ],
    operations: Annotated[
        list[Allowed], typer.Argument(metavar="OPERATION...", case_sensitive=False)
    ],
    *,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    deny: Denying = False,
    host: Host = None,
    log: LogOption = None,
) -> None:
    """Allow somebody something, or with --deny forbid it; it holds at once.

    OPERATION is all, read, write, create, delete, alter, describe, describe_configs,
    alter_configs, or on the cluster cluster_action and idempotent_write.
    """
    named = _Resources(topic or (), group or (), transactional_id or (), cluster).named()
    if not named:
        raise UsageError("name a resource: --topic, --group, --transactional-id or --cluster")
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    wanted = [
        Acl(
            resource_type=kind,
            name=name,
            pattern=pattern if kind in NAMED else Pattern.LITERAL,
            principal=_principal(principal),
            host=host or ANY_HOST,
            operation=_possible(each.operation, kind),
            permission=Permission.DENY if deny else Permission.ALLOW,
        )
        for kind, name in named
        for each in operations
    ]
    session: Session = context.obj
    ask(session, log, lambda admin: admin.create_acls(wanted), create=True, config=_config())
    for acl in wanted:
        say(f"added: {acl}")


@acls.command("remove")
def acls_remove(
    context: typer.Context,
    *,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only this one's.")
    ] = None,
    operation: Annotated[
        list[Allowed] | None,
        typer.Option("--operation", help="Only about this; repeatable.", case_sensitive=False),
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    everything: Annotated[bool, typer.Option("--all", help="Every ACL there is.")] = False,
    log: LogOption = None,
) -> None:
    """Remove the ACLs that all options are about, and show them. Names are taken as they stand."""
    named = _Resources(topic or (), group or (), transactional_id or (), cluster).named()
    narrowed = named or principal or operation or host
    if bool(narrowed) == everything:
        raise UsageError(
            "say which ACLs: by --principal, --operation, --host or a resource; or --all"
        )
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    every: list[tuple[ResourceType, str | None]] = [(ResourceType.ANY, None)]
    filters = [
        AclFilter(
            resource_type=kind,
            name=name,
            pattern=pattern if kind in NAMED else Pattern.ANY,
            principal=principal,
            host=host,
            operation=about,
        )
        for kind, name in named or every
        for about in [each.operation for each in operation or ()] or [Operation.ANY]
    ]
    session: Session = context.obj
    gone = ask(session, log, lambda admin: admin.delete_acls(filters), config=_config())
    for acl in gone:
        say(f"removed: {acl}")
    if not gone:
        say("there was no such ACL")


def _config() -> BrokerConfig:
    return BrokerConfig().override(CHECKED)


def _principal(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise UsageError(f"{text!r} is no principal, such as User:{text.strip(':') or 'alice'}")
    return text


def _possible(operation: Operation, kind: ResourceType) -> Operation:
    possible = OPERATIONS[kind]
    if operation not in (Operation.ALL, *possible):
        raise UsageError(
            f"{operation.name.lower()} can't be done to a {kind.name.lower()}, but all, "
            + ", ".join(each.name.lower() for each in possible)
        )
    return operation


def _grid(found: Sequence[Acl]) -> Grid:
    grid = Grid("resource", "name", "pattern", "principal", "host", "operation", "permission")
    for acl in found:
        grid.add_row(
            word(acl.resource_type).lower(),
            acl.name,
            word(acl.pattern).lower(),
            acl.principal,
            acl.host,
            word(acl.operation).lower(),
            word(acl.permission).lower(),
        )
    return grid


quotas = typer.Typer(
    help="Quotas: bytes a second that users and client ids may write and read.",
    no_args_is_help=True,
)

PRODUCER: Final = "producer_byte_rate"
CONSUMER: Final = "consumer_byte_rate"
Choice: TypeAlias = tuple[str | None, bool]
"""One by name, or the default."""

QuotaUser = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Of this user.")]
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
    user: QuotaUser = None,
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
    user: QuotaUser = None,
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
