"""Pages follow an order in which offsets rise, whatever a poll finds."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.sql.polling import (
    Polling,
    SettledBound,
    SettledValues,
    SqlText,
    is_at_start,
    json_of,
    run_of,
)
from streamlog.errors import ConfigError

SQL = SqlText(lambda name: f'"{name}"', "?")
BY_NUMBER = Polling("incrementing", "id", "", (), 10)
BY_TIME = Polling("timestamp", "", "at", (), 3)
BY_BOTH = Polling("timestamp+incrementing", "id", "at", (), 10)
BULK = Polling("bulk", "", "", ("a", "b"), 10)


def test_statements_of_the_modes() -> None:
    assert BY_NUMBER.page(None, None, SQL).statement("t") == (
        'SELECT * FROM t ORDER BY "id" LIMIT 10'
    )
    page = BY_BOTH.page({"timestamp": "2026", "incrementing": 7}, SettledBound('"at"', "<", 9), SQL)
    assert page.statement("t") == (
        'SELECT * FROM t WHERE ("at", "id") > (?, ?) AND "at" < ? ORDER BY "at", "id" LIMIT 10'
    )
    assert page.values == ("2026", 7, 9)
    tie = BY_TIME.page({"timestamp": "2026"}, None, SQL, is_tie=True)
    assert tie.statement("t") == ('SELECT * FROM t WHERE "at" = ? ORDER BY "at" LIMIT 100001')
    assert BULK.page({"run": 2, "after": None}, None, SQL).values == ()
    assert BULK.page({"run": 2, "after": [1, "x"]}, None, SQL).values == (1, "x")


def test_offsets_of_rows() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    row = {"id": 7, "at": at, "a": 1, "b": "x"}
    assert BY_NUMBER.offset_of(row, None) == {"incrementing": 7}
    assert BY_TIME.offset_of(row, None) == {"timestamp": "2026-01-02T00:00:00+00:00"}
    assert BY_BOTH.offset_of(row, None) == {"timestamp": at.isoformat(), "incrementing": 7}
    assert BULK.offset_of(row, {"run": 4, "after": None}) == {"run": 4, "after": [1, "x"]}


def test_a_column_that_can_not_carry_an_offset_is_named() -> None:
    with pytest.raises(ConfigError, match="column id, by which mode 'incrementing' goes, is null"):
        BY_NUMBER.offset_of({"id": None}, None)
    with pytest.raises(ConfigError, match="is not among the columns"):
        BY_NUMBER.offset_of({"other": 1}, None)


def test_an_offset_of_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="put the mode back"):
        BY_BOTH.page({"incrementing": 7}, None, SQL)


@given(st.lists(st.integers(0, 4), min_size=1))
def test_pages_by_time_end_between_two_times(times: list[int]) -> None:
    table = sorted(times)
    taken: list[int] = []
    while len(taken) < len(table):
        after = taken[-1] if taken else -1
        page = [at for at in table if at > after][: BY_TIME.limit]
        settled = page[: BY_TIME.settled(page, is_full=len(page) == BY_TIME.limit)]
        taken += settled or [at for at in table if at == page[0]]
    assert taken == table


@given(st.data())
def test_settled_numbers_miss_nothing_that_commits_in_time(data: st.DataObject) -> None:
    """Numbers are drawn in order, and commit up to `settle_ms` later, in any order."""
    count = data.draw(st.integers(1, 20))
    open_ms = [data.draw(st.integers(0, 99)) for _ in range(count)]
    commits = {number: number * 10 + open_ms[number] for number in range(count)}
    settled, read, after = SettledValues(100), [], -1
    for now_ms in range(0, count * 10 + 400, data.draw(st.integers(1, 60))):
        visible = sorted(number for number, at in commits.items() if at <= now_ms)
        bound = settled.saw(max(visible, default=None), now_ms)
        if bound is not None:
            found = [number for number in visible if after < number <= bound]
            read += found
            after = max([after, *found])
    assert read == list(range(count))


def test_runs_of_bulk() -> None:
    assert (run_of(None), run_of({"run": 3, "after": None})) == (0, 3)
    assert is_at_start(None)
    assert is_at_start({"run": 3, "after": None})
    assert not is_at_start({"run": 3, "after": [1]})


def test_values_of_offsets_are_json() -> None:
    assert json_of(Decimal(7)) == 7
    assert json_of(Decimal("7.5")) == "7.5"
    assert json_of(date(2026, 1, 2)) == "2026-01-02"
    assert json_of("a") == "a"
