"""`streamlog users`, `acls` and `quotas`: passwords, permissions, and byte rates of clients.

Shells around `Admin`. A password comes from a prompt that does not echo it, or from standard input,
never from the command line, which every user of the machine can read. No command shows a password.
ACLs of an embedded log can be changed before a broker that enforces them starts; a running broker
without an authorizer refuses the command. A quota is for a user, a client ID or both, each by name
or as the default; the most specific one applies (docs/configuration.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.broker.config.broker import BrokerConfig
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import JsonOption, print_grid, say
from streamlog.client.admin import Admin
from streamlog.client.admin.security_admin import Acl, AclFilter, shown, word
from streamlog.errors import UsageError
from streamlog.http_access.user_file import read_users, remove_user, set_user
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
    help="ACLs: permissions, on brokers with authorizer.class.name=standard.",
    no_args_is_help=True,
)

CHECKED: Final = {"authorizer.class.name": "standard"}
"""Setting of a broker that this process runs for the command, so that it accepts ACLs."""

NAMED: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
"""Resource types whose ACLs are for a name or for a prefix of names."""


class Allowed(StrEnum):
    """The operations of an ACL, as typed on the command line."""

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
        """Kafka's operation of this name."""
        return Operation[self.name]


Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME", help="A topic, or '*' for all; repeatable."),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="NAME", help="A group, or '*' for all; repeatable."),
]
Transactions = Annotated[
    list[str] | None,
    typer.Option(
        "--transactional-id", metavar="NAME", help="A transactional ID, or '*' for all; repeatable."
    ),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="Take the names as prefixes.")]
Denying = Annotated[bool, typer.Option("--deny", help="Forbid instead of allow.")]
Host = Annotated[
    str | None,
    typer.Option("--host", metavar="ADDRESS", help="Only from this address. Default: any."),
]


class _Resources(msgspec.Struct, frozen=True):
    """The resources that the options name."""

    topics: Sequence[str]
    groups: Sequence[str]
    transactional_ids: Sequence[str]
    cluster: bool

    def named(self) -> list[tuple[ResourceType, str]]:
        """Return the type and name of each resource."""
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
        str | None,
        typer.Option("--principal", metavar="PRINCIPAL", help="Only ACLs of this principal."),
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: Cluster = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """List all ACLs, or those that apply to the named resources."""
    named = _Resources(topic or (), group or (), transactional_id or (), cluster).named()
    filters = [
        AclFilter(resource_type=kind, name=name, pattern=Pattern.MATCH, principal=principal)
        for kind, name in named
    ] or [AclFilter(principal=principal)]

    async def look(admin: Admin) -> list[Acl]:
        found = [acl for which in filters for acl in await admin.describe_acls(which)]
        # An ACL for a prefix may match several of the names.
        return list(dict.fromkeys(found))

    print_grid(_grid(ask(context.obj, log, look, config=_config())), as_json=as_json)


@acls.command("add")
def acls_add(
    context: typer.Context,
    principal: Annotated[
        str,
        typer.Argument(
            metavar="PRINCIPAL", help="A principal such as User:alice; User:* is every user."
        ),
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
    """Allow a principal operations on resources, or with --deny forbid them; takes effect at once.

    OPERATION is all, read, write, create, delete, alter, describe, describe_configs,
    alter_configs, and for the cluster cluster_action or idempotent_write.
    """
    named = _Resources(topic or (), group or (), transactional_id or (), cluster).named()
    if not named:
        raise UsageError(
            "acls add needs a resource: --topic, --group, --transactional-id or --cluster"
        )
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
        str | None,
        typer.Option("--principal", metavar="PRINCIPAL", help="Only ACLs of this principal."),
    ] = None,
    operation: Annotated[
        list[Allowed] | None,
        typer.Option(
            "--operation", help="Only ACLs for this operation; repeatable.", case_sensitive=False
        ),
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every ACL.")] = False,
    log: LogOption = None,
) -> None:
    """Remove the ACLs that match all options, and list them; '*' is a name here, not a pattern."""
    named = _Resources(topic or (), group or (), transactional_id or (), cluster).named()
    narrowed = named or principal or operation or host
    # A filter without a condition matches every ACL, so that takes `--all`, and only `--all`.
    if bool(narrowed) == everything:
        raise UsageError(
            "acls remove needs --principal, --operation, --host or a resource, or else --all"
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
        say("no ACL matches")


def _config() -> BrokerConfig:
    return BrokerConfig().override(CHECKED)


def _principal(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise UsageError(f"{text!r} is not a principal: write User:{text.strip(':') or 'alice'}")
    return text


def _possible(operation: Operation, kind: ResourceType) -> Operation:
    possible = OPERATIONS[kind]
    if operation not in (Operation.ALL, *possible):
        raise UsageError(
            f"a {kind.name.lower()} has no operation {operation.name.lower()}; it has: all, "
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
    help="Quotas: bytes per second that users and client IDs may write and read.",
    no_args_is_help=True,
)

PRODUCER: Final = "producer_byte_rate"
CONSUMER: Final = "consumer_byte_rate"
Choice: TypeAlias = tuple[str | None, bool]
"""A name, and whether the default is meant instead."""

QuotaUser = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user.")]
AnyUser = Annotated[
    bool, typer.Option("--user-default", help="Every user without a quota of its own.")
]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="NAME", help="A client ID.")]
AnyClientId = Annotated[
    bool, typer.Option("--client-id-default", help="Every client ID without a quota of its own.")
]


@quotas.command("list")
def quotas_list(
    context: typer.Context, *, as_json: JsonOption = False, log: LogOption = None
) -> None:
    """List all quotas, in bytes per second."""
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
    print_grid(grid, as_json=as_json)


@quotas.command("set")
def quotas_set(
    context: typer.Context,
    *,
    user: QuotaUser = None,
    user_default: AnyUser = False,
    client_id: ClientId = None,
    client_id_default: AnyClientId = False,
    producer: Annotated[
        int | None, typer.Option("--producer", metavar="BYTES", help="Bytes per second to write.")
    ] = None,
    consumer: Annotated[
        int | None, typer.Option("--consumer", metavar="BYTES", help="Bytes per second to read.")
    ] = None,
    log: LogOption = None,
) -> None:
    """Set byte rates for writes and reads; takes effect within a second."""
    entity = _entity((user, user_default), (client_id, client_id_default))
    given = {PRODUCER: producer, CONSUMER: consumer}
    rates: dict[str, float | None] = {k: rate for k, rate in given.items() if rate is not None}
    if not rates:
        raise UsageError("quotas set needs --producer BYTES, --consumer BYTES, or both")
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
    producer: Annotated[
        bool, typer.Option("--producer", help="Only the quota for writes.")
    ] = False,
    consumer: Annotated[bool, typer.Option("--consumer", help="Only the quota for reads.")] = False,
    log: LogOption = None,
) -> None:
    """Remove a quota, so that a more general one applies, or none."""
    entity = _entity((user, user_default), (client_id, client_id_default))
    names = [key for key, wanted in ((PRODUCER, producer), (CONSUMER, consumer)) if wanted]
    # None removes a rate.
    rates: dict[str, float | None] = dict.fromkeys(names or (PRODUCER, CONSUMER))
    session: Session = context.obj
    ask(session, log, lambda admin: admin.alter_client_quotas(entity, rates))
    say(f"{shown(entity)}: {' and '.join(rates)} removed")


def _entity(
    user: tuple[str | None, bool], client_id: tuple[str | None, bool]
) -> dict[str, str | None]:
    """Return the entity that the options name: user, client ID, or both.

    Raises:
        UsageError: the options name none, or one both by name and as the default.
    """
    entity: dict[str, str | None] = {}
    for kind, (name, is_default) in (("user", user), ("client-id", client_id)):
        if name is not None and is_default:
            raise UsageError(f"--{kind} and --{kind}-default can't be combined")
        if name is not None or is_default:
            entity[kind] = name
    if not entity:
        raise UsageError(
            "name the quota: --user, --user-default, --client-id or --client-id-default"
        )
    return entity


users = typer.Typer(
    help="Users with passwords: of listeners with SASL, or in a file for HTTP servers.",
    no_args_is_help=True,
)

User = Annotated[str, typer.Argument(metavar="USER", help="The name, without 'User:'.")]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="A user of HTTP servers, in the file of --rest-users and --web-users; the log has"
        " nothing to do with it.",
    ),
]


@users.command()
def add(
    context: typer.Context,
    user: User,
    iterations: Annotated[
        int,
        typer.Option(
            "--iterations", min=ITERATIONS_MIN, help="SCRAM iterations: more make guessing slower."
        ),
    ] = ITERATIONS_DEFAULT,
    file: FileOption = None,
    log: LogOption = None,
) -> None:
    """Set a user's password, read from a prompt or from standard input."""
    session: Session = context.obj
    password = _password(user)
    if file is not None:
        set_user(file, user, password)
        say(f"{user} has a password in {file}")
        return
    ask(
        session,
        log,
        lambda admin: admin.set_password(user, password, iterations=iterations),
        create=True,
    )
    say(f"{user} has a password")


@users.command()
def remove(
    context: typer.Context, user: User, file: FileOption = None, log: LogOption = None
) -> None:
    """Remove a user's password; open connections stay until they or their sessions end."""
    session: Session = context.obj
    if file is not None:
        remove_user(file, user)
        say(f"removed {user} from {file}")
        return
    ask(session, log, lambda admin: admin.remove_user(user))
    say(f"removed {user}")


@users.command("list")
def list_users(
    context: typer.Context,
    file: FileOption = None,
    *,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """List the users with passwords, and their SASL mechanisms."""
    session: Session = context.obj
    if file is not None:
        grid = Grid("user")
        for name in sorted(read_users(file).users):
            grid.add_row(name)
            if not as_json:
                say(name)
        if as_json:
            print_grid(grid, as_json=True)
        return
    described = ask(session, log, lambda admin: admin.list_users())
    grid = Grid("user", "mechanisms")
    for name, mechanisms in sorted(described.items()):
        grid.add_row(name, ", ".join(each.sasl_name for each in sorted(mechanisms)))
    print_grid(grid, as_json=as_json)


def _password(user: str) -> str:
    if sys.stdin.isatty():
        given: str = typer.prompt(f"password of {user}", hide_input=True, confirmation_prompt=True)
    else:
        # Only the line break goes: spaces may belong to the password.
        given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise UsageError("the password is empty: type one, or pipe one to standard input")
    return given
