"""The jobs on streamlog, as an app: `streamlog -A benchmarks.engine.jobs worker`.

Which of them, and with which values, stands in the environment (`ENGINE_*`, see `contest`). Each
is written as the documentation would: a type where the name says "typed", dicts where it does not.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec

from benchmarks.engine.events import WINDOW_MS
from streamlog import App, Emit, Stream, Table, Windowed, agg, tumbling
from streamlog.app import Guarantee

Fields = dict[str, Any]


class Event(msgspec.Struct):
    """A purchase."""

    user: str
    item: str
    amount: int
    ts: int


class Sale(msgspec.Struct):
    """What J1 makes of it."""

    user: str
    amount: int
    ts: int


class User(msgspec.Struct):
    """A row of the table."""

    name: str
    country: str


class Placed(msgspec.Struct):
    """What J3 makes of an event and its user."""

    user: str
    amount: int
    ts: int
    country: str


class Total(msgspec.Struct):
    """What a user bought in one window."""

    events: int
    amount: int


app = App(
    os.environ.get("ENGINE_ID", "engine"),
    log="kafka://" + os.environ.get("ENGINE_BROKER", "127.0.0.1:9092"),
    state_dir=os.environ.get("ENGINE_STATE", "./.streamlog/engine-state"),
    commit_interval=os.environ.get("ENGINE_COMMIT_MS", "500") + "ms",
    guarantee=cast("Guarantee", os.environ.get("ENGINE_GUARANTEE", "exactly_once")),
    snapshots=os.environ.get("ENGINE_SNAPSHOTS") or None,
    snapshot_interval=os.environ.get("ENGINE_SNAPSHOT_INTERVAL", "10m"),
)
_input = os.environ.get("ENGINE_INPUT", "events")
_output = os.environ.get("ENGINE_OUTPUT", "output")
_window = tumbling(f"{WINDOW_MS}ms", grace=os.environ.get("ENGINE_GRACE_MS", "0") + "ms")


def _events() -> Stream[str, Event]:
    return app.stream(app.topic(_input, key=str, value=Event))


def _plain_events() -> Stream[str, Fields]:
    return app.stream(app.topic(_input, key=str, value=Fields))


def filter_and_map() -> None:
    """J1, typed values."""
    even = _events().filter(lambda _, event: event.amount % 2 == 0)
    sales = even.map_values(lambda event: Sale(event.user, 2 * event.amount, event.ts))
    sales.to(app.topic(_output, key=str, value=Sale))


def filter_and_map_plain() -> None:
    """J1, dicts."""
    even = _plain_events().filter(lambda _, event: event["amount"] % 2 == 0)
    sales = even.map_values(
        lambda event: {"user": event["user"], "amount": 2 * event["amount"], "ts": event["ts"]}
    )
    sales.to(app.topic(_output, key=str, value=Fields))


def _totals(when: Emit) -> Table[Windowed[str], Total]:
    windowed = _events().group_by_key().windowed(_window).emit(when)
    return windowed.agg(Total, name="totals", events=agg.count(), amount=agg.sum("amount"))


def every_update() -> None:
    """J2, the built-in columns, a row per event."""
    rows = _totals(Emit.UPDATE).changes()
    rows.to(app.topic(_output, key=Windowed[str], value=Total))


def final() -> None:
    """J2, the built-in columns, a row per window."""
    rows = _totals(Emit.CLOSE).changes()
    rows.to(app.topic(_output, key=Windowed[str], value=Total))


def newest() -> None:
    """J2, the built-in columns, the newest row of each window per commit."""
    rows = _totals(Emit.COMMIT).changes()
    rows.to(app.topic(_output, key=Windowed[str], value=Total))


def by_hand() -> None:
    """J1 as an agent."""
    sales = app.topic(_output, key=str, value=Sale)

    @app.agent(app.topic(_input, key=str, value=Event), sink=sales)
    async def even_sales(events: Stream[str, Event]) -> AsyncIterator[Sale]:
        async for event in events:
            if event.amount % 2 == 0:
                yield Sale(event.user, 2 * event.amount, event.ts)


def _add(state: Fields, event: Fields) -> Fields:
    state["events"] += 1
    state["amount"] += event["amount"]
    return state


def every_update_plain() -> None:
    """J2, a function of the user's that folds dicts."""
    windowed = _plain_events().group_by_key().windowed(_window)
    totals = windowed.emit(Emit.UPDATE).aggregate(
        lambda: {"events": 0, "amount": 0}, _add, name="totals"
    )
    totals.changes().to(app.topic(_output, key=Windowed[str], value=Fields))


def join() -> None:
    """J3, typed values."""
    users = app.table(app.topic(os.environ.get("ENGINE_TABLE", "users"), key=str, value=User))
    placed = _events().join(
        users, lambda event, user: Placed(event.user, event.amount, event.ts, user.country)
    )
    placed.to(app.topic(_output, key=str, value=Placed))


JOBS = {
    "j1 typed": filter_and_map,
    "j1 dicts": filter_and_map_plain,
    "j2 built-in": every_update,
    "j2 dicts": every_update_plain,
    "j2-final built-in": final,
    "j2-commit built-in": newest,
    "agent typed": by_hand,
    "j3 typed": join,
}
JOBS[os.environ.get("ENGINE_JOB", "j1 typed")]()
