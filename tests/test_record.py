"""Record, Windowed, Late: frozen values of the public API."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta

import pytest

from streamlog.record import Late, Record, Windowed

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


def record() -> Record[str, int]:
    return Record("ulm", 3, NOON, (("trace", b"7"),), "sales", 2, 41)


def test_replace_changes_the_named_fields_and_keeps_the_coordinates() -> None:
    later = NOON + timedelta(seconds=1)
    changed = record().replace(key=5, value="x", timestamp=later)
    assert changed == Record(5, "x", later, (("trace", b"7"),), "sales", 2, 41)
    assert record().replace() == record()


def test_replace_accepts_none() -> None:
    assert record().replace(value=None).value is None
    assert record().replace(value=None).key == "ulm"
    assert record().replace(key=None).key is None


def test_a_record_made_by_the_program_has_no_coordinates() -> None:
    created = Record("k", 1, NOON)
    assert (created.headers, created.topic, created.partition, created.offset) == ((), "", -1, -1)


@pytest.mark.parametrize(
    "value",
    [
        record(),
        Windowed("k", NOON, NOON + timedelta(minutes=1)),
        Late(3, timedelta(seconds=2), NOON),
    ],
)
def test_values_are_frozen_and_equal_by_content(
    value: Record[str, int] | Windowed[str] | Late[int],
) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(value)[0].name, 1)
    same = type(value)(*(getattr(value, field.name) for field in fields(value)))
    assert same == value
    assert hash(same) == hash(value)
