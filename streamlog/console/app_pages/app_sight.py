"""AppSight: what a worker does at one moment, with rates since an earlier one.

Counters of nodes begin at 0 with each task, so rates are taken task by task: a task that has moved
away makes no rate negative, and one that has come counts from its own beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from streamlog.nodes.stream_nodes import Entry
from streamlog.processing.node_figures import NodeFigures
from streamlog.topology import Topology
from streamlog.worker.assignment.streams_assignor import Peer
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_health import HealthPhase, WorkerState, phase_of

ROUNDS_MAX: Final = 200
"""Rebalances that the time line keeps."""


class NodeSight(msgspec.Struct, frozen=True, kw_only=True):
    """A node on this worker, over all its tasks."""

    records_in: int = 0
    records_out: int = 0
    late: int = 0
    open_windows: int | None = None
    in_rate: float | None = None
    """Records per second; None: not known yet."""
    out_rate: float | None = None
    late_rate: float | None = None
    busy: float | None = None
    """The share of time that it works, of one core."""


class TopicSight(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that this worker reads."""

    lag: int | None = None
    """Records that are not processed yet; None: not known."""
    behind_ms: int | None = None
    """How far its event time is behind the clock, in the partition that is furthest behind."""
    paused: int = 0
    """Partitions that wait until there is room for more records."""


class WorkChange(msgspec.Struct, frozen=True):
    """A change of what this worker does: a rebalance, or the end of a restore."""

    at_ms: int
    phase: HealthPhase
    number: int
    """The rebalances that this worker has taken part in."""
    workers: int
    gained: tuple[str, ...] = ()
    """Tasks that began here."""
    lost: tuple[str, ...] = ()
    """Tasks that ended here."""


class AppSight(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment."""

    at_ms: int = 0
    """Milliseconds since 1970; 0: it was not looked at yet."""
    state: WorkerState = WorkerState()
    nodes: Mapping[str, NodeSight] = {}
    topics: Mapping[str, TopicSight] = {}
    peers: tuple[Peer, ...] = ()
    process: str = ""
    """The name of this worker."""
    leader: str = ""
    """The worker that leads the group."""
    stalled: Mapping[str, tuple[Sight, str]] = {}
    """Stalled tasks and agents to their progress, and what they wait for."""

    @property
    def phase(self) -> HealthPhase:
        """What the worker does."""
        return phase_of(self.state)

    def state_bytes(self, subtopology: int) -> int | None:
        """Return the size of a sub-topology's state on this worker; None: it has none."""
        of_sub = f"{subtopology}_"
        sizes = [each.state_bytes for each in self.state.tasks if each.task.startswith(of_sub)]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None


def node_sights(
    before: WorkerState | None, after: WorkerState, passed_s: float
) -> dict[str, NodeSight]:
    """Return the nodes of a worker, with their rates since an earlier moment.

    Args:
        before: the earlier state; None: there is none, so no rate is known.
        after: the present state.
        passed_s: the seconds between both.
    """
    old = {} if before is None else _by_task(before)
    totals, gains = (
        defaultdict[str, list[NodeFigures]](list),
        defaultdict[str, list[int]](lambda: [0] * 4),
    )
    for (task, node), now in _by_task(after).items():
        totals[node].append(now)
        was = old.get((task, node), NodeFigures(node))
        # A task that went away and came back counts from 0 again.
        was = was if was.records_in <= now.records_in else NodeFigures(node)
        gain = gains[node]
        gain[0] += now.records_in - was.records_in
        gain[1] += now.records_out - was.records_out
        gain[2] += now.late_records - was.late_records
        gain[3] += now.busy_ns - was.busy_ns
    # Two looks in one millisecond tell nothing.
    is_known = before is not None and passed_s > 0
    return {
        node: _sight(found, [each / passed_s for each in gains[node]] if is_known else _UNKNOWN)
        for node, found in totals.items()
    }


_UNKNOWN: Final = (None, None, None, None)


def _by_task(state: WorkerState) -> dict[tuple[str, str], NodeFigures]:
    return {(task.task, each.node): each for task in state.tasks for each in task.nodes}


def _sight(found: Iterable[NodeFigures], rates: Sequence[float | None]) -> NodeSight:
    first, *others = found
    total = sum(others, start=first)
    rate_in, rate_out, late, busy_ns = rates
    return NodeSight(
        records_in=total.records_in,
        records_out=total.records_out,
        late=total.late_records,
        open_windows=total.open_windows,
        in_rate=rate_in,
        out_rate=rate_out,
        late_rate=late,
        # Over 1 is rounding: one thread runs all tasks.
        busy=None if busy_ns is None else min(busy_ns / 1e9, 1.0),
    )


def topic_sights(
    state: WorkerState, topology: Topology, paused: Collection[tuple[str, int]]
) -> dict[str, TopicSight]:
    """Return the topics that a worker reads."""
    # The partition that is furthest behind decides: windows wait for it.
    lags, behind = defaultdict[str, int](int), dict[str, int]()
    for (topic, _), lag in state.lag_records.items():
        lags[topic] += lag
    times = [each for task in state.tasks for each in task.source_times]
    for (topic, _), time_ms in times:
        if state.now_ms is not None:
            behind[topic] = max(behind.get(topic, 0), state.now_ms - time_ms)
    waiting = [topic for topic, _ in paused]
    entries = [n for sub in topology.subtopologies for n in sub.nodes if isinstance(n, Entry)]
    return {
        name: TopicSight(lag=lags.get(name), behind_ms=behind.get(name), paused=waiting.count(name))
        for name in {*lags, *behind, *waiting, *(each.topic.name for each in entries)}
    }


def rounds_between(before: AppSight, after: AppSight, number: int) -> WorkChange | None:
    """Return what has changed in the work of a worker; None: nothing."""
    old, new = ({each.task for each in at.state.tasks} for at in (before, after))
    # The first sight is no change: nothing is known from before.
    if before.at_ms and old == new and before.phase == after.phase:
        return None
    return WorkChange(
        after.at_ms,
        after.phase,
        number,
        len(after.peers),
        tuple(sorted(new - old)),
        tuple(sorted(old - new)),
    )
