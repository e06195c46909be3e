"""The tasks of an app: which worker runs which, what they do here, and the rebalances so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from streamlog.adviser.log_view import size
from streamlog.console.app_pages.app_sight import AppSight, WorkChange
from streamlog.console.app_pages.profile_pages import profile_form
from streamlog.console.markup import Markup, Node, code, h1, h2, joined, p, span
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    Tone,
    address,
    age,
    badge,
    cut,
    heading_row,
    meter,
    moment,
    nothing,
    notice,
    number,
    pager,
    rows_of,
    tile,
    tiles,
)
from streamlog.errors import quantity
from streamlog.worker.assignment.streams_assignor import Peer
from streamlog.worker.health.worker_health import HealthPhase, TaskFigures

TONES: Final[Mapping[HealthPhase, Tone]] = {
    HealthPhase.RUNNING: "good",
    HealthPhase.STARTING: "info",
    HealthPhase.READING: "info",
    HealthPhase.REBALANCING: "warn",
    HealthPhase.RESTORING: "warn",
}
NAMED: Final = 12
"""The tasks that a cell names."""
ROUNDS_SHOWN: Final = 30


def tasks(
    sight: AppSight, rounds: Sequence[WorkChange], query: Mapping[str, str], token: str | None
) -> View:
    """Return the tasks of this worker, its peers, and what has changed."""
    # In the order of their ids, so that a row stays where it is.
    state = sight.state
    shown = cut(state.tasks, query.get("page", ""))
    running = sum(each.is_open for each in state.tasks)
    content = joined(
        heading_row(h1["Tasks"]),
        _stalls(sight),
        tiles(
            tile("This worker", sight.phase.value, None, TONES[sight.phase]),
            tile("Tasks here", f"{running} of {len(state.tasks)} run"),
            tile("Workers", number(len(sight.peers)) if sight.peers else "—"),
            tile("Lag here", number(sum(state.lag_records.values())), "records"),
        ),
        rows_of(_HEADINGS, [_task(each) for each in shown.rows], name="Tasks of this worker")
        if shown.rows
        else nothing(
            "This worker runs no task.", "There may be more workers than tasks, or a rebalance."
        ),
        pager(shown, lambda page: address("tasks", page=page), "tasks"),
        h2["Workers of the app"],
        rows_of(
            [Heading("Worker"), Heading("Address"), Heading("Runs"), Heading("Follows")],
            [_peer(each, sight) for each in sight.peers[:200]],
            name="Workers of the app",
        )
        if sight.peers
        else p(class_="hint")["The workers are known after the first rebalance."],
        profile_form(token),
        h2["What has changed here"],
        _time_line(rounds),
    )
    return View(title="Tasks", content=content)


_HEADINGS: Final = (
    Heading("Task"), Heading("State"), Heading("Lag", is_number=True),
    Heading("Size of state", is_number=True), Heading("Uncommitted", is_number=True),
    Heading("Snapshot", is_number=True),
)  # fmt: skip


def _task(task: TaskFigures) -> tuple[Node, ...]:
    return (
        code[task.task],
        _progress(task),
        number(task.lag_records),
        "—" if task.state_bytes is None else size(task.state_bytes),
        size(task.uncommitted_bytes),
        f"{age(task.snapshot_age_ms)} ago" if task.snapshot_age_ms is not None else "—",
    )


def _progress(task: TaskFigures) -> Node:
    if task.is_open:
        # It runs, and yet a source holds back its results: that is what an operator looks for.
        waits = [each.describe() for each in task.merge_waits if each.is_much]
        held = [each.holdup.describe() for each in task.held]
        return [badge("runs", "good"), *(f" {each}" for each in [*waits, *held][:3])]
    done, left = task.restored_records or 0, task.restore_left_records
    if left is None:
        return badge("opens", "info")
    share = done / max(done + left, 1)
    text = f"{number(left)} records left"
    return [badge("restores", "warn"), meter(share, f"{share:.0%} restored"), f" {text}"]


def _stalls(sight: AppSight) -> Markup | None:
    if not sight.stalled:
        return None
    lines: list[Node] = [
        p[
            f"{who} has made no progress for {age(sight.state.stalled_ms.get(who))}:"
            f" {why or 'no records arrive'}."
        ]
        for who, (_, why) in sorted(sight.stalled.items())[:NAMED]
    ]
    return notice("bad", lines)


def _peer(peer: Peer, sight: AppSight) -> tuple[Node, ...]:
    is_me, leads = peer.process == sight.process, peer.process == sight.leader
    return (
        [
            span(class_="name")[peer.process[:12]],
            [" ", badge("this one", "info")] if is_me else None,
            [" ", badge("leads", "calm")] if leads else None,
        ],
        # Text, and no link: the pages of this console lead to this server alone.
        code[peer.endpoint] if peer.endpoint else "without HTTP",
        _names(sorted(map(str, peer.active))),
        _names(sorted(map(str, peer.standby))),
    )


def _names(found: Sequence[str]) -> str:
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"{', '.join(found[:NAMED])}{more}" if found else "—"


def _time_line(rounds: Sequence[WorkChange]) -> Markup:
    # What came last is what one asks about.
    newest = [*reversed(rounds)][:ROUNDS_SHOWN]
    if not newest:
        return p(class_="hint")["Nothing yet."]
    return rows_of(
        [Heading("Time (UTC)"), Heading("Then"), Heading("Workers", is_number=True),
         Heading("Rebalances", is_number=True), Heading("Began here"), Heading("Ended here")],
        [
            (
                span(class_="nowrap")[moment(each.at_ms)[:19]],
                badge(each.phase.value, TONES[each.phase]),
                number(each.workers),
                number(each.number),
                _names(each.gained),
                _names(each.lost),
            )
            for each in newest
        ],
        name="What has changed here",
    )  # fmt: skip


def counted_tasks(sight: AppSight) -> str:
    """Return how many tasks the figures of this worker come from, in words."""
    of_all = sum(len(each.active) for each in sight.peers)
    here = quantity(len(sight.state.tasks), "task")
    return here if of_all <= len(sight.state.tasks) else f"{here} of {of_all}"
