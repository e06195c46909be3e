"""The topics: a list, and one topic with its partitions and the groups that read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from streamlog.adviser.log_view import GroupView, LogView, ReadingView, TopicView, size
from streamlog.console.log_sight import LogSight, TopicFigures, figures_of
from streamlog.console.markup import (
    Markup,
    Node,
    a,
    div,
    field,
    h1,
    joined,
    label,
    nav,
    p,
    span,
)
from streamlog.console.pages.overview_page import not_seen_yet, stale
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    Order,
    address,
    age,
    badge,
    cut,
    heading_row,
    nothing,
    number,
    pager,
    rate,
    rows_of,
    search,
    tile,
    tiles,
)

INTERNAL: Final = "internal"
DIGITS_MAX: Final = 19
RecordAt: TypeAlias = tuple[int, int]
"""The partition and offset of a record of a topic."""
COLUMNS: Final = (
    Heading("Topic", sort="name"),
    Heading("Partitions", is_number=True, sort="partitions"),
    Heading("Replicas", is_number=True, sort="replicas"),
    Heading("Records", is_number=True, sort="records"),
    Heading("Written", is_number=True, sort="rate"),
    Heading("Size", is_number=True, sort="size"),
    Heading("Kept by"),
    Heading("State"),
)
_KEYS: Final[Mapping[str, Callable[[TopicView, TopicFigures], object]]] = {
    "name": lambda topic, _: topic.name,
    "partitions": lambda topic, _: len(topic.partitions),
    "replicas": lambda _, figures: figures.replicas,
    "records": lambda _, figures: figures.records,
    "rate": lambda _, figures: figures.rate or 0.0,
    "size": lambda _, figures: figures.bytes,
}


def topics(sight: LogSight, query: Mapping[str, str], *, can_create: bool = False) -> View:
    """Return the list; `query` has the words of the search, the order and the page."""
    view, words = sight.view, query.get("q", "")
    if view is None:
        return View(title="Topics", content=joined(heading_row(h1["Topics"]), not_seen_yet(sight)))
    with_internal = query.get(INTERNAL) == "1"
    order = Order.of(query.get("sort", ""), _KEYS, "name")
    found = [
        (topic, figures_of(topic))
        for topic in view.topics.values()
        if words.casefold() in topic.name.casefold() and (with_internal or not topic.is_internal)
    ]
    # By name first: topics that are equal otherwise stay in one order from look to look.
    found.sort(key=lambda pair: pair[0].name)
    found.sort(key=lambda pair: _KEYS[order.by](*pair), reverse=order.is_down)  # type: ignore[arg-type,return-value]
    shown = cut(found, query.get("page", ""))

    def link(sort: str, page: int | None = None) -> str:
        kept = {"q": words or None, INTERNAL: "1" if with_internal else None}
        return address("topics", **kept, sort=None if sort == "name" else sort, page=page)

    inside = label(class_="check")[
        field(type="checkbox", name=INTERNAL, value="1", checked=with_internal), "Internal topics"
    ]
    creating = a(class_="button main", href=address("topics", create=1))["Create a topic"]
    content = joined(
        heading_row(h1["Topics"], creating if can_create else None),
        stale(sight),
        search(address("topics"), words, "Search topics", {"sort": order.word}, inside),
        rows_of(COLUMNS, [_row(*pair) for pair in shown.rows], name="Topics", sorting=(order, link))
        if shown.rows
        else nothing(
            "No topic's name contains this." if words else "There is no topic yet.",
            None if words else "Create one: streamlog topics create NAME --partitions 4",
        ),
        pager(shown, lambda page: link(order.word, page), "topics"),
    )
    return View(title="Topics", content=content)


def _row(topic: TopicView, figures: TopicFigures) -> tuple[Node, ...]:
    return (
        a(class_="name", href=address("topics", topic.name))[topic.name],
        number(len(topic.partitions)),
        number(figures.replicas),
        number(figures.records),
        rate(figures.rate),
        size(figures.bytes),
        _kept_by(topic),
        _state(topic, figures),
    )


def _kept_by(topic: TopicView) -> str:
    words = sorted(topic.policies)
    if not words:
        return "—"
    if topic.retention_ms is not None:
        # Topics are kept for days mostly, and hours are fractions of them.
        days = topic.retention_ms / 86_400_000
        words[words.index("delete")] = f"delete after {days:.3g} d"
    return ", ".join(words)


def _state(topic: TopicView, figures: TopicFigures) -> Node:
    if figures.leaderless:
        return badge(f"{figures.leaderless} without a leader", "bad")
    if figures.lacking:
        return badge(f"{figures.lacking} lack replicas", "warn")
    return badge("internal", "calm") if topic.is_internal else badge("in sync", "good")


def topic_tabs(name: str, current: str) -> Markup:
    """Return the ways between the pages of one topic."""
    pages = {
        "messages": "Messages",
        "write": "Write",
        "groups": "Groups",
        "partitions": "Partitions",
        "settings": "Settings",
    }
    return joined(
        div(class_="crumb")[a(href=address("topics"))["Topics"]],
        heading_row(h1[name]),
        nav(class_="tabs", aria_label="Pages of the topic")[
            (
                a(
                    href=address("topics", name, page),
                    aria_current="page" if page == current else None,
                )[text]
                for page, text in pages.items()
            )
        ],
    )


def partitions(
    sight: LogSight, name: str, query: Mapping[str, str], *, can_add: bool = False
) -> View:
    """Return the partitions of a topic; `can_add`: with a way to add some."""
    found = _found(sight, name, "partitions")
    if isinstance(found, View):
        return found
    _, topic = found
    figures = figures_of(topic)
    shown = cut(topic.partitions, query.get("page", ""))
    rows = [
        (
            a(href=address("topics", name, "messages", partition=each.partition))[
                number(each.partition)
            ],
            number(each.leader) if each.leader >= 0 else badge("none", "bad"),
            span(class_="nowrap")[", ".join(map(str, each.replicas))],
            badge(f"{len(each.in_sync)} of {len(each.replicas)}",
                  "good" if len(each.in_sync) == len(each.replicas) else "warn"),
            number(topic.begins.get(each.partition)),
            number(topic.ends.get(each.partition)),
            rate(topic.rates.get(each.partition)),
            size(topic.sizes.get(each.partition, 0)),
        )
        for each in shown.rows
    ]  # fmt: skip
    adding = a(class_="button", href=address("topics", name, "partitions", add=1))
    content = joined(
        topic_tabs(name, "partitions"),
        stale(sight),
        tiles(
            tile("Records", number(figures.records), "offsets that the log holds"),
            tile("Written", rate(figures.rate)),
            tile("Size", size(figures.bytes), "of the largest replicas"),
            tile("Kept by", _kept_by(topic)),
        ),
        rows_of(_PARTITION_HEADINGS, rows, name=f"Partitions of {name}"),
        pager(shown, lambda page: address("topics", name, "partitions", page=page), "partitions"),
        p(class_="after")[adding["Add partitions"]]
        # Of an internal topic, the log itself decides how many it has.
        if can_add and not topic.is_internal
        else None,
    )
    return View(title=name, content=content)


_PARTITION_HEADINGS: Final = (
    Heading("Partition", is_number=True), Heading("Leader", is_number=True),
    Heading("Replicas"), Heading("In sync"), Heading("First offset", is_number=True),
    Heading("End offset", is_number=True), Heading("Written", is_number=True),
    Heading("Size", is_number=True),
)  # fmt: skip


def readers(sight: LogSight, name: str, query: Mapping[str, str]) -> View:
    """Return the groups that read a topic, and whether they have read one of its records."""
    found = _found(sight, name, "groups")
    if isinstance(found, View):
        return found
    view, _ = found
    at = record_of(query)
    rows = [
        (group, reading)
        for group in sorted(view.groups.values(), key=lambda each: each.group_id)
        if (reading := _reading(group, name, at)) is not None
    ]
    shown = cut(rows, query.get("page", ""))
    content = joined(
        topic_tabs(name, "groups"),
        stale(sight),
        _which_record(name, at),
        rows_of(
            _READER_HEADINGS if at is None else (*_READER_HEADINGS, Heading("This record")),
            [_reader(group, reading, at) for group, reading in shown.rows],
            name=f"Groups that read {name}",
        )
        if rows
        # Those that have committed: a reader without a group leaves no trace in the log.
        else nothing(
            "No group has committed offsets for it."
            if at is None
            else "No group has committed an offset for this partition."
        ),
        pager(shown, lambda page: address("topics", name, "groups", **_kept(query), page=page),
              "groups")
        if rows
        else None,
    )  # fmt: skip
    return View(title=f"Groups of {name}", content=content)


_READER_HEADINGS: Final = (
    Heading("Group"), Heading("State"), Heading("Members", is_number=True),
    Heading("Lag", is_number=True), Heading("Records behind", is_number=True),
)  # fmt: skip


def record_of(query: Mapping[str, str]) -> RecordAt | None:
    """Return the partition and offset that an address names; None if it names none."""
    given = [query.get("partition", ""), query.get("offset", "")]
    # A malformed one names no record: the page then shows the groups of the whole topic.
    if not all(each.isascii() and each.isdecimal() and len(each) < DIGITS_MAX for each in given):
        return None
    return int(given[0]), int(given[1])


def _kept(query: Mapping[str, str]) -> dict[str, str]:
    return {name: query[name] for name in ("partition", "offset") if name in query}


def _which_record(name: str, at: RecordAt | None) -> Node:
    if at is None:
        return None
    partition, offset = at
    where = address("topics", name, "messages", partition=partition, begin="offset", at=offset,
                    open=1)  # fmt: skip
    return p["Who has read record ", a(href=where)[f"{partition}:{offset}"], "? ",
             a(href=address("topics", name, "groups"))["Show all partitions"]]  # fmt: skip


def _reading(group: GroupView, name: str, at: RecordAt | None) -> list[ReadingView] | None:
    found = [
        reading
        for part, reading in group.readings.items()
        if part.topic == name and (at is None or part.partition == at[0])
    ]
    return found or None


def _reader(group: GroupView, found: list[ReadingView], at: RecordAt | None) -> tuple[Node, ...]:
    ages = [each.lag_ms for each in found if each.lag_ms is not None]
    lags = [each.lag for each in found if each.lag is not None]
    row: tuple[Node, ...] = (
        a(class_="name", href=address("groups", group.group_id))[group.group_id],
        group.state,
        number(len(group.members)),
        age(max(ages, default=None)),
        number(sum(lags) if lags else None),
    )
    if at is None:
        return row
    # The committed offset is that of the next record; a reset may have skipped this one.
    before = at[1] - found[0].committed
    said = badge("read", "good") if before < 0 else badge("not read yet", "warn")
    return (*row, [said, f" {number(before)} before it" if before > 0 else ""])


def _found(sight: LogSight, name: str, page: str) -> tuple[LogView, TopicView] | View:
    view = sight.view
    if view is None:
        return View(title=name, content=joined(topic_tabs(name, page), not_seen_yet(sight)))
    topic = view.topics.get(name)
    if topic is None:
        return no_topic(name)
    return view, topic


def no_topic(name: str) -> View:
    """Return the page of a topic that does not exist, or not at the last look."""
    return View(
        title=name,
        content=joined(
            div(class_="crumb")[a(href=address("topics"))["Topics"]],
            heading_row(h1[name]),
            nothing("There is no such topic.", "A topic that was just created appears in seconds."),
        ),
        status=404,
    )
