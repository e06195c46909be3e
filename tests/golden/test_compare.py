from __future__ import annotations

import pytest

from tests.golden.compare import Row, differing


def rows(*values: tuple[str, object, int], optional: bool = False) -> list[Row]:
    return [Row("out", key, None, value, None, after, optional) for key, value, after in values]


A1, A2, B1 = ("a", 1, 0), ("a", 2, 1), ("b", 1, 1)


@pytest.mark.parametrize(
    ("order", "found", "equal"),
    [
        ("exact", [A1, A2, B1], True),
        ("exact", [A1, B1, A2], False),
        ("per_key", [B1, A1, A2], True),
        ("per_key", [B1, A2, A1], False),
        ("multiset_per_input", [A1, B1, A2], True),
        ("multiset_per_input", [A1, A2], False),
        ("final_state", [("a", 7, 0), A2, ("b", 1, 0)], True),
        ("final_state", [A2, A1, B1], False),
        ("final_state", [A2, B1, ("c", 1, 2)], False),
        ("final_state", [A2, B1, ("c", None, 2)], True),
    ],
)
def test_rows_are_compared_by_the_case_s_order(
    order: str, found: list[tuple[str, object, int]], *, equal: bool
) -> None:
    assert (differing(order, rows(A1, A2, B1), rows(*found)) is None) is equal


@pytest.mark.parametrize("order", ["exact", "per_key", "multiset_per_input", "final_state"])
def test_optional_rows_may_be_missing_but_extra_rows_may_not_come(order: str) -> None:
    wanted = [*rows(A1), *rows(("a", 3, 1), optional=True)]
    assert differing(order, wanted, rows(A1)) is None
    assert differing(order, wanted, rows(A1, ("a", 3, 1))) is None
    assert differing(order, wanted, rows(A1, ("a", 5, 1))) is not None
    assert differing(order, wanted, []) is not None
