"""Aggregations without windows: rows that expire, and changes that wait for a commit."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Table, tumbling
from streamlog.errors import TopologyError

START = datetime(2025, 1, 1, tzinfo=UTC)
TTL_S = 10
Events = list[tuple[str, int]]


def counts_of(events: Events) -> list[tuple[str, int | None, int]]:
    """Compute (key, count or None for a deletion, second) by a look at every row each time."""
    rows: dict[str, tuple[int, int]] = {}
    found: list[tuple[str, int | None, int]] = []
    now = -1
    for key, second in events:
        now = max(now, second)
        expired = sorted((newest + TTL_S, other) for other, (_, newest) in rows.items())
        for expired_at, other in expired:
            if expired_at <= now:
                del rows[other]
                found.append((other, None, expired_at))
        count, newest = rows.get(key, (0, -1))
        if key not in rows and second + TTL_S <= now:
            continue
        rows[key] = (count + 1, max(newest, second))
        found.append((key, *rows[key]))
    return found


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=40),
    st.sets(st.integers(0, 40)),
)
def test_rows_expire_a_ttl_after_their_newest_record(events: Events, restarts: set[int]) -> None:
    app = App("seen")
    clicks = app.topic("clicks", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    table = app.stream(clicks).group_by_key().count(name="n", ttl=f"{TTL_S}s")
    table.changes().to(out)
    with app.test() as t:
        for at, (key, second) in enumerate(events):
            t.input(clicks).send(1, key=key, at=START + timedelta(seconds=second))
            if at in restarts:
                t.restart()
        found = [
            (each.key, each.value, round((each.timestamp - START).total_seconds()))
            for each in t.output(out).records
        ]
        wanted = counts_of(events)
        # Rows that expire at equal times go in any order.
        assert Counter(found) == Counter(wanted)
        assert [each for each in found if each[1]] == [each for each in wanted if each[1]]
        last = {key: count for key, count, _ in wanted}
        assert t.table(table) == {key: count for key, count in last.items() if count}


def test_rows_expire_in_a_quiet_stream() -> None:
    app = App("seen")
    clicks = app.topic("clicks", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    sums = app.stream(clicks).group_by_key().reduce(lambda a, b: a + b, name="sums", ttl="10m")
    sums.changes().to(out)
    by_parity = sums.group_by(lambda key, value: (str(value % 2), 1), name="parity")
    parities = by_parity.count(name="parities")
    with app.test() as t:
        t.input(clicks).send(3, key="a")
        t.advance("5m")
        t.input(clicks).send(4, key="a")
        t.input(clicks).send(2, key="b")
        assert t.table(parities) == {"0": 1, "1": 1}
        t.advance("9m")
        assert t.table(sums) == {"a": 7, "b": 2}
        t.advance("2m")
        assert t.table(sums) == {}
        assert t.output(out).values == [3, 7, 2, None, None]
        # The downstream count of the rows gets their deletions.
        assert t.table(parities) == {"0": 0, "1": 0}


SALES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=4)


@given(st.lists(st.tuples(SALES, st.booleans()), max_size=10))
def test_a_commit_emits_the_newest_value_of_each_row(
    rounds: list[tuple[list[tuple[str, int]], bool]],
) -> None:
    app = App("sums")
    sales = app.topic("sales", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    grouped = app.stream(sales).group_by_key().emit(Emit.COMMIT)
    sums = grouped.reduce(lambda a, b: a + b, name="sums")
    doubled = sums.map_values(lambda total: 2 * total)
    doubled.changes().to(out)
    parities = sums.group_by(lambda _, value: (value % 2, 1), name="parity").count(name="n")
    totals: Counter[str] = Counter()
    wanted: list[tuple[str, int]] = []
    with app.test() as t:
        for sold, restarts in rounds:
            for key, amount in sold:
                t.topic("sales").append(
                    amount.to_bytes(8, "big"), key=key.encode(), timestamp_ms=t.now_ms
                )
                totals[key] += amount
            t.settle()  # The driver commits when it settles.
            order = dict.fromkeys(key for key, _ in reversed(sold))
            wanted += [(key, 2 * totals[key]) for key in reversed(order)]
            if restarts:
                t.restart()
        assert [(each.key, each.value) for each in t.output(out).records] == wanted
        assert t.table(sums) == dict(totals)
        assert t.table(doubled) == {key: 2 * total for key, total in totals.items()}
        found = {key: count for key, count in t.table(parities).items() if count}
        assert found == Counter(total % 2 for total in totals.values())


def test_an_impossible_ttl_or_emission_is_refused() -> None:
    app = App("shop")
    grouped = app.stream(app.topic("sales", key=str, value=int)).group_by_key()
    with pytest.raises(TopologyError, match="longer than 0"):
        grouped.count(name="n", ttl="0s")
    with pytest.raises(TopologyError, match=r"\.windowed"):
        grouped.emit(Emit.CLOSE)
    with pytest.raises(TopologyError, match="comes after the windows"):
        grouped.emit(Emit.COMMIT).windowed(tumbling("1m"))
    table: Table[str, int] = grouped.emit(Emit.UPDATE).count(name="n")
    assert table.name == "n"
