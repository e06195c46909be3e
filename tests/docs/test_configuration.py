"""docs/configuration.md matches the table of settings; a missing row is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.broker.config.broker import BROKER_SETTINGS, TOPIC_SETTINGS
from streamlog.broker.config.link import LINK_SETTINGS
from streamlog.broker.config.resources import (
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    resource_settings,
)
from streamlog.broker.config.settings import INT_MAX, LONG_MAX, Setting, SettingKind

TEXT = (Path(__file__).parent.parent.parent / "docs" / "configuration.md").read_text()
LARGE = {INT_MAX: "2^31-1", LONG_MAX: "2^63-1"}


GROUPS = [*resource_settings(GROUP_RESOURCE).values()]
METRICS = [*resource_settings(CLIENT_METRICS_RESOURCE).values()]


def number(value: float) -> str:
    return LARGE.get(int(value), str(value))


def allowed(setting: Setting) -> str:
    match setting.kind:
        case SettingKind.BOOLEAN:
            return "true, false"
        case SettingKind.STRING:
            return " or ".join(setting.choices) or "text"
        case SettingKind.PASSWORD:
            return "text, never shown"
        case SettingKind.LIST:
            if setting.form is None:
                return " and/or ".join(setting.choices)
            return setting.form.description
    unit = f" {setting.unit}" if setting.unit else ""
    return f"{number(setting.minimum)} to {number(setting.maximum)}{unit}"


def default(setting: Setting) -> str:
    if isinstance(setting.default, bool | str):
        return setting.text(setting.default)
    return number(setting.default)


def row(setting: Setting) -> str:
    names = f"`{setting.name}`"
    if setting.broker_name:
        names += f" | `{setting.broker_name}`"
    elif setting in GROUPS or (
        setting.name in TOPIC_SETTINGS and setting.name not in BROKER_SETTINGS
    ):
        names += " |"
    fixed = "" if setting.is_dynamic else " Not while the broker runs."
    meaning = setting.documentation + fixed
    return f"| {names} | {default(setting)} | {allowed(setting)} | {meaning} |"


OWN = [
    each
    for name, each in BROKER_SETTINGS.items()
    if name not in {topic.broker_name for topic in TOPIC_SETTINGS.values()}
]


EVERY = [*TOPIC_SETTINGS.values(), *OWN, *GROUPS, *METRICS, *LINK_SETTINGS.values()]


@pytest.mark.parametrize("setting", EVERY, ids=lambda each: each.name)
def test_a_setting_is_documented(setting: Setting) -> None:
    assert row(setting) in TEXT.splitlines(), f"add to docs/configuration.md:\n{row(setting)}"


def test_no_other_setting_is_documented() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    assert {*rows} == {row(setting) for setting in EVERY}
