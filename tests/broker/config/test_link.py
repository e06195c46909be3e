"""Settings of links, as they are read from texts and refused."""

from __future__ import annotations

import pytest

from streamlog import properties
from streamlog.broker.config import link
from streamlog.broker.config.link import (
    LINK_FILES,
    LINK_SECURITY,
    LINK_SETTINGS,
    LinkConfig,
    check_references,
    patterns_of,
)
from streamlog.broker.config.security import SecurityConfig
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
        for mixed in ("hunter2${env:EAST}", "${env:EAST}hunter2", "${env:A}hunter2${env:B}"):
            with pytest.raises(ConfigError, match="without other text") as caught:
                LinkConfig.of({**SOURCE, name: mixed})
            assert "hunter2" not in str(caught.value)
        LinkConfig.of({**SOURCE, name: "${file:/run/secrets/east}"})
        LinkConfig.of({**SOURCE, name: "${env:EAST_1}${env:EAST_2}"})


def test_the_settings_of_the_login_are_those_of_a_client() -> None:
    with pytest.raises(ConfigError) as caught:
        Security.of({"security.unknown": ""})
    known = str(caught.value).partition("there are: ")[2].split(", ")
    assert [name for name in LINK_SETTINGS if name.startswith(LINK_SECURITY)] == known


def test_patterns_are_separated_by_commas_and_match_whole_names() -> None:
    found = patterns_of("topics", "orders, eu\\..*,,")
    names = ["orders", "orders2", "eu.users", "eu", ""]
    assert [n for n in names if any(p.fullmatch(n) for p in found)] == ["orders", "eu.users"]


ALLOWING = SecurityConfig(mirror_paths="/run/mirror,/etc/east/", mirror_variables="MIRROR_.*|EAST")


@pytest.mark.parametrize(
    "value",
    [
        "${file:/run/mirror/password}",
        "${file:/run/mirror/deep/er}",
        "${file:/etc/east/a}-${env:EAST}",
        "${env:MIRROR_PASSWORD}",
        "${file:/run//mirror/./password}",
        "no reference",
    ],
)
def test_references_to_what_the_node_allows_are_accepted(value: str) -> None:
    check_references({"sasl.password": value, "topics": "${file:/anything}"}, ALLOWING)


@pytest.mark.parametrize(
    ("value", "setting"),
    [
        ("${file:/etc/shadow}", "mirror.allowed.paths"),
        ("${file:/run/mirror}", "mirror.allowed.paths"),
        ("${file:/run/mirror-too/a}", "mirror.allowed.paths"),
        ("${file:/run/mirror/../../etc/shadow}", "mirror.allowed.paths"),
        ("${file:/run/mirror/../mirror/a}", "mirror.allowed.paths"),
        ("${file:run/mirror/a}", "mirror.allowed.paths"),
        ("${file:../run/mirror/a}", "mirror.allowed.paths"),
        ("${file:~/a}", "mirror.allowed.paths"),
        ("${file:/run/mirror/a\0}", "mirror.allowed.paths"),
        ("${file:}", "mirror.allowed.paths"),
        ("${file:/run/mirror/a}${file:/etc/shadow}", "mirror.allowed.paths"),
        ("${env:AWS_SECRET_ACCESS_KEY}", "mirror.env.allowlist.pattern"),
        ("${env:EAST2}", "mirror.env.allowlist.pattern"),
        ("${env:X_MIRROR_A}", "mirror.env.allowlist.pattern"),
        ("${env:MIRROR_A\nB}", "mirror.env.allowlist.pattern"),
        ("${env:}", "mirror.env.allowlist.pattern"),
    ],
)
def test_references_to_other_files_and_variables_are_refused(value: str, setting: str) -> None:
    # The user is sent in clear by all mechanisms, so it is as good for an attack as a password.
    for name in ("sasl.password", "sasl.username", "ssl.key.password"):
        with pytest.raises(ConfigError, match=f"(?s)^{name} refers to .*{setting}"):
            check_references({name: value}, ALLOWING)


def test_what_is_checked_is_what_is_resolved() -> None:
    assert link.REFERENCE.pattern == properties.REFERENCE.pattern
    assert link.REFERENCE.flags == properties.REFERENCE.flags


def test_without_the_settings_nothing_is_allowed_and_pem_files_are_files() -> None:
    nothing = SecurityConfig()
    for value in ("${file:/run/mirror/a}", "${file:/}", "${env:PATH}", "${env:}"):
        with pytest.raises(ConfigError, match=r"mirror\.(allowed|env)"):
            check_references({"sasl.password": value}, nothing)
    assert [*LINK_FILES] == [each for each in LINK_SETTINGS if each.endswith(".location")]
    for name in LINK_FILES:
        check_references({name: ""}, nothing)
        check_references({name: "/run/mirror/a.pem"}, ALLOWING)
        for path in ("/etc/streamlog/broker.pem", "a.pem", "/run/mirror/../a.pem"):
            with pytest.raises(ConfigError, match=f"^{name} refers to .*mirror.allowed.paths"):
                check_references({name: path}, ALLOWING)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mirror_paths": "secrets"}, "absolute paths of directories"),
        ({"mirror_paths": "/a,b"}, "absolute paths of directories"),
        ({"mirror_variables": "MIRROR_["}, "is no regular expression"),
    ],
)
def test_a_node_with_malformed_limits_does_not_start(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SecurityConfig(**given)
