"""The jobs on Quix Streams. Run by the interpreter of the peers' environment, alone."""

from __future__ import annotations

import os
from datetime import timedelta

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Sum

app = Application(
    broker_address=os.environ["ENGINE_BROKER"],
    consumer_group=os.environ["ENGINE_ID"],
    auto_offset_reset="earliest",
    commit_interval=int(os.environ["ENGINE_COMMIT_MS"]) / 1000,
    state_dir=os.environ["ENGINE_STATE"],
    loglevel="WARNING",
)
events = app.dataframe(app.topic(os.environ["ENGINE_INPUT"], value_deserializer="json"))
output = app.topic(os.environ["ENGINE_OUTPUT"], value_serializer="json", key_serializer="bytes")
WINDOW = timedelta(milliseconds=int(os.environ["ENGINE_WINDOW_MS"]))

match os.environ["ENGINE_JOB"]:
    case "j1":
        events = events.filter(lambda event: event["amount"] % 2 == 0).apply(
            lambda event: {"user": event["user"], "amount": 2 * event["amount"], "ts": event["ts"]}
        )
    case "j2":
        windows = events.tumbling_window(WINDOW).agg(events=Count(), amount=Sum("amount"))
        events = windows.current()
    case "j2-final":
        windows = events.tumbling_window(WINDOW).agg(events=Count(), amount=Sum("amount"))
        events = windows.final(closing_strategy="partition")
    case "j3":
        users = app.dataframe(app.topic(os.environ["ENGINE_TABLE"], value_deserializer="json"))
        events = events.join_asof(
            users,
            on_merge=lambda event, user: {
                "user": event["user"],
                "amount": event["amount"],
                "ts": event["ts"],
                "country": user["country"],
            },
            grace_ms=timedelta(days=365),
        )
events.to_topic(output)

if __name__ == "__main__":
    app.run()
