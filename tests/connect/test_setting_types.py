"""Texts of settings become values of the declared types, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import Secret
from streamlog.connect.setting_types import choices_of, config_type, read_setting, write_setting
from streamlog.durations import Dur
from streamlog.errors import ConfigError


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
    ],
)
def test_types_have_kafkas_names(form: Any, kind: str) -> None:
    assert config_type(form) == kind


def test_choices_are_what_a_field_may_be() -> None:
    assert choices_of(Literal["a", "b"]) == ["a", "b"]
    assert choices_of(Mode | None) == ["bulk", "incrementing"]
    assert choices_of(str) == []


def test_a_secret_is_written_as_stars_or_as_its_reference() -> None:
    assert write_setting(Secret("hunter2")) == "***"
    assert write_setting(Secret("${env:PASSWORD}")) == "${env:PASSWORD}"
