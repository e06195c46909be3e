"""Tests of the texts of errors."""

from __future__ import annotations

import pytest

from streamlog.errors import quantity


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (11, "11 records")]
)
def test_only_one_takes_the_singular(number: int, text: str) -> None:
    assert quantity(number, "record") == text


def test_an_irregular_plural_is_given() -> None:
    assert quantity(1, "batch", "batches") == "1 batch"
    assert quantity(3, "batch", "batches") == "3 batches"
