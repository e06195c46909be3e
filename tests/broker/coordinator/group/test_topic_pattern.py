"""TopicPattern against Python's `re`, and expressions on which `re` would backtrack forever."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.coordinator.group.topic_pattern import TopicPattern
from streamlog.errors import ConfigError

names = st.text("abAB01._-", max_size=8)
atoms = st.sampled_from(
    ["a", "b", "A", "0", r"\.", "-", ".", r"\d", r"\w", r"\W", "[ab]", "[^a]", "[a-c_]", "[]a]"]
)


def repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}", "*?", "{0,}"])
    return st.builds(lambda text, count: f"(?:{text}){count}", inner, counts)


patterns = st.recursive(
    atoms | st.sampled_from(["", "^", "$"]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | repeated(inner)
    ),
    max_leaves=8,
)


@given(patterns, st.lists(names, min_size=1, max_size=5))
def test_a_pattern_matches_what_python_s_re_matches(text: str, many: list[str]) -> None:
    theirs = re.compile(text)
    ours = TopicPattern(text)
    for name in many:
        assert ours.matches(name) == bool(theirs.fullmatch(name)), (text, name)


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("orders", ["orders"], ["orders2", "my-orders"]),
        ("^orders-.*", ["orders-", "orders-eu"], ["orders", "an-orders-eu"]),
        ("^a.*|^b.*", ["a1", "b"], ["c"]),
        (r"(?i)Orders\.v\d", ["oRDERS.v1"], ["ordersxv1"]),
        ("[[:lower:]]+", ["abc"], ["aBc", ""]),
        ("(?P<kind>a|b)c", ["ac", "bc"], ["c"]),
        (r"\Aab\z", ["ab"], ["abc"]),
        ("a{2,3}", ["aa", "aaa"], ["a", "aaaa"]),
        ("(a|b)*c", ["c", "abac"], ["ab"]),
        ("", [""], ["a"]),
    ],
)
def test_a_pattern_matches_whole_topic_names(text: str, yes: list[str], no: list[str]) -> None:
    pattern = TopicPattern(text)
    assert [name for name in [*yes, *no] if pattern.matches(name)] == yes


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "a)",
        "[a",
        "*a",
        "a**",
        "a{2,1}",
        "a{x}",
        "a{2",
        r"(a)\1",
        "(?=a)b",
        "(?<!a)b",
        "(?>a)",
        "[b-a]",
        "[[:nothing:]]",
        "\\",
        r"\q",
        "a" * 1_001,
        "a{1001}",
        "(" * 60 + ")" * 60,
        "(a{100}){100}",
    ],
)
def test_an_invalid_expression_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        TopicPattern(text)


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)b", "(a?){50}a{50}"])
def test_matching_takes_bounded_time(text: str) -> None:
    pattern = TopicPattern(text)
    begin = time.process_time()
    assert not pattern.matches("a" * 248 + "c")
    assert time.process_time() - begin < 5


@given(st.text(max_size=30))
def test_any_text_is_either_compiled_or_refused(text: str) -> None:
    try:
        TopicPattern(text).matches("orders")
    except ConfigError:
        return
