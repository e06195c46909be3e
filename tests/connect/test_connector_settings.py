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
    fault_of,
    hints_of,
    read_settings,
    settings_of,
    unknown_settings,
    validated,
)
from streamlog.durations import Dur
from streamlog.errors import ConfigError


@pytest.fixture(autouse=True)
def no_class_is_remembered() -> None:
    """Let each test read the settings of its classes itself."""
    settings_of.cache_clear()
    hints_of.cache_clear()


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


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Reads.

    Args:
        ignored: this is no attribute.

    Attributes:
        size: how many,
            at once: the most.

        mode: what
          for: in the middle.

    Raises:
        size: not this either.
    """

    named_here = {"max.size": "size"}

    size: Annotated[int, msgspec.Meta(extra={"importance": "LOW"})]
    mode: str = "a"
    tags: list[str] = msgspec.field(default_factory=lambda: ["x"])
    login: Login | None = Login("me", Secret("s"))


def test_a_docstring_tells_settings_and_nothing_else() -> None:
    docs = {each.name: each.doc for each in settings_of(Search)}
    assert docs == {
        "size": "how many, at once: the most.",
        "mode": "what for: in the middle.",
        "tags": "",
        "login.user": "",
        "login.password": "",
    }


def test_a_definition_has_the_importance_that_a_setting_says() -> None:
    found = {each["name"]: each for each in definitions(Search, group="g")}
    keys = ("importance", "default_value", "required", "order_in_group")
    assert {name: tuple(each[key] for key in keys) for name, each in found.items()} == {
        "size": ("LOW", None, True, 1),
        "mode": ("MEDIUM", "a", False, 2),
        "tags": ("MEDIUM", "x", False, 3),
        "login.user": ("MEDIUM", "me", False, 4),
        "login.password": ("MEDIUM", "***", False, 5),
    }
    assert {each["importance"] for each in definitions(Login, group="g")} == {"HIGH", "MEDIUM"}


def test_a_struct_keeps_what_its_default_says_and_a_configuration_does_not() -> None:
    assert read_settings(Search, {"size": "1"}).login == Login("me", Secret("s"))
    found = read_settings(Search, {"size": "1", "login.user": "you"})
    assert (found.login, found.tags) == (Login("you", Secret("s")), ["x"])
    assert read_settings(Table, {"url": "db", "login.user": "me"}).login == Login("me")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("size is wrong", Fault("size", "size is wrong")),
        ("max.size is wrong", Fault("size", "size is wrong")),
        ("login.password is short", Fault("login.password", "login.password is short")),
        ("login needs a user", Fault("login.user", "login needs a user")),
        ("Size is wrong", Fault("", "Size is wrong")),
        ("http://me:x@h is wrong", Fault("", "http://***@h is wrong")),
        ("", Fault("", "")),
    ],
)
def test_a_refusal_is_a_fault_of_the_setting_that_it_names_first(
    message: str, fault: Fault
) -> None:
    assert fault_of(Search, ConfigError(message)) == fault


def test_a_fault_is_one_line_that_begins_with_the_setting() -> None:
    for fault, line in (
        (Fault("", "all is wrong"), "all is wrong"),
        (Fault("a", "a is wrong"), "a is wrong"),
        (Fault("a", "is missing"), "a is missing"),
        (Fault("a", "'x' must be b"), "a='x' must be b"),
        (Fault("a", '"x" must be b'), 'a="x" must be b'),
    ):
        assert str(fault) == line


def test_what_is_missing_says_what_to_write() -> None:
    class Needs(msgspec.Struct):
        """Needs.

        Attributes:
            mode: which way.
            url: where it is; a second sentence.
            plain:
        """

        mode: Literal["a", "b"]
        url: str
        plain: int

    with pytest.raises(SettingsRefused) as failed:
        read_settings(Needs, {})
    assert [fault.message for fault in failed.value.faults] == [
        "is missing: it has no default; set it to one of a, b",
        "is missing: it has no default; set it to where it is",
        "is missing: it has no default",
    ]


def test_a_configuration_may_be_as_large_as_the_limit() -> None:
    rest = len("url") + len("x")
    read_settings(Table, {"url": "x", "y": "z" * (CONFIG_BYTES_MAX - rest - 1)})
    with pytest.raises(SettingsRefused, match="larger than 262144 bytes"):
        read_settings(Table, {"url": "x", "y": "z" * (CONFIG_BYTES_MAX - rest)})


def test_a_fault_of_the_whole_is_shown_at_the_first_setting_alone() -> None:
    given = {"url": "x" * CONFIG_BYTES_MAX}
    errors = [each["value"]["errors"] for each in validated(Table, given, group="g")]
    assert [len(each) for each in errors] == [1] + [0] * (len(errors) - 1)
    # A value is shown as it was given, by either name; a default where none was.
    found = {
        each["value"]["name"]: (each["value"]["value"], each["definition"]["order_in_group"])
        for each in validated(Table, {"url": "db", "rows_max": "7", "mode": " x"}, group="g")
    }
    assert (found["rows.max"][0], found["mode"][0], found["url"]) == ("7", " x", ("db", 1))
    assert sorted(order for _, order in found.values()) == [*range(1, len(found) + 1)]


def test_either_name_of_a_setting_is_known() -> None:
    given = {"rows_max": "1", "old.name": "x", "renamed": "x", "url.x": "y", "x.url": "z"}
    assert unknown_settings([Table], given) == ["url.x", "x.url"]
    assert unknown_settings([Table], given, ["url."]) == ["x.url"]


def test_the_types_of_fields_have_their_limits() -> None:
    assert hints_of(Table)["rows_max"] == Annotated[int, msgspec.Meta(ge=1)]


def test_a_struct_that_may_be_left_out_needs_nothing_until_one_of_its_settings_is_there() -> None:
    # Made here, as the settings of a class are computed once.
    you: Any = msgspec.field(default_factory=lambda: Login("you"))
    maybe = Login | None
    others: list[Any] = [("other", Login, Login("me")), ("third", maybe, you)]
    cluster = msgspec.defstruct("Cluster", [("login", maybe, None), *others])
    inner = msgspec.defstruct("Inner", [("name", str), ("deep", Login | None, None)])
    outer: Any = msgspec.defstruct("Outer", [("inner", inner), ("maybe", inner | None, None)])
    by_name = {each.name: each for each in settings_of(cluster)}
    assert [*by_name] == [
        f"{field}.{name}" for field in ("login", "other", "third") for name in ("user", "password")
    ]
    assert [each.name for each in by_name.values() if each.is_required] == []
    assert [each.within for each in by_name.values()] == [("login",)] * 2 + [None] * 4
    assert [each.default for each in by_name.values() if each.within is None] == [
        "me", None, "you", None,
    ]  # fmt: skip
    assert not by_name["login.user"].is_missing_in([("other", "user")])
    assert by_name["login.user"].is_missing_in([("login", "password")])
    assert not by_name["login.user"].is_missing_in([("login", "user"), ("login", "password")])
    assert [(each.name, each.is_required) for each in settings_of(outer)] == [
        ("inner.name", True),
        ("inner.deep.user", False),
        ("inner.deep.password", False),
        ("maybe.name", False),
        ("maybe.deep.user", False),
        ("maybe.deep.password", False),
    ]
    given = {"inner.name": "a", "maybe.deep.user": "me"}
    with pytest.raises(SettingsRefused, match=r"maybe\.name is missing"):
        read_settings(outer, given)
    assert read_settings(outer, {**given, "maybe.name": "b"}) == outer(
        inner("a"), inner("b", Login("me"))
    )


def test_a_setting_that_is_wrong_is_not_missing_as_well() -> None:
    needed = msgspec.defstruct("Needed", [("size", int), ("login", Login | None, None)])
    with pytest.raises(SettingsRefused) as failed:
        read_settings(needed, {"size": "many", "login.password": "${x"})
    assert [(fault.setting, fault.message.split()[0]) for fault in failed.value.faults] == [
        ("login.user", "is"),
        ("size", "'many'"),
    ]
