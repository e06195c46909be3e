"""Comparison of found and expected rows, by the weakest order that a case demands."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Case: TypeAlias = dict[str, Any]
RowKey: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """A record of an output."""

    topic: str
    key: Any
    window: tuple[int, int] | None
    value: Any
    ts: int | None
    after: int | None
    """The index of the input that caused the row; None if unknown."""
    optional: bool = False

    @property
    def row_key(self) -> RowKey:
        """Topic, key and window: rows with different ones have no order."""
        return self.topic, json.dumps(self.key), str(self.window)

    def __str__(self) -> str:
        window = "" if self.window is None else f"@{self.window[0]}-{self.window[1]}"
        after = "" if self.after is None else f" after input {self.after}"
        return f"{self.topic}: {self.key!r}{window} = {self.value!r} at {self.ts}{after}"


def expected_rows(case: Case) -> list[Row]:
    return [
        Row(
            row.get("topic", "out"),
            row["key"],
            tuple(row["window"]) if row.get("window") else None,
            row["value"],
            row.get("ts"),
            row.get("after"),
            bool(row.get("optional")),
        )
        for row in case["expect"]["outputs"]
    ]


def difference(case: Case, found: Sequence[Row]) -> str | None:
    """Return the first difference as text, or None if the rows are as expected."""
    expect = case["expect"]
    return differing(expect.get("min_order", expect.get("order")), expected_rows(case), found)


def differing(order: str, wanted: Sequence[Row], found: Sequence[Row]) -> str | None:
    """Return the first difference of any rows as text, or None; `order` as in cases."""
    match order:
        case "exact":
            return _first_difference(wanted, found, lambda _: "", in_order)
        case "per_key":
            return _first_difference(wanted, found, lambda row: row.row_key, in_order)
        case "final_state":
            return _first_difference(wanted, found, lambda row: row.row_key, same_last_value)
        case "multiset_per_input":
            return _first_difference(wanted, found, lambda row: row.after, in_any_order)
        case _:
            return f"the case compares by an unknown order {order!r}"


def _first_difference(
    wanted: Sequence[Row],
    found: Sequence[Row],
    part_of: Callable[[Row], object],
    equal: Callable[[Sequence[Row], Sequence[Row]], bool],
) -> str | None:
    parts: dict[object, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for row in wanted:
        parts[part_of(row)][0].append(row)
    for row in found:
        parts[part_of(row)][1].append(row)
    for expected, actual in parts.values():
        if not equal(expected, actual):
            return f"wanted [{_text_of(expected)}], found [{_text_of(actual)}]"
    return None


def _text_of(rows: Iterable[Row]) -> str:
    return "; ".join(f"{row}{' (optional)' * row.optional}" for row in rows)


def matches(wanted: Row, found: Row) -> bool:
    """Whether a found row matches all fields that the wanted row sets."""
    return (
        (wanted.row_key, wanted.value) == (found.row_key, found.value)
        and wanted.ts in {None, found.ts}
        and (None in {wanted.after, found.after} or wanted.after == found.after)
    )


def in_order(wanted: Sequence[Row], found: Sequence[Row]) -> bool:
    """Whether the rows match in order; optional ones may be missing."""
    # The possible numbers of matched wanted rows after each found row.
    done = _skip_optional(wanted, {0})
    for row in found:
        taken = {n + 1 for n in done if n < len(wanted) and matches(wanted[n], row)}
        done = _skip_optional(wanted, taken)
    return len(wanted) in done


def _skip_optional(wanted: Sequence[Row], done: set[int]) -> set[int]:
    passed = set(done)
    for n, row in enumerate(wanted):
        if n in passed and row.optional:
            passed.add(n + 1)
    return passed


def same_last_value(wanted: Sequence[Row], found: Sequence[Row]) -> bool:
    """Whether the last values are equal; a null means that the row does not exist."""
    last = found[-1].value if found else None
    for row in reversed(wanted):
        if row.value == last:
            return True
        if not row.optional:
            return False
    return last is None


def in_any_order(wanted: Sequence[Row], found: Sequence[Row]) -> bool:
    """Whether the rows match in any order; optional ones may be missing."""
    left = list(found)
    for row in sorted(wanted, key=lambda row: row.optional):
        at = next((n for n, other in enumerate(left) if matches(row, other)), None)
        if at is not None:
            del left[at]
        elif not row.optional:
            return False
    return not left
