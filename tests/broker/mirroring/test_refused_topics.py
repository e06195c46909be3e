"""A source that takes away what the user of a link may do there."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.protocol.acls import Operation, Permission, ResourceType
from streamlog.protocol.messages.mirror_messages import (
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
)
from streamlog.protocol.messages.sasl_acls_quotas import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tests.broker.apis.test_security import creation
from tests.broker.mirroring.test_mirrors import WITHIN_S, content, link, serving, stopped, until
from tests.broker.node import ask, batch, create, delete, produce

CHECKING = BrokerConfig(security=SecurityConfig(authorizer="standard", allow_if_no_acl=True))
TOPICS = ("seen", "hidden")


async def deny(source: Broker, topic: str, operation: Operation) -> None:
    given = {"principal": "User:*", "permission_type": Permission.DENY}
    acl = creation(ResourceType.TOPIC, topic, operation, **given)
    every = creation(ResourceType.TOPIC, topic, Operation.ALL, principal="User:*")
    answer = await ask(source, CreateAclsRequest(creations=[acl, every]), CreateAclsResponse)
    assert [each.error_message for each in answer.results] == [None, None]


async def allow_all(source: Broker) -> None:
    every = DeleteAclsFilter(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    await ask(source, DeleteAclsRequest(filters=[every]), DeleteAclsResponse)


async def told(target: Broker, *parts: str) -> None:
    """Wait until the notices of the link are about these, and about nothing else."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            answer = await ask(target, DescribeMirrorsRequest(), DescribeMirrorsResponse)
            notices = answer.links[0].notices
            if len(notices) == len(parts) and all(part in "; ".join(notices) for part in parts):
                return
            await asyncio.sleep(0.01)


def test_a_topic_that_the_user_may_not_see_is_not_taken_for_a_deleted_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles(), config=CHECKING) as (source, address),
            serving(MemoryFiles()) as (target, _),
        ):
            for each in (*TOPICS, "gone"):
                create(source, each)
                await produce(source, batch(b"1"), topic=each)
            await link(target, address, source, topics=".*")
            topics = target.directory.topics
            await until(lambda: {*topics} >= {*TOPICS, "gone"})
            await deny(source, "hidden", Operation.DESCRIBE)
            await deny(source, "seen", Operation.READ)
            delete(source, "gone")
            await told(
                target,
                "does not show hidden: TOPIC_AUTHORIZATION_FAILED",
                "refuses to let seen be read",
            )
            await until(lambda: stopped(target, "gone").startswith("the source has deleted it; "))
            assert not any(stopped(target, each) for each in TOPICS)
            (said,) = (each for each in caplog.messages if "not mirrored any more" in each)
            assert said.startswith("gone is not mirrored any more: the source has deleted it; ")

            await allow_all(source)
            for each in TOPICS:
                await produce(source, batch(b"2"), topic=each)
            await told(target)
            for name in TOPICS:
                await until(
                    lambda name=name: content(target, name=name) == content(source, name=name)  # type: ignore[misc]
                )

    asyncio.run(story())
