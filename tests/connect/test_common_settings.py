"""Settings that every connector may have."""

from __future__ import annotations

import pytest

from streamlog.connect.common_settings import (
    SinkConfig,
    SourceConfig,
    common_model,
    without_effect,
)
from streamlog.connect.connector_settings import SettingsRefused, read_settings


def test_settings_without_effect_are_named() -> None:
    settings = {
        "name": "nginx",
        "errors.tolerance": "all",
        "producer.override.linger.ms": "5",
        "topic.creation.enable": "1000",
    }
    assert without_effect(settings) == ["producer.override.linger.ms", "topic.creation.enable"]
    assert without_effect({"name": "nginx", "topic": "t"}) == []


def test_numbers_reach_to_the_limits_of_kafkas_types() -> None:
    """Kafka's ConfigDef has INT and LONG; a configuration that it takes has to be taken here."""
    given = {"name": "n", "connector.class": "c"}
    for name, low, high in (
        ("tasks.max", 1, 2**31 - 1),
        ("transaction.boundary.interval.ms", 1, 2**63 - 1),
        ("errors.retry.timeout", -1, 2**63 - 1),
        ("errors.retry.delay.max.ms", 1, 2**63 - 1),
    ):
        for number in (low, high):
            read_settings(SourceConfig, {**given, name: str(number)})
        for number in (low - 1, high + 1):
            with pytest.raises(SettingsRefused, match=name):
                read_settings(SourceConfig, {**given, name: str(number)})


def test_defaults_are_those_of_kafka_connect() -> None:
    """As its documentation has them; `errors.auto.restart` is ours."""
    source = read_settings(SourceConfig, {"name": "n", "connector.class": "c"})
    sink = read_settings(SinkConfig, {"name": "n", "connector.class": "c"})
    assert (common_model("source"), common_model("sink")) == (SourceConfig, SinkConfig)
    for each in (source, sink):
        assert (each.tasks_max, each.tasks_max_enforce) == (1, True)
        assert (each.errors_retry_timeout, each.errors_retry_delay_max_ms) == (0, 60_000)
        assert (each.errors_log_enable, each.errors_log_include_messages) == (False, False)
        assert each.errors_auto_restart
        assert each.errors_deadletterqueue_topic_replication_factor == 3
        assert not each.errors_deadletterqueue_context_headers_enable
