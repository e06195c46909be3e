"""The groups: a list, one group with its lag over time, and the reset of its offsets.

Rule of the module: a reset is shown before it is done, and what is done is what was shown: the form
that executes it carries the offsets, and not the rule by which they were found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from streamlog.adviser.log_view import GroupView
from streamlog.console.log_sight import LagSeries, LagSum, LogSight, lag_of
from streamlog.console.markup import (
    Markup,
    Node,
    a,
    button,
    div,
    field,
    form,
    h1,
    h2,
    joined,
    label,
    nav,
    p,
    span,
    strong,
)
from streamlog.console.pages.overview_page import LATE_MS, not_seen_yet, stale
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    QUERY_MAX,
    READS_ONLY,
    Heading,
    Order,
    Tone,
    address,
    age,
    badge,
    choice,
    cut,
    heading_row,
    lag_charts,
    nothing,
    notice,
    number,
    pager,
    rate,
    rows_of,
    search,
    tile,
    tiles,
)

COLUMNS: Final = (
    Heading("Group", sort="name"),
    Heading("State"),
    Heading("Members", is_number=True, sort="members"),
    Heading("Lag", is_number=True, sort="age"),
    Heading("Records behind", is_number=True, sort="records"),
    Heading("Reads", is_number=True, sort="rate"),
    Heading("Lost", is_number=True, sort="lost"),
)
_KEYS: Final[Mapping[str, Callable[[GroupView, LagSum], float | str]]] = {
    "name": lambda group, _: group.group_id,
    "members": lambda group, _: len(group.members),
    "age": lambda _, lag: lag.age_ms or 0,
    "records": lambda _, lag: lag.records or 0,
    "rate": lambda _, lag: lag.consume_rate or 0.0,
    "lost": lambda _, lag: lag.lost,
}
_TONES: Final[Mapping[str, Tone]] = {"Stable": "good", "Empty": "calm", "Dead": "bad"}
RESET_ROWS_MAX: Final = 500
"""Partitions whose new offsets a page shows and carries; the command line resets more."""
TARGETS: Final[Mapping[str, str]] = {
    "earliest": "The first record",
    "latest": "The end",
    "time": "A time",
    "offset": "An offset",
    "shift": "Forward or back by",
}


def groups(sight: LogSight, query: Mapping[str, str]) -> View:
    """Return the list; `query` has the words of the search, the order and the page."""
    view, words = sight.view, query.get("q", "")
    if view is None:
        return View(title="Groups", content=joined(heading_row(h1["Groups"]), not_seen_yet(sight)))
    order = Order.of(query.get("sort", ""), _KEYS, "name")
    found = [
        (group, lag_of(group))
        for group in view.groups.values()
        if words.casefold() in group.group_id.casefold()
    ]
    found.sort(key=lambda pair: pair[0].group_id)
    found.sort(key=lambda pair: _KEYS[order.by](*pair), reverse=order.is_down)
    shown = cut(found, query.get("page", ""))

    def link(sort: str, page: int | None = None) -> str:
        return address("groups", q=words or None, sort=None if sort == "name" else sort, page=page)

    content = joined(
        heading_row(h1["Groups"]),
        stale(sight),
        search(address("groups"), words, "Search groups", {"sort": order.word}),
        rows_of(COLUMNS, [_row(*pair) for pair in shown.rows], name="Groups", sorting=(order, link))
        if shown.rows
        else nothing(
            "No group's name contains this." if words else "There is no consumer group yet.",
            None if words else "A group appears when its first consumer joins.",
        ),
        pager(shown, lambda page: link(order.word, page), "groups"),
    )
    return View(title="Groups", content=content)


def _row(group: GroupView, lag: LagSum) -> tuple[Node, ...]:
    # By time, and not by records: how many are many depends on the topic.
    is_late = lag.age_ms is not None and lag.age_ms > LATE_MS
    return (
        a(class_="name", href=address("groups", group.group_id))[group.group_id],
        badge(group.state, _TONES.get(group.state, "warn")),
        number(len(group.members)),
        badge(age(lag.age_ms), "warn") if is_late else age(lag.age_ms),
        number(lag.records),
        rate(lag.consume_rate),
        badge(number(lag.lost), "bad") if lag.lost else "0",
    )


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A group in one partition; None stands for "not known"."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    lag_ms: int | None
    lost: int | None
    consume_rate: float | None
    catch_up_s: float | None
    member: str
    """Empty: there is none."""


class MemberRow(msgspec.Struct, frozen=True):
    """A member of a group."""

    name: str
    client: str
    host: str
    partitions: int


class GroupLook(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it is now."""

    group_id: str
    state: str
    kind: str
    assignor: str
    coordinator: int
    members: tuple[MemberRow, ...]
    partitions: tuple[PartitionRow, ...]


def _tabs(name: str, current: str) -> Markup:
    ways = {"": "Lag", "members": "Members", "reset": "Reset"}
    return joined(
        div(class_="crumb")[a(href=address("groups"))["Groups"]],
        heading_row(h1[name]),
        nav(class_="tabs", aria_label="Pages of the group")[
            (
                a(href=address("groups", name, way) if way else address("groups", name),
                  aria_current="page" if way == current else None)[text]
                for way, text in ways.items()
            )
        ],
    )  # fmt: skip


def no_group(name: str, why: str) -> View:
    """Return the page of a group that does not exist."""
    content = joined(
        div(class_="crumb")[a(href=address("groups"))["Groups"]],
        heading_row(h1[name]),
        nothing("There is no such group.", why),
    )
    return View(title=name, content=content, status=404)


def group(look: GroupLook, series: LagSeries, query: Mapping[str, str]) -> View:
    """Return a group: its lag now and over time, by partition."""
    name = look.group_id
    shown = cut(look.partitions, query.get("page", ""))
    ages = [each.lag_ms for each in look.partitions if each.lag_ms is not None]
    lags = [each.lag for each in look.partitions if each.lag is not None]
    # Lost records never come back: the figure stays until the group moves past them.
    lost = sum(each.lost or 0 for each in look.partitions)
    content = joined(
        _tabs(name, ""),
        tiles(
            tile("State", look.state, f"{look.kind}, {look.assignor or 'no assignor'}",
                 "good" if look.state == "Stable" else "calm"),
            tile("Members", number(len(look.members)), f"coordinator: broker {look.coordinator}"),
            tile("Lag", age(max(ages, default=None)), "age of the next record",
                 "warn" if ages and max(ages) > LATE_MS else "calm"),
            tile("Records behind", number(sum(lags) if lags else None)),
            tile("Lost", number(lost), "deleted before they were read", "bad" if lost else "calm"),
        ),
        lag_charts(series),
        h2["Partitions"],
        rows_of(_PARTITION_COLUMNS, map(_partition, shown.rows), name=f"Partitions of {name}")
        if shown.rows
        else nothing("The group has committed no offsets and reads no partitions."),
        pager(shown, lambda page: address("groups", name, page=page), "partitions"),
    )  # fmt: skip
    return View(title=name, content=content)


_PARTITION_COLUMNS: Final = (
    Heading("Partition"), Heading("Lag", is_number=True), Heading("Records behind", is_number=True),
    Heading("Committed", is_number=True), Heading("End", is_number=True),
    Heading("Reads", is_number=True), Heading("Caught up in", is_number=True), Heading("Member"),
)  # fmt: skip


def _partition(row: PartitionRow) -> tuple[Node, ...]:
    soon = "—" if row.catch_up_s is None else age(row.catch_up_s * 1_000)
    at = None if row.committed is None else row.committed
    return (
        a(href=address("topics", row.topic, "messages", partition=row.partition,
                       begin=None if at is None else "offset", at=at))[
            f"{row.topic}-{row.partition}"
        ],
        age(row.lag_ms),
        number(row.lag),
        number(row.committed),
        number(row.end),
        rate(row.consume_rate),
        badge(soon, "bad") if soon == "never" else soon,
        row.member or span(class_="empty-value")["no member"],
    )  # fmt: skip


def members(look: GroupLook, query: Mapping[str, str]) -> View:
    """Return the members of a group."""
    name = look.group_id
    shown = cut(look.members, query.get("page", ""))
    columns = [
        Heading("Member"),
        Heading("Client"),
        Heading("Host"),
        Heading("Partitions", is_number=True),
    ]
    content = joined(
        _tabs(name, "members"),
        rows_of(
            columns,
            [(each.name, each.client, each.host, number(each.partitions)) for each in shown.rows],
            name=f"Members of {name}",
        )
        if shown.rows
        else nothing("The group has no members.", "Its offsets stay for the next one."),
        pager(shown, lambda page: address("groups", name, "members", page=page), "members"),
    )
    return View(title=name, content=content)


class Move(msgspec.Struct, frozen=True):
    """A partition's offset before and after a reset."""

    topic: str
    partition: int
    before: int | None
    after: int


class ResetForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset is asked to do."""

    target: str = "earliest"
    at: str = ""
    topic: str = ""
    """Empty: all topics for which the group has committed offsets."""


def reset(
    look: GroupLook,
    asked: ResetForm,
    moves: Sequence[Move] | None,
    *,
    token: str | None,
    error: str = "",
    is_done: bool = False,
) -> View:
    """Return the page of a reset.

    Args:
        look: the group.
        asked: what the form says.
        moves: what would be changed, or was; None before the first dry run.
        token: proves that a change comes from this page; None if the user may only read.
        error: why there is no dry run, or why the change was refused.
        is_done: whether the offsets were changed.
    """
    name = look.group_id
    body: list[Node] = []
    if error:
        body.append(notice("bad", error))
    if look.members:
        body.append(
            notice(
                "warn",
                strong["The group has members. "],
                "They commit their own offsets: stop them before a reset. A dry run is possible.",
            )
        )
    if is_done and moves is not None:
        body.append(notice("good", f"{name} continues at these offsets."))
    if moves is not None:
        body.append(_moves(name, moves))
        if not is_done:
            body.append(_execute(look, moves, token))
    content = joined(_tabs(name, "reset"), _reset_form(name, asked), *body)
    return View(title=f"Reset of {name}", content=content, is_live=False)


def _reset_form(name: str, asked: ResetForm) -> Markup:
    return form(class_="fields", method="get", action=address("groups", name, "reset"),
                aria_label="Where the group is to continue")[
        choice("target", "Continue at", TARGETS, asked.target),
        label[span["Time, offset or number"],
              field(name="at", value=asked.at, maxlength=QUERY_MAX, autocomplete="off",
                    placeholder="2026-01-31T12:00:00")],
        label[span["Topic"],
              field(name="topic", value=asked.topic, maxlength=249, autocomplete="off",
                    placeholder="all of them")],
        button(type="submit", class_="main", name="try", value="1")["Dry run"],
    ]  # fmt: skip


def _moves(name: str, moves: Sequence[Move]) -> Markup:
    columns = [
        Heading("Partition"), Heading("Offset", is_number=True),
        Heading("New offset", is_number=True), Heading("Change", is_number=True),
    ]  # fmt: skip
    rows = [
        (
            f"{each.topic}-{each.partition}",
            number(each.before),
            number(each.after),
            _change(each),
        )
        for each in moves
    ]
    return rows_of(columns, rows, name=f"New offsets of {name}")


def _change(move: Move) -> str:
    if move.before is None:
        return "new"
    return f"{move.after - move.before:+,}" if move.after != move.before else "none"


def _execute(look: GroupLook, moves: Sequence[Move], token: str | None) -> Node:
    if token is None:
        return p(class_="hint")[READS_ONLY]
    # All offsets are sent, also those that stay: the request says what the page has shown.
    changed = sum(each.before != each.after for each in moves)
    return form(method="post", action=address("groups", look.group_id, "reset"))[
        field(type="hidden", name="token", value=token),
        field(type="hidden", name="offsets", value=offsets_text(moves)),
        div(class_="pager")[
            span(class_="hint")[
                f"{changed} of {len(moves)} offsets change. Nothing has been changed yet."
            ],
            button(type="submit", class_="danger", disabled=bool(look.members))[
                f"Reset {look.group_id}"
            ],
        ],
    ]


def offsets_text(moves: Sequence[Move]) -> str:
    """Return new offsets as the text that a form carries."""
    return json.dumps([[each.topic, each.partition, each.after] for each in moves])
