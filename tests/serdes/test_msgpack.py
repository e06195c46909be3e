"""Whole numbers beyond 64 bits in MessagePack."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.dsl.value_types import TypedPackedSerde
from streamlog.errors import SerdeError
from streamlog.serdes import IntSerde, WideIntSerde
from streamlog.serdes.msgpack import is_wide

EDGES = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400, -(10**400)]
integers = st.integers() | st.integers(-(2**130), 2**130) | st.sampled_from(EDGES)


@dataclass
class Transfer:
    wei: int
    fee: Decimal = Decimal("1.10")
    data: bytes = b"\xff\x00"
    at: datetime = datetime(2025, 1, 1, tzinfo=UTC)
    day: date = date(2025, 1, 1)
    took: timedelta = timedelta(1, 2, 3)
    rate: float = float("inf")
    parts: dict[int, set[int]] = field(default_factory=dict)


@given(st.lists(st.builds(Transfer, integers, parts=st.dictionaries(integers, st.sets(integers)))))
def test_a_typed_state_round_trips(transfers: list[Transfer]) -> None:
    serde = TypedPackedSerde[Any](list[Transfer])
    assert serde.loads(serde.dumps(transfers)) == transfers


@given(st.lists(integers))
def test_states_within_64_bits_are_plain_messagepack(numbers: list[int]) -> None:
    data = TypedPackedSerde[Any](list[int]).dumps(numbers)
    if not any(map(is_wide, numbers)):
        assert data == msgspec.msgpack.encode(numbers)
    assert TypedPackedSerde[Any](Any).loads(data) == numbers


@given(integers)
def test_a_whole_number_state_may_have_any_size(number: int) -> None:
    serde = WideIntSerde()
    data = serde.dumps(number)
    assert serde.loads(data) == number
    if -(2**63) <= number < 2**63:
        assert data == IntSerde().dumps(number)
    else:
        with pytest.raises(SerdeError, match="bits"):
            IntSerde().dumps(number)


def test_a_bool_is_refused_as_a_whole_number() -> None:
    with pytest.raises(SerdeError):
        WideIntSerde().dumps(True)


@pytest.mark.parametrize("data", [b"\xc1", b"\xc1\xc1", b"\xc1\x01", b"\xc1\x91\xc7\x01\x07\x00"])
def test_invalid_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SerdeError):
        TypedPackedSerde[Any](list[str]).loads(data)
