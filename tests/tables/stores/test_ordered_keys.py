"""Serialized keys are in the order of the keys, and round-trip."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import SerdeError
from streamlog.tables.stores.store import ordered_serde

KINDS: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(st.characters(exclude_categories=["Cs"])),
    bytes: st.binary(),
    datetime: st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))])),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_serialized_keys_keep_the_order_of_the_keys(kind: type, data: st.DataObject) -> None:
    serde, is_ordered = ordered_serde(kind)
    first, second = data.draw(KINDS[kind]), data.draw(KINDS[kind])
    assert is_ordered
    assert serde.loads(serde.dumps(first)) == first
    assert (serde.dumps(first) < serde.dumps(second)) == (first < second)
    assert (serde.dumps(first) == serde.dumps(second)) == (first == second)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (float, float("nan")),
        (float, "1"),
        (int, 2**63),
        (int, True),
        (datetime, datetime(2025, 1, 1)),  # noqa: DTZ001 - that is what is refused
        (datetime, 5),
    ],
)
def test_a_key_without_an_order_is_refused(kind: type, key: object) -> None:
    with pytest.raises(SerdeError):
        ordered_serde(kind)[0].dumps(key)


@pytest.mark.parametrize("kind", [int, float, datetime])
def test_bytes_of_the_wrong_size_are_refused(kind: type) -> None:
    with pytest.raises(SerdeError, match="8 bytes"):
        ordered_serde(kind)[0].loads(b"123")


def test_composite_types_have_no_order() -> None:
    serde, is_ordered = ordered_serde(tuple[int, str])
    assert not is_ordered
    assert serde.loads(serde.dumps((1, "a"))) == (1, "a")
