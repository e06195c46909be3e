"""`streamlog acls`: who may do what on a log, for brokers that check it.

A shell around `Admin`. On an embedded log that nobody serves ACLs can be looked at and changed
before a broker is started that checks them; a broker that runs and checks none says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.table import Table as Grid

from streamlog.broker.config import BrokerConfig
from streamlog.cli.session import LogOption, Session, ask
from streamlog.cli.terminal import out, say
from streamlog.client.acl_admin import Acl, AclFilter, word
from streamlog.client.admin import Admin
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
    return BrokerConfig().overridden(CHECKED)


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
