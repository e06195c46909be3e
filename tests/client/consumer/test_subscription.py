"""Subscriptions: topic names, and patterns that match whole names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.consumer.subscription_state import Subscription
from streamlog.errors import UsageError

names = st.lists(st.text("ab-", min_size=1, max_size=4))


@given(names)
def test_topic_names_are_sorted_and_unique(wanted: list[str]) -> None:
    assert Subscription.of(wanted).means(["other"]) == tuple(sorted(set(wanted)))


@given(names)
def test_a_pattern_matches_whole_existing_names(there: list[str]) -> None:
    meant = Subscription.of(re.compile("a+")).means(there)
    assert set(meant) == {name for name in there if set(name) == {"a"}}
    assert list(meant) == sorted(meant)


def test_a_bare_string_or_a_bytes_pattern_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\['orders'\]"):
        Subscription.of("orders")
    with pytest.raises(UsageError, match="is bytes, but"):
        Subscription.of(re.compile(b"orders"))  # type: ignore[arg-type]
