"""Filters: against Python's own evaluation where both mean one thing, and against attacks."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.console.record_filter import FilteredRecord, RecordFilter
from streamlog.errors import UsageError

VALUE = {"amount": 120.5, "user": {"name": "ann", "tags": ["a", "b"]}, "count": 3, "none": None}
RECORD = FilteredRecord("ann-1", VALUE, {"source": "web"}, 2, 17, 1_700_000_000_000)


def accepts(text: str, record: FilteredRecord = RECORD) -> bool:
    return RecordFilter(text).accepts(record)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "value.amount > 100",
        'value.user.name == "ann" and partition == 2',
        'value["user"]["tags"][0] == "a"',
        '"b" in value.user.tags',
        'headers["source"] in ["web", "app"]',
        'key.startswith("ann") and not key.endswith("2")',
        "10 <= offset < 20",
        "value.none == null and value.none is None",
        'lower(text(value.user.name)) == "ann" and len(value.user.tags) == 2',
        "value.count * 2 - 1 == 5 and number('7') % 4 == 3 and -value.count < 0",
        "timestamp >= 1700000000000",
        'value.user.name.contains("nn")',
        "true",
    ],
)
def test_conditions_that_hold(text: str) -> None:
    assert accepts(text)
    assert not accepts(f"not ({text or 'true'})")


@pytest.mark.parametrize(
    "text",
    [
        "value.missing > 1",
        "value.missing == value.missing",
        "value.missing != 1",
        "value.amount > 'text'",
        "value.user.tags[9] == 1",
        "value.user > 3",
        "1 in value.amount",
        "value.count / 0 == 1",
        "value.user.name * 9 == 1",
        "key.amount == 1",
        "len(value.count) == 1",
    ],
)
def test_a_record_of_another_shape_does_not_fit(text: str) -> None:
    assert not accepts(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "open('/etc/passwd')",
        "[x for x in value]",
        "(lambda: 1)()",
        "value.__class__()",
        "2 ** 9",
        "key.format(1)",
        "f'{key}'",
        "key if value else offset",
        "exec",
        "value := 1",
        "*value",
        "b'x' == key",
        "value.user(1)",
        "len(key, value)",
        "{1: 2}",
        "value[1:2]",
        "await key",
        "1 if",
        "x" * 600,
        "not " * 120 + "1",
        "(" * 90 + "1" + ")" * 90 + " and (",
        "1" * 100,
        "\0",
    ],
)
def test_everything_else_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError, match="the filter"):
        RecordFilter(text)


def test_a_dot_reaches_no_attribute_of_python() -> None:
    for text in ("value.__class__", "key.__len__", "value.keys", "headers.__dict__", "offset.real"):
        assert not accepts(text)


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(UsageError, match="the name 'os' at character 10"):
        RecordFilter("key and (os)")


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        accepts(text)


NUMBERS = st.sampled_from(["offset", "partition", "3", "17", "2.5", "value.count", "value.amount"])
COMPARED = st.builds(
    "{} {} {}".format, NUMBERS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), NUMBERS
)
CONDITIONS = st.recursive(
    COMPARED,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner)
        | st.builds("(not {})".format, inner)
    ),
    max_leaves=6,
)


@given(CONDITIONS)
def test_conditions_mean_what_they_mean_in_python(text: str) -> None:
    """Python evaluates generated texts only, with the fields as attributes."""
    names = {"offset": 17, "partition": 2, "value": SimpleNamespace(**VALUE)}
    assert accepts(text) == bool(eval(text, {"__builtins__": {}}, names))  # noqa: S307
