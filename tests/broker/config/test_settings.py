"""Kinds of settings, their values, and alterations of a resource's own settings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import BROKER_SETTINGS, TOPIC_SETTINGS
from streamlog.broker.config.settings import (
    NamedSetting,
    SettingKind,
    SettingOperation,
    alter_settings,
    boolean,
    check_table,
    choice,
    declared_settings,
    fraction,
    integer,
    words,
)
from streamlog.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fruit:
    size: int = integer(3, NamedSetting("size.bytes", "How large.", "bytes"), minimum=1, maximum=9)
    ripe: float = fraction(0.5, NamedSetting("ripe.ratio", "How ripe."))
    red: bool = boolean(NamedSetting("red", "Whether it is red."), default=False)
    colour: str = choice("red", NamedSetting("colour", "Which."), ("red", "green"))
    uses: str = words("eat", NamedSetting("uses", "What for."), ("eat", "press", "cook"))
    kind: int = integer(1, NamedSetting("kind", "Which.", is_dynamic=False))


SETTINGS = {name: each.setting for name, each in declared_settings(Fruit).items()}
DEFAULTS = {name: each.text(each.default) for name, each in SETTINGS.items()}


def test_setting_kinds_match_kafka_s() -> None:
    kinds = [setting.kind for setting in SETTINGS.values()]
    assert kinds == [
        SettingKind.INT,
        SettingKind.DOUBLE,
        SettingKind.BOOLEAN,
        SettingKind.STRING,
        SettingKind.LIST,
        SettingKind.LONG,
    ]


def test_every_default_is_valid_and_every_setting_is_documented() -> None:
    for each in (*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()):
        assert each.parse(each.text(each.default)) == each.default
        assert each.documentation.endswith(".")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("size.bytes", "0", "from 1 to 9"),
        ("size.bytes", "4.5", "not a whole number"),
        ("ripe.ratio", "nan", "from 0 to 1"),
        ("ripe.ratio", "very", "not a number"),
        ("red", "yes", "true or false"),
        ("colour", "Red", "use one of red, green"),
        ("uses", "", "or several"),
        ("uses", "eat,throw", "or several"),
        ("uses", "eat,eat", "or several"),
    ],
)
def test_an_invalid_value_is_refused_with_the_allowed_values(
    name: str, text: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        SETTINGS[name].parse(text)
    assert name in str(refused.value)


def test_check_table_refuses_an_out_of_range_value() -> None:
    check_table(Fruit())
    with pytest.raises(ConfigError, match=r"size\.bytes=10"):
        check_table(Fruit(size=10))


def test_alterations_apply_in_order() -> None:
    own = alter_settings(
        SETTINGS,
        {"size.bytes": "4"},
        DEFAULTS,
        [
            ("uses", SettingOperation.APPEND, "press, eat"),
            ("uses", SettingOperation.APPEND, "cook"),
            ("uses", SettingOperation.SUBTRACT, "eat"),
            ("red", SettingOperation.SET, "TRUE"),
            ("size.bytes", SettingOperation.DELETE, None),
        ],
    )
    assert own == {"uses": "press,cook", "red": "true"}


@pytest.mark.parametrize(
    ("name", "operation", "text", "why"),
    [
        ("size.byte", SettingOperation.SET, "1", "did you mean 'size.bytes'"),
        ("size.bytes", SettingOperation.SET, None, "no value"),
        ("size.bytes", SettingOperation.SET, "10", "from 1 to 9"),
        ("size.bytes", SettingOperation.APPEND, "1", "is not a list"),
        ("uses", SettingOperation.SUBTRACT, "eat", "use one of"),
        ("kind", SettingOperation.SET, "2", "while the broker runs"),
        ("kind", SettingOperation.DELETE, None, "while the broker runs"),
    ],
)
def test_an_invalid_alteration_is_refused(
    name: str, operation: SettingOperation, text: str | None, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        alter_settings(SETTINGS, {}, DEFAULTS, [(name, operation, text)])


@given(st.lists(st.sampled_from(["eat", "press", "cook"]), min_size=1))
def test_subtracting_all_list_items_leaves_an_empty_list(given_words: list[str]) -> None:
    added = alter_settings(
        SETTINGS, {}, DEFAULTS, [("uses", SettingOperation.APPEND, ",".join(given_words))]
    )
    assert {*added["uses"].split(",")} == {"eat", *given_words}
    setting = SETTINGS["uses"]
    assert setting.alter_list(SettingOperation.SUBTRACT, added["uses"], added["uses"]) == ""
