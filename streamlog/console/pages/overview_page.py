"""The overview: what is wrong now, the worst first, each with the command that mends it."""

from __future__ import annotations

from typing import Final

from streamlog.adviser.log_view import Diagnosis, LogView, size
from streamlog.console.log_sight import LogSight, figures_of, lag_of
from streamlog.console.markup import (
    Markup,
    Node,
    a,
    div,
    h1,
    h2,
    h3,
    joined,
    li,
    p,
    path,
    section,
    span,
    strong,
    svg,
    ul,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    Tone,
    address,
    age,
    badge,
    command_line,
    heading_row,
    moment,
    notice,
    number,
    rate,
    rows_of,
    tile,
    tiles,
)

FINDINGS_MAX: Final = 50
"""Findings that are shown; of the others, the page gives the number."""
BUSY_MAX: Final = 5
"""Rows of the short lists."""


def overview(sight: LogSight) -> View:
    """Return the overview."""
    view = sight.view
    if view is None:
        content = joined(heading_row(h1["Overview"]), not_seen_yet(sight))
    else:
        content = joined(
            heading_row(
                h1["Overview"], span(class_="hint")[f"Seen {moment(sight.at_ms)[:19]} UTC"]
            ),
            stale(sight),
            _verdict(sight),
            tiles(*_tiles(view)),
            _busiest(view),
            _unseen(view),
        )
    return View(title="Overview", content=content)


def not_seen_yet(sight: LogSight) -> Markup:
    """Return what a page shows before the first look has ended."""
    if sight.error:
        return notice("bad", strong["The log does not answer. "], sight.error)
    return notice("info", "Looking at the log for the first time; this page will fill itself.")


def stale(sight: LogSight) -> Node:
    """Return a warning if the last look failed, so that old figures are not taken for new ones."""
    if not sight.error:
        return None
    return notice(
        "bad",
        strong["The log does not answer at present. "],
        f"This page shows it as of {moment(sight.at_ms)[:19]} UTC. {sight.error}",
    )


def _verdict(sight: LogSight) -> Markup:
    found = sight.findings
    if not found:
        return div(class_="all-well")[
            svg(viewBox="0 0 16 16", aria_hidden="true")[path(d="M2.5 8.5 6 12l7.5-8")],
            div["Nothing is wrong.", p["No record, replica, group or disk needs attention."]],
        ]
    # The worst come first, so what is left out is less urgent than all that is shown.
    left_out = len(found) - FINDINGS_MAX
    return section(aria_label="What is wrong now")[
        map(_finding, found[:FINDINGS_MAX]),
        p(class_="hint")[f"{left_out} more: streamlog doctor prints all of them."]
        if left_out > 0
        else None,
    ]


def _finding(found: Diagnosis) -> Markup:
    tone: Tone = "bad" if found.severity == "critical" else "warn"
    # A remedy is a command, or a sentence if no command mends it.
    is_command = found.remedy.startswith("streamlog ")
    return div(class_=f"finding {found.severity}")[
        div(class_="finding-head")[
            badge(found.severity.capitalize(), tone),
            h3[found.where],
            span(class_="finding-code mono")[found.code],
        ],
        p[found.problem],
        p(class_="outlook")[f"If left: {found.outlook}"],
        command_line(found.remedy) if is_command else p[strong["Mend it: "], found.remedy],
    ]


def _tiles(view: LogView) -> list[Node]:
    topics = [figures_of(each) for each in view.topics.values()]
    lags = [lag_of(each) for each in view.groups.values()]
    fenced = sum(each.is_fenced or bool(each.silent) for each in view.brokers)
    partitions = sum(len(each.partitions) for each in view.topics.values())
    lacking = sum(each.lacking for each in topics)
    # Unknown rates are left out: at the first look, none is known, and 0 would be wrong.
    rates = [each.rate for each in topics if each.rate is not None]
    # The largest and not the mean: a mean hides the one group that is about to lose records.
    worst_ms = max((each.age_ms for each in lags if each.age_ms is not None), default=None)
    # Of each disk alone: what another one has free does not help a full one.
    free = [
        each.usable_bytes / each.total_bytes
        for each in view.disks
        if each.usable_bytes is not None and each.total_bytes
    ]
    return [
        tile(
            "Brokers",
            number(len(view.brokers)),
            f"{fenced} not in service" if fenced else "all in service",
            "bad" if fenced else "calm",
        ),
        tile("Topics", number(len(topics)), f"{number(partitions)} partitions"),
        tile(
            "Replicas in sync",
            "all" if not lacking else f"{number(partitions - lacking)} of {number(partitions)}",
            "partitions with all replicas",
            "warn" if lacking else "calm",
        ),
        tile("Written", rate(sum(rates) if rates else None), "records, all topics"),
        tile(
            "Largest lag",
            age(worst_ms),
            f"{number(len(lags))} groups",
            "warn" if worst_ms is not None and worst_ms > LATE_MS else "calm",
        ),
        tile(
            "Disk",
            size(sum(each.used_bytes for each in view.disks)),
            f"{min(free):.0%} free on the fullest" if free else "free space is not known",
            "warn" if free and min(free) < LOW_DISK else "calm",
        ),
    ]


LATE_MS: Final = 5 * 60_000
LOW_DISK: Final = 0.1


def _busiest(view: LogView) -> Markup:
    topics = sorted(
        ((each, figures_of(each)) for each in view.topics.values() if not each.is_internal),
        key=lambda pair: (-(pair[1].rate or 0), pair[0].name),
    )[:BUSY_MAX]
    groups = sorted(
        ((each, lag_of(each)) for each in view.groups.values()),
        key=lambda pair: (-(pair[1].age_ms or 0), -(pair[1].records or 0), pair[0].group_id),
    )[:BUSY_MAX]
    return div(class_="charts")[
        section[
            h2["Busiest topics"],
            rows_of(
                _columns("Topic", "Written", "Records"),
                [
                    (
                        a(class_="name", href=address("topics", each.name))[each.name],
                        rate(figures.rate),
                        number(figures.records),
                    )
                    for each, figures in topics
                ],
                name="Busiest topics",
            )
            if topics
            else p(class_="hint")["There is no topic yet."],
        ],
        section[
            h2["Groups that are furthest behind"],
            rows_of(
                _columns("Group", "Lag", "Records behind"),
                [
                    (
                        a(class_="name", href=address("groups", each.group_id))[each.group_id],
                        age(lag.age_ms),
                        number(lag.records),
                    )
                    for each, lag in groups
                ],
                name="Groups that are furthest behind",
            )
            if groups
            else p(class_="hint")["There is no consumer group yet."],
        ],
    ]  # fmt: skip


def _columns(name: str, *numbers: str) -> list[Heading]:
    return [Heading(name), *(Heading(each, is_number=True) for each in numbers)]


def _unseen(view: LogView) -> Node:
    if not view.unseen:
        return None
    return joined(
        h2["Not seen"],
        notice(
            "warn", "The console could not look at:", ul[(li[each] for each in view.unseen[:20])]
        ),
    )
