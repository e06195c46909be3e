"""ACLs through our own Admin, on a broker that checks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server.socket_server import Acceptor
from streamlog.client.admin import Admin, NewTopic
from streamlog.client.admin.security_admin import Acl, AclFilter
from streamlog.errors import LogError, NotAuthorized
from streamlog.log import Log
from streamlog.protocol.acls import Operation, Pattern, Permission, ResourceType
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


@asynccontextmanager
async def an_admin(data: Path, **security: str) -> AsyncIterator[Admin]:
    config = BrokerConfig(flush="os", security=SecurityConfig(**security))
    async with (
        Broker.open(str(data), config=config) as broker,
        Acceptor(broker) as server,
        Log.open(f"kafka://{server.host}:{server.port}") as log,
        log.admin() as admin,
    ):
        yield admin


def acl(name: str, operation: Operation = Operation.READ, **more: str) -> Acl:
    return Acl(
        resource_type=TOPIC,
        name=name,
        principal=more.get("principal", "User:alice"),
        operation=operation,
        host=more.get("host", "*"),
    )


def test_acls_are_created_described_and_deleted(tmp_path: Path) -> None:
    prefixed = Acl(
        resource_type=GROUP,
        name="till-",
        pattern=Pattern.PREFIXED,
        principal="User:*",
        operation=Operation.ALL,
        permission=Permission.DENY,
    )
    one, other = acl("b"), acl("a", Operation.WRITE, principal="User:bob", host="10.0.0.1")

    async def main() -> None:
        async with an_admin(tmp_path, authorizer="standard", super_users="User:ANONYMOUS") as admin:
            assert await admin.describe_acls() == []
            await admin.create_acls([prefixed, one, other])
            await admin.create_acls([one])
            assert await admin.describe_acls() == [other, one, prefixed]
            assert await admin.describe_acls(AclFilter(principal="User:bob")) == [other]
            assert await admin.describe_acls(AclFilter(resource_type=GROUP)) == [prefixed]
            match = AclFilter(resource_type=GROUP, name="till-7", pattern=Pattern.MATCH)
            assert await admin.describe_acls(match) == [prefixed]
            nothing = AclFilter(name="c")
            assert await admin.delete_acls([nothing]) == []
            assert await admin.delete_acls([match, AclFilter(name="a")]) == [other, prefixed]
            assert await admin.describe_acls() == [one]

    asyncio.run(main())
    assert str(prefixed) == "deny User:* from * ALL group 'till-'..."
    assert str(other) == "allow User:bob from 10.0.0.1 WRITE topic 'a'"


def test_invalid_acls_are_refused_one_by_one(tmp_path: Path) -> None:
    wrong = acl("t", Operation.CLUSTER_ACTION)
    no_principal = acl("t", principal="alice")
    good = acl("t")

    async def main() -> None:
        async with an_admin(tmp_path, authorizer="standard", super_users="User:ANONYMOUS") as admin:
            with pytest.raises(LogError, match="a TOPIC has no operation CLUSTER_ACTION") as info:
                await admin.create_acls([good, wrong, no_principal])
            assert set(info.value.refusals) == {wrong, no_principal}
            assert "is not a principal" in str(info.value.refusals[no_principal])
            assert await admin.describe_acls() == [good]

    asyncio.run(main())


def test_acl_requests_without_an_authorizer_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with an_admin(tmp_path) as admin:
            for call in (
                admin.describe_acls(),
                admin.create_acls([acl("t")]),
                admin.delete_acls([AclFilter()]),
            ):
                with pytest.raises(LogError, match=r"authorizer\.class\.name=standard") as info:
                    await call
                assert info.value.code == ErrorCode.SECURITY_DISABLED

    asyncio.run(main())


def test_unauthorized_admin_requests_raise_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with an_admin(tmp_path, authorizer="standard") as admin:
            for call in (
                admin.describe_acls(),
                admin.create_topics([NewTopic("t", 1)]),
                admin.describe_configs(),
                admin.list_config_resources(),
                admin.describe_client_quotas(),
                admin.alter_client_quotas({"user": "u"}, {"producer_byte_rate": 1}),
                admin.describe_log_dirs(),
                admin.alter_replica_log_dirs({TopicPartition("t", 0): "d"}, broker=1),
                admin.elect_leaders(),
                admin.alter_partition_reassignments({}),
                admin.list_partition_reassignments(),
                admin.list_users(),
                admin.describe_transactions(["x"]),
            ):
                with pytest.raises(NotAuthorized):
                    await call
            assert (await admin.describe_cluster()).brokers
            assert await admin.list_transactions() == []

    asyncio.run(main())
