"""Subscriptions to metrics of clients: who is asked for what."""

from __future__ import annotations

import pytest

from streamlog.broker.config.resources import ClientMetricsConfig
from streamlog.broker.telemetry.subscriptions import Subscribed, Subscriptions, TelemetryClient
from streamlog.errors import ConfigError

ID = bytes(range(16))
CLIENT = TelemetryClient(ID, "orders-1", "apache-kafka-java", "4.1.0", "10.0.0.7", 50_123)


def asked(*configs: dict[str, str], client: TelemetryClient = CLIENT) -> Subscribed:
    return Subscriptions.read({str(at): each for at, each in enumerate(configs)}).of(client)


def test_without_a_match_nothing_is_asked_for_at_the_default_interval() -> None:
    found = asked({"metrics": "*", "match": "client_id=other", "interval.ms": "100"})
    assert (found.metrics, found.interval_ms) == ((), 300_000)
    assert not found.wants("org.apache.kafka.producer.x")


def test_matching_subscriptions_are_merged_at_the_shortest_interval() -> None:
    found = asked(
        {"metrics": "org.b,org.a", "interval.ms": "5000"},
        {"metrics": "org.a,org.c", "match": "client_id=orders-.*", "interval.ms": "900000"},
    )
    assert (found.metrics, found.interval_ms) == (("org.a", "org.b", "org.c"), 5_000)
    assert found.wants("org.c.d")
    assert not found.wants("org")
    everything = asked({"metrics": "org.a"}, {"metrics": "*"})
    assert everything.metrics == ("*",)
    assert everything.wants("anything")


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("", True),
        ("client_id=orders", False),  # the whole value, as in Kafka
        ("client_id=orders-[0-9]+", True),
        ("client_software_name=apache.*,client_software_version=4\\..*", True),
        ("client_software_name=apache.*,client_software_version=3\\..*", False),
        ("client_source_address=10\\.0\\.0\\..*,client_source_port=50123", True),
        ("client_instance_id=AAECAwQFBgcICQoLDA0ODw", True),
        ("client_instance_id=AAECAwQFBgcICQoLDA0ODx", False),
    ],
)
def test_a_client_matches_if_all_conditions_hold(match: str, expected: bool) -> None:
    assert bool(asked({"metrics": "*", "match": match}).metrics) is expected


def test_the_id_is_that_of_what_is_asked_and_of_the_client() -> None:
    first = {"metrics": "a,b"}
    assert asked(first) == asked({"metrics": "b,a"})
    ids = {
        asked(each, client=client).subscription_id
        for each in (first, {"metrics": "a"}, {"metrics": "a,b", "interval.ms": "1000"})
        for client in (CLIENT, TelemetryClient(bytes(15) + b"\7"))
    }
    assert len(ids) == 6
    assert all(-(1 << 31) <= each < 1 << 31 for each in ids)


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'\(' is not a regular expression"):
        ClientMetricsConfig(match="client_id=(")
