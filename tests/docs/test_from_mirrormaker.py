"""docs/from-mirrormaker.md names settings of links that exist, and commands with their options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamlog.broker.config.broker import BROKER_SETTINGS
from streamlog.broker.config.link import LINK_SETTINGS, LinkConfig
from streamlog.cli.operate.mirror_command import link_settings
from streamlog.cli.operate.mirror_maker_flows import MakerFlow, flows_of
from streamlog.errors import ConfigError
from tests.docs.commands import check

TEXT = (Path(__file__).parent.parent.parent / "docs/from-mirrormaker.md").read_text()
SETTING = re.compile(r"`([a-z][a-z.]+)(?:=[^`]*)?`")


def test_the_settings_of_links_exist() -> None:
    table = TEXT[TEXT.index("## Settings") : TEXT.index("## Taking over")]
    rows = re.findall(r"^\| .* \| (.*) \|$", table, re.MULTILINE)
    named = {name for row in rows for name in SETTING.findall(row)}
    assert len(named) > 12
    assert named - {*LINK_SETTINGS, *BROKER_SETTINGS} == set()


ROW = re.compile(r"^\| (`.*) \| (.*) \|$", re.MULTILINE)
SAMPLES = {
    "east.bootstrap.servers": "east-1:9092",
    "east.security.protocol": "SASL_SSL",
    "east.sasl.jaas.config": 'X required username="mm" password="secret";',
    "east->west.topics": "orders",
    "topics.exclude": "a.*",
    "east->west.groups": "g.*",
    "groups.exclude": "h.*",
    "replication.policy.class": "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    "replication.policy.separator": "-",
    "sync.group.offsets.enabled": "true",
}
"""Values of the settings that are more than numbers and switches."""
SMALLEST = {
    "clusters": "east, west", "east->west.enabled": "true",
    "east.bootstrap.servers": "east:9092", "west.bootstrap.servers": "west:9092",
}  # fmt: skip


def _flow(**settings: str) -> MakerFlow:
    (found,) = flows_of(SMALLEST | settings)
    return found


def test_the_table_is_what_the_command_does() -> None:
    table = TEXT[TEXT.index("## Settings") : TEXT.index("## Taking over")]
    plain, rows = _flow(), ROW.findall(table)
    assert len(rows) == 12
    for left, right in rows:
        names = [each.partition("=")[0] for each in re.findall(r"`([^`]*)`", left)]
        given: dict[str, str] = {}
        for name in (each.replace("*", "replication.factor") for each in names):
            default = "7" if "factor" in name or "max" in name or "seconds" in name else "false"
            given |= {name: SAMPLES.get(name, default)}
        if "Identity" in left:
            given = {"replication.policy.class": "x.IdentityReplicationPolicy"}
        if "east.sasl.jaas.config" in given:
            given |= {"east.sasl.mechanism": "PLAIN", "east.ssl.truststore.location": "t.jks"}
        if "east->west.groups" in given:
            given |= {"sync.group.offsets.enabled": "true"}
        changed = _flow(**given)
        news = {
            name
            for name in changed.settings.keys() | plain.settings.keys()
            if changed.settings.get(name) != plain.settings.get(name)
        }
        documented = {each.partition("=")[0] for each in re.findall(r"`([^`]*)`", right)}
        assert news <= documented | {"groups", "groups.exclude"}, left
        # What has an own option, or is of the cluster, is none of the settings that are compared.
        beside = {"bootstrap.servers", "default.replication.factor"}
        if right != "-" and not documented & beside:
            assert news & documented, left


def test_printed_commands_are_ones_that_links_take() -> None:
    flow = _flow(**SAMPLES, **{"east.sasl.mechanism": "PLAIN", "sync.topic.acls.enabled": "true"})
    check(flow.command.removeprefix("streamlog "))
    assert "secret" not in flow.command
    LinkConfig.of(link_settings(flow.source_url, flow.settings))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("east->west.colour", "red"),
        ("colour", "red"),
        ("east.colour", "red"),
        ("east->north.topics", "a"),
        ("topic.filter.class", "com.example.OurFilter"),
        ("east.consumer.auto.offset.reset", "latest"),
        ("config.properties.exclude", "retention.ms"),
        ("replication.policy.class", "com.example.OurPolicy"),
        ("sync.group.offsets.interval.seconds", "often"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        _flow(**{name: value})


def test_values_are_read_as_java_reads_them() -> None:
    assert _flow(topics=r"users\\..*, b").settings["topics"] == r"users\..*,b"


def test_the_commands_exist() -> None:
    found = re.findall(r"`streamlog (mirror [a-z]+ .*?|groups [a-z-]+ .*?)`", TEXT)
    assert len(found) == 4
    for each in found:
        check(each)
