"""The rows of an app that moves to another cluster: what they have to be, and that they are."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.app_failover import Plan, campaign
from chaos.app_rows import CLOSING, Rows, differences, expected, settled_in, written
from chaos.mirrored_app import (
    APP_ID,
    PARTITIONS,
    UNPAID,
    Order,
    Payment,
    Price,
    app,
    orders,
    payments,
    prices,
    revenue,
    sales,
    settled,
    visits,
)
from conformance.kafka import Unavailable
from tests.cluster.cluster import AT_LENGTH

START_MS = 1_700_000_000_000
CUSTOMERS = 5
PRODUCTS = ("tea", "milk")
needs_linux = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc"
)


def test_rows_follow_from_the_order_of_the_log_and_the_prices_of_its_times() -> None:
    prices_of_tea = [("tea", 0, 100), ("tea", 1_000, 150)]
    first = [
        ("ann", Order(1, "tea", 2, 400)),
        ("ann", Order(2, "tea", 1, 1_199)),
        # Of the window that ends at 500, which is closed 200 ms later.
        ("ann", Order(3, "tea", 5, 499)),
        ("eve", Order(CLOSING, "tea", 0, 9_000)),
    ]
    # Ann pays for what she has ordered up to 200 ms before; Bob's payment comes too early.
    paid = [("ann", 599, 5), ("ann", 600, 6), ("ann", 601, 7), ("bob", 99, 8)]
    rows = expected([first, [("bob", Order(4, "tea", 1, 100))]], prices_of_tea, paid)
    assert rows.settled == Counter(
        [
            *(("ann", 1, 5), ("ann", 1, 6), ("ann", 2, UNPAID)),
            *(("ann", 3, 5), ("ann", 3, 6), ("ann", 3, 7), ("bob", 4, UNPAID)),
        ]
    )
    assert rows.sales == Counter(
        [("tea", 1, 2, 200), ("tea", 2, 1, 150), ("tea", 3, 5, 500), ("tea", 4, 1, 100)]
    )
    assert rows.visits == {"ann": [(0, 1, 2), (1_000, 1, 1)]}
    assert rows.revenue == {("tea", 0): (3, 800), ("tea", 1_000): (1, 150)}


def test_a_row_that_is_missing_or_twice_or_another_one_is_told() -> None:
    wanted = Rows(sales=Counter([("tea", 1, 1, 1)]), visits={"ann": [(0, 1, 1)]})
    assert differences(wanted, wanted) == []
    twice = Rows(sales=wanted.sales + wanted.sales, visits={"ann": [(0, 1, 1)] * 2})
    assert [each.split()[0] for each in differences(wanted, twice)] == ["1", "visits"]
    other = Rows(sales=wanted.sales, visits=wanted.visits, revenue={("tea", 0): (1, 1)})
    assert differences(wanted, other) == [
        "revenue of ('tea', 0), of 1 that differ: (1, 1), not None"
    ]
    unpaid = Rows(wanted.sales, wanted.visits, Counter([("ann", 1, UNPAID)]))
    assert [each.split()[:2] for each in differences(unpaid, wanted)] == [["1", "settled"]]
    assert "1 sales are missing" in differences(wanted, Rows(visits=wanted.visits))[0]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-150, 400),
            st.integers(0, CUSTOMERS - 1),
            st.sampled_from(PRODUCTS),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_the_driver_writes_the_rows_that_the_input_demands(
    events: list[tuple[int, int, str, int]],
) -> None:
    placed: list[list[tuple[str, Order]]] = [[] for _ in range(PARTITIONS)]
    priced = [(product, START_MS - 1_000, 100) for product in PRODUCTS]
    paid: list[tuple[str, int, int]] = []
    with app.test() as t:
        for product, at_ms, cents in priced:
            t.input(prices).send(Price(cents, at_ms), key=product)

        def send(customer: str, partition: int, order: Order) -> None:
            placed[partition].append((customer, order))
            t.input(orders).send(order, key=customer, partition=partition)

        at_ms = START_MS
        for number, (later_ms, customer, product, pieces) in enumerate(events):
            at_ms = max(START_MS, at_ms + later_ms)
            if pieces == 1:
                paid.append((f"customer-{customer}", at_ms, number))
                t.input(payments).send(
                    Payment(number, at_ms),
                    key=f"customer-{customer}",
                    partition=customer % PARTITIONS,
                )
            elif pieces:
                order = Order(number, product, pieces, at_ms)
                send(f"customer-{customer}", customer % PARTITIONS, order)
            elif later_ms > 0:
                # A price is in the log before all later orders.
                at_ms += 1_000
                priced.append((product, at_ms, number))
                t.input(prices).send(Price(number, at_ms), key=product)
        for partition in range(PARTITIONS):
            for product in PRODUCTS:
                send("nobody", partition, Order(CLOSING, product, 0, at_ms + 60_000))
        found = written(
            t.output(sales).records, t.output(visits).records, t.output(revenue).records
        )
        found.settled = settled_in(t.output(settled).records)
    assert differences(expected(placed, priced, paid), found) == []


@needs_linux
@AT_LENGTH
def test_an_app_moves_on_purpose_and_its_rows_are_those_of_one_run(tmp_path: Path) -> None:
    outcome = asyncio.run(campaign(tmp_path, [Plan(is_planned=True, runs_s=0.5)], (), seed=1))
    assert outcome.violations == []
    assert outcome.acknowledged > 0
    assert outcome.lost == 0


@needs_linux
@pytest.mark.slow
def test_an_app_whose_source_is_lost_goes_on_with_whole_transactions(tmp_path: Path) -> None:
    plan = Plan(is_planned=False, runs_s=0.5, lags_s=1.0)
    outcome = asyncio.run(campaign(tmp_path, [plan], ("--now", "--app", APP_ID), seed=1))
    assert outcome.violations == []
    assert outcome.acknowledged > 0


@needs_linux
@AT_LENGTH
@pytest.mark.parametrize("is_planned", [True, False])
def test_an_app_moves_from_apache_kafka(tmp_path: Path, *, is_planned: bool) -> None:
    plan = Plan(is_planned=is_planned, runs_s=0.5, lags_s=0 if is_planned else 1.0, source="kafka")
    try:
        outcome = asyncio.run(campaign(tmp_path, [plan], ("--now", "--app", APP_ID), seed=1))
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert outcome.violations == []
    assert outcome.acknowledged > 0
