"""ACLs of one broker, copied by another one that mirrors it, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin import Acl, AclFilter, Admin
from streamlog.log import Log
from streamlog.protocol.acls import Operation, Pattern, ResourceType
from streamlog.protocol.messages.mirror_messages import (
    AlterLinkAclsRequest,
    AlterLinkAclsResponse,
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
    LinkAclChange,
)
from tests.broker.mirroring.test_group_copier import becomes
from tests.broker.mirroring.test_mirrors import alter, link, serving, until
from tests.broker.node import ask, create

# Every connection without a login is User:ANONYMOUS.
CHECKED = BrokerConfig(
    group=GroupConfig(initial_rebalance_delay_ms=0),
    security=SecurityConfig(authorizer="standard", super_users="User:ANONYMOUS"),
)
COPIES = {"sync.acls.enabled": "true", "groups": "or.*", "prefix": "eu."}
ANY = AclFilter()


def reads(name: str, user: str = "User:a", pattern: Pattern = Pattern.LITERAL) -> Acl:
    return acl(ResourceType.TOPIC, name, user, pattern=pattern)


def acl(
    kind: ResourceType, name: str, user: str = "User:a", *, pattern: Pattern = Pattern.LITERAL
) -> Acl:
    return Acl(
        resource_type=kind, name=name, principal=user, operation=Operation.READ, pattern=pattern
    )


@asynccontextmanager
async def pair(
    there: BrokerConfig = CHECKED, here: BrokerConfig = CHECKED
) -> AsyncIterator[tuple[Broker, Admin, Broker, Admin]]:
    async with (
        serving(MemoryFiles(), config=there) as (source, source_address),
        serving(MemoryFiles(), config=here) as (target, target_address),
        Log.open(f"kafka://{source_address}") as one,
        Log.open(f"kafka://{target_address}") as two,
    ):
        create(source, "orders")
        await link(target, source_address, source, topics="or.*", **COPIES)
        yield source, one.admin(), target, two.admin()


def test_copies_follow_the_source_and_leave_the_acls_of_operators_alone() -> None:
    async def story() -> None:
        async with pair() as (source, there, target, here):
            orange = acl(ResourceType.GROUP, "orange")
            own = [reads("eu.orders", "User:own"), reads("eu.orders", "User:both")]
            await here.create_acls(own)
            await there.create_acls(
                [
                    reads("ord", pattern=Pattern.PREFIXED),
                    reads("orders", "User:both"),
                    acl(ResourceType.GROUP, "*"),
                    orange,
                ]
            )

            async def named() -> set[Acl]:
                return {*await here.describe_acls(ANY)}

            await becomes(named, {*own, reads("eu.orders"), orange})
            # The snapshot knows still whose they are.
            image = target._member.metadata
            again = ClusterMetadata.of_snapshot(image.snapshot(), image.offset)
            assert again.acl_entries() == image.acl_entries()

            await there.delete_acls([AclFilter(principal="User:both")])
            await there.delete_acls([AclFilter(name="ord", pattern=Pattern.PREFIXED)])
            await becomes(named, {*own, orange})

            # An operator who removes a copied ACL removes every form of it; the link copies anew.
            await there.create_acls([reads("orders", "User:both")])
            await until(lambda: len(target._member.metadata.acl_entries()) == len(own) + 2)
            await here.delete_acls([AclFilter(principal="User:both")])
            await until(lambda: len(target._member.metadata.acl_entries()) == len(own) + 1)
            assert await named() == {*own, orange}

            await alter(target, MirrorState.PROMOTED, "eu.orders")
            await there.delete_acls([AclFilter(principal="User:both")])
            create(source, "oracle")
            await there.create_acls([reads("oracle")])
            await becomes(
                named, {*own, orange, reads("eu.oracle"), reads("eu.orders", "User:both")}
            )

    asyncio.run(story())


def test_a_source_that_tells_no_acls_changes_nothing_and_says_why() -> None:
    async def story() -> None:
        unchecked = BrokerConfig(group=GroupConfig(initial_rebalance_delay_ms=0))

        async def tells(target: Broker, why: str) -> bool:
            answer = await ask(target, DescribeMirrorsRequest(), DescribeMirrorsResponse)
            notices = answer.links[0].notices
            return any(each.startswith(f"ACLs are not copied: {why}") for each in notices)

        async with pair(there=unchecked) as (_, __, target, here):
            await becomes(lambda: tells(target, "the source checks no ACLs"), True)
            (link_id,) = target._member.metadata.links
            change = LinkAclChange(
                adds=True,
                resource_type=2,
                resource_name="eu.orders",
                resource_pattern_type=3,
                principal="User:a",
                host="*",
                operation=3,
                permission_type=3,
            )
            request = AlterLinkAclsRequest(link_id=link_id, changes=[change, change])
            for _ in range(2):
                answer = await ask(target, request, AlterLinkAclsResponse)
                assert not answer.error_code
            assert target._member.metadata.link_acls(link_id) == target._member.metadata.acls().all
            assert len(await here.describe_acls(ANY)) == 1
            gone = AlterLinkAclsRequest(link_id=b"x" * 16, changes=[change])
            refused = await ask(target, gone, AlterLinkAclsResponse)
            assert refused.error_message == "the link has been deleted"
            change.operation = 12
            refused = await ask(target, request, AlterLinkAclsResponse)
            assert "a TOPIC has no operation IDEMPOTENT_WRITE" in (refused.error_message or "")

        async with pair(here=unchecked) as (_, there, target, __):
            await there.create_acls([reads("orders")])
            await becomes(lambda: tells(target, "this broker checks no ACLs"), True)

    asyncio.run(story())
