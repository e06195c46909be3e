"""The brokers, their disks and the quorum: lists to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlog.adviser.log_view import BrokerView, DiskView, LogView, size
from streamlog.client.admin.cluster_descriptions import QuorumDescription
from streamlog.console.log_sight import LogSight
from streamlog.console.markup import Node, a, code, h2, joined, p
from streamlog.console.pages.cluster_pages import broker_tabs
from streamlog.console.pages.overview_page import LOW_DISK, not_seen_yet, stale
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    Tone,
    address,
    age,
    badge,
    cut,
    meter,
    number,
    pager,
    rows_of,
    tile,
    tiles,
)


def brokers(sight: LogSight, query: Mapping[str, str]) -> View:
    """Return the brokers with their disks, and the quorum."""
    view = sight.view
    if view is None:
        return View(title="Brokers", content=joined(broker_tabs(""), not_seen_yet(sight)))
    shown = cut(view.brokers, query.get("page", ""))
    content = joined(
        broker_tabs(""),
        stale(sight),
        tiles(
            tile("Brokers", number(len(view.brokers))),
            tile("Controller", number(view.controller) if view.controller >= 0 else "none", None,
                 "calm" if view.controller >= 0 else "bad"),
            tile("Moves in progress", a(href=address("brokers", "moves"))[number(view.moves)],
                 "reassignments of partitions"),
            tile("Open transactions", number(len(view.transactions))),
        ),
        rows_of(
            [Heading("Broker", is_number=True), Heading("State"), Heading("Release"),
             Heading("Rack"), Heading("Leads", is_number=True), Heading("Replicas", is_number=True),
             Heading("Clock ahead", is_number=True)],
            [_broker(each, view) for each in shown.rows],
            name="Brokers",
        ),
        pager(shown, lambda page: address("brokers", page=page), "brokers"),
        h2["Disks"],
        rows_of(
            [Heading("Broker", is_number=True), Heading("Directory"), Heading("State"),
             Heading("Log", is_number=True), Heading("Free", is_number=True)],
            [_disk(each) for each in view.disks[:200]],
            name="Disks",
        )
        if view.disks
        else p(class_="hint")["The brokers have not reported their disks."],
        *_quorum(view.quorum, sight.at_ms),
    )  # fmt: skip
    return View(title="Brokers", content=content)


def _broker(broker: BrokerView, view: LogView) -> tuple[Node, ...]:
    # Counted from the metadata, which has the partitions of brokers that do not answer as well.
    parts = [each for topic in view.topics.values() for each in topic.partitions]
    # The worst counts: a broker that is silent is most likely fenced as well.
    state: tuple[str, Tone] = ("in service", "good")
    if broker.silent:
        state = ("no answer", "bad")
    elif broker.is_fenced:
        state = ("fenced", "bad")
    elif broker.is_cordoned:
        state = ("cordoned", "warn")
    ahead = broker.clock_ahead_ms
    is_controller = broker.node_id == view.controller
    controller: Node = [" ", badge("controller", "info")] if is_controller else None
    return (
        [number(broker.node_id), controller],
        badge(*state),
        broker.version or "—",
        broker.settings.get("broker.rack") or "—",
        number(sum(each.leader == broker.node_id for each in parts)),
        number(sum(broker.node_id in each.replicas for each in parts)),
        "—" if ahead is None else f"{ahead} ms",
    )  # fmt: skip


def _disk(disk: DiskView) -> tuple[Node, ...]:
    free: Node = "—"
    if disk.usable_bytes is not None and disk.total_bytes:
        # Everything on the disk counts, not only the log: others fill it as well.
        share = 1 - disk.usable_bytes / disk.total_bytes
        tone: Tone = "bad" if 1 - share < LOW_DISK else "info"
        free = [
            f"{size(disk.usable_bytes)} of {size(disk.total_bytes)}",
            meter(share, f"{share:.0%} used", tone),
        ]
    return (
        number(disk.node_id),
        code[disk.path],
        badge("failed", "bad") if disk.is_failed else badge("works", "good"),
        size(disk.used_bytes),
        free,
    )


def _quorum(quorum: QuorumDescription | None, now_ms: int) -> Sequence[Node]:
    if quorum is None:
        return ()
    rows = [
        (
            number(each.node_id),
            badge("leader", "info") if each.node_id == quorum.leader else kind,
            number(quorum.lag(each)),
            age(None if each.caught_up_ms is None else max(0, now_ms - each.caught_up_ms)),
        )
        for kind, members in (("voter", quorum.voters), ("observer", quorum.observers))
        for each in members
    ]
    columns = [
        Heading("Node", is_number=True), Heading("Part"), Heading("Entries behind", is_number=True),
        Heading("Last caught up", is_number=True),
    ]  # fmt: skip
    return (
        h2["Quorum of controllers"],
        p(class_="hint")[
            f"Epoch {quorum.epoch}, committed up to entry {number(quorum.high_watermark)}."
        ],
        rows_of(columns, rows[:200], name="Quorum of controllers"),
    )
