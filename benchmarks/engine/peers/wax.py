"""The jobs on Bytewax, `python -m bytewax.run`. In the peers' environment, alone.

Windows as `stateful_map` with recovery: its own `fold_window` costs many times as much.
"""

from __future__ import annotations

import json
import os

from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow

BROKERS = [os.environ["ENGINE_BROKER"]]
WINDOW_MS = int(os.environ["ENGINE_WINDOW_MS"])


def read(name, topic):
    return op.input(name, flow, KafkaSource(BROKERS, [topic], batch_size=1000))


def keyed(message):
    return message.key.decode(), json.loads(message.value)


def message(pair):
    key, value = pair
    return KafkaSinkMessage(key.encode(), json.dumps(value).encode())


def doubled(event):
    event = json.loads(event.value)
    if event["amount"] % 2:
        return None
    row = {"user": event["user"], "amount": 2 * event["amount"], "ts": event["ts"]}
    return event["user"], row


def add(state, event):
    start = event["ts"] // WINDOW_MS * WINDOW_MS
    if state is None or state[0] != start:
        state = (start, 0, 0)
    state = (start, state[1] + 1, state[2] + event["amount"])
    return state, {"start": state[0], "events": state[1], "amount": state[2]}


def enrich(user, value):
    if "country" in value:
        return value, None
    if user is None:
        return None, None
    country = user["country"]
    row = {"user": value["user"], "amount": value["amount"], "ts": value["ts"], "country": country}
    return user, row


flow = Dataflow("engine")
events = read("events", os.environ["ENGINE_INPUT"])
match os.environ["ENGINE_JOB"]:
    case "j1":
        rows = op.filter_map("map", events, doubled)
    case "j2":
        rows = op.stateful_map("total", op.map("key", events, keyed), add)
    case "j3":
        users = op.map("key-users", read("users", os.environ["ENGINE_TABLE"]), keyed)
        both = op.merge("both", users, op.map("key", events, keyed))
        rows = op.stateful_map("join", both, enrich)
        rows = op.filter("matched", rows, lambda pair: pair[1] is not None)
op.output(
    "out",
    op.map("message", rows, message),
    KafkaSink(BROKERS, os.environ["ENGINE_OUTPUT"]),
)
