"""The queries, each as an app of its own: what comes in are the same three topics.

Rule of the file: a query is a function that is given the streams and says what comes out; nothing
here knows who runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from examples.nexmark.generator import Auction, Bid, Person
from streamlog import (
    App,
    JoinWindow,
    Processor,
    Record,
    Stream,
    Topic,
    Windowed,
    agg,
    hopping,
    kv_store,
    session,
    tumbling,
)
from streamlog.durations import when_ms

EURO_PER_DOLLAR = 0.908
RARE = 123
"""q2 looks for auctions with a number divisible by this."""
CATEGORY = 10
STATES = frozenset({"OR", "ID", "CA"})
WINDOW = "10s"
WINDOW_MS = 10_000
LONGEST = "40s"
"""No auction is open for longer."""
LAST = 10
"""q6 looks at so many closed auctions of a seller."""


class Seller(msgspec.Struct):
    """q3: who sells what."""

    name: str
    city: str
    state: str
    auction: int


class Offer(msgspec.Struct):
    """A bid on an auction that was open."""

    category: int
    seller: int
    price: int
    expires_ms: int


class Sums(msgspec.Struct):
    """A mean in the making."""

    count: int = 0
    total: int = 0


class Hottest(msgspec.Struct):
    """q5: the auctions with the most bids in a window."""

    bids: int = 0
    auctions: list[int] = msgspec.field(default_factory=list)


class Highest(msgspec.Struct):
    """q7: the first of the highest bids of a window: price, auction and bidder."""

    bid: list[tuple[int, int, int]]


class NewSeller(msgspec.Struct):
    """q8: somebody who came and sold in the same window."""

    name: str
    came_ms: int
    sold_ms: int


@dataclass(frozen=True)
class Query:
    """A query over the three topics."""

    app: App
    persons: Topic[int, Person]
    auctions: Topic[int, Auction]
    bids: Topic[int, Bid]
    output: Topic[Any, Any]

    @classmethod
    def of(cls, name: str, *, partitions: int = 1, **settings: Any) -> Query:  # noqa: ANN401 - App's
        """The query of this name, as an app."""
        app = App(f"nexmark-{name}", **settings)
        persons = app.topic("persons", key=int, value=Person, partitions=partitions)
        auctions = app.topic("auctions", key=int, value=Auction, partitions=partitions)
        bids = app.topic("bids", key=int, value=Bid, partitions=partitions)
        key, value, build = QUERIES[name]
        output = app.topic(f"{name}-out", key=key, value=value, partitions=partitions)
        query = cls(app, persons, auctions, bids, output)
        build(query).to(output)
        return query

    def topic_of(self, event: Person | Auction | Bid) -> tuple[Topic[int, Any], int]:
        """Where an event belongs, and its key there."""
        match event:
            case Person():
                return self.persons, event.id
            case Auction():
                return self.auctions, event.id
            case Bid():
                return self.bids, event.auction


def q0(query: Query) -> Stream[int, Bid]:
    """Pass through: what reading and writing costs."""
    return query.app.stream(query.bids)


def in_euros(bid: Bid) -> Bid:
    """The bid with another price."""
    price = round(bid.price * EURO_PER_DOLLAR)
    return Bid(bid.auction, bid.bidder, price, bid.channel, bid.date_time)


def q1(query: Query) -> Stream[int, Bid]:
    """Currency conversion."""
    return query.app.stream(query.bids).map_values(in_euros)


def q2(query: Query) -> Stream[int, int]:
    """Bids on certain auctions: a selective filter."""
    rare = query.app.stream(query.bids).filter(lambda auction, _: auction % RARE == 0)
    return rare.map_values(lambda bid: bid.price)


def sold_by(auction: Auction, person: Person) -> Seller:
    """A row of q3."""
    return Seller(person.name, person.city, person.state, auction.id)


def q3(query: Query) -> Stream[int, Seller]:
    """Who in certain states sells in a category: a join without windows, by a foreign key."""
    auctions = query.app.table(query.auctions).filter(lambda _, a: a.category == CATEGORY)
    persons = query.app.table(query.persons).filter(lambda _, p: p.state in STATES)
    return auctions.join_on(persons, lambda a: a.seller, sold_by, name="sellers").changes()


def offered(auction: Auction, bid: Bid) -> Offer | None:
    """A bid that came before the auction expired."""
    if bid.date_time > auction.expires:
        return None
    return Offer(auction.category, auction.seller, bid.price, when_ms(auction.expires))


def in_time(offer: Offer | None) -> list[Offer]:
    """Without those that came too late."""
    return [] if offer is None else [offer]


def offers(query: Query) -> Stream[int, Offer]:
    """Bids with what they are for."""
    found = query.app.stream(query.auctions).join(
        query.app.stream(query.bids),
        offered,
        within=JoinWindow.of(LONGEST, before="0s"),
        name="offers",
    )
    return found.flat_map_values(in_time)


def better(one: Offer, other: Offer) -> Offer:
    """Of equal ones the first."""
    return other if other.price > one.price else one


def counted_in(sums: Sums, offer: Offer) -> Sums:
    """A winning bid more."""
    return Sums(sums.count + 1, sums.total + offer.price)


def counted_out(sums: Sums, offer: Offer) -> Sums:
    """A winning bid that is none any more."""
    return Sums(sums.count - 1, sums.total - offer.price)


def to_category(_auction: int, offer: Offer) -> tuple[int, Offer]:
    """Where a winning bid counts."""
    return offer.category, offer


def q4(query: Query) -> Stream[int, Sums]:
    """The mean of winning bids by category: rows that are taken back when a better bid comes."""
    best = offers(query).group_by_key().reduce(better, name="best")
    by_category = best.group_by(to_category, name="by-category")
    return by_category.aggregate(Sums, counted_in, counted_out, name="means").changes()


def hottest(found: Hottest, row: tuple[int, int]) -> Hottest:
    """With one more auction."""
    auction, bids = row
    if bids > found.bids:
        return Hottest(bids, [auction])
    if bids == found.bids:
        found.auctions.append(auction)
    return found


def by_start(window: Windowed[int], bids: int) -> tuple[int, tuple[int, int]]:
    """A count, keyed by when its window began."""
    return when_ms(window.start), (window.key, bids)


def q5(query: Query) -> Stream[int, Hottest]:
    """Hot items: the auctions with the most bids in the last ten seconds, every two."""
    counts = query.app.stream(query.bids).group_by_key().windowed(hopping(WINDOW, "2s"))
    rows = counts.count(name="counts").changes().map(by_start, name="by-start")
    return rows.group_by_key().aggregate(Hottest, hottest, name="hottest").changes()


class Closing(Processor[int, Offer, int, int]):
    """The best offer of each auction, when it expires, to its seller."""

    best = kv_store(int, Offer)

    def process(self, record: Record[int, Offer]) -> None:
        """The first offer says when it is over."""
        so_far = self.best.get(record.key)
        if so_far is None:
            self.ctx.timers.set(record.key, at=record.value.expires_ms)
        self.best.put(record.key, record.value if so_far is None else better(so_far, record.value))

    def on_timer(self, key: int, at: Any, tag: str) -> None:  # noqa: ANN401, ARG002 - the port's
        """It is over."""
        won = self.best.get(key)
        if won is not None:
            self.ctx.forward(won.seller, won.price, timestamp=won.expires_ms)
            self.best.delete(key)


def with_latest(prices: list[int], price: int) -> list[int]:
    """The last ten."""
    return [*prices, price][-LAST:]


def q6(query: Query) -> Stream[int, list[int]]:
    """The prices of a seller's last ten auctions, of which the mean is asked."""
    sold = offers(query).process(Closing, name="closing")
    empty: Callable[[], list[int]] = list
    return sold.group_by_key().aggregate(empty, with_latest, name="last-ten").changes()


def q7(query: Query) -> Stream[Windowed[int], Highest]:
    """The highest bid of each ten seconds, of all auctions: one group."""
    everything = query.app.stream(query.bids).group_by(lambda _key, _bid: 0, name="all")
    rows = everything.windowed(tumbling(WINDOW)).agg(
        Highest,
        name="highest",
        bid=agg.top(1, lambda b: (b.price, b.auction, b.bidder), by="price"),
    )
    return rows.changes()


def new_seller(person: Person, auction: Auction) -> NewSeller:
    """A row of q8."""
    return NewSeller(person.name, _window_ms(person), _window_ms(auction))


def _window_ms(event: Person | Auction) -> int:
    at_ms = when_ms(event.date_time)
    return at_ms - at_ms % WINDOW_MS


def q8(query: Query) -> Stream[int, NewSeller]:
    """Who came and sold something within the same ten seconds."""
    sold = query.app.stream(query.auctions).rekey(lambda _, a: a.seller, name="by-seller")
    both = query.app.stream(query.persons).join(sold, new_seller, within=WINDOW, name="new")
    same = both.filter(lambda _, row: row.came_ms == row.sold_ms)
    return same.dedupe("came_ms", within=timedelta(milliseconds=WINDOW_MS), name="once")


def q11(query: Query) -> Stream[Windowed[int], int]:
    """Bids of each bidder, by sessions of ten seconds."""
    by_bidder = query.app.stream(query.bids).group_by(lambda _, bid: bid.bidder, name="by-bidder")
    return by_bidder.windowed(session(WINDOW)).count(name="sessions").changes()


def q12(query: Query) -> Stream[Windowed[int], int]:
    """Bids of each bidder in every ten seconds, by the time at which they came.

    That is the timestamp of the record, on a topic with `message.timestamp.type=LogAppendTime`.
    """
    by_bidder = query.app.stream(query.bids).group_by(lambda _, bid: bid.bidder, name="by-bidder")
    return by_bidder.windowed(tumbling(WINDOW)).count(name="counts").changes()


QUERIES: dict[str, tuple[Any, Any, Callable[[Query], Stream[Any, Any]]]] = {
    "q0": (int, Bid, q0),
    "q1": (int, Bid, q1),
    "q2": (int, int, q2),
    "q3": (int, Seller, q3),
    "q4": (int, Sums, q4),
    "q5": (int, Hottest, q5),
    "q6": (int, list[int], q6),
    "q7": (Windowed[int], Highest, q7),
    "q8": (int, NewSeller, q8),
    "q11": (Windowed[int], int, q11),
    "q12": (Windowed[int], int, q12),
}
"""Key and value of what comes out, and the query."""

if "NEXMARK_QUERY" in os.environ:
    # As a worker runs it: `NEXMARK_QUERY=q5 streamlog -A examples.nexmark.queries worker`.
    app = Query.of(
        os.environ["NEXMARK_QUERY"],
        partitions=int(os.environ.get("NEXMARK_PARTITIONS", "1")),
        log=os.environ.get("NEXMARK_LOG", "embedded:./.streamlog/nexmark/log"),
        state_dir=os.environ.get("NEXMARK_STATE", "./.streamlog/nexmark/state"),
    ).app
