"""Configurations as texts: read, refused with all faults, and described as Connect does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from streamlog.connect import Flush, Secret, Sink
from streamlog.connect.common_settings import PREFIXES, SinkConfig, SourceConfig, common_model
from streamlog.connect.connector_settings import (
    CONFIG_BYTES_MAX,
    Fault,
    SettingsRefused,
    definitions,
    read_settings,
    settings_of,
    unknown_settings,
    validated,
)
from streamlog.durations import Dur
from streamlog.errors import ConfigError


class Login(msgspec.Struct, frozen=True):
    user: str
    password: Secret | None = None


class Table(Sink[Any, Any], frozen=True, kw_only=True):
    """Writes rows.

    Attributes:
        url: where the database is,
            and how to get there.
        mode: how rows are written.
    """

    url: str
    mode: Literal["insert", "upsert"] = "insert"
    rows_max: Annotated[int, msgspec.Meta(ge=1)] = 100
    wait: Dur = "5s"
    columns: tuple[str, ...] = ()
    login: Login | None = None
    renamed: Annotated[str, msgspec.Meta(description="Of its own name.")] = msgspec.field(
        default="x", name="old.name"
    )
    flush: Flush = Flush(every="1m")

    def check(self) -> None:
        if self.mode == "upsert" and not self.columns:
            raise ConfigError("mode upsert needs columns")
        if self.url == "nowhere":
            raise ConfigError("there is no such database")


GIVEN = {"url": "db", "rows.max": "7", "flush.records": "3", "login.user": "me"}


def test_texts_become_a_connector_with_its_own_defaults() -> None:
    found = read_settings(Table, {**GIVEN, "old.name": "y", "columns": "a,b"})
    assert found == Table(
        url="db",
        rows_max=7,
        columns=("a", "b"),
        login=Login("me"),
        renamed="y",
        flush=Flush(records=3, every="1m"),
    )


def test_names_may_be_spelled_as_the_fields_are() -> None:
    assert read_settings(Table, {"url": "db", "rows_max": "7"}).rows_max == 7


def test_all_faults_are_found_at_once() -> None:
    given = {"rows.max": "0", "mode": "replace", "wait": "5", "flush.records": "many"}
    with pytest.raises(SettingsRefused) as failed:
        read_settings(Table, given)
    assert [fault.setting for fault in failed.value.faults] == [
        "url",
        "flush.records",
        "mode",
        "rows.max",
        "wait",
    ]
    assert "Table: 5 settings refused:\n  url is missing" in str(failed.value)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingsRefused) as failed:
        read_settings(Table, {**GIVEN, "mode": "upsert"})
    # `check` has named the setting first.
    assert failed.value.faults == (Fault("mode", "mode upsert needs columns"),)


def test_a_configuration_that_is_too_large_is_refused() -> None:
    with pytest.raises(SettingsRefused, match="larger than"):
        read_settings(Table, {**GIVEN, "url": "x" * CONFIG_BYTES_MAX})


def test_settings_are_documented_by_the_docstrings_of_their_classes() -> None:
    docs = {setting.name: setting.doc for setting in settings_of(Table)}
    assert docs["url"] == "where the database is, and how to get there."
    assert docs["old.name"] == "Of its own name."
    assert docs["flush.stream.time"].startswith("stream time passes")
    assert next(iter(docs)) == "url"


def test_a_definition_is_connects() -> None:
    found = {each["name"]: each for each in definitions(Table, group="Table")}
    assert found["rows.max"] == {
        "name": "rows.max",
        "type": "LONG",
        "required": False,
        "default_value": "100",
        "importance": "MEDIUM",
        "documentation": "",
        "group": "Table",
        "width": "MEDIUM",
        "display_name": "rows.max",
        "dependents": [],
        "order_in_group": found["rows.max"]["order_in_group"],
    }
    assert found["url"]["required"]
    assert found["url"]["default_value"] is None
    assert found["flush.every"]["default_value"] == "1m"


def test_validation_answers_each_setting_with_its_value_and_errors() -> None:
    given = {**GIVEN, "mode": "replace", "login.password": "hunter2"}
    found = {each["value"]["name"]: each["value"] for each in validated(Table, given, group="x")}
    assert found["mode"] == {
        "name": "mode",
        "value": "replace",
        "recommended_values": ["insert", "upsert"],
        "errors": ["Invalid value for configuration mode: 'replace' must be one of insert, upsert"],
        "visible": True,
    }
    assert found["rows.max"]["value"] == "7"
    assert found["wait"]["value"] == "5s"
    assert found["login.password"]["value"] == "***"


def test_a_contradiction_is_an_error_of_the_setting_that_it_names() -> None:
    found = {
        each["value"]["name"]: each["value"]["errors"]
        for each in validated(Table, {**GIVEN, "mode": "upsert"}, group="x")
        if each["value"]["errors"]
    }
    assert found == {"mode": ["Invalid value for configuration mode: mode upsert needs columns"]}


def test_a_contradiction_that_names_no_setting_is_an_error_of_the_first() -> None:
    first, *others = validated(Table, {**GIVEN, "url": "nowhere"}, group="x")
    assert "there is no such database" in first["value"]["errors"][0]
    assert not any(each["value"]["errors"] for each in others)


def test_settings_that_nothing_reads_are_unknown() -> None:
    given = {
        **GIVEN,
        "name": "n",
        "connector.class": "Table",
        "tasks.max": "2",
        "topics": "a",
        "transforms.x.type": "y",
        "row.max": "8",
    }
    assert unknown_settings([Table, common_model("sink")], given, PREFIXES) == ["row.max"]


def test_the_settings_of_all_connectors_have_kafkas_defaults() -> None:
    given = {"name": "n", "connector.class": "c"}
    source, sink = read_settings(SourceConfig, given), read_settings(SinkConfig, given)
    assert (source.tasks_max, source.errors_tolerance, sink.topics) == (1, "none", ())
    assert source.errors_retry_delay_max_ms == 60_000
    with pytest.raises(SettingsRefused, match=r"tasks\.max='0' must be a whole number from 1 to"):
        read_settings(SinkConfig, {**given, "tasks.max": "0"})


def test_the_settings_of_a_login_need_its_user_only_if_one_is_given() -> None:
    assert read_settings(Table, {"url": "db"}).login is None
    with pytest.raises(SettingsRefused, match=r"login\.user is missing"):
        read_settings(Table, {"url": "db", "login.password": "hunter2"})
