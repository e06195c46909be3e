"""Nexmark's queries on Faust-streaming. Run by the interpreter of the peers' environment, alone.

Those that it can express: see `MEMBERS` in `benchmarks/nexmark_participants.py`.
"""

from __future__ import annotations

import os
import sys

import faust

EURO_PER_DOLLAR = 0.908
RARE = 123

query = os.environ["NEXMARK_QUERY"]
app = faust.App(
    f"faust-{query}",
    broker="kafka://" + os.environ["NEXMARK_BROKER"],
    datadir=os.environ["NEXMARK_STATE"],
    topic_partitions=1,
    topic_replication_factor=1,
    consumer_auto_offset_reset="earliest",
    broker_commit_interval=0.5,
    broker_check_crcs=False,
    web_enabled=False,
    stream_buffer_maxsize=16_384,
    stream_wait_empty=False,
    producer_linger=0.02,
    producer_max_batch_size=256 * 1024,
)


class Bid(faust.Record, serializer="json"):
    auction: int
    bidder: int
    price: int
    channel: str
    date_time: str


bids = app.topic("bids", key_type=bytes, value_type=Bid)
output = app.topic(f"{query}-out", key_type=bytes, value_serializer="json")

match query:
    case "q0":

        @app.agent(bids)
        async def passed(stream):
            async for key, bid in stream.items():
                await output.send(key=key, value=bid)

    case "q1":

        @app.agent(bids)
        async def in_euros(stream):
            async for key, bid in stream.items():
                bid.price = round(bid.price * EURO_PER_DOLLAR)
                await output.send(key=key, value=bid)

    case "q2":

        @app.agent(bids)
        async def rare(stream):
            async for key, bid in stream.items():
                if bid.auction % RARE == 0:
                    await output.send(key=key, value=bid.price)


if __name__ == "__main__":
    sys.argv[1:] = ["worker", "--loglevel", "error", "--without-web"]
    app.main()
