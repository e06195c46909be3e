"""Settings of links, as they are read from texts and refused."""

from __future__ import annotations

import pytest

from streamlog.broker.config.link import LINK_SECURITY, LINK_SETTINGS, LinkConfig, patterns_of
from streamlog.broker.config.settings import SettingKind
from streamlog.errors import ConfigError
from streamlog.transport.security import Security

SOURCE = {"bootstrap.servers": "east-1:9092, east-2:9092"}


def test_a_link_needs_addresses_and_has_defaults_for_the_rest() -> None:
    config = LinkConfig.of(SOURCE)
    assert config.bootstrap_servers == "east-1:9092,east-2:9092"
    assert config == LinkConfig(bootstrap_servers=config.bootstrap_servers)
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        LinkConfig.of({})
    for each in LINK_SETTINGS.values():
        assert each.parse(each.text(each.default)) == each.default
        assert each.documentation.endswith((".", ".)"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bootstrap.servers", "east", "use HOST:PORT of brokers"),
        ("topic", ".*", "unknown link setting 'topic': did you mean 'topics'"),
        ("topics", "[a", r"topics='\[a' is no regular expression"),
        ("topics", "a{1,2}", "a pattern can't contain a comma"),
        ("prefix", "eu/", "prefix='eu/': use at most 200 letters"),
        ("bytes.per.second", "-1", "must be from 0"),
        ("bytes.per.second", "fast", "is not a whole number"),
        ("sasl.mechanism", "GSSAPI", "use PLAIN, SCRAM-SHA-256"),
        ("request.timeout.ms", "400", "must be more than fetch.max.wait.ms=500"),
        ("refresh.topics.enabled", "no", "use true or false"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LinkConfig.of({**SOURCE, name: value})


def test_a_secret_is_a_reference_and_an_error_does_not_show_it() -> None:
    secrets = {name for name, each in LINK_SETTINGS.items() if each.kind is SettingKind.PASSWORD}
    assert secrets == {"sasl.password", "sasl.oauthbearer.token", "ssl.key.password"}
    for name in secrets:
        with pytest.raises(ConfigError, match="write \\$\\{file:PATH\\}") as caught:
            LinkConfig.of({**SOURCE, name: "hunter2"})
        assert "hunter2" not in str(caught.value)
        LinkConfig.of({**SOURCE, name: "${file:/run/secrets/east}"})


def test_the_settings_of_the_login_are_those_of_a_client() -> None:
    with pytest.raises(ConfigError) as caught:
        Security.of({"security.unknown": ""})
    known = str(caught.value).partition("there are: ")[2].split(", ")
    assert [name for name in LINK_SETTINGS if name.startswith(LINK_SECURITY)] == known


def test_patterns_are_separated_by_commas_and_match_whole_names() -> None:
    found = patterns_of("topics", "orders, eu\\..*,,")
    names = ["orders", "orders2", "eu.users", "eu", ""]
    assert [n for n in names if any(p.fullmatch(n) for p in found)] == ["orders", "eu.users"]
