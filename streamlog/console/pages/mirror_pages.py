"""The mirrors: links to other clusters, mirror topics, and one of them with its lag over time.

A mirror topic is paused and resumed here. It is promoted on the command line, which first shows
what may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from streamlog.console.log_sight import LagSeries
from streamlog.console.markup import Node, a, button, div, field, form, h1, h2, joined, p, span
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    READS_ONLY,
    Heading,
    Tone,
    address,
    age,
    badge,
    cut,
    heading_row,
    lag_charts,
    moment,
    nothing,
    notice,
    number,
    pager,
    rows_of,
    tile,
    tiles,
)


class LinkRow(msgspec.Struct, frozen=True):
    """A link to another cluster."""

    name: str
    source: str
    topics: int
    trouble: str
    """Why a broker can't use it; empty if all can."""


class MirrorPartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a mirror topic; None stands for "not known"."""

    partition: int
    leader: int
    end: int
    source_end: int | None
    lag_records: int | None
    lag_ms: int | None
    trouble: str
    """Why it is not copied; empty if it is."""


class MirrorRow(msgspec.Struct, frozen=True):
    """A mirror topic."""

    topic: str
    link: str
    status: str
    """Kafka's word for its state."""
    reason: str
    lag_ms: int | None
    lag_records: int | None
    source_topic: str = ""
    since_ms: int = 0
    partitions: tuple[MirrorPartitionRow, ...] = ()


class MirrorLook(msgspec.Struct, frozen=True):
    """All links and mirror topics."""

    links: tuple[LinkRow, ...]
    mirrors: tuple[MirrorRow, ...]


_TONES: Final[Mapping[str, Tone]] = {
    "ACTIVE": "good",
    "LAGGING": "warn",
    "PAUSED": "warn",
    "SOURCE_UNAVAILABLE": "bad",
    "DIVERGED": "bad",
    "STOPPED": "bad",
}


def mirrors(found: MirrorLook | str, query: Mapping[str, str]) -> View:
    """Return the links and mirror topics; a text says why they are not known."""
    if isinstance(found, str):
        content = joined(heading_row(h1["Mirrors"]), nothing("The mirrors are not known.", found))
        return View(title="Mirrors", content=content)
    shown = cut(found.mirrors, query.get("page", ""))
    return View(
        title="Mirrors",
        content=joined(
            heading_row(h1["Mirrors"]),
            h2["Links"],
            rows_of(
                [
                    Heading("Link"),
                    Heading("Source"),
                    Heading("Topics", is_number=True),
                    Heading("State"),
                ],
                [_link(each) for each in found.links[:200]],
                name="Links",
            )
            if found.links
            else nothing(
                "This cluster mirrors no other cluster.",
                "Create a link: streamlog mirror create NAME --source URL --topics PATTERN",
            ),
            [
                h2["Mirror topics"],
                rows_of(
                    [Heading("Topic"), Heading("Link"), Heading("State"),
                     Heading("Behind", is_number=True), Heading("Records behind", is_number=True)],
                    [_mirror(each) for each in shown.rows],
                    name="Mirror topics",
                ),
                pager(shown, lambda page: address("mirrors", page=page), "mirror topics"),
            ]
            if found.mirrors
            else None,
        ),
    )  # fmt: skip


def _link(link: LinkRow) -> tuple[Node, ...]:
    state: Node = badge("works", "good")
    if link.trouble:
        state = [badge("in trouble", "bad"), f" {link.trouble}"]
    return (span(class_="name")[link.name], link.source, number(link.topics), state)


def _mirror(mirror: MirrorRow) -> tuple[Node, ...]:
    said = mirror.status.lower().replace("_", " ")
    return (
        a(class_="name", href=address("mirrors", mirror.topic))[mirror.topic],
        mirror.link or "—",
        [
            badge(said, _TONES.get(mirror.status, "calm")),
            f" {mirror.reason}" if mirror.reason else "",
        ],
        age(mirror.lag_ms),
        number(mirror.lag_records),
    )


_PARTITION_COLUMNS: Final = (
    Heading("Partition", is_number=True),
    Heading("Leader", is_number=True),
    Heading("Behind", is_number=True),
    Heading("Records behind", is_number=True),
    Heading("End here", is_number=True),
    Heading("End at the source", is_number=True),
    Heading("State"),
)


def mirror(
    found: MirrorRow | None,
    name: str,
    series: LagSeries,
    query: Mapping[str, str],
    *,
    token: str | None,
    error: str = "",
) -> View:
    """Return the page of one mirror topic.

    Args:
        found: the topic; None if it is no mirror.
        name: its name.
        series: its lag over time.
        query: the page of its partitions.
        token: for the buttons; None if the user may only read.
        error: why a change was refused.
    """
    crumb = div(class_="crumb")[a(href=address("mirrors"))["Mirrors"]]
    said = notice("bad", error) if error else None
    if found is None:
        missing = nothing("This topic is no mirror.", a(href=address("topics", name))["Show it"])
        content = joined(crumb, heading_row(h1[name]), said, missing)
        return View(title=name, content=content, status=404)
    shown = cut(found.partitions, query.get("page", ""))
    content = joined(
        crumb,
        heading_row(h1[name], a(class_="button", href=address("topics", name))["Messages"]),
        said,
        tiles(
            tile("State", _words(found.status),
                 f"since {moment(found.since_ms)[:19]} UTC" if found.since_ms else None,
                 _TONES.get(found.status, "calm")),
            tile("Source", found.source_topic or "—", f"link {found.link}" if found.link else None),
            tile("Behind", age(found.lag_ms), "since it had everything"),
            tile("Records behind", number(found.lag_records)),
        ),
        notice("warn", found.reason) if found.reason else None,
        lag_charts(series),
        _switch(found, token),
        h2["Partitions"],
        rows_of(_PARTITION_COLUMNS, map(_partition, shown.rows), name=f"Partitions of {name}")
        if shown.rows
        else p(class_="hint")["No leader of a partition has answered."],
        pager(shown, lambda page: address("mirrors", name, page=page), "partitions"),
    )  # fmt: skip
    return View(title=name, content=content)


def _switch(found: MirrorRow, token: str | None) -> Node:
    """Return the button that pauses a mirror, or lets it copy again."""
    # A promoted topic is no mirror any more, and one that is being promoted must not stop.
    if found.status in _FINISHED:
        return None
    if token is None:
        return p(class_="hint")[READS_ONLY]
    # A stopped mirror is resumed as well: its reason stands above the button.
    action = "resume" if found.status in {"PAUSED", "STOPPED"} else "pause"
    return form(class_="pager", method="post", action=address("mirrors", found.topic, action))[
        field(type="hidden", name="token", value=token),
        span(class_="hint")[
            "A paused mirror copies nothing, and falls behind its source."
            if action == "pause"
            else "It copies from where it ends."
        ],
        button(type="submit")[f"{action.capitalize()} the mirror"],
    ]


_FINISHED: Final = frozenset({"PROMOTED", "PROMOTING"})


def _words(status: str) -> str:
    return status.capitalize().replace("_", " ")


def _partition(row: MirrorPartitionRow) -> tuple[Node, ...]:
    state: Node = badge("copied", "good")
    if row.trouble:
        state = [badge("not copied", "bad"), f" {row.trouble}"]
    return (
        number(row.partition),
        number(row.leader),
        age(row.lag_ms),
        number(row.lag_records),
        number(row.end),
        number(row.source_end),
        state,
    )
