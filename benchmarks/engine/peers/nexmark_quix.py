"""Nexmark's queries on Quix Streams. Run by the interpreter of the peers' environment, alone.

Those that it can express: see `MEMBERS` in `benchmarks/nexmark_participants.py`.
"""

from __future__ import annotations

import os
from datetime import timedelta

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Reduce

EURO_PER_DOLLAR = 0.908
RARE = 123
WINDOW = timedelta(seconds=10)

query = os.environ["NEXMARK_QUERY"]
app = Application(
    broker_address=os.environ["NEXMARK_BROKER"],
    consumer_group=f"quix-{query}",
    auto_offset_reset="earliest",
    commit_interval=0.5,
    state_dir=os.environ["NEXMARK_STATE"],
    loglevel="WARNING",
)
rows = app.dataframe(app.topic("bids", key_deserializer="bytes", value_deserializer="json"))
output = app.topic(f"{query}-out", key_serializer="json", value_serializer="json")


def in_euros(bid):
    bid["price"] = round(bid["price"] * EURO_PER_DOLLAR)
    return bid


def offer(bid):
    return [bid["price"], bid["auction"], bid["bidder"]]


def higher(best, bid):
    return offer(bid) if bid["price"] > best[0] else best


def of_window(row, key, _timestamp, _headers):
    return {"key": key, **row}


match query:
    case "q1":
        rows = rows.apply(in_euros)
    case "q2":
        rows = rows.filter(lambda bid: bid["auction"] % RARE == 0).apply(lambda bid: bid["price"])
    case "q7":
        windows = rows.group_by(lambda _: 0, name="all").tumbling_window(WINDOW)
        rows = windows.agg(value=Reduce(reducer=higher, initializer=offer)).final(
            closing_strategy="partition"
        )
    case "q12":
        windows = rows.group_by("bidder").tumbling_window(WINDOW)
        rows = windows.agg(value=Count()).final(closing_strategy="partition")
if query in {"q7", "q12"}:
    rows = rows.apply(of_window, metadata=True)
else:
    output = app.topic(f"{query}-out", key_serializer="bytes", value_serializer="json")
rows.to_topic(output)

if __name__ == "__main__":
    app.run()
