"""Each wrong setting of each installed connector gives a line: field, value, what it may be.

Cases are made from the models, so a connector of another package that is installed has them as
well. Each goes through the three doors: a properties file of the service, `validate` of the REST
API, and Python.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from streamlog import App
from streamlog.connect import Secret
from streamlog.connect.common_settings import common_model
from streamlog.connect.connector_settings import (
    ConnectorSetting,
    read_settings,
    settings_of,
)
from streamlog.connect.names import Plugin, find_plugin, plugin_names
from streamlog.connect.setting_types import choices_of, metas_of, options_of
from streamlog.connect.setting_values import check_settings
from streamlog.connect_service.configured import InstalledPlugins, validation
from streamlog.connect_service.service_files import read_connector_file
from streamlog.connectors.memory import MemoryRows, MemorySink, MemorySource
from streamlog.connectors.tail import Tail
from streamlog.errors import ConfigError

WORKER = {"allow.exec": "true"}
IN_PYTHON = ("MemorySink", "MemorySource")
"""Connectors of objects of a program, which no configuration can name."""
SECRET = "hunter2-of-nobody"
TEXTS = (
    "x", "http://h.example/x", "postgresql://h.example/x", "redis://h.example", "mqtt://h.example",
    "ws://h.example", "127.0.0.1:5140", "/in/of/files", "s3://bucket/x", "a.b",
    "jdbc:postgresql://h.example/x", "kafka.example:9092", "7",
)  # fmt: skip
"""Values for settings of text that have no default; one of them has to be accepted."""
TOGETHER: Mapping[str, dict[str, str]] = {
    "JdbcSourceConnector": {"table.whitelist": "orders"},
    "KafkaClusterSink": {"transactional.id": "copy"},
    "KafkaClusterSource": {"topics": "orders"},
    "RedisPubSub": {"channels": "orders"},
    "SqlSource": {"tables": "orders"},
}
"""What a connector needs beside its settings without a default."""
HUGE = "9" * 5_000
LINE_CHARACTERS = 500


class Wrong(NamedTuple):
    """A setting with a text that it can't have."""

    setting: str
    text: str | None
    """None: it is missing."""


def plugin_of(name: str) -> Plugin:
    return find_plugin(name)


def base_of(plugin: Plugin) -> dict[str, str]:
    """Return a configuration that is accepted, with nothing but what has no default."""
    given = {"name": "c", "connector.class": plugin.name, **TOGETHER.get(plugin.name, {})}
    if plugin.kind == "sink":
        given["topics"] = "orders"
    needed = [
        each for each in settings_of(plugin.settings)
        if each.is_required and each.name not in given
    ]  # fmt: skip
    given |= {each.name: TEXTS[0] for each in needed}
    for setting in needed * 2:
        for text in [*choices_of(setting.type), *TEXTS]:
            given[setting.name] = text
            faults = InstalledPlugins(WORKER).faults(given)
            if not any(fault.startswith((setting.name, setting.spelled)) for fault in faults):
                break
    return given


def wrong_texts(setting: ConnectorSetting) -> Iterator[str]:
    """Yield texts that a setting can't have, by its type alone."""
    options = [each for each in options_of(setting.type) if each not in (None, type(None))]
    if timedelta in options:
        yield from ("5", "-5s", "5 parsecs", "1s1h", f"{HUGE}s")
        yield from () if type(None) in options_of(setting.type) else ("",)
        return
    if Secret in options or str in options:
        return
    is_optional = len(options) < len(options_of(setting.type))
    for option in options:
        if option in (int, float):
            yield from wrong_numbers(setting)
            yield from (() if option is float else ("1.5", HUGE, "9" * 30))
        elif option is bool:
            yield from ("yes", "1", "truefalse")
        elif choices_of(option):
            yield from ("no-such-choice", f"{choices_of(option)[0]} ?")
        elif typing.get_origin(option) in _CONTAINERS:
            yield from wrong_items(option)
            is_optional = True
    yield from () if is_optional else ("",)


def wrong_numbers(setting: ConnectorSetting) -> Iterator[str]:
    # Nothing that a connector counts may be negative without a limit.
    yield from ("many", "1_000", "0x10", "NaN", "1e", "--1", "-999999999")
    for meta in metas_of(setting.type):
        yield from () if meta.ge is None else (str(int(meta.ge) - 1),)
        yield from () if meta.le is None else (str(int(meta.le) + 1),)


def wrong_items(option: Any) -> Iterator[str]:
    is_mapping = issubclass(typing.get_origin(option), Mapping)
    yield from ("no colon", "{", '["a"]', '{"a": [1]}') if is_mapping else ("[", '[{"a": 1}]')
    if choices_of(typing.get_args(option)[-1 if is_mapping else 0]):
        yield "a:no-such-choice" if is_mapping else "no-such-choice"


_CONTAINERS = (tuple, list, dict, Mapping, typing.get_origin(typing.Sequence[str]))


def cases_of(plugin: Plugin) -> Iterator[Wrong]:
    for setting in settings_of(plugin.settings):
        # All sinks have these by one Struct.
        if setting.path[0] == "flush" and plugin.name != "Print":
            continue
        if setting.is_required:
            yield Wrong(setting.name, None)
            yield Wrong(setting.name, "")
        yield from (Wrong(setting.name, text) for text in wrong_texts(setting))
    if plugin.name not in {"Print", "Tail"}:
        return
    # What all connectors have.
    for setting in settings_of(common_model(plugin.kind)):
        # The first two are what a connector is found by.
        if setting.name not in {"name", "connector.class"}:
            yield from (Wrong(setting.name, text) for text in wrong_texts(setting))


def check_line(line: str, wrong: Wrong) -> list[str]:
    """Return what a line lacks."""
    lacks = [] if wrong.setting in line else ["field"]
    lacks += ["one line"] if "\n" in line or len(line) > LINE_CHARACTERS else []
    text = wrong.text or ""
    # A list or a mapping has other items, which may be secrets.
    is_shown = not text or text[:50] in line or text[:1] in "[{" or text == "no colon"
    is_shown = is_shown or (":" in text and text.partition(":")[2] in line)
    lacks += [] if is_shown else ["value"]
    lacks += [] if re.search(MAY_BE, line) else ["what it may be"]
    return lacks


MAY_BE = (
    r"must (be|begin|differ|end)|is missing|needs?\b|write |set |name |such as|empty|has to|is no"
    r"|or more|at most|from \d|may "
)


def changed(base: Mapping[str, str], wrong: Wrong) -> dict[str, str]:
    given = {name: text for name, text in base.items() if name != wrong.setting}
    return given if wrong.text is None else {**given, wrong.setting: wrong.text}


def file_of(directory: Path, settings: Mapping[str, str]) -> Path:
    path = directory / "connector.properties"
    # As a properties file has them: backslashes and spaces at the beginning are escaped.
    lines = [f"{name}={text.replace(chr(92), chr(92) * 2)}" for name, text in settings.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def names() -> list[str]:
    return [each for each in plugin_names() if each not in IN_PYTHON]


@pytest.mark.parametrize("name", names())
def test_a_wrong_setting_speaks_in_a_file_and_in_validate(name: str, tmp_path: Path) -> None:
    plugin = plugin_of(name)
    base = base_of(plugin)
    assert InstalledPlugins(WORKER).faults(base) == []
    mute: list[str] = []
    for wrong in cases_of(plugin):
        given = changed(base, wrong)
        _, read = read_connector_file(file_of(tmp_path, given))
        faults = InstalledPlugins(WORKER).faults(read)
        found = [each for each in faults if wrong.setting in each]
        lacks = check_line(found[0], wrong) if len(found) == 1 else [f"{len(found)} lines"]
        at = {
            each["value"]["name"]: each["value"]["errors"]
            for each in typing.cast("Any", validation(name, given, WORKER)["configs"])
            if each["value"]["errors"]
        }
        if [*at] != [wrong.setting] or len(at[wrong.setting]) != 1:
            lacks.append(f"validate blames {at}")
        if lacks:
            shown = (wrong.text or "")[:30]
            mute.append(f"{wrong.setting}={shown!r}: lacks {lacks}: {[f[:200] for f in faults]}")
    assert not mute, "\n".join(mute)


@pytest.mark.parametrize("name", names())
def test_a_setting_that_a_connector_does_not_have_is_named(name: str) -> None:
    plugin = plugin_of(name)
    base = base_of(plugin)
    for known in [each.name for each in settings_of(plugin.settings)][:3]:
        configs = validation(name, {**base, f"{known}s.x": SECRET}, WORKER)["configs"]
        at = {
            each["value"]["name"]: each["value"]["errors"]
            for each in typing.cast("Any", configs)
            if each["value"]["errors"]
        }
        assert [*at] == [f"{known}s.x"]
        assert SECRET not in str(at)
        assert "did you mean" in at[f"{known}s.x"][0]


@pytest.mark.parametrize("name", names())
def test_a_text_that_may_have_a_secret_is_not_repeated(name: str) -> None:
    plugin = plugin_of(name)
    base = base_of(plugin)
    for setting in settings_of(plugin.settings):
        texts = [f"http://me:{SECRET}@h:1:2/", f"http://h?password={SECRET}"]
        if any(typing.get_origin(each) in (dict, Mapping) for each in options_of(setting.type)):
            texts += [SECRET, f'{{"a": {SECRET}', f"[{SECRET}"]
        for text in texts:
            given = {**base, setting.name: text}
            faults = InstalledPlugins(WORKER).faults(given)
            assert SECRET not in str(faults)
            configs = typing.cast("Any", validation(name, given, WORKER)["configs"])
            assert SECRET not in str([each["value"]["errors"] for each in configs])


def connector_of(name: str) -> Any:
    if name == "MemorySink":
        return MemorySink(into=MemoryRows())
    if name == "MemorySource":
        return MemorySource(values=[1])
    plugin = plugin_of(name)
    return read_settings(plugin.connector, base_of(plugin))


def wrong_values(setting: ConnectorSetting) -> Iterator[object]:
    """Yield values that a field can't have, by its type alone."""
    options = options_of(setting.type)
    if Any in options or object in options:
        return
    yield object()
    if type(None) not in options:
        yield None
    if timedelta in options:
        yield from (5, "5", "", timedelta(seconds=-1))
    elif str in options:
        yield from (5, b"x")
    elif int in options:
        yield from ("7", 1.5, True, -(10**30), -(10**5_000))
        limits = [each for each in wrong_texts(setting) if each.removeprefix("-").isdecimal()]
        yield from (int(each) for each in limits if len(each) < len(HUGE))
    elif Secret in options:
        yield SECRET
    elif choices_of(setting.type):
        yield from ("no-such-choice", 99)
    else:
        yield from ("abc", 5, [object()], {"a": object()})


@pytest.mark.parametrize("name", [each for each in plugin_names() if plugin_of(each).java is None])
def test_a_wrong_value_speaks_in_python(name: str) -> None:
    made = connector_of(name)
    check_settings(made)
    for setting in settings_of(type(made)):
        *around, field = setting.path
        if around and getattr(made, around[0]) is None:
            with pytest.raises(ConfigError, match=f"^{around[0]}='no' must be a "):
                check_settings(msgspec.structs.replace(made, **{around[0]: "no"}))
            continue
        for value in wrong_values(setting):
            inner = getattr(made, around[0]) if around else made
            changed_to: Any = msgspec.structs.replace(inner, **{field: value})
            if around:
                changed_to = msgspec.structs.replace(made, **{around[0]: changed_to})
            with pytest.raises(ConfigError) as failed:
                check_settings(changed_to)
            line = str(failed.value)
            assert line.startswith(setting.spelled), line
            assert "\n" not in line
            assert re.search(MAY_BE, line), line
            assert SECRET not in line


def test_a_declared_connector_is_checked() -> None:
    app = App("wrong")
    lines = app.topic("lines", key=None, value=bytes)
    with pytest.raises(ConfigError, match=r"connector 'logs' \(Tail\): path=5 must be text"):
        app.source(lines, Tail(path=5), name="logs")  # type: ignore[arg-type]
