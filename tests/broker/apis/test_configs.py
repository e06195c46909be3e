"""Configs of topics and brokers, described and altered through `Broker.handle`."""

from __future__ import annotations

import errno

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    TopicConfig,
)
from streamlog.broker.config.settings import SettingKind, SettingOperation
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import topics_and_configs
from streamlog.protocol.messages.classic_groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tests.broker.node import Node, ask, batch, create, produce

TOPIC, BROKER = 2, 4


async def describe(
    broker: Broker, kind: int, name: str, *keys: str, version: int | None = None
) -> dict[str, DescribeConfigsResourceResult]:
    asked = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(
        resources=[asked], include_synonyms=True, include_documentation=True
    )
    (result,) = (await ask(broker, request, DescribeConfigsResponse, version)).results
    assert result.error_code == 0, result.error_message
    return {each.name: each for each in result.configs}


async def alter(
    broker: Broker,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
) -> AlterConfigsResourceResponse:
    configs = [
        AlterableConfig(name=setting, config_operation=operation, value=value)
        for setting, operation, value in changes
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = (await ask(broker, request, IncrementalAlterConfigsResponse)).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response


async def apply_changes(
    broker: Broker, kind: int, name: str, *changes: tuple[str, int, str | None]
) -> None:
    response = await alter(broker, kind, name, *changes)
    assert response.error_code == 0, response.error_message


async def replace(
    broker: Broker, kind: int, name: str, configs: dict[str, str | None]
) -> AlterConfigsResourceResponse:
    resource = topics_and_configs.ReplaceConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            topics_and_configs.ReplacedConfig(name=setting, value=value)
            for setting, value in configs.items()
        ],
    )
    request = topics_and_configs.AlterConfigsRequest(resources=[resource])
    response = await ask(broker, request, topics_and_configs.AlterConfigsResponse)
    return response.responses[0]


def test_describe_configs_reports_values_and_their_sources(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, max_message_bytes="1000")
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=2, resource_name="t", configuration_keys=None
                ),
                DescribeConfigsResource(
                    resource_type=2, resource_name="u", configuration_keys=None
                ),
                DescribeConfigsResource(
                    resource_type=4, resource_name="1", configuration_keys=["advertised.listeners"]
                ),
                DescribeConfigsResource(resource_type=9, resource_name="", configuration_keys=None),
            ],
            include_synonyms=True,
        )
        topic, missing, own, other = (await ask(broker, request, DescribeConfigsResponse)).results
        shown = {config.name: (config.value, config.config_source) for config in topic.configs}
        assert shown["max.message.bytes"] == ("1000", 1)
        assert shown["cleanup.policy"] == ("delete", 5)
        assert all(config.synonyms for config in topic.configs)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [config.name for config in own.configs] == ["advertised.listeners"]
        assert other.error_code == ErrorCode.INVALID_REQUEST

    node.run(story)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_setting_is_described(node: Node, version: int) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        topic = await describe(broker, TOPIC, "t", version=version)
        assert [*topic] == [*TOPIC_SETTINGS]
        own = await describe(broker, BROKER, "1", version=version)
        assert {*BROKER_SETTINGS} < {*own}
        assert own["node.id"].read_only
        assert not own["log.retention.ms"].read_only
        policy = topic["cleanup.policy"]
        assert policy.config_type == SettingKind.LIST
        assert policy.documentation
        assert [each.name for each in policy.synonyms] == ["log.cleanup.policy"]

    node.run(story)


def test_documentation_and_synonyms_are_returned_only_on_request(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        asked = DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
        request = DescribeConfigsRequest(resources=[asked])
        (result,) = (await ask(broker, request, DescribeConfigsResponse)).results
        assert not any(each.documentation or each.synonyms for each in result.configs)

    node.run(story)


def test_the_brokers_settings_are_written_out_once_and_not_for_each_topic(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await describe(broker, TOPIC, "t")

        def again(_: BrokerConfig) -> dict[str, str]:
            raise AssertionError("2,000 topics would take the broker five seconds")

        monkeypatch.setattr(BrokerConfig, "as_texts", again)
        assert "retention.ms" in await describe(broker, TOPIC, "t")

    node.run(story)


def test_an_altered_setting_takes_effect_at_once_and_survives_a_restart(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await apply_changes(
            broker,
            TOPIC,
            "t",
            ("max.message.bytes", SettingOperation.SET, "100"),
            ("cleanup.policy", SettingOperation.APPEND, "compact"),
        )
        refused = await produce(broker, batch(b"x" * 200))
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
        shown = await describe(broker, TOPIC, "t")
        assert (shown["max.message.bytes"].value, shown["max.message.bytes"].config_source) == (
            "100",
            1,
        )
        assert shown["cleanup.policy"].value == "delete,compact"

    async def again(broker: Broker) -> None:
        assert (await produce(broker, batch(b"x" * 200))).error_code != 0
        await apply_changes(
            broker,
            TOPIC,
            "t",
            ("max.message.bytes", SettingOperation.DELETE, None),
            ("cleanup.policy", SettingOperation.SUBTRACT, "compact"),
        )
        assert (await produce(broker, batch(b"x" * 200))).error_code == 0
        assert (await describe(broker, TOPIC, "t"))["cleanup.policy"].value == "delete"

    node.run(story)
    node.run(again)


def test_broker_settings_apply_to_topics_without_their_own(node: Node) -> None:
    node.config = BrokerConfig(topic=TopicConfig(segment_bytes=4096))

    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "own", max_message_bytes="5000")
        await apply_changes(broker, BROKER, "", ("message.max.bytes", SettingOperation.SET, "300"))
        await apply_changes(broker, BROKER, "1", ("message.max.bytes", SettingOperation.SET, "100"))
        refused = await produce(broker, batch(b"x" * 200))
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await produce(broker, batch(b"x" * 200), topic="own")).error_code == 0
        shown = (await describe(broker, TOPIC, "t"))["max.message.bytes"]
        sources = [(each.name, each.value, each.source) for each in shown.synonyms]
        name, default = "message.max.bytes", str(TopicConfig().max_message_bytes)
        assert sources == [(name, "100", 2), (name, "300", 3), (name, default, 5)]
        assert (shown.value, shown.config_source) == ("100", 2)
        given = (await describe(broker, TOPIC, "t"))["segment.bytes"]
        assert [(each.value, each.source) for each in given.synonyms] == [
            ("4096", 4),
            (str(2**30), 5),
        ]

    async def again(broker: Broker) -> None:
        assert [*await describe(broker, BROKER, "")] == ["message.max.bytes"]
        await apply_changes(
            broker, BROKER, "1", ("message.max.bytes", SettingOperation.DELETE, None)
        )
        assert (await produce(broker, batch(b"x" * 100))).error_code == 0
        assert broker.directory.topics["t"].config.max_message_bytes == 300

    node.run(story)
    node.run(again)


def test_altered_broker_settings_take_effect_at_once(node: Node) -> None:
    async def story(broker: Broker) -> None:
        joining = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=500,
            protocol_type="consumer",
            rebalance_timeout_ms=500,
            protocols=[JoinGroupRequestProtocol(name="range")],
        )
        taken = await ask(broker, joining, JoinGroupResponse)
        assert taken.error_code == ErrorCode.MEMBER_ID_REQUIRED
        await apply_changes(
            broker,
            BROKER,
            "1",
            ("group.min.session.timeout.ms", SettingOperation.SET, "1000"),
            ("log.retention.check.interval.ms", SettingOperation.SET, "1000"),
        )
        refused = await ask(broker, joining, JoinGroupResponse)
        assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        create(broker, retention_ms="5000")
        await produce(broker, batch(b"old", timestamp_ms=5))
        # One round checks a few logs, and those of the offsets topic are among them.
        for _ in range(2):
            node.pass_time(broker, 30_000)
        assert broker.directory.log("t", 0).log_start_offset == 1

    node.run(story)


@pytest.mark.parametrize(
    ("resource", "change", "code", "why"),
    [
        ((TOPIC, "u"), ("retention.ms", 0, "1"), 3, "no topic 'u'"),
        ((BROKER, "2"), ("num.partitions", 0, "1"), 42, "brokers 1 ("),
        ((9, "1"), ("kafka", 0, "INFO"), 42, "type 9"),
        ((TOPIC, "t"), ("retention.mss", 0, "1"), 40, "did you mean 'retention.ms'"),
        ((BROKER, "1"), ("log.retention.m", 0, "1"), 40, "did you mean 'log.retention.ms'"),
        ((TOPIC, "t"), ("retention.ms", 0, "-2"), 40, "from -1 to"),
        ((TOPIC, "t"), ("retention.ms", 0, None), 42, "null value"),
        ((TOPIC, "t"), ("retention.ms", 2, "1"), 40, "is not a list"),
        ((TOPIC, "t"), ("cleanup.policy", 3, "delete"), 40, "use one of"),
        ((TOPIC, "t"), ("retention.ms", 7, "1"), 42, "operation 7"),
        ((BROKER, "1"), ("node.id", 0, "2"), 40, "while the broker runs"),
        ((BROKER, ""), ("group.max.session.timeout.ms", 0, "1"), 40, "below group.min"),
    ],
)
def test_an_invalid_alteration_is_refused(
    node: Node, resource: tuple[int, str], change: tuple[str, int, str | None], code: int, why: str
) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        for validate_only in (True, False):
            response = await alter(broker, *resource, change, validate_only=validate_only)
            assert response.error_code == code
            assert why in (response.error_message or "")
        assert broker.directory.config == node.config
        assert broker.directory.topics["t"].configs == {}

    node.run(story)


def test_changes_to_one_resource_are_atomic(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        good, bad = ("retention.ms", 0, "1"), ("retention.bytes", 0, "many")
        assert (await alter(broker, TOPIC, "t", good, bad)).error_code == ErrorCode.INVALID_CONFIG
        twice = await alter(broker, TOPIC, "t", good, good)
        assert twice.error_code == ErrorCode.INVALID_REQUEST
        asked = AlterConfigsResource(resource_type=TOPIC, resource_name="t")
        both = IncrementalAlterConfigsRequest(resources=[asked, asked])
        answers = (await ask(broker, both, IncrementalAlterConfigsResponse)).responses
        assert [each.error_code for each in answers] == [ErrorCode.INVALID_REQUEST] * 2
        tried = await alter(broker, TOPIC, "t", good, validate_only=True)
        assert tried.error_code == 0
        node.files.fail_next_write(errno.EIO)
        failed = await alter(broker, TOPIC, "t", good)
        assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.directory.topics["t"].config == node.config.topic

    node.run(story)


def test_alter_configs_replaces_all_settings(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, retention_ms="5", segment_bytes="2048")
        assert (await replace(broker, TOPIC, "t", {"retention.ms": "6"})).error_code == 0
        assert broker.directory.topics["t"].configs == {"retention.ms": "6"}
        every = {name: each.value for name, each in (await describe(broker, BROKER, "1")).items()}
        settable = {name: value for name, value in every.items() if name in BROKER_SETTINGS}
        settable["num.partitions"] = "9"
        response = await replace(broker, BROKER, "1", settable)
        assert response.error_code == 0, response.error_message
        assert broker.directory.config.num_partitions == 9
        refused = await replace(broker, BROKER, "1", {"node.id": "7"})
        assert refused.error_code == ErrorCode.INVALID_CONFIG

    node.run(story)


def test_create_topics_reports_the_sources_of_settings(node: Node) -> None:
    async def story(broker: Broker) -> None:
        await apply_changes(broker, BROKER, "", ("log.segment.bytes", SettingOperation.SET, "4096"))
        topic = CreatableTopic(
            name="t",
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="retention.ms", value="5")],
        )
        request = CreateTopicsRequest(topics=[topic])
        (made,) = (await ask(broker, request, CreateTopicsResponse)).topics
        shown = {each.name: (each.value, each.config_source) for each in made.configs or []}
        assert shown["retention.ms"] == ("5", 1)
        assert shown["segment.bytes"] == ("4096", 3)
        assert shown["retention.bytes"] == ("-1", 5)

    node.run(story)


def test_config_resources_are_listed_by_type(node: Node) -> None:
    async def listed(
        broker: Broker, *types: int, version: int | None = None
    ) -> list[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=[*types])
        answer = await ask(broker, request, ListConfigResourcesResponse, version)
        assert answer.error_code == 0
        return [(each.resource_type, each.resource_name) for each in answer.config_resources]

    async def story(broker: Broker) -> None:
        create(broker, "t")
        create(broker, "u")
        assert await listed(broker) == [(TOPIC, "t"), (TOPIC, "u"), (BROKER, "1"), (8, "1")]
        assert await listed(broker, BROKER) == [(BROKER, "1")]
        assert await listed(broker, TOPIC, 32) == [(TOPIC, "t"), (TOPIC, "u")]
        assert await listed(broker, 16, 32) == []
        assert await listed(broker, version=0) == [], "version 0 is about metrics of clients"
        for kind, name in await listed(broker):
            assert await describe(broker, kind, name)
        strange = ListConfigResourcesRequest(resource_types=[TOPIC, 3])
        answer = await ask(broker, strange, ListConfigResourcesResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    node.run(story)
