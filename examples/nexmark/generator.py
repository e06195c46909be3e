"""The events: persons, auctions and bids, 1 : 3 : 46, the same for the same numbers.

Rule of the file: everything about an event follows from its number, so that any part of the
stream can be made by anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import TypeAlias

import msgspec

from streamlog.durations import moment

BASE_MS = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1_000)
STEP_MS = 10
"""Between two events: 100 a second."""
PORTIONS = (1, 3, 46)
"""Persons, auctions and bids of each fifty events."""
EPOCH = sum(PORTIONS)
HOT = 10
"""Every so many bids but one goes to one of the newest auctions."""
ACTIVE_PERSONS = 1_000
OPEN_AUCTIONS = 100
FIRST_CATEGORY = 10
CATEGORIES = 5
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Phoenix", "Palo Alto", "Boise", "Portland", "Seattle", "Cheyenne")
CHANNELS = ("apple", "baidu", "facebook", "google")


class Person(msgspec.Struct):
    """Somebody who sells or bids."""

    id: int
    name: str
    city: str
    state: str
    date_time: datetime


class Auction(msgspec.Struct):
    """Something for sale until it expires."""

    id: int
    item: str
    initial_bid: int
    category: int
    seller: int
    date_time: datetime
    expires: datetime


class Bid(msgspec.Struct):
    """An offer, in cents."""

    auction: int
    bidder: int
    price: int
    channel: str
    date_time: datetime


Event: TypeAlias = Person | Auction | Bid


def events(count: int, *, seed: int = 1, step_ms: int = STEP_MS) -> Iterator[Event]:
    """The first events, in the order of time, with so much of it between two."""
    return (event(number, seed=seed, step_ms=step_ms) for number in range(count))


def event(number: int, *, seed: int = 1, step_ms: int = STEP_MS) -> Event:
    """One of them."""
    chance = Random(f"{seed}/{number}")  # noqa: S311 - the same for everybody
    at_ms = BASE_MS + number * step_ms
    epoch, place = divmod(number, EPOCH)
    if place < PORTIONS[0]:
        return _person(epoch * PORTIONS[0] + place, at_ms, chance)
    if place < PORTIONS[0] + PORTIONS[1]:
        return _auction(epoch * PORTIONS[1] + place - PORTIONS[0], epoch, at_ms, chance)
    return _bid(epoch, at_ms, chance)


def _person(number: int, at_ms: int, chance: Random) -> Person:
    home = chance.randrange(len(STATES))
    return Person(number, f"person {number}", CITIES[home], STATES[home], moment(at_ms))


def _auction(number: int, epoch: int, at_ms: int, chance: Random) -> Auction:
    expires_ms = at_ms + STEP_MS * chance.randrange(1, 2 * OPEN_AUCTIONS * EPOCH // PORTIONS[1])
    return Auction(
        number,
        f"item {number}",
        chance.randrange(100, 10_000),
        FIRST_CATEGORY + chance.randrange(CATEGORIES),
        _somebody(epoch, chance),
        moment(at_ms),
        moment(expires_ms),
    )


def _bid(epoch: int, at_ms: int, chance: Random) -> Bid:
    newest = (epoch + 1) * PORTIONS[1] - 1
    if chance.randrange(HOT):
        auction = newest - newest % OPEN_AUCTIONS
    else:
        auction = chance.randrange(max(newest - OPEN_AUCTIONS, 0), newest + 1)
    price = round(10 ** (chance.random() * 6))
    return Bid(auction, _somebody(epoch, chance), price, chance.choice(CHANNELS), moment(at_ms))


def _somebody(epoch: int, chance: Random) -> int:
    """A person that is there already."""
    newest = (epoch + 1) * PORTIONS[0] - 1
    return chance.randrange(max(newest - ACTIVE_PERSONS, 0), newest + 1)
