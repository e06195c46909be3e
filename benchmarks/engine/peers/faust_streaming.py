"""The jobs on Faust-streaming. Run by the interpreter of the peers' environment, alone.

Tuned: no logging, no web server, large buffers, batches of the producer.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import faust

COMMIT_S = int(os.environ["ENGINE_COMMIT_MS"]) / 1000

app = faust.App(
    os.environ["ENGINE_ID"],
    broker="kafka://" + os.environ["ENGINE_BROKER"],
    store="rocksdb://?driver=rocksdict",
    datadir=os.environ["ENGINE_STATE"],
    topic_partitions=1,
    topic_replication_factor=1,
    consumer_auto_offset_reset="earliest",
    broker_commit_interval=COMMIT_S,
    broker_check_crcs=False,
    web_enabled=False,
    stream_buffer_maxsize=16_384,
    stream_wait_empty=False,
    producer_linger=0.02,
    producer_max_batch_size=256 * 1024,
)


class Event(faust.Record, serializer="json"):
    user: str
    item: str
    amount: int
    ts: int


class Row(faust.Record, serializer="json"):
    user: str
    amount: int
    ts: int


class User(faust.Record, serializer="json"):
    name: str
    country: str


class Placed(faust.Record, serializer="json"):
    user: str
    amount: int
    ts: int
    country: str


class Total(faust.Record, serializer="json"):
    start: int
    events: int
    amount: int


events = app.topic(os.environ["ENGINE_INPUT"], key_type=str, value_type=Event)
output = app.topic(os.environ["ENGINE_OUTPUT"], key_type=str, key_serializer="raw")

match os.environ["ENGINE_JOB"]:
    case "j1":

        @app.agent(events)
        async def filter_and_map(stream):
            async for event in stream:
                if event.amount % 2 == 0:
                    row = Row(event.user, 2 * event.amount, event.ts)
                    await output.send(key=event.user, value=row)

    case "j2":
        window_ms = int(os.environ["ENGINE_WINDOW_MS"])
        size = timedelta(milliseconds=window_ms)
        counts = app.Table("counts", default=int).tumbling(size, expires=size)
        amounts = app.Table("amounts", default=int).tumbling(size, expires=size)

        @app.agent(events)
        async def total(stream):
            async for event in stream:
                user = event.user
                counts[user] += 1
                amounts[user] += event.amount
                start = event.ts // window_ms * window_ms
                row = Total(start, counts[user].current(), amounts[user].current())
                await output.send(key=user, value=row)

    case "j3":
        users = app.Table("users")

        @app.agent(app.topic(os.environ["ENGINE_TABLE"], key_type=str, value_type=User))
        async def remember(stream):
            async for name, user in stream.items():
                users[name] = user

        @app.agent(events)
        async def join(stream):
            async for event in stream:
                user = users.get(event.user)
                if user is not None:
                    row = Placed(event.user, event.amount, event.ts, user.country)
                    await output.send(key=event.user, value=row)


if __name__ == "__main__":
    sys.argv[1:] = ["worker", "--loglevel", "error", "--without-web"]
    app.main()
