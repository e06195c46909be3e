"""Settings of an app's clients by Kafka's names: all of them, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlog import App
from streamlog.client import named_settings
from streamlog.client.consumer.consumer_settings import ConsumerOptions, ConsumerSettings
from streamlog.client.named_settings import consumer_options, producer_options
from streamlog.client.producer import ProducerOptions, ProducerSettings
from streamlog.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent


def test_names_become_options_and_texts_numbers() -> None:
    assert consumer_options({"fetch.max.bytes": "8000000", "client.rack": "a"}) == {
        "fetch_max_bytes": 8_000_000,
        "client_rack": "a",
    }
    assert producer_options({"compression.type": "zstd", "enable.metrics.push": "false"}) == {
        "compression": "zstd",
        "enable_metrics_push": False,
    }
    assert consumer_options(None) == producer_options({}) == {}


def test_every_setting_of_the_clients_has_a_name_or_a_reason() -> None:
    """A setting that a client gets later is not forgotten here."""
    by_app = {
        "consumer": {
            *("group_id", "auto_offset_reset", "auto_commit", "auto_commit_interval_ms"),
            *("isolation_level", "group_instance_id", "assignor", "group_protocol"),
            # No settings of Kafka's: a mark, and what a worker derives.
            *("group_remote_assignor", "time_marks", "rebalance_timeout_ms"),
        },
        "producer": {"acks", "idempotent", "transactional_id", "transaction_timeout_ms", "seed"},
    }
    for side, settings, known in (
        ("consumer", ConsumerSettings, named_settings._CONSUMER),
        ("producer", ProducerSettings, named_settings._PRODUCER),
    ):
        names = {each.name for each in msgspec.structs.fields(settings)}
        assert names == {*known.values()} | by_app[side]
        options = ConsumerOptions if side == "consumer" else ProducerOptions
        assert {*known.values()} <= options.__annotations__.keys()


@pytest.mark.parametrize(
    ("side", "name", "value", "reason"),
    [
        ("consumer", "fetch.max.byte", 1, r"no 'fetch.max.byte': did you mean 'fetch.max.bytes'\?"),
        ("producer", "compression", "gzip", "did you mean 'compression.type'"),
        ("consumer", "linger.ms", 5, r"it is one of App\(producer=...\)"),
        ("producer", "fetch.min.bytes", 5, r"it is one of App\(consumer=...\)"),
        ("consumer", "group.id", "g", r"it is decided by App\(id\)"),
        ("consumer", "enable.auto.commit", True, r"decided by App\(commit_interval=...\)"),
        ("producer", "acks", "1", r"decided by App\(guarantee=...\)"),
        ("producer", "ssl.ca.location", "x", r"decided by App\(security=\{...\}\)"),
        ("producer", "bootstrap.servers", "x", "App.log='kafka://HOST:PORT'"),
        ("consumer", "fetch.max.bytes", "many", "fetch.max.bytes is 'many': it has to be a whole"),
        ("consumer", "fetch.max.bytes", True, "is True: it has to be a whole number"),
        ("consumer", "fetch.max.bytes", 0, "fetch_max_bytes is 0: it has to be positive"),
        (
            "producer",
            "compression.type",
            "rar",
            "App.producer=....: compression.type: compression 'rar' is not known; use one",
        ),
        ("producer", "enable.metrics.push", 1.5, "it can be true or false"),
    ],
)
def test_other_settings_are_refused_where_the_app_is_created(
    side: str, name: str, value: Any, reason: str
) -> None:
    given = {name: value}
    with pytest.raises(ConfigError, match=reason):
        _ = App("shop", consumer=given) if side == "consumer" else App("shop", producer=given)


def test_the_documentation_lists_all_names() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    for name in {*named_settings._CONSUMER, *named_settings._PRODUCER}:
        assert f"`{name}`" in page, name
