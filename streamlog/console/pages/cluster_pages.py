"""What belongs to the whole cluster, to read: moves of partitions, quotas, users, and ACLs.

The page of brokers has these as tabs. They are changed on the command line, which names who did it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from streamlog.adviser.log_view import size
from streamlog.console.markup import Markup, Node, a, code, h1, joined, nav
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    Listing,
    address,
    badge,
    heading_row,
    nothing,
)

TABS: Final[Mapping[str, str]] = {
    "": "Brokers", "moves": "Moves", "quotas": "Quotas", "users": "Users", "acls": "ACLs",
}  # fmt: skip
DEFAULT_ENTITY: Final = "default"
T = TypeVar("T")


class MoveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that moves to other brokers."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class QuotaRow(msgspec.Struct, frozen=True):
    """The quotas of a user, a client id, or both."""

    entity: Mapping[str, str | None]
    """Kind to name; None: all that have none of their own."""
    rates: Mapping[str, float]


class UserRow(msgspec.Struct, frozen=True):
    """A user with a password."""

    name: str
    mechanisms: tuple[str, ...]


class AclRow(msgspec.Struct, frozen=True, kw_only=True):
    """An access rule."""

    principal: str
    host: str
    permission: str
    operation: str
    kind: str
    name: str
    is_prefix: bool


def broker_tabs(current: str) -> Markup:
    """Return the ways between the pages of the brokers."""
    return joined(
        heading_row(h1["Brokers"]),
        nav(class_="tabs", aria_label="Pages of the cluster")[
            (
                a(href=address("brokers", name) if name else address("brokers"),
                  aria_current="page" if name == current else None)[text]
                for name, text in TABS.items()
            )
        ],
    )  # fmt: skip


def moves(found: Sequence[MoveRow], query: Mapping[str, str]) -> View:
    """Return the reassignments of partitions that are under way."""
    listing: Listing[MoveRow] = Listing(
        noun="moves",
        path=("brokers", "moves"),
        text=lambda each: f"{each.topic}-{each.partition}",
        columns=[
            Heading("Partition"), Heading("Replicas"), Heading("Moves to"), Heading("Leaves"),
        ],
        row=lambda each: (
            a(class_="name", href=address("topics", each.topic, "partitions"))[
                f"{each.topic}-{each.partition}"
            ],
            _brokers(each.replicas),
            _brokers(each.adding),
            _brokers(each.removing),
        ),
        empty=("No partition moves.", "Plan moves: streamlog cluster plan --balance"),
    )  # fmt: skip
    return _view("moves", listing, found, query)


def quotas(found: Sequence[QuotaRow], query: Mapping[str, str]) -> View:
    """Return the quotas of users and client ids."""
    listing: Listing[QuotaRow] = Listing(
        noun="quotas",
        path=("brokers", "quotas"),
        text=lambda each: " ".join(name or DEFAULT_ENTITY for name in each.entity.values()),
        columns=[Heading("User"), Heading("Client id"), Heading("Quotas")],
        row=lambda each: (
            _entity(each, "user"),
            _entity(each, "client-id"),
            ", ".join(_quota(name, value) for name, value in sorted(each.rates.items())),
        ),
        empty=(
            "There are no quotas.",
            "Set one: streamlog quotas set --user NAME --producer BYTES",
        ),
    )
    return _view("quotas", listing, found, query)


def users(found: Sequence[UserRow], query: Mapping[str, str]) -> View:
    """Return the users with passwords (SCRAM)."""
    listing: Listing[UserRow] = Listing(
        noun="users",
        path=("brokers", "users"),
        text=lambda each: each.name,
        columns=[Heading("User"), Heading("Mechanisms")],
        row=lambda each: (code[each.name], ", ".join(each.mechanisms)),
        empty=("No user has a password.", "Add one: streamlog users add NAME"),
    )
    return _view("users", listing, found, query)


def acls(found: Sequence[AclRow], query: Mapping[str, str]) -> View:
    """Return the access rules."""
    listing: Listing[AclRow] = Listing(
        noun="ACLs",
        path=("brokers", "acls"),
        text=lambda each: f"{each.principal} {each.operation} {each.kind} {each.name}",
        columns=[
            Heading("Principal"), Heading("From"), Heading("Rule"), Heading("Operation"),
            Heading("Resource"),
        ],
        row=lambda each: (
            code[each.principal],
            "any host" if each.host == "*" else each.host,
            badge(each.permission.lower(), "good" if each.permission == "ALLOW" else "bad"),
            each.operation.lower().replace("_", " "),
            [f"{each.kind.lower().replace('_', ' ')} ", code[each.name],
             " and all that begin so" if each.is_prefix else None],
        ),
        empty=("There are no ACLs.", "Add one: streamlog acls add"),
    )  # fmt: skip
    return _view("acls", listing, found, query)


def not_known(tab: str, why: str) -> View:
    """Return a tab whose rows can't be asked for, such as ACLs of a cluster without any."""
    title = TABS[tab]
    content = joined(broker_tabs(tab), nothing(f"{title} are not known.", why))
    return View(title=title, content=content, is_live=False)


def _view(tab: str, listing: Listing[T], found: Sequence[T], query: Mapping[str, str]) -> View:
    content = joined(broker_tabs(tab), listing.shown(found, query))
    return View(title=TABS[tab], content=content)


def _brokers(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "—"


def _entity(row: QuotaRow, kind: str) -> Node:
    # Not the default entity: a quota of a user alone holds for each of its client ids.
    if kind not in row.entity:
        return "any"
    name = row.entity[kind]
    return badge(DEFAULT_ENTITY, "calm") if name is None else code[name]


def _quota(name: str, value: float) -> str:
    # Kafka counts bytes per second; a request rate is a percentage of a thread.
    if name.endswith("_byte_rate"):
        return f"{name.removesuffix('_byte_rate')} {size(value)}/s"
    return f"{name.replace('_', ' ')} {value:g}"
