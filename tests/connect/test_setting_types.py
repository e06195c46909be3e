"""Texts of settings become values of the declared types, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import Secret
from streamlog.connect.setting_types import (
    check_limits,
    choices_of,
    config_type,
    limits_text,
    metas_of,
    read_setting,
    shown,
    struct_of,
    write_setting,
)
from streamlog.durations import Dur
from streamlog.errors import ConfigError


class Level(IntEnum):
    LOW = 1


class Login(msgspec.Struct, frozen=True):
    user: str


class Mode(Enum):
    BULK = "bulk"
    INCREMENTING = "incrementing"


@pytest.mark.parametrize(
    ("text", "form", "value"),
    [
        (" a ", str, " a "),
        ("7", int, 7),
        (" 7 ", int, 7),
        ("7", int | str, 7),
        ("seven", int | str, "seven"),
        ("1.5", float, 1.5),
        ("1e3", float, 1_000.0),
        ("TRUE", bool, True),
        ("5m", Dur, "5m"),
        ("5m", timedelta | str | None, "5m"),
        ("", timedelta | str | None, None),
        ("", int | None, None),
        ("", str | None, ""),
        ("hunter2", Secret, Secret("hunter2")),
        ("hunter2", Secret | str | None, Secret("hunter2")),
        ("bulk", Literal["bulk", "query"], "bulk"),
        ("2", Literal[1, 2], 2),
        ("incrementing", Mode, Mode.INCREMENTING),
        ("a, b,c", tuple[str, ...], ("a", "b", "c")),
        ("", tuple[str, ...], ()),
        ("1,2", list[int], [1, 2]),
        ("[1, 2]", list[int], [1, 2]),
        ("a,b", Sequence[str], ("a", "b")),
        ("a:1,b:2", Mapping[str, int], {"a": 1, "b": 2}),
        ('{"a": 1}', dict[str, int], {"a": 1}),
        ("x", Annotated[str, msgspec.Meta(max_length=3)], "x"),
        ("  ", int | None, None),
        (" ", str | None, " "),
        (" 5m ", Dur, "5m"),
        (" bulk ", Literal["bulk"], "bulk"),
        ("+7", int, 7),
        ("-1.5E-3", float, -0.0015),
        ("9" * 400, float, float("inf")),
        ("x", Any, "x"),
        ("7", Any | int, 7),
        (" x ", object, "x"),
        ("1", Level, Level.LOW),
        ("true", bool | str, True),
        ("truth", bool | str, "truth"),
        ("a,,b", list[str], ["a", "", "b"]),
        (" ", list[int], []),
        ("a,a", set[str], {"a"}),
        ("a", frozenset[str], frozenset("a")),
        ("b", AbstractSet[str], frozenset("b")),
        ("1,2", list, ["1", "2"]),
        ('["1,5"]', list[str], ["1,5"]),
        ("5,", list[int | None], [5, None]),
        (" a : 1 ,, b:2,", dict[str, int], {"a": 1, "b": 2}),
        ("a:b:c", dict[str, str], {"a": "b:c"}),
        ("a:1", dict, {"a": "1"}),
        ('{"a": "1"}', dict, {"a": "1"}),
        ("", Mapping[str, int], {}),
        ('{"user": "me"}', Login, Login("me")),
        ("1", Annotated[int, msgspec.Meta(ge=1)] | None, 1),
        (str(2**63 - 1), int, 2**63 - 1),
    ],
)  # fmt: skip
def test_a_text_is_read_as_the_declared_type(text: str, form: Any, value: object) -> None:
    found = read_setting(text, form)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("many", int, "'many' must be a whole number"),
        ("1.5", int, "'1.5' must be a whole number"),
        ("1_000", int, "'1_000' must be a whole number"),
        ("9" * 20, int, "must be a whole number of 64 bits"),
        ("nan", float, "'nan' must be a number"),
        ("infinity", float, "'infinity' must be a number"),
        ("yes", bool, "'yes' must be true or false"),
        ("5", Dur, "'5' must be a duration with a unit, such as 250ms, 10s or 5m"),
        ("all", Literal["bulk", "query"], "'all' must be one of bulk, query"),
        ("BULK", Mode, "'BULK' must be one of bulk, incrementing"),
        ("1,hunter,3", list[int], "'hunter' must be a whole number"),
        ("x" * 100, int, f"'{'x' * 60}...' must be a whole number"),
        ("a\nb", int, r"'a\nb' must be a whole number"),
        ("http://me:hunter2@h", int, "'http://***@h' must be a whole number"),
        ("[hunter2]", list[int], "must be JSON of type list[int]"),
        ("[" * 100_000, list[int], "must be JSON of type list[int]"),
        ('{"x":' * 100_000, Mapping[str, object], "must be JSON of type"),
        ("hunter2", Mapping[str, int], "must be pairs"),
        ("0", Annotated[int, msgspec.Meta(ge=1)], "'0' must be a whole number of 1 or more"),
        ("0", Annotated[int, msgspec.Meta(ge=1)] | None, "must be a whole number of 1 or more"),
        ("x", Annotated[int, msgspec.Meta(ge=1, le=9)], "must be a whole number from 1 to 9"),
        ("1", Annotated[float, msgspec.Meta(gt=0, lt=1)], "must be a number above 0 below 1"),
        ("", Annotated[str, msgspec.Meta(min_length=1)], "must be text of 1 characters or more"),
        ("x", Annotated[str, msgspec.Meta(pattern="^y")], "'x' must be text that fits ^y"),
        ("x", int | bool, "'x' must be a whole number, or true or false"),
        ("x" * 61, int, f"'{'x' * 60}...' must be a whole number"),
        ("x" * 60, int, f"'{'x' * 60}' must be a whole number"),
        ("hunter2", list[Login], "must be JSON of type Login"),
        ("[1]", list[str], "must be JSON of type list[str]: Expected `str`, got `int`"),
        ("b", Literal["a"], "'b' must be a"),
        ("", int, "'' must be a whole number"),
        ("2", Level, "'2' must be 1"),
        (
            "3",
            Annotated[int, msgspec.Meta(multiple_of=2)],
            "a whole number that is a multiple of 2",
        ),
        ("3", Annotated[int, msgspec.Meta(le=2)], "'3' must be a whole number of 2 at most"),
        ("xx", Annotated[str, msgspec.Meta(max_length=1)], "must be text of 1 characters at most"),
        ("a", Annotated[list[str], msgspec.Meta(min_length=2)], "'a' must be a value of 2 "),
        (str(2**63), int | str, "must be a whole number of 64 bits"),
        ("9" * 5_000, int, "must be a whole number"),
    ],
)
def test_an_error_has_the_text_and_what_it_may_be_but_no_secret(
    text: str, form: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        read_setting(text, form)
    assert message in str(failed.value)
    assert "hunter2" not in str(failed.value)


@given(
    st.one_of(
        st.tuples(st.just(int), st.integers(-(2**63) + 1, 2**63 - 1)),
        st.tuples(st.just(float), st.floats(allow_nan=False, allow_infinity=False)),
        st.tuples(st.just(bool), st.booleans()),
        st.tuples(st.just(str), st.text()),
        st.tuples(st.just(list[int]), st.lists(st.integers())),
        st.tuples(st.just(Mode), st.sampled_from(Mode)),
    )
)
def test_what_is_written_is_read_back(case: tuple[Any, Any]) -> None:
    form, value = case
    assert read_setting(write_setting(value) or "", form) == value


@given(st.text(), st.sampled_from([int, float, bool, list[int], dict[str, int], Mode, Dur]))
def test_any_text_is_read_or_refused(text: str, form: Any) -> None:
    try:
        read_setting(text, form)
    except ConfigError:
        return


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (str, "STRING"),
        (int, "LONG"),
        (Annotated[int, msgspec.Meta(le=9)], "INT"),
        (float | None, "DOUBLE"),
        (bool, "BOOLEAN"),
        (Secret | str, "PASSWORD"),
        (tuple[str, ...], "LIST"),
        (Dur, "STRING"),
        (Mode, "STRING"),
        (Annotated[int, msgspec.Meta(le=2**31 - 1)], "INT"),
        (Annotated[int, msgspec.Meta(le=2**31)], "LONG"),
        (Annotated[int, msgspec.Meta(ge=1)] | None, "LONG"),
        (Annotated[float, msgspec.Meta(le=1)], "DOUBLE"),
        (bool | None, "BOOLEAN"),
        (None, "STRING"),
        (list[str] | None, "LIST"),
        (dict[str, int], "STRING"),
        (Annotated[Secret, msgspec.Meta(title="x")] | None, "PASSWORD"),
    ],
)
def test_types_have_kafkas_names(form: Any, kind: str) -> None:
    assert config_type(form) == kind


def test_choices_are_what_a_field_may_be() -> None:
    assert choices_of(Literal["a", "b"]) == ["a", "b"]
    assert choices_of(Mode | None) == ["bulk", "incrementing"]
    assert choices_of(str) == []
    assert choices_of(bool | None) == ["true", "false"]
    assert choices_of(Level | Literal["x"]) == ["1", "x"]
    assert choices_of(Annotated[Literal[1], msgspec.Meta(title="x")]) == ["1"]


def test_a_secret_is_written_as_stars_or_as_its_reference() -> None:
    assert write_setting(Secret("hunter2")) == "***"
    assert write_setting(Secret("${env:PASSWORD}")) == "${env:PASSWORD}"


def test_other_values_are_written_as_kafka_writes_them() -> None:
    for value, text in (
        (None, None),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (Mode.BULK, "bulk"),
        (Level.LOW, "1"),
        (timedelta(seconds=1, microseconds=1_999), "1001ms"),
        ({"a": 1, "b": False}, "a:1,b:false"),
        ([1, "x"], "1,x"),
        (("a",), "a"),
        ({"a"}, "a"),
        (frozenset(), ""),
    ):
        assert write_setting(value) == text


def test_limits_of_a_union_and_of_its_members_both_hold() -> None:
    inner = Annotated[int, msgspec.Meta(ge=1, le=9)]
    outer = Annotated[inner | None, "a note", msgspec.Meta(ge=5)]
    assert [meta.ge for meta in metas_of(outer)] == [5, 1]
    assert [meta.ge for meta in metas_of(Annotated[inner, msgspec.Meta(ge=5)])] == [1, 5]
    assert metas_of(int) == metas_of(list[inner]) == []
    assert limits_text(metas_of(inner)) == " from 1 to 9"
    assert limits_text([]) == ""
    assert limits_text([msgspec.Meta(ge=0)]) == " of 0 or more"
    assert limits_text([msgspec.Meta(gt=0, le=5)]) == " of 5 at most above 0"


def test_the_struct_of_a_field_is_found_in_a_union() -> None:
    assert struct_of(Login) is struct_of(Login | None) is Login
    assert struct_of(Annotated[Login, "a note"]) is Login
    for form in (str, list[Login], int | None, Any):
        assert struct_of(form) is None


def test_an_error_shows_a_value_as_short_as_it_can() -> None:
    for value, text in (
        (Secret("hunter2"), "'***'"),
        (2**63, "a huge number"),
        (-(2**63), "a huge number"),
        (2**63 - 1, str(2**63 - 1)),
        (1.5, "1.5"),
        (True, "True"),
        ("a" * 61, f"'{'a' * 60}...'"),
        ("postgres://me:x@h/d?password=y&ssl=1", "'postgres://***@h/d?password=***&ssl=1'"),
    ):
        assert shown(value) == text


def test_limits_hold_for_the_value_and_repeat_what_was_given() -> None:
    low = Annotated[int, msgspec.Meta(ge=5)]
    for value in (None, 5, Secret("x")):
        check_limits(value, low | None, value)
    check_limits(2**63 - 1, int, "given")
    check_limits("text", str, "given")
    with pytest.raises(ConfigError, match=r"^'four' must be a whole number of 5 or more$"):
        check_limits(4, low, "four")
    with pytest.raises(ConfigError, match=r"^'x' must be a whole number of 64 bits$"):
        check_limits(2**63, int, "x")
