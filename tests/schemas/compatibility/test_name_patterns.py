"""Patterns of names: found where `re` finds them, for random patterns."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from streamlog.schemas.compatibility.name_patterns import NamePatterns

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\.", "[a-c]", "^", "$", r"\x61", "[-a]"]
)
COUNTS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(st.tuples(inner.filter(lambda x: x not in {"^", "$"}), COUNTS).map("".join)).map(
            "".join
        ),
        st.lists(inner, min_size=1, max_size=3).map("|".join).map("(?:{})".format),
        inner.map("({})".format),
        st.lists(inner, max_size=3).map("".join),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.text("abc1.", max_size=6))
def test_a_pattern_is_found_where_re_finds_it(pattern: str, name: str) -> None:
    # Python has possessive repetitions, ECMAScript has not.
    assume(re.search(r"[*+?}]\+", pattern) is None)
    try:
        expected = re.search(pattern, name) is not None
    except re.error:
        return
    assert NamePatterns().is_found(pattern, name) == expected
