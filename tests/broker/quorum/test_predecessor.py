"""A directory from before there was a metadata log goes on as it was."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config import BrokerConfig
from streamlog.broker.security_config import SecurityConfig
from streamlog.broker.storage.catalog import PREDECESSORS
from streamlog.broker.storage.files import make_durable_directory, read_file, replace_file
from streamlog.broker.storage.memory_files import MemoryFiles
from streamlog.errors import CorruptData, LogDirectoryError
from streamlog.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from streamlog.protocol.messages.coordination import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.data import FetchResponse
from streamlog.protocol.messages.quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from streamlog.protocol.messages.security import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from tests.broker.coordinator.driving import committed
from tests.broker.node import Node, ask, at, fetch_request, values

BEFORE = Path(__file__).with_name("directory_before_quorum.json")
"""Every file of a data directory as the release before the metadata log has closed it."""
CONFIG = BrokerConfig(
    security=SecurityConfig(
        authorizer="standard", super_users="User:ANONYMOUS", allow_if_no_acl=True
    )
)


def before(files: MemoryFiles) -> None:
    for path, content in json.loads(BEFORE.read_text()).items():
        folder, _, _ = f"data/{path}".rpartition("/")
        make_durable_directory(files, "data")
        make_durable_directory(files, folder)
        data = content.get("text", "").encode() or base64.b64decode(content.get("base64", ""))
        replace_file(files, f"data/{path}", data)


async def check(broker: Broker) -> None:
    """That everything is as it was told to the release before."""
    topics = {n: len(topic.partitions) for n, topic in broker.directory.topics.items()}
    assert topics == {"orders": 2, "empty": 1, "__consumer_offsets": 4}
    assert broker.directory.topics["orders"].configs == {"retention.ms": "86400000"}
    assert await records(broker) == [b"v1"]
    assert await committed(broker) == {("orders", 0): 1}
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=4, resource_name="1")]
    )
    described = (await ask(broker, request, DescribeConfigsResponse)).results[0].configs
    altered = {each.name: each.value for each in described if each.config_source in (2, 3)}
    assert altered == {"num.partitions": "3", "group.max.size": "77"}
    quotas = await ask(broker, DescribeClientQuotasRequest(), DescribeClientQuotasResponse)
    assert quotas.entries is not None
    assert [each.values[0].value for each in quotas.entries] == [1000.0]
    users = await ask(
        broker, DescribeUserScramCredentialsRequest(), DescribeUserScramCredentialsResponse
    )
    assert [each.user for each in users.results] == ["alice"]
    every = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    acls = await ask(broker, every, DescribeAclsResponse)
    assert [each.resource_name for each in acls.resources] == ["orders"]


async def records(broker: Broker) -> list[bytes | None]:
    request = fetch_request(at(0, partition=1), topic="orders")
    response = await ask(broker, request, FetchResponse)
    return values(response.responses[0].partitions[0])


async def new_producer_id(broker: Broker) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
    return (await ask(broker, request, InitProducerIdResponse)).producer_id


@pytest.fixture
def old() -> Node:
    node = Node(config=CONFIG)
    before(node.files)
    return node


def test_everything_is_there_after_the_first_start_and_after_the_next(old: Node) -> None:
    files = {name: read_file(old.files, f"data/{name}") for name in PREDECESSORS}

    async def story(broker: Broker) -> None:
        await check(broker)
        assert not {*old.files.list("data")} & {*PREDECESSORS}

    async def given(broker: Broker) -> int:
        return await new_producer_id(broker)

    old.run(story)
    # As if the first start had been killed before it removed them: they count no more.
    for name, content in files.items():
        replace_file(old.files, f"data/{name}", content)
    old.run(story)
    ids = [old.run(given), old.run(given)]
    assert ids == [1000, 2000]


def test_a_start_that_the_disk_cuts_off_leaves_everything_to_the_next(old: Node) -> None:
    old.files.fail_next_sync()
    with pytest.raises(LogDirectoryError):
        old.run(check)
    old.files.crash()
    assert {*old.files.list("data")} >= {*PREDECESSORS}
    old.run(check)


def test_a_damaged_file_stops_the_start_and_is_named(old: Node) -> None:
    replace_file(old.files, "data/users.json", b"{}")
    with pytest.raises(CorruptData, match=r"data/users\.json"):
        old.run(check)
    assert {*old.files.list("data")} >= {*PREDECESSORS}
