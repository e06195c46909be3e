"""A data directory of an earlier version opens with all its contents."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.storage.disk.files import make_durable_directory, replace_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from streamlog.protocol.messages.sasl_acls_quotas import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from streamlog.records.batch import encode_batch
from tests.broker.coordinator.driving import committed
from tests.broker.node import Node, ask, at, fetch_request, produce, values

STORED = Path(__file__).with_name("stored_directory.json")
"""Every file of a data directory that version 0.1.0 closed."""
FOLDER = "data/__cluster_metadata-0"
CONFIG = BrokerConfig(
    security=SecurityConfig(
        authorizer="standard", super_users="User:ANONYMOUS", allow_if_no_acl=True
    )
)


def restore(files: MemoryFiles) -> None:
    for path, content in json.loads(STORED.read_text()).items():
        folder, _, _ = f"data/{path}".rpartition("/")
        make_durable_directory(files, "data")
        make_durable_directory(files, folder)
        data = content.get("text", "").encode() or base64.b64decode(content.get("base64", ""))
        replace_file(files, f"data/{path}", data)


async def check_topics(broker: Broker) -> None:
    """Check that topics, their settings, records and committed offsets are as stored."""
    topics = {n: len(topic.partitions) for n, topic in broker.directory.topics.items()}
    assert topics == {"orders": 2, "empty": 1, "__consumer_offsets": 4}
    assert broker.directory.topics["orders"].configs == {"retention.ms": "86400000"}
    assert await records(broker) == [b"v1"]
    assert await committed(broker) == {("orders", 0): 1}


async def check(broker: Broker) -> None:
    """Check that everything is as stored."""
    await check_topics(broker)
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
def stored() -> Node:
    node = Node(config=CONFIG)
    restore(node.files)
    return node


def test_everything_is_kept_after_the_first_and_the_second_start(stored: Node) -> None:
    stored.run(check)
    stored.run(check)
    ids = [stored.run(new_producer_id), stored.run(new_producer_id)]
    assert ids == [2000, 3000]


def test_a_single_broker_keeps_its_topics_without_its_metadata_log(stored: Node) -> None:
    for name in stored.files.list(FOLDER):
        stored.files.remove(f"{FOLDER}/{name}")
    stored.run(check_topics)
    stored.run(check_topics)


def test_a_lost_metadata_log_reuses_no_producer_id(stored: Node) -> None:
    async def story(broker: Broker) -> None:
        data = encode_batch(
            [(0, None, b"v2", ())], producer_id=1000, producer_epoch=0, base_sequence=0
        )
        assert not (await produce(broker, data, topic="orders")).error_code

    stored.run(story)
    for name in stored.files.list(FOLDER):
        stored.files.remove(f"{FOLDER}/{name}")
    assert stored.run(new_producer_id) == 1001
