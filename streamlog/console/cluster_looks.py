"""Cluster looks: what the pages of mirrors, moves, quotas, users and ACLs show, asked for directly.

A shell around `Admin`: these lists are short or rarely opened, and no part of the look at the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlog.client.admin import MirrorsDescription
from streamlog.client.admin.mirror_admin import MirrorDescription
from streamlog.client.admin.security_admin import Acl, word
from streamlog.console.pages.cluster_pages import (
    AclRow,
    MoveRow,
    QuotaRow,
    UserRow,
    acls,
    moves,
    not_known,
    quotas,
    users,
)
from streamlog.console.pages.mirror_pages import LinkRow, MirrorLook, MirrorPartitionRow, MirrorRow
from streamlog.console.pages.page_layout import View
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.protocol.acls import Pattern


async def cluster_view(log: Log, tab: str, query: Mapping[str, str]) -> View | None:
    """Return a page of the cluster; None if there is no such page."""
    try:
        match tab:
            case "moves":
                return await _moves(log, query)
            case "quotas":
                found = await log.admin().describe_client_quotas()
                return quotas([QuotaRow(each.entity, each.rates) for each in found], query)
            case "users":
                return await _users(log, query)
            case "acls":
                return acls([_acl(each) for each in await log.admin().describe_acls()], query)
            case _:
                return None
    # Such as a cluster without an authorizer, which has no ACLs.
    except LogError as error:
        return not_known(tab, str(error))


async def _moves(log: Log, query: Mapping[str, str]) -> View:
    # From the controller, and not from the last look: moves of small partitions take seconds.
    found = await log.admin().list_partition_reassignments()
    rows = [
        MoveRow(
            topic=part.topic,
            partition=part.partition,
            replicas=each.replicas,
            adding=each.adding,
            removing=each.removing,
        )
        for part, each in sorted(found.items())
    ]
    return moves(rows, query)


async def _users(log: Log, query: Mapping[str, str]) -> View:
    found = await log.admin().list_users()
    rows = [
        UserRow(name, tuple(sorted(word(each).replace("_", "-") for each in mechanisms)))
        for name, mechanisms in sorted(found.items())
    ]
    return users(rows, query)


def _acl(rule: Acl) -> AclRow:
    return AclRow(
        principal=rule.principal,
        host=rule.host,
        permission=word(rule.permission),
        operation=word(rule.operation),
        kind=word(rule.resource_type),
        name=rule.name,
        is_prefix=rule.pattern == Pattern.PREFIXED,
    )


async def look_at_mirrors(log: Log) -> MirrorLook:
    """Return the links and mirror topics of the log.

    Raises:
        StreamlogError: the log has none, or does not answer.
    """
    return mirror_look(await log.admin().describe_mirrors())


def find_mirror(look: MirrorLook, name: str) -> MirrorRow | None:
    """Return a mirror topic; None if there is none of this name."""
    return next((each for each in look.mirrors if each.topic == name), None)


def mirror_look(found: MirrorsDescription) -> MirrorLook:
    """Return the links and mirror topics as a page shows them."""
    return MirrorLook(
        tuple(
            LinkRow(
                each.name,
                each.settings.get("bootstrap.servers", each.source_cluster_id),
                each.mirrors,
                _first(f"broker {node}: {why}" for node, why in sorted(each.troubles.items())),
            )
            for each in found.links
        ),
        tuple(map(_mirror, found.mirrors)),
    )


def _mirror(each: MirrorDescription) -> MirrorRow:
    return MirrorRow(
        each.name,
        each.link,
        each.status.value,
        each.reason,
        each.lag_ms,
        each.lag_records,
        each.source_topic,
        each.since_ms,
        tuple(
            MirrorPartitionRow(
                partition=part.partition,
                leader=part.leader,
                end=part.log_end_offset,
                source_end=part.source_end_offset,
                lag_records=part.lag_records,
                lag_ms=part.lag_ms,
                trouble=part.trouble or part.refusal,
            )
            for part in each.partitions
        ),
    )


def _first(texts: Iterable[str]) -> str:
    return next(iter(texts), "")
