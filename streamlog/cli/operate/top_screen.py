"""Top screen: what `streamlog top` shows of a log, as tables of texts, and what a key does to it.

The figures are those of the console's pages (`log_sight`). Rule of the module: no I/O; a table is
cut to the height of the terminal, and its title says how many rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from streamlog.adviser.log_view import BrokerView, GroupView, LogView, TopicView, size
from streamlog.console.log_sight import LagSum, LogSight, TopicFigures, figures_of, lag_of
from streamlog.console.pages.page_parts import Heading, Tone, age, moment, number, rate
from streamlog.errors import quantity
from streamlog.replace import replace

Sortable: TypeAlias = float | str
UNKNOWN: Final = -1.0
"""Sorts what is not known behind all that is."""
VIEWS: Final = ("problems", "topics", "groups", "brokers")
"""In the order of the keys 1 to 4."""
QUIT: Final = frozenset({"q", "\x1b", "\x03", "\x04"})
ARROWS: Final[Mapping[str, str]] = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1b[C": "right", "\x1b[D": "left", "\t": "right",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left", "k": "up", "j": "down",
}  # fmt: skip
HELP: Final = "1-4 view   s sort by the next column   r turn around   ↑↓ scroll   q quit"


class TopRow(msgspec.Struct, frozen=True):
    """A row, with a value for each column by which it is sorted."""

    cells: tuple[str, ...]
    keys: tuple[Sortable, ...]
    tone: Tone = "calm"


class TopTable(msgspec.Struct, frozen=True):
    """What a screen shows below its first lines."""

    title: str
    columns: tuple[Heading, ...]
    rows: tuple[TopRow, ...]


class TopState(msgspec.Struct, frozen=True):
    """What the keys have chosen."""

    view: str = "problems"
    sorts: Mapping[str, tuple[int, bool]] = msgspec.field(default_factory=dict)
    """View to the column by which it is sorted, and whether the largest comes first."""
    first: int = 0
    """The first row that is shown."""
    is_done: bool = False

    @property
    def sort(self) -> tuple[int, bool]:
        """How the present view is sorted; by its most telling column unless a key says so."""
        return self.sorts.get(self.view, _FIRST_SORT[self.view])


_FIRST_SORT: Final[Mapping[str, tuple[int, bool]]] = {
    "problems": (0, False), "topics": (3, True), "groups": (3, True), "brokers": (0, False),
}  # fmt: skip


def pressed(  # noqa: PLR0911 - one for each key
    state: TopState, key: str, *, columns: int, rows: int, height: int
) -> TopState:
    """Return the state after a key.

    Args:
        state: the state before.
        key: the characters that the terminal sent.
        columns: the columns of the present view.
        rows: its rows.
        height: the rows that fit the terminal.
    """
    by, is_down = state.sort
    last = max(0, rows - height)
    match ARROWS.get(key, key):
        case _ if key in QUIT:
            return replace(state, is_done=True)
        case "1" | "2" | "3" | "4":
            return replace(state, view=VIEWS[int(key) - 1], first=0)
        case "right" | "left" as way:
            at = VIEWS.index(state.view) + (1 if way == "right" else -1)
            return replace(state, view=VIEWS[at % len(VIEWS)], first=0)
        # The findings come in the order of their urgency alone.
        case "s" if state.view != "problems":
            return _sorted_by(state, (by + 1) % columns, is_down=True)
        case "r" if state.view != "problems":
            return _sorted_by(state, by, is_down=not is_down)
        case "up" | "down" | "page up" | "page down" | "home" as way:
            page = max(1, height - 1)
            step = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -rows}[way]
            # From what is shown: rows may have gone since the last key.
            return replace(state, first=max(0, min(min(state.first, last) + step, last)))
        case _:
            return state


def _sorted_by(state: TopState, column: int, *, is_down: bool) -> TopState:
    return replace(state, sorts={**state.sorts, state.view: (column, is_down)}, first=0)


def headline(sight: LogSight) -> str:
    """Return the first line: the cluster, and when it was seen."""
    view = sight.view
    if view is None:
        return sight.error or "looking at the log for the first time"
    rates = [each.rate for each in map(figures_of, view.topics.values()) if each.rate is not None]
    written = rate(sum(rates)) if rates else "—"
    led = f"broker {view.controller}" if view.controller >= 0 else "none"
    facts = (
        f"cluster {sight.cluster_id}" if sight.cluster_id else view.url,
        f"{quantity(len(view.brokers), 'broker')}, controller {led}",
        f"{quantity(len(view.topics), 'topic')}, {written} written",
        quantity(len(view.groups), "group"),
        f"seen {moment(sight.at_ms)[11:19]} UTC",
    )
    return "  ·  ".join(facts)


def table_of(sight: LogSight, name: str) -> TopTable:
    """Return all rows of a view, not sorted."""
    view = sight.view
    if view is None:
        return TopTable(name, (), ())
    match name:
        case "topics":
            return TopTable("Topics", _TOPIC_COLUMNS, tuple(map(_topic, view.topics.values())))
        case "groups":
            return TopTable("Groups", _GROUP_COLUMNS, tuple(map(_group, view.groups.values())))
        case "brokers":
            rows = tuple(_broker(each, view) for each in view.brokers)
            return TopTable("Brokers", _BROKER_COLUMNS, rows)
        case _:
            return _problems(sight)


def shown_rows(table: TopTable, state: TopState, height: int) -> Sequence[TopRow]:
    """Return the rows that fit the terminal, in their order."""
    by, is_down = state.sort
    # By the first column before: rows that are equal otherwise stay where they are.
    rows = sorted(table.rows, key=lambda row: row.keys[:1])
    rows.sort(key=lambda row: row.keys[by], reverse=is_down)
    # Rows may have gone since the last key: then the last ones are shown, and no empty screen.
    first = max(0, min(state.first, len(rows) - height))
    return rows[first : first + height]


# ---- what is wrong ----


def _problems(sight: LogSight) -> TopTable:
    columns = (Heading(""), Heading("Where"), Heading("What is wrong"))
    rows = [
        TopRow(
            (each.severity, each.where, f"{each.problem}  →  {each.remedy}"),
            # Already in their order: the worst come first.
            (float(at),),
            "bad" if each.severity == "critical" else "warn",
        )
        for at, each in enumerate(sight.findings)
    ]
    return TopTable("What is wrong", columns, tuple(rows))


# ---- topics, groups, brokers ----

_TOPIC_COLUMNS: Final = (
    Heading("Topic"),
    Heading("Partitions", is_number=True),
    Heading("Records", is_number=True),
    Heading("Written", is_number=True),
    Heading("Size", is_number=True),
    Heading("State"),
)


def _topic(topic: TopicView) -> TopRow:
    figures = figures_of(topic)
    state, tone = _topic_state(figures)
    return TopRow(
        (topic.name, number(len(topic.partitions)), number(figures.records), rate(figures.rate),
         size(figures.bytes), state),
        (topic.name, len(topic.partitions), figures.records, _known(figures.rate), figures.bytes,
         figures.leaderless * 1_000_000 + figures.lacking),
        tone,
    )  # fmt: skip


def _topic_state(figures: TopicFigures) -> tuple[str, Tone]:
    if figures.leaderless:
        return f"{figures.leaderless} without a leader", "bad"
    if figures.lacking:
        return f"{figures.lacking} lack replicas", "warn"
    return "in sync", "calm"


_GROUP_COLUMNS: Final = (
    Heading("Group"),
    Heading("State"),
    Heading("Members", is_number=True),
    Heading("Lag", is_number=True),
    Heading("Records behind", is_number=True),
    Heading("Reads", is_number=True),
    Heading("Lost", is_number=True),
)
LATE_MS: Final = 5 * 60_000


def _group(group: GroupView) -> TopRow:
    lag: LagSum = lag_of(group)
    is_late = lag.age_ms is not None and lag.age_ms > LATE_MS
    return TopRow(
        (group.group_id, group.state, number(len(group.members)), age(lag.age_ms),
         number(lag.records), rate(lag.consume_rate), number(lag.lost)),
        (group.group_id, group.state, len(group.members), _known(lag.age_ms), _known(lag.records),
         _known(lag.consume_rate), lag.lost),
        "bad" if lag.lost else "warn" if is_late else "calm",
    )  # fmt: skip


_BROKER_COLUMNS: Final = (
    Heading("Broker", is_number=True),
    Heading("State"),
    Heading("Leads", is_number=True),
    Heading("Replicas", is_number=True),
    Heading("Log", is_number=True),
    Heading("Free", is_number=True),
    Heading("Clock ahead", is_number=True),
)


def _broker(broker: BrokerView, view: LogView) -> TopRow:
    node = broker.node_id
    # From the metadata, which also has the partitions of brokers that do not answer.
    parts = [each for topic in view.topics.values() for each in topic.partitions]
    leads = sum(each.leader == node for each in parts)
    replicas = sum(node in each.replicas for each in parts)
    disks = [each for each in view.disks if each.node_id == node]
    used = sum(each.used_bytes for each in disks)
    free = min((each.usable_bytes for each in disks if each.usable_bytes is not None), default=None)
    ahead = broker.clock_ahead_ms
    is_bad = bool(broker.silent) or broker.is_fenced
    state = "no answer" if broker.silent else "fenced" if broker.is_fenced else "in service"
    return TopRow(
        (str(node), state, number(leads), number(replicas), size(used),
         "—" if free is None else size(free), "—" if ahead is None else f"{ahead} ms"),
        (node, state, leads, replicas, used, _known(free), _known(ahead)),
        "bad" if is_bad else "calm",
    )  # fmt: skip


def _known(value: float | None) -> float:
    return UNKNOWN if value is None else value


# ---- for scripts ----


def figures(sight: LogSight) -> Mapping[str, object]:
    """Return everything as plain data, for JSON; what is not known is None."""
    view = sight.view
    if view is None:
        return {"error": sight.error}
    return {
        "cluster": sight.cluster_id,
        # None and not -1: a script compares with null, and not with a number that is none.
        "controller": view.controller if view.controller >= 0 else None,
        "healthy": not sight.findings,
        "findings": [msgspec.to_builtins(each) for each in sight.findings],
        "topics": [
            {"topic": each.name, "partitions": len(each.partitions),
             **msgspec.to_builtins(figures_of(each))}
            for each in view.topics.values()
        ],
        "groups": [
            {"group": each.group_id, "state": each.state, "members": len(each.members),
             **msgspec.to_builtins(lag_of(each))}
            for each in view.groups.values()
        ],
        "brokers": [
            {"broker": each.node_id, "fenced": each.is_fenced, "silent": each.silent or None,
             "release": each.version, "clock_ahead_ms": each.clock_ahead_ms}
            for each in view.brokers
        ],
        "unseen": list(view.unseen),
    }  # fmt: skip
