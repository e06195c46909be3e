"""The same queries as loops over all events: what the streams must have answered.

Keys are those of the rows, windows with start and end in milliseconds; of rows that change, the
last one counts. Windows that are not over yet have no row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from examples.nexmark.generator import Auction, Bid, Event, Person
from examples.nexmark.queries import (
    CATEGORY,
    LAST,
    RARE,
    STATES,
    WINDOW_MS,
    Highest,
    Hottest,
    NewSeller,
    Seller,
    Sums,
    in_euros,
)
from streamlog.durations import when_ms

Rows: TypeAlias = list[tuple[Any, Any]]
HOP_MS = 2_000


def q0(events: Sequence[Event]) -> Rows:
    """Of `queries.q0`."""
    return [(bid.auction, bid) for bid in _bids(events)]


def q1(events: Sequence[Event]) -> Rows:
    """Of `queries.q1`."""
    return [(bid.auction, in_euros(bid)) for bid in _bids(events)]


def q2(events: Sequence[Event]) -> Rows:
    """Of `queries.q2`."""
    return [(bid.auction, bid.price) for bid in _bids(events) if bid.auction % RARE == 0]


def q3(events: Sequence[Event]) -> Rows:
    """Of `queries.q3`."""
    persons = {each.id: each for each in events if isinstance(each, Person)}
    return [
        (auction.id, Seller(seller.name, seller.city, seller.state, auction.id))
        for auction in _auctions(events)
        if auction.category == CATEGORY
        and (seller := persons.get(auction.seller)) is not None
        and seller.state in STATES
    ]


def q4(events: Sequence[Event]) -> Rows:
    """Of `queries.q4`."""
    sums: defaultdict[int, list[int]] = defaultdict(list)
    for auction, price in _winning(events):
        sums[auction.category].append(price)
    return [(category, Sums(len(prices), sum(prices))) for category, prices in sums.items()]


def q5(events: Sequence[Event]) -> Rows:
    """Of `queries.q5`."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for bid in _bids(events):
        at_ms = when_ms(bid.date_time)
        newest = at_ms - at_ms % HOP_MS
        for start in range(newest - WINDOW_MS + HOP_MS, newest + 1, HOP_MS):
            counts[start][bid.auction] += 1
    rows: Rows = []
    for start, found in counts.items():
        most = max(found.values())
        if start + WINDOW_MS <= _last_bid_ms(events):
            auctions = sorted(auction for auction, bids in found.items() if bids == most)
            rows.append((start, Hottest(most, auctions)))
    return rows


def q6(events: Sequence[Event]) -> Rows:
    """Of `queries.q6`."""
    prices: defaultdict[int, list[int]] = defaultdict(list)
    # Time goes on with both streams: the slower one says what is over.
    now_ms = min(_last_bid_ms(events), max(when_ms(each.date_time) for each in _auctions(events)))
    for auction, price in sorted(_winning(events), key=lambda each: each[0].expires):
        if when_ms(auction.expires) <= now_ms:
            prices[auction.seller].append(price)
    return [(seller, found[-LAST:]) for seller, found in prices.items()]


def q7(events: Sequence[Event]) -> Rows:
    """Of `queries.q7`."""
    windows: defaultdict[int, list[Bid]] = defaultdict(list)
    for bid in _bids(events):
        windows[_start_ms(bid)].append(bid)
    rows: Rows = []
    for start, bids in windows.items():
        if start + WINDOW_MS <= _last_bid_ms(events):
            first = max(bids, key=lambda bid: bid.price)
            row = Highest([(first.price, first.auction, first.bidder)])
            rows.append(((0, start, start + WINDOW_MS), row))
    return rows


def q8(events: Sequence[Event]) -> Rows:
    """Of `queries.q8`."""
    persons = [each for each in events if isinstance(each, Person)]
    sold = {(each.seller, _start_ms(each)) for each in _auctions(events)}
    return [
        (person.id, NewSeller(person.name, _start_ms(person), _start_ms(person)))
        for person in persons
        if (person.id, _start_ms(person)) in sold
    ]


def q11(events: Sequence[Event]) -> Rows:
    """Of `queries.q11`."""
    times: defaultdict[int, list[int]] = defaultdict(list)
    for bid in _bids(events):
        times[bid.bidder].append(when_ms(bid.date_time))
    rows: Rows = []
    for bidder, found in times.items():
        sessions = [[found[0]]]
        for at_ms in found[1:]:
            if at_ms - sessions[-1][-1] <= WINDOW_MS:
                sessions[-1].append(at_ms)
            else:
                sessions.append([at_ms])
        rows += [
            ((bidder, one[0], one[-1]), len(one))
            for one in sessions
            if one[-1] + WINDOW_MS < _last_bid_ms(events)
        ]
    return rows


def q12(events: Sequence[Event]) -> Rows:
    """Of `queries.q12`."""
    counts = Counter((bid.bidder, _start_ms(bid)) for bid in _bids(events))
    return [
        ((bidder, start, start + WINDOW_MS), count)
        for (bidder, start), count in counts.items()
        if start + WINDOW_MS <= _last_bid_ms(events)
    ]


def _bids(events: Sequence[Event]) -> list[Bid]:
    return [each for each in events if isinstance(each, Bid)]


def _auctions(events: Sequence[Event]) -> list[Auction]:
    return [each for each in events if isinstance(each, Auction)]


def _winning(events: Sequence[Event]) -> list[tuple[Auction, int]]:
    """Auctions with their highest bid in time."""
    bids: defaultdict[int, list[Bid]] = defaultdict(list)
    for bid in _bids(events):
        bids[bid.auction].append(bid)
    found = []
    for auction in _auctions(events):
        prices = [
            bid.price
            for bid in bids[auction.id]
            if auction.date_time <= bid.date_time <= auction.expires
        ]
        if prices:
            found.append((auction, max(prices)))
    return found


def _start_ms(event: Event) -> int:
    at_ms = when_ms(event.date_time)
    return at_ms - at_ms % WINDOW_MS


def _last_bid_ms(events: Sequence[Event]) -> int:
    return max(when_ms(bid.date_time) for bid in _bids(events))


ANSWERS: dict[str, Callable[[Sequence[Event]], Rows]] = {
    "q0": q0, "q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5,
    "q6": q6, "q7": q7, "q8": q8, "q11": q11, "q12": q12,
}  # fmt: skip
"""By name."""
