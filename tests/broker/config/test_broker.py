from __future__ import annotations

import pytest

from streamlog.broker.config.broker import MESSAGE_BYTES_MAX, BrokerConfig, TopicConfig
from streamlog.errors import ConfigError


def test_override_takes_kafka_s_setting_names() -> None:
    config = TopicConfig(segment_ms=5).override(
        {"segment.bytes": "2048", "cleanup.policy": "compact,delete"}
    )
    assert (config.segment_bytes, config.segment_ms) == (2048, 5)
    assert config.cleanup_policy == "compact,delete"


def test_as_texts_uses_kafka_s_setting_names() -> None:
    described = TopicConfig().as_texts()
    assert described["max.message.bytes"] == "1048588"
    assert TopicConfig().override(described) == TopicConfig()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("no.such.setting", "1", "unknown topic setting"),
        ("segment_bytes", "2048", "unknown topic setting"),
        ("segment.bytes", "many", "not a whole number"),
        ("segment.bytes", "10", "from 1024 to"),
        ("segment.ms", "0", "from 1 to"),
        ("segment.index.bytes", "2", "from 12 to"),
        ("max.message.bytes", str(MESSAGE_BYTES_MAX + 1), "from 0 to"),
        ("cleanup.policy", "shred", "use one of delete, compact"),
    ],
)
def test_a_setting_that_is_unknown_or_out_of_range_is_refused(
    name: str, value: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        TopicConfig().override({name: value})


def test_a_negative_node_id_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"node\.id=-1"):
        BrokerConfig(node_id=-1)


def test_broker_settings_include_defaults_of_topics_and_groups() -> None:
    config = BrokerConfig().override(
        {"log.segment.bytes": "2048", "num.partitions": "7", "group.min.session.timeout.ms": "5"}
    )
    assert (config.topic.segment_bytes, config.num_partitions) == (2048, 7)
    assert config.group.session_timeout_ms_min == 5
    assert config.as_texts()["log.segment.bytes"] == "2048"
    assert BrokerConfig().override(config.as_texts()) == config
    with pytest.raises(ConfigError, match=r"did you mean 'num\.partitions'"):
        BrokerConfig().override({"num.partition": "7"})
    with pytest.raises(ConfigError, match=r"below group\.min"):
        BrokerConfig().override({"group.max.session.timeout.ms": "5"})


@pytest.mark.parametrize(
    ("given", "retention_ms", "segment_ms"),
    [
        ({}, -1, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000, 604_800_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000, 604_800_000),
        (
            {
                "log.retention.hours": "2",
                "log.retention.minutes": "3",
                "log.retention.ms": "4",
                "log.roll.hours": "5",
            },
            4,
            18_000_000,
        ),
        ({"log.retention.minutes": "-1", "log.retention.hours": "2"}, -1, 604_800_000),
        ({"log.roll.hours": "1", "log.roll.ms": "7"}, -1, 7),
    ],
)
def test_milliseconds_count_before_minutes_and_those_before_hours(
    given: dict[str, str], retention_ms: int, segment_ms: int
) -> None:
    config = BrokerConfig().override(given)
    assert (config.topic.retention_ms, config.topic.segment_ms) == (retention_ms, segment_ms)
    assert BrokerConfig().override(config.as_texts()) == config
    # A value that is altered while the broker runs takes precedence over the file.
    assert config.override({"log.retention.ms": "9"}).topic.retention_ms == 9


def test_a_malformed_retention_in_hours_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"log\.retention\.hours='one' is not a whole number"):
        BrokerConfig().override({"log.retention.hours": "one"})
