"""AppRows: the rows that `mirrored_app` has to write for an input log, in plain Python; no engine.

Everything follows from the offsets and times in the input: how far a partition's time has come when
an order arrives, and which price is valid then. A record that is read twice, or not at all, changes
a number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

from chaos.mirrored_app import (
    PAID_WITHIN_MS,
    PARTITIONS,
    UNPAID,
    VISIT_GRACE_MS,
    WINDOW_MS,
    Order,
    Revenue,
    Sale,
    Settled,
    Visits,
    orders,
    payments,
    prices,
    revenue,
    sales,
    settled,
    visits,
)
from streamlog.dsl.topic import Topic
from streamlog.log import Log
from streamlog.record import Record, TopicPartition, Windowed

CLOSING: Final = -1
"""The number of orders that only let time go on; they are in no row."""
POLL_MS: Final = 200
TOLD_MAX: Final = 5

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class Rows:
    """The rows of all output topics."""

    sales: Counter[tuple[str, int, int, int]] = field(default_factory=Counter)
    """Product, number of the order, pieces and cents."""
    visits: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By customer, in order: start of the window, orders and pieces."""
    settled: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """Customer, number of the order, and number of the payment or `UNPAID`."""
    revenue: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By product and start of the window: the last orders and cents."""
    faults: list[str] = field(default_factory=list)
    """What no run may write, such as a sum that falls."""


def expected(
    placed: Sequence[Sequence[tuple[str, Order]]],
    priced: Sequence[tuple[str, int, int]],
    paid: Sequence[tuple[str, int, int]] = (),
) -> Rows:
    """Return the rows that the input demands.

    Args:
        placed: orders with their customers, by partition.
        priced: prices: product, time and cents.
        paid: payments: customer, time and number.
    """
    rows = Rows()
    history: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for product, at_ms, cents in priced:
        history[product].append((at_ms, cents))
    for partition in placed:
        for customer, found in _visits(partition).items():
            rows.visits.setdefault(customer, []).extend(found)
        for customer, order in partition:
            if order.number == CLOSING:
                continue
            rows.settled.update(_settled(customer, order, paid))
            known = [each for each in history[order.product] if each[0] <= order.at_ms]
            cents = order.pieces * max(known)[1]
            rows.sales[order.product, order.number, order.pieces, cents] += 1
            key = order.product, _start(order.at_ms)
            count, total = rows.revenue.get(key, (0, 0))
            rows.revenue[key] = count + 1, total + cents
    return rows


def _settled(
    customer: str, order: Order, paid: Iterable[tuple[str, int, int]]
) -> list[tuple[str, int, int]]:
    """Return an order with each of its payments, or alone if it has none."""
    found = [
        (customer, order.number, number)
        for payer, at_ms, number in paid
        if payer == customer and 0 <= at_ms - order.at_ms <= PAID_WITHIN_MS
    ]
    return found or [(customer, order.number, UNPAID)]


def _visits(partition: Iterable[tuple[str, Order]]) -> dict[str, list[tuple[int, int, int]]]:
    """Return the windows of a partition that have closed, by customer."""
    open_windows: dict[tuple[int, str], tuple[int, int]] = {}
    closed: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    time_ms = 0
    for customer, order in partition:
        start_ms = _start(order.at_ms)
        if start_ms + WINDOW_MS + VISIT_GRACE_MS > time_ms:
            count, pieces = open_windows.get((start_ms, customer), (0, 0))
            open_windows[start_ms, customer] = count + 1, pieces + order.pieces
        time_ms = max(time_ms, order.at_ms)
        for key in sorted(open_windows):
            if key[0] + WINDOW_MS + VISIT_GRACE_MS <= time_ms:
                closed[key[1]].append((key[0], *open_windows.pop(key)))
    return closed


def _start(at_ms: int) -> int:
    return at_ms - at_ms % WINDOW_MS


def differences(wanted: Rows, found: Rows) -> list[str]:
    """Return which rows are missing, which are there twice, and which differ."""
    told = [*found.faults]
    told += _missing_or_more("sales", wanted.sales, found.sales)
    told += _missing_or_more("settled orders", wanted.settled, found.settled)
    told += _apart("visits", wanted.visits, found.visits)
    told += _apart("revenue", wanted.revenue, found.revenue)
    return told


def _missing_or_more(what: str, wanted: Counter[K], found: Counter[K]) -> Iterator[str]:
    if missing := wanted - found:
        yield f"{missing.total()} {what} are missing: {[*missing][:TOLD_MAX]}"
    if more := found - wanted:
        yield f"{more.total()} {what} are too many: {[*more][:TOLD_MAX]}"


def _apart(what: str, wanted: Mapping[K, object], found: Mapping[K, object]) -> Iterator[str]:
    apart = [key for key in {*wanted, *found} if wanted.get(key) != found.get(key)]
    for key in sorted(apart, key=str)[:TOLD_MAX]:
        there, instead_of = found.get(key), wanted.get(key)
        yield f"{what} of {key}, of {len(apart)} that differ: {there}, not {instead_of}"


async def rows_for(log: Log) -> Rows:
    """Return the rows that the input of a log demands."""
    placed: list[list[tuple[str, Order]]] = [[] for _ in range(PARTITIONS)]
    for each in await _read(log, orders):
        placed[each.partition].append((each.key or "", each.value))
    priced = [
        (each.key or "", each.value.at_ms, each.value.cents) for each in await _read(log, prices)
    ]
    paid = [
        (each.key or "", each.value.at_ms, each.value.number) for each in await _read(log, payments)
    ]
    return expected(placed, priced, paid)


async def rows_of(log: Log) -> Rows:
    """Return the committed rows of a log."""
    rows = written(await _read(log, sales), await _read(log, visits), await _read(log, revenue))
    rows.settled = settled_in(await _read(log, settled))
    return rows


def written(
    sold: Iterable[Record[str, Sale]],
    visited: Iterable[Record[Windowed[str], Visits]],
    earned: Iterable[Record[Windowed[str], Revenue]],
) -> Rows:
    """Return the rows that were written, from the records of the output topics."""
    rows = Rows()
    for sale in sold:
        row = sale.value
        rows.sales[sale.key or "", row.number, row.pieces, row.cents] += 1
    for visit in visited:
        customer, start_ms = _placed(visit.key)
        window = start_ms, visit.value.orders, visit.value.pieces
        rows.visits.setdefault(customer, []).append(window)
    changes: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for change in earned:
        changes[_placed(change.key)].append((change.value.orders, change.value.cents))
    for key, sums in changes.items():
        rows.revenue[key] = sums[-1]
        if any(before >= after for before, after in pairwise(sums)):
            rows.faults.append(f"the revenue of {key} does not grow: {sums}")
    return rows


def settled_in(records: Iterable[Record[str, Settled]]) -> Counter[tuple[str, int, int]]:
    """Return the settled orders in records of the output topic, without those of the closing."""
    return Counter(
        (each.key or "", each.value.order, each.value.payment)
        for each in records
        if each.value.order != CLOSING
    )


async def sent_numbers(log: Log) -> set[int]:
    """Return the numbers of the orders in a log."""
    return {each.value.number for each in await _read(log, orders)}


def _placed(window: Windowed[str] | None) -> tuple[str, int]:
    """Return the key and the start of a window."""
    return ("", 0) if window is None else (window.key, round(window.start.timestamp() * 1000))


async def _read(log: Log, topic: Topic[K, V]) -> list[Record[K, V]]:
    """Return the committed records of a topic, in the order of each partition."""
    places = [TopicPartition(topic.name, number) for number in range(PARTITIONS)]
    found: list[Record[K, V]] = []
    reading = log.consumer(auto_offset_reset="earliest", isolation_level="read_committed")
    async with reading as consumer:
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        while [place for place in places if await consumer.position(place) < ends[place]]:
            for place, polled in (await consumer.poll(timeout_ms=POLL_MS)).items():
                found += [topic.decoded(each, place.partition) for each in polled]
    return found
