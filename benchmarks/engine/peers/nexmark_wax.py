"""Nexmark's queries on Bytewax, `python -m bytewax.run`. In the peers' environment, alone.

Those that it can express: see `MEMBERS` in `benchmarks/nexmark_participants.py`.
"""

from __future__ import annotations

import json
import os

from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow

EURO_PER_DOLLAR = 0.908
RARE = 123
CATEGORY = 10
STATES = {"OR", "ID", "CA"}
BROKERS = [os.environ["NEXMARK_BROKER"]]

query = os.environ["NEXMARK_QUERY"]
flow = Dataflow("nexmark")


def read(name):
    return op.input(name, flow, KafkaSource(BROKERS, [name], batch_size=1000))


def passed(message):
    return message.key, json.loads(message.value)


def in_euros(message):
    bid = json.loads(message.value)
    bid["price"] = round(bid["price"] * EURO_PER_DOLLAR)
    return message.key, bid


def rare(message):
    bid = json.loads(message.value)
    return (message.key, bid["price"]) if bid["auction"] % RARE == 0 else None


def by_seller(message):
    auction = json.loads(message.value)
    if auction["category"] != CATEGORY:
        return None
    return str(auction["seller"]), (message.key, auction["id"])


def by_id(message):
    person = json.loads(message.value)
    if person["state"] not in STATES:
        return None
    return str(person["id"]), (None, person)


def sold_by(state, found):
    """A seller's auctions wait for the seller; recovery writes down what is kept."""
    person, waiting = state or (None, [])
    key, row = found
    if key is None:
        person, ready, waiting = row, waiting, []
    elif person is None:
        ready, waiting = [], [*waiting, found]
    else:
        ready = [found]
    if person is not None:
        person = {name: person[name] for name in ("name", "city", "state")}
    return (person, waiting), [(each, {**person, "auction": number}) for each, number in ready]


match query:
    case "q0":
        rows = op.map("rows", read("bids"), passed)
    case "q1":
        rows = op.map("rows", read("bids"), in_euros)
    case "q2":
        rows = op.filter_map("rows", read("bids"), rare)
    case "q3":
        auctions = op.filter_map("by-seller", read("auctions"), by_seller)
        persons = op.filter_map("by-id", read("persons"), by_id)
        both = op.merge("both", persons, auctions)
        found = op.stateful_flat_map("sellers", both, sold_by)
        rows = op.map("rows", found, lambda pair: pair[1])


def message(pair):
    return KafkaSinkMessage(pair[0], json.dumps(pair[1]).encode())


op.output("out", op.map("message", rows, message), KafkaSink(BROKERS, f"{query}-out"))
