"""Configs of groups, client metrics and loggers, and settings that only Kafka honours."""

from __future__ import annotations

import logging

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.config.settings import (
    IgnoredConfig,
    SettingOperation,
    SettingSource,
    declared_settings,
)
from streamlog.errors import ConfigError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tests.broker.apis.test_configs import alter, apply_changes, describe
from tests.broker.node import Node, ask, create

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = SettingOperation.SET, SettingOperation.DELETE, SettingOperation.APPEND
INTERVAL, SESSION = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"

# Settings that Apache Kafka 4.1 describes and this broker ignores.
KAFKAS_TOPIC = (
    "preallocate",
    "segment.jitter.ms",
    "local.retention.bytes",
    "local.retention.ms",
    "remote.storage.enable",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
)


async def interval_ms(broker: Broker, group_id: str, member_id: str, epoch: int = 0) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    answer = await ask(broker, request, ConsumerGroupHeartbeatResponse)
    assert answer.error_code == 0, answer.error_message
    return answer.heartbeat_interval_ms


def test_group_settings_apply_before_the_group_exists_and_after_a_restart(node: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        shown = await describe(broker, GROUP, "g")
        assert shown[INTERVAL].value == "5000"
        assert shown[INTERVAL].config_source == SettingSource.DEFAULT
        await apply_changes(broker, GROUP, "g", (INTERVAL, SET, "700"), (SESSION, SET, "9000"))
        assert await interval_ms(broker, "g", "a") == 700
        assert await interval_ms(broker, "another", "a") == 5000

    async def after(broker: Broker) -> None:
        shown = await describe(broker, GROUP, "g")
        assert (shown[INTERVAL].value, shown[INTERVAL].config_source) == (
            "700",
            SettingSource.GROUP,
        )
        names = [each.name for each in shown[INTERVAL].synonyms]
        assert names == [INTERVAL, f"group.{INTERVAL}"]
        assert await interval_ms(broker, "g", "b") == 700
        await apply_changes(broker, GROUP, "g", (INTERVAL, DELETE, None))
        assert await interval_ms(broker, "g", "c") == 5000
        await apply_changes(broker, BROKER, "1", (f"group.{INTERVAL}", SET, "800"))
        assert await interval_ms(broker, "g", "d") == 800

    node.run(before)
    node.run(after)


def test_client_metrics_settings_survive_a_restart(node: Node) -> None:
    async def before(broker: Broker) -> None:
        await apply_changes(
            broker, METRICS, "all", ("metrics", SET, "*"), ("match", SET, "client_id=a.*")
        )
        more = "client_software_name=librdkafka"
        await apply_changes(broker, METRICS, "all", ("match", APPEND, more))

    async def after(broker: Broker) -> None:
        configs = await describe(broker, METRICS, "all")
        shown = {name: each.value for name, each in configs.items()}
        selectors = "client_id=a.*,client_software_name=librdkafka"
        assert shown == {"interval.ms": "300000", "match": selectors, "metrics": "*"}

    node.run(before)
    node.run(after)


@pytest.mark.parametrize(
    ("resource", "change", "code", "says"),
    [
        ((GROUP, ""), (SESSION, SET, "9000"), ErrorCode.INVALID_REQUEST, "has an empty name"),
        ((GROUP, "g"), (SESSION, SET, "4000"), ErrorCode.INVALID_CONFIG, "greater than"),
        ((GROUP, "g"), ("session.timeout", SET, "1"), ErrorCode.INVALID_CONFIG, "did you mean"),
        ((GROUP, "g"), ("share.isolation.level", SET, "x"), ErrorCode.INVALID_CONFIG, "use one of"),
        ((METRICS, "m"), ("interval.ms", SET, "1"), ErrorCode.INVALID_CONFIG, "from 100"),
        ((METRICS, "m"), ("match", SET, "color=red"), ErrorCode.INVALID_CONFIG, "client_id"),
        ((METRICS, ""), ("metrics", SET, "*"), ErrorCode.INVALID_REQUEST, "has an empty name"),
        (
            (LOGGER, "2"),
            ("root", SET, "INFO"),
            ErrorCode.INVALID_REQUEST,
            "send the request to that broker",
        ),
        ((LOGGER, "1"), ("root", DELETE, None), ErrorCode.INVALID_REQUEST, "must have a level"),
        (
            (LOGGER, "1"),
            ("root", APPEND, "INFO"),
            ErrorCode.INVALID_REQUEST,
            "only be set or deleted",
        ),
        ((LOGGER, "1"), ("root", SET, "LOUD"), ErrorCode.INVALID_CONFIG, "TRACE, DEBUG"),
        (
            (LOGGER, "1"),
            ("kafka", SET, "INFO"),
            ErrorCode.INVALID_CONFIG,
            "logger 'kafka': Desc",
        ),
        ((LOGGER, "1"), ("rot", SET, "INFO"), ErrorCode.INVALID_CONFIG, "did you mean 'root'"),
        ((TOPIC, "t"), ("zzz", SET, "1"), ErrorCode.INVALID_CONFIG, "'zzz': docs/configuration.md"),
        ((TOPIC, "t"), ("remote.storage.enable", SET, "true"), ErrorCode.INVALID_CONFIG, "false"),
    ],
)
def test_an_invalid_change_is_refused_with_the_reason(
    node: Node,
    resource: tuple[int, str],
    change: tuple[str, int, str | None],
    code: int,
    says: str,
) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        for validate_only in (True, False):
            answer = await alter(broker, *resource, change, validate_only=validate_only)
            assert answer.error_code == code
            assert says in (answer.error_message or "")

    node.run(story)


def test_logger_levels_are_described_and_altered(node: Node) -> None:
    logger = logging.getLogger("streamlog.broker.broker")
    level = logger.level

    async def story(broker: Broker) -> None:
        change = (logger.name, SET, "ERROR")
        await alter(broker, LOGGER, "1", change, validate_only=True)
        assert logger.level == level
        await apply_changes(broker, LOGGER, "1", change)
        shown = await describe(broker, LOGGER, "1", logger.name, "root")
        assert {*shown} == {logger.name, "root"}
        assert shown[logger.name].value == "ERROR"
        assert shown[logger.name].config_source == SettingSource.BROKER_LOGGER
        await apply_changes(broker, LOGGER, "1", (logger.name, DELETE, None))
        assert logger.level == logging.NOTSET

    try:
        node.run(story)
    finally:
        logger.setLevel(level)


def test_config_resources_include_groups_metrics_and_loggers(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        asked = ListConfigResourcesRequest()
        await apply_changes(broker, GROUP, "g", (SESSION, SET, "9000"))
        await apply_changes(broker, METRICS, "m", ("metrics", SET, "*"))
        listed = await ask(broker, asked, ListConfigResourcesResponse, 1)
        found = {(each.resource_type, each.resource_name) for each in listed.config_resources}
        others = {(TOPIC, "t"), (BROKER, "1"), (LOGGER, "1")}
        assert found == {*others, (GROUP, "g"), (METRICS, "m")}
        (metrics,) = (await ask(broker, asked, ListConfigResourcesResponse, 0)).config_resources
        assert metrics.resource_name == "m"

    node.run(story)


def test_ignored_kafka_settings_are_kept_and_documented_as_such(node: Node) -> None:
    kept = dict.fromkeys(("preallocate", "remote.log.copy.disable"), "true")

    async def before(broker: Broker) -> None:
        create(broker)
        changes = [(name, SET, value) for name, value in kept.items()]
        await apply_changes(broker, TOPIC, "t", *changes, ("retention.ms", SET, "60000"))
        await apply_changes(broker, BROKER, "1", ("log.cleaner.threads", SET, "4"))

    async def after(broker: Broker) -> None:
        shown = await describe(broker, TOPIC, "t")
        assert {name: shown[name].value for name in kept} == kept
        assert shown["retention.ms"].value == "60000"
        assert "without effect" in (shown["preallocate"].documentation or "")
        assert (await describe(broker, BROKER, "1"))["log.cleaner.threads"].value == "4"

    node.run(before)
    node.run(after)


def test_every_ignored_setting_says_that_it_has_no_effect() -> None:
    ignored = [each.setting for each in declared_settings(IgnoredConfig).values()]
    assert ignored
    assert {each.name for each in ignored} <= {*BROKER_SETTINGS}
    for setting in (*ignored, *(TOPIC_SETTINGS[name] for name in KAFKAS_TOPIC)):
        assert "without effect" in setting.documentation or "Only false" in setting.documentation
    assert BrokerConfig().override({"num.io.threads": "16"}).as_texts()["num.io.threads"] == "16"
    with pytest.raises(ConfigError, match=r"num\.io\.threads"):
        BrokerConfig().override({"num.io.threads": "0"})


def test_a_group_inherits_unset_settings_from_the_broker() -> None:
    config = GroupConfig(consumer_session_timeout_ms=30_000)
    assert config.for_group({}) is config
    own = config.for_group({INTERVAL: "700", "share.isolation.level": "read_committed"})
    assert (own.consumer_heartbeat_interval_ms, own.consumer_session_timeout_ms) == (700, 30_000)
    with pytest.raises(ConfigError, match="greater than"):
        config.for_group({INTERVAL: "30000"})
