"""Subscriptions: names as they are, patterns as whole names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.consumer.subscription_state import Subscription
from streamlog.errors import UsageError

names = st.lists(st.text("ab-", min_size=1, max_size=4))


@given(names)
def test_names_mean_themselves_once_and_in_order(wanted: list[str]) -> None:
    assert Subscription.of(wanted).means(["other"]) == tuple(sorted(set(wanted)))


@given(names)
def test_a_pattern_means_whole_names_that_there_are(there: list[str]) -> None:
    meant = Subscription.of(re.compile("a+")).means(there)
    assert set(meant) == {name for name in there if set(name) == {"a"}}
    assert list(meant) == sorted(meant)


def test_what_it_can_not_be() -> None:
    with pytest.raises(UsageError, match=r"\['orders'\]"):
        Subscription.of("orders")
    with pytest.raises(UsageError, match="of bytes"):
        Subscription.of(re.compile(b"orders"))  # type: ignore[arg-type]
